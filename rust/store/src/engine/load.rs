//! Folding a stream from its newest snapshot and the frames after it. The chain is checked on the way:
//! what was altered is not acted upon.

use std::cell::Cell;

use holdfast_core::chain::Auditor;
use holdfast_core::content::{Content, Opening, Openings};
use holdfast_core::ids::{StoreId, StreamId};
use holdfast_core::records::{Body, Record, read};
use holdfast_core::state::{RunState, State};

use super::cache::Loaded;
use crate::blobs::Blobs;
use crate::error::{Result, StoreError};
use crate::rows::{FrameRow, Look, StreamRow};

/// The records of a frame as texts.
pub(crate) fn texts(frame: &FrameRow) -> Result<Vec<&[u8]>> {
    holdfast_core::frame::split(frame.body.as_bytes())
        .ok_or_else(|| StoreError::Corrupt(format!("frame {} is not an array of records", frame.pos)))
}

/// What opens the contents of a frame, as it is kept beside it.
pub(crate) fn openings(frame: &FrameRow) -> Result<Openings> {
    frame.contents.as_deref().map_or(Ok(Openings::new()), |contents| openings_of(contents, frame.pos))
}

/// The same from their text.
pub(crate) fn openings_of(contents: &str, pos: i64) -> Result<Openings> {
    let corrupt = || StoreError::Corrupt(format!("the contents of frame {pos} cannot be read"));
    let kept = holdfast_core::frame::kept(contents).ok_or_else(corrupt)?;
    let opened = |(commit, kept): (_, holdfast_core::frame::Kept<'_>)| {
        kept.opening().map(|opening| (commit, opening)).map_err(|_| corrupt())
    };
    kept.into_iter().map(opened).collect()
}

/// Adds the contents of a record that are kept as blobs.
pub(crate) fn add_blobs(record: &Record, blobs: &Blobs, openings: &mut Openings) -> Result<()> {
    for content in record.contents() {
        if openings.contains_key(&content.commit) || !blobs.has(&content.commit)? {
            continue;
        }
        open_blob(&content, blobs, openings)?;
    }
    Ok(())
}

/// Adds a content that is kept as a blob, if it is JSON.
pub(super) fn open_blob(content: &Content, blobs: &Blobs, openings: &mut Openings) -> Result<()> {
    let blob = blobs.get(&content.commit)?;
    if content.media == holdfast_core::records::Media::json() {
        let value = holdfast_core::canonical::from_text(&blob.bytes)?;
        openings.insert(content.commit, Opening { salt: blob.salt, value });
    }
    Ok(())
}

/// Folds records of a stream on top of a state.
struct Folder<'a> {
    look: &'a dyn Look,
    blobs: &'a Blobs,
    store: StoreId,
    has_blobs: bool,
    /// Something was erased: a fold from before it still holds that.
    erased: Cell<bool>,
}

impl Folder<'_> {
    /// The fold up to a record, or to the end.
    fn fold(&self, row: &StreamRow, from: Option<State>, until: Option<u64>) -> Result<Option<State>> {
        let mut state = from;
        let mut auditor = match &state {
            Some(state) => Auditor::after(state.head()),
            None => Auditor::new(self.store, row.id),
        };
        let until = until.unwrap_or(row.last_seq);
        while auditor.head().seq < until {
            let frames = self.look.frames(row.key, auditor.head().seq)?;
            if frames.is_empty() {
                break;
            }
            for frame in frames {
                self.fold_frame(&frame, until, &mut auditor, &mut state)?;
            }
        }
        Ok(state)
    }

    fn fold_frame(
        &self,
        frame: &FrameRow,
        until: u64,
        auditor: &mut Auditor,
        state: &mut Option<State>,
    ) -> Result<()> {
        let mut openings = openings(frame)?;
        let skipped = usize::try_from((auditor.head().seq + 1).saturating_sub(frame.first_seq)).unwrap_or(0);
        for text in texts(frame)?.into_iter().skip(skipped) {
            if auditor.head().seq >= until {
                return Ok(());
            }
            let record = auditor.next(text)?;
            if self.has_blobs {
                add_blobs(&record, self.blobs, &mut openings)?;
            }
            if matches!(record.body, Body::ContentErased(_)) {
                self.erased.set(true);
            }
            let hash = auditor.head().hash;
            if let Some(state) = state {
                state.apply_hashed(&record, hash, &openings)?;
            } else {
                let parent = self.parent(&record)?;
                *state = Some(State::first_hashed(&record, hash, &openings, parent.as_ref())?);
            }
        }
        Ok(())
    }

    /// The parent's fold at the fork point, for the first record of a fork.
    fn parent(&self, record: &Record) -> Result<Option<RunState>> {
        let Body::RunForked(forked) = &record.body else { return Ok(None) };
        fold_run_at(self.look, self.blobs, self.store, StreamId::Run(forked.parent), forked.at)
    }
}

