//! Sealing: the frames that are no leaves yet are numbered, and the tree's head is signed. All of it is one
//! turn, and the seal leaves after the barrier, so nobody ever holds a seal over what a power cut could take.

use holdfast_core::evidence::{
    Checkpoint, Hash, Note, NoteError, Range, SignerKey, TILE, VerifierKey, consistency, frame_leaf,
    inclusion, node_hash, spell_hash,
};
use holdfast_core::ids::StreamId;
use holdfast_core::limits;
use holdfast_core::records::{Actor, Draft, Key, SealSigned, Text};

use super::desk::Desk;
use super::{Durability, Engine};
use crate::error::{Result, StoreError};
use crate::rows::{LeafRow, Look, SealRow, SealedFrame};

/// The log's name: a restored store is another log, because what the old one signed after the backup is not
/// in it.
fn origin(store: &dyn crate::store::Store) -> String {
    format!("holdfast/{}/{}", store.id(), store.epoch())
}

/// A subtree's hash from those that are kept.
fn subtree(look: &dyn Look, level: u32, n: u64) -> Result<Hash> {
    if level.is_multiple_of(TILE) {
        let lost = || StoreError::Corrupt(format!("the tree has no node {level}/{n}"));
        return look.node(level, n)?.ok_or_else(lost);
    }
    Ok(node_hash(&subtree(look, level - 1, 2 * n)?, &subtree(look, level - 1, 2 * n + 1)?))
}

/// What came of a turn of the sealer.
enum Turn {
    /// There are more frames than one turn numbers.
    More,
    Done(SealRow),
}

impl Engine {
    /// Seals everything that was committed so far. Where nothing was since the newest seal, that is the answer.
    pub fn seal(&self, key: &SignerKey, by: &Actor) -> Result<SealRow> {
        loop {
            let (key, by) = (key.clone(), by.clone());
            let turn = self.run(Durability::Barrier, false, move |desk| desk.seal(&key, &by))?;
            if let Turn::Done(seal) = turn {
                return Ok(seal);
            }
        }
    }

    /// Keeps what these keys have signed on a copy of one of the seals, once each is checked. A signature says
    /// for itself who made it and when: it stands beside the seal, and is no record.
    pub fn witnessed(&self, copy: &Note, keys: &[VerifierKey]) -> Result<SealRow> {
        let (copy, keys) = (copy.clone(), keys.to_vec());
        self.run(Durability::Barrier, false, move |desk| desk.witnessed(&copy, &keys))
    }

