//! Reading the lines of a bundle's stream: records are read on every processor, and audited in order.

use holdfast_core::evidence::{BundleError, StreamAudit, line};
use holdfast_core::frame::split;
use holdfast_core::state::RunState;

use crate::pages::read_all;

/// Lines of a stream's file, as they come.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
}

impl Lines {
    /// Audits what is whole of a piece of the file.
    pub fn push(
        &mut self,
        audit: &mut StreamAudit,
        piece: &[u8],
        parent: Option<&RunState>,
    ) -> Result<(), BundleError> {
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else {
            self.rest.extend_from_slice(piece);
            return Ok(());
        };
        let (whole, rest) = piece.split_at(end);
        let text = [std::mem::take(&mut self.rest).as_slice(), whole].concat();
        self.rest.extend_from_slice(&rest[1..]);
        audit_lines(audit, &text, parent)
    }

    /// Whether the file has ended with a line.
    pub fn is_whole(&self) -> bool {
        self.rest.is_empty()
    }
}

fn audit_lines(audit: &mut StreamAudit, text: &[u8], parent: Option<&RunState>) -> Result<(), BundleError> {
    let parts = |text| {
        let (contents, body) = line(text)?;
        Some((contents, split(body)?))
    };
    let frames: Vec<_> = text.split(|byte| *byte == b'\n').map(parts).collect();
    let texts: Vec<&[u8]> = frames.iter().flatten().flat_map(|(_, texts)| texts).copied().collect();
    let mut read = read_all(&texts).into_iter();
    for frame in &frames {
        let (contents, texts) = frame.as_ref().ok_or_else(|| audit.altered("a line is not a frame"))?;
        audit.frame(contents, read.by_ref().take(texts.len()), parent)?;
    }
    Ok(())
}
