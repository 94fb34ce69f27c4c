//! Streams as a bundle has them: a line for each frame, the records' text as it was hashed. What is too
//! private, or is bytes and no JSON, stays out of the lines and is named.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::canonical::to_bytes;
use holdfast_core::content::{Commit, Content, Openings};
use holdfast_core::ids::StreamId;
use holdfast_core::records::{Media, Privacy, Record};

use super::{Engine, load};
use crate::error::Result;
use crate::rows::FrameRow;

/// A page of a stream.
#[derive(Debug, Clone, Default)]
pub struct Exported {
    /// Whole lines.
    pub text: Vec<u8>,
    pub last_seq: u64,
    /// Whether more follow.
    pub more: bool,
    /// Contents that are there and were left out.
    pub withheld: BTreeSet<Commit>,
    /// Contents that are files of their own.
    pub blobs: BTreeSet<Commit>,
}

impl Engine {
    /// The lines of a stream after a record, up to the frame that holds `until`, with the contents of these
    /// classes of privacy.
    pub fn export(&self, stream: StreamId, after: u64, until: u64, include: &[Privacy]) -> Result<Exported> {
        let mut page = None;
        self.store.look(&mut |look| {
            let Some(row) = look.stream(stream)? else { return Ok(()) };
            let mut found = Exported { last_seq: after, ..Exported::default() };
            let refs = look.blob_refs(row.key)?;
            for frame in look.frames(row.key, after)?.into_iter().filter(|frame| frame.first_seq <= until) {
                found.last_seq = frame.last_seq;
                self.export_frame(&frame, &refs, include, &mut found)?;
            }
            found.more = found.last_seq < row.last_seq.min(until) && found.last_seq > after;
            page = Some(found);
            Ok(())
        })?;
        page.ok_or_else(|| holdfast_core::run::Refused::NoSuchRun.into())
    }

    fn export_frame(
        &self,
        frame: &FrameRow,
        refs: &BTreeMap<Commit, u64>,
        include: &[Privacy],
        page: &mut Exported,
    ) -> Result<()> {
        page.text.extend_from_slice(b"{\"contents\":");
        let usual = [Privacy::Public, Privacy::Internal].iter().all(|class| include.contains(class));
        if usual && refs.is_empty() && is_plain(&frame.body) {
            page.text.extend_from_slice(frame.contents.as_deref().unwrap_or("{}").as_bytes());
        } else {
            let kept = self.chosen(frame, refs, include, page)?;
            page.text.extend_from_slice(&to_bytes(&kept)?);
        }
        page.text.extend_from_slice(b",\"records\":");
        page.text.extend_from_slice(frame.body.as_bytes());
        page.text.extend_from_slice(b"}\n");
        Ok(())
    }

    /// The contents of a frame that go into its line.
    fn chosen(
        &self,
        frame: &FrameRow,
        refs: &BTreeMap<Commit, u64>,
        include: &[Privacy],
        page: &mut Exported,
    ) -> Result<Openings> {
        let mut kept = load::openings(frame)?;
        let mut found: BTreeMap<Commit, Content> = BTreeMap::new();
        for text in load::texts(frame)? {
            found
                .extend(Record::parse(text)?.contents().into_iter().map(|content| (content.commit, content)));
        }
        for (commit, content) in found {
            let is_there = kept.contains_key(&commit) || refs.contains_key(&commit);
            if is_there && !include.contains(&content.privacy) {
                kept.remove(&commit);
                page.withheld.insert(commit);
            } else if is_there && !kept.contains_key(&commit) {
                if content.media != Media::json() {
                    page.blobs.insert(commit);
                    continue;
                }
                let mut opened = Openings::new();
                load::open_blob(&content, self.store.blobs(), &mut opened)?;
                kept.extend(opened);
            }
        }
        Ok(kept)
    }

    /// The salt of a blob and its bytes, checked.
    pub fn salted_blob(&self, name: &Commit) -> Result<Vec<u8>> {
        let blob = self.store.blobs().get(name)?;
        Ok([&blob.salt.0[..], &blob.bytes].concat())
    }
}

/// Whether nothing in a frame can be too private: then what stands beside it goes out as it is.
fn is_plain(body: &str) -> bool {
    !["\"sensitive\"", "\"secret\"", "\"content_refs_only\""].iter().any(|word| body.contains(word))
}
