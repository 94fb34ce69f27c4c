//! Taking over what another store wrote: frames byte for byte, the tree over them, what was sent and not
//! delivered. Nothing is decided here; the fold and the audit of the whole come afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::ids::StreamId;
use holdfast_core::records::{Record, genesis};

use super::desk::Desk;
use super::load::texts;
use super::{Durability, Engine};
use crate::error::{Result, StoreError};
use crate::rows::{CarriedFrame, EnvelopeRow, FrameRow, SealRow, SealedFrame};

/// What a store that takes over another's frames has to remember on the way.
#[derive(Debug, Default)]
pub(crate) struct Import {
    streams: BTreeMap<StreamId, i64>,
    /// Positions of frames that something else names, and where these came to stand.
    pub(crate) moved: BTreeMap<i64, Option<i64>>,
}

impl Import {
    /// These positions are named by something else.
    pub(crate) fn of(named: impl Iterator<Item = i64>) -> Self {
        Self { streams: BTreeMap::new(), moved: named.map(|pos| (pos, None)).collect() }
    }
}

impl Engine {
    /// Takes over a page of frames. Those that are leaves come in the order of their numbers.
    pub(crate) fn import(&self, page: Vec<CarriedFrame>, import: &Arc<Mutex<Import>>) -> Result<()> {
        let so_far = Arc::clone(import);
        let Import { streams, moved } = self.run(Durability::Commit, false, move |desk| {
            desk.import(&page, &so_far.lock().unwrap_or_else(PoisonError::into_inner))
        })?;
        let mut import = import.lock().unwrap_or_else(PoisonError::into_inner);
        import.streams.extend(streams);
        import.moved.extend(moved);
        Ok(())
    }

    /// Takes over what was sent and not delivered, and the seals.
    pub(crate) fn import_rest(&self, envelopes: Vec<EnvelopeRow>, seals: Vec<SealRow>) -> Result<()> {
        self.run(Durability::Commit, false, move |desk| {
            for row in &envelopes {
                desk.rows.put_envelope(&row.envelope, row.sent_at)?;
                if let Some(code) = &row.refused {
                    desk.rows.refuse_envelope(row.envelope.id, code)?;
                }
            }
            seals.iter().try_for_each(|seal| desk.rows.put_seal(seal))
        })
    }
}

impl Desk<'_> {
    /// What was added to what is remembered: a page may be taken over again.
    fn import(&mut self, page: &[CarriedFrame], so_far: &Import) -> Result<Import> {
        let (mut range, mut added) = (self.range()?, Import::default());
        for carried in page {
            let known = added.streams.get(&carried.stream).or_else(|| so_far.streams.get(&carried.stream));
            let stream = match known {
                Some(key) => *key,
                None => self.rows.add_stream(carried.stream, genesis(self.store.id(), carried.stream))?,
            };
            added.streams.insert(carried.stream, stream);
            let frame = FrameRow { pos: 0, stream, at: time_of(&carried.row)?, ..carried.row.clone() };
            let pos = self.rows.add_frame(&frame)?;
            if so_far.moved.contains_key(&carried.row.pos) {
                added.moved.insert(carried.row.pos, Some(pos));
            }
            match carried.leaf {
                Some(n) if n != range.size() => {
                    return Err(StoreError::Corrupt(format!("the tree has no leaf {}", range.size())));
                }
                Some(_) => {
                    let FrameRow { first_seq, last_seq, head, .. } = frame;
                    let sealed = SealedFrame { stream: carried.stream, first_seq, last_seq, head };
                    self.add_leaf(&mut range, pos, &sealed)?;
                }
                None => {}
            }
        }
        Ok(added)
    }
}

/// The time of a frame's last record.
fn time_of(frame: &FrameRow) -> Result<u64> {
    let texts = texts(frame)?;
    let last =
        texts.last().ok_or_else(|| StoreError::Corrupt(format!("frame {} has no records", frame.pos)))?;
    Ok(Record::parse(last)?.at)
}