fn folder<'a>(look: &'a dyn Look, blobs: &'a Blobs, store: StoreId, row: &StreamRow) -> Result<Folder<'a>> {
    let has_blobs = !look.blob_refs(row.key)?.is_empty();
    Ok(Folder { look, blobs, store, has_blobs, erased: Cell::new(false) })
}

/// The fold of a run at a record.
pub(crate) fn fold_run_at(
    look: &dyn Look,
    blobs: &Blobs,
    store: StoreId,
    stream: StreamId,
    seq: u64,
) -> Result<Option<RunState>> {
    let Some(row) = look.stream(stream)? else { return Ok(None) };
    if seq == 0 || seq > row.last_seq {
        return Ok(None);
    }
    let state = folder(look, blobs, store, &row)?.fold(&row, None, Some(seq))?;
    Ok(state.and_then(|state| state.as_run().cloned()))
}

/// The fold of a whole stream, from its records alone.
pub(crate) fn fold_stream(
    look: &dyn Look,
    blobs: &Blobs,
    store: StoreId,
    row: &StreamRow,
) -> Result<Option<State>> {
    let folder = Folder { look, blobs, store, has_blobs: true, erased: Cell::new(false) };
    folder.fold(row, None, None)
}

/// The fold of a stream now.
pub(crate) fn load(
    look: &dyn Look,
    blobs: &Blobs,
    store: StoreId,
    row: &StreamRow,
) -> Result<Option<Loaded>> {
    let kept = match look.snapshot(row.key)? {
        Some((seq, text)) if seq <= row.last_seq => Some((seq, snapshot(&text, row, seq)?)),
        _ => None,
    };
    let (kept, from) = kept.map_or((0, None), |(seq, state)| (seq, Some(state)));
    let state = folder(look, blobs, store, row)?.fold(row, from, None)?;
    match state {
        Some(state) if state.head().hash == row.head && state.head().seq == row.last_seq => {
            Ok(Some(Loaded { key: row.key, state, kept }))
        }
        Some(_) => Err(StoreError::Corrupt(format!("{} does not end where its row says", row.id))),
        None => Ok(None),
    }
}

/// A fold that others have left behind, brought up to its row; from the start if it does not lead there.
pub(crate) fn advance(
    look: &dyn Look,
    blobs: &Blobs,
    store: StoreId,
    row: &StreamRow,
    behind: Loaded,
) -> Result<Option<Loaded>> {
    let Loaded { key, state, kept } = behind;
    if state.head().seq < row.last_seq {
        let folder = folder(look, blobs, store, row)?;
        let ahead = folder.fold(row, Some(state), None);
        if let Ok(Some(state)) = ahead
            && state.head().hash == row.head
            && !folder.erased.get()
        {
            return Ok(Some(Loaded { key, state, kept }));
        }
    }
    load(look, blobs, store, row)
}

/// A fold as it was kept.
pub(crate) fn snapshot(text: &str, row: &StreamRow, seq: u64) -> Result<State> {
    let corrupt = || StoreError::Corrupt(format!("the snapshot of {} cannot be read", row.id));
    let tree = holdfast_core::canonical::from_text(text.as_bytes()).map_err(|_| corrupt())?;
    let state: State = read(&tree).map_err(|_| corrupt())?;
    let head = state.head();
    if head.stream == row.id && head.seq == seq { Ok(state) } else { Err(corrupt()) }
}