    /// The seals, newest first.
    pub fn seals(&self, most: usize) -> Result<Vec<SealRow>> {
        let mut found = Vec::new();
        self.store.look(&mut |look| {
            found = look.seals(most)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// What proves that the tree at one size begins with the tree at another.
    pub fn consistency(&self, old: u64, new: u64) -> Result<Vec<String>> {
        let mut path = Vec::new();
        self.store.look(&mut |look| {
            if old > new || new > look.leaves()? {
                return Err(NoteError::BadNote("it covers more than is in the tree").into());
            }
            path = consistency(&|level, n| subtree(look, level, n), old, new)?;
            Ok(())
        })?;
        Ok(path.iter().map(spell_hash).collect())
    }

    /// The newest frame of a stream under a seal that begins at or before a record, and the way from it to
    /// the root; none if none is.
    pub fn inclusion(
        &self,
        stream: StreamId,
        size: u64,
        until: u64,
    ) -> Result<Option<(LeafRow, Vec<String>)>> {
        let mut found = None;
        self.store.look(&mut |look| {
            let Some(row) = look.stream(stream)? else { return Ok(()) };
            let Some(leaf) = look.newest_leaf(row.key, size, until)? else { return Ok(()) };
            let path = inclusion(&|level, n| subtree(look, level, n), leaf.n, size)?;
            found = Some((leaf, path.iter().map(spell_hash).collect()));
            Ok(())
        })?;
        Ok(found)
    }
}

impl Desk<'_> {
    fn seal(&mut self, key: &SignerKey, by: &Actor) -> Result<Turn> {
        let frames = self.rows.unsealed(limits::SEALED_TOGETHER_MAX)?;
        let before = self.rows.seals(1)?.into_iter().next();
        // Not by the newest position: on a server, a frame before the seal's own may have been committed after it.
        if let Some(seal) = before.as_ref().filter(|seal| frames.iter().all(|(pos, _)| *pos == seal.pos))
            && Note::parse(&seal.checkpoint).is_ok_and(|note| note.signed_by(key.verifier()).is_ok())
        {
            return Ok(Turn::Done(seal.clone())); // only the record of that seal came after it
        }
        let more = frames.len() == limits::SEALED_TOGETHER_MAX;
        let mut range = self.range()?;
        for (pos, frame) in frames {
            self.add_leaf(&mut range, pos, &frame)?;
        }
        if more { Ok(Turn::More) } else { self.sign(&range, before.as_ref(), key, by).map(Turn::Done) }
    }

    /// Makes a frame the next leaf.
    pub(super) fn add_leaf(&mut self, range: &mut Range, pos: i64, frame: &SealedFrame) -> Result<()> {
        let hash = frame_leaf(frame.stream, frame.first_seq, frame.last_seq, &frame.head);
        self.rows.put_leaf(range.size(), pos, &hash)?;
        let mut made = Vec::new();
        range.push(hash, |level, n, hash| {
            if level > 0 && level.is_multiple_of(TILE) {
                made.push((level, n, *hash));
            }
        });
        made.into_iter().try_for_each(|(level, n, hash)| self.rows.put_node(level, n, &hash))
    }

    /// The tree as it stands.
    pub(super) fn range(&self) -> Result<Range> {
        let size = self.rows.leaves()?;
        Range::of(&|level, n| subtree(&*self.rows, level, n), size)
    }

    fn witnessed(&mut self, copy: &Note, keys: &[VerifierKey]) -> Result<SealRow> {
        let size = Checkpoint::parse(&copy.text)?.size;
        let known = self.rows.seals(usize::MAX)?.into_iter().find(|seal| seal.size == size);
        let mut seal = known.ok_or(NoteError::BadNote("it is not a seal of this store"))?;
        let mut note = Note::parse(&seal.checkpoint)?;
        for key in keys {
            note.adopt(copy, key)?;
        }
        seal.checkpoint = note.to_string();
        self.rows.put_seal(&seal)?;
        Ok(seal)
    }

    fn sign(
        &mut self,
        range: &Range,
        before: Option<&SealRow>,
        key: &SignerKey,
        by: &Actor,
    ) -> Result<SealRow> {
        let (size, root, origin) = (range.size(), range.root(), origin(self.store));
        let extensions = before.and_then(|seal| follows(seal, &origin)).into_iter().collect();
        let mut note = Note::new(Checkpoint { origin: origin.clone(), size, root, extensions }.text());
        note.sign(key);
        let (checkpoint, root) = (note.to_string(), spell_hash(&root));
        let odd = || StoreError::Corrupt("a seal does not fit its record".to_owned());
        let word = |text: String| Key::new(text).ok_or_else(odd);
        let body = SealSigned {
            checkpoint: Text::new(checkpoint.clone()).ok_or_else(odd)?,
            key_id: word(key.verifier().key_id())?,
            origin: word(origin)?,
            root: word(root.clone())?,
            size,
        };
        let written = self.note(StreamId::Store, vec![Draft::new(body, by.clone())])?;
        let seal = SealRow { size, pos: written.pos.ok_or_else(odd)?, root, checkpoint };
        self.rows.put_seal(&seal)?;
        Ok(seal)
    }
}

/// What a restored store says of the log that it goes on from.
fn follows(seal: &SealRow, origin: &str) -> Option<String> {
    let note = Note::parse(&seal.checkpoint).ok()?;
    let before = Checkpoint::parse(&note.text).ok()?;
    let inherited = before.extensions.iter().find(|line| line.starts_with("follows ")).cloned();
    let mut lines = before.text();
    lines.truncate(lines.len() - 1);
    let mut parts = lines.split('\n').take(3);
    if before.origin == origin {
        return inherited;
    }
    Some(format!("follows {} {} {}", parts.next()?, parts.next()?, parts.next()?))
}
