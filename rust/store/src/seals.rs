//! The audit of the tree: every leaf is its frame, every kept subtree follows from its leaves, and every seal
//! is the root at its size: the store's own, and those that were kept elsewhere. Against these truncation and
//! rewriting show, however consistent what is left may be.

use holdfast_core::error::Code;
use holdfast_core::evidence::{Checkpoint, Hash, Note, Range, TILE, VerifierKey, frame_leaf, spell_hash};
use holdfast_core::limits;

use crate::engine::Engine;
use crate::error::Result;
use crate::rows::{LeafRow, SealRow};
use crate::store::Store;
use crate::verify::Problem;

/// What the audit of the tree came to.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    pub(crate) problems: Vec<Problem>,
    /// Leaves that the newest good seal covers.
    pub(crate) size: u64,
    /// Seals of the store, and how many of them are signed by keys that were given.
    pub(crate) seals: u64,
    pub(crate) signed: u64,
    /// Seals that were kept elsewhere and found here.
    pub(crate) kept: u64,
}

/// A root that must be the tree's at a size.
struct Expected {
    size: u64,
    root: Hash,
    kept: bool,
}

struct Audit<'a> {
    store: &'a dyn Store,
    found: Sealed,
}

/// Audits the tree of a store against its seals and those that were kept elsewhere; signatures of the given
/// keys are checked.
pub(crate) fn audit(engine: &Engine, kept: &[Note], keys: &[VerifierKey]) -> Result<Sealed> {
    let mut audit = Audit { store: &**engine.store(), found: Sealed::default() };
    let mut expected = Vec::new();
    for seal in engine.seals(usize::MAX)? {
        expected.extend(audit.own(&seal, keys));
    }
    for note in kept {
        expected.extend(audit.expect(note, true, keys));
    }
    expected.sort_by_key(|one| one.size);
    audit.leaves(&expected)?;
    Ok(audit.found)
}

impl Audit<'_> {
    fn problem(&mut self, pos: Option<i64>, what: impl Into<String>) {
        let what = what.into();
        self.found.problems.push(Problem {
            code: Code::SealMismatch.as_str(),
            stream: None,
            seq: None,
            pos,
            what,
        });
    }

    fn own(&mut self, seal: &SealRow, keys: &[VerifierKey]) -> Option<Expected> {
        self.found.seals += 1;
        let Ok(note) = Note::parse(&seal.checkpoint) else {
            self.problem(Some(seal.pos), format!("the seal over {} leaves cannot be read", seal.size));
            return None;
        };
        let expected = self.expect(&note, false, keys)?;
        let root = spell_hash(&expected.root);
        if expected.size != seal.size || root != seal.root {
            self.problem(Some(seal.pos), format!("the seal over {} leaves says something else", seal.size));
            return None;
        }
        Some(expected)
    }

    fn expect(&mut self, note: &Note, kept: bool, keys: &[VerifierKey]) -> Option<Expected> {
        let Ok(checkpoint) = Checkpoint::parse(&note.text) else {
            self.problem(None, "a seal is no checkpoint");
            return None;
        };
        let forged = |key: &VerifierKey| {
            matches!(note.signed_by(key), Err(holdfast_core::evidence::NoteError::Forged(_)))
        };
        if let Some(key) = keys.iter().find(|key| forged(key)) {
            self.problem(None, format!("the signature of {} on a seal is not its own", key.key_id()));
            return None;
        }
        let signed = keys.iter().any(|key| note.signed_by(key).is_ok());
        self.found.signed += u64::from(signed && !kept);
        if kept && !keys.is_empty() && !signed {
            self.problem(None, "a seal that was kept elsewhere is signed by none of the keys");
            return None;
        }
        let ours = format!("holdfast/{}/", self.store.id());
        if !checkpoint.origin.starts_with(&ours) {
            self.problem(None, format!("a seal is of another store: {}", checkpoint.origin));
            return None;
        }
        Some(Expected { size: checkpoint.size, root: checkpoint.root, kept })
    }

    /// Walks the leaves and builds the tree anew.
    fn leaves(&mut self, expected: &[Expected]) -> Result<()> {
        let mut range = Range::default();
        let mut waiting = expected.iter().peekable();
        let (mut bad, mut all) = (false, 0);
        loop {
            while let Some(one) = waiting.next_if(|one| one.size == range.size()) {
                self.meet(one, &range.root());
            }
            let mut rows = Vec::new();
            self.store.look(&mut |look| {
                rows = look.leaf_rows(range.size(), limits::PAGE_RECORDS_MAX)?;
                all = look.leaves()?;
                Ok(())
            })?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                while let Some(one) = waiting.next_if(|one| one.size == range.size()) {
                    self.meet(one, &range.root());
                }
                if !self.leaf(&row, range.size()) {
                    bad = true;
                    break;
                }
                self.push(&mut range, row.hash)?;
            }
            if bad {
                return Ok(()); // the first bad leaf was named; what follows it says nothing
            }
        }
        if all > range.size() {
            self.problem(None, format!("the frame of leaf {} of the tree is gone", range.size()));
        }
        for one in waiting {
            let what = format!("a seal covers {} leaves, and {} are here", one.size, range.size());
            self.problem(None, what);
        }
        Ok(())
    }

    fn meet(&mut self, expected: &Expected, root: &Hash) {
        if expected.root == *root {
            self.found.size = self.found.size.max(expected.size);
            self.found.kept += u64::from(expected.kept);
        } else {
            let what = format!("the first {} frames are not those that were sealed", expected.size);
            self.problem(None, what);
        }
    }

    fn leaf(&mut self, row: &LeafRow, n: u64) -> bool {
        let frame = &row.frame;
        let hash = frame_leaf(frame.stream, frame.first_seq, frame.last_seq, &frame.head);
        if row.n == n && row.hash == hash {
            return true;
        }
        self.problem(Some(row.pos), format!("leaf {n} of the tree is not its frame, or is gone"));
        false
    }

    fn push(&mut self, range: &mut Range, leaf: Hash) -> Result<()> {
        let mut made = Vec::new();
        range.push(leaf, |level, n, hash| {
            if level > 0 && level.is_multiple_of(TILE) {
                made.push((level, n, *hash));
            }
        });
        for (level, n, hash) in made {
            let mut kept = None;
            self.store.look(&mut |look| {
                kept = look.node(level, n)?;
                Ok(())
            })?;
            if kept != Some(hash) {
                self.problem(
                    None,
                    format!("the node {level}/{n} of the tree does not follow from its leaves"),
                );
            }
        }
        Ok(())
    }
}
