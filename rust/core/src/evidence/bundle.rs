//! The audit of a bundle's streams: chain, contents, fold, and the proof that ties a stream to a seal. One
//! stream at a time, one frame at a time, in memory that does not grow with the records.
//!
//! A stream's file has a line for each frame, with its records' text as it was hashed and what opens their
//! contents: `{"contents":{..},"records":[..]}`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::note::NoteError;
use super::tree::{Hash, leaf_hash, read_hash, verify_inclusion};
use crate::canonical::to_bytes;
use crate::chain::{Auditor, ChainError, Flaw};
use crate::content::{Commit, ContentError, Openings};
use crate::error::{Code, Coded};
use crate::frame::{Kept, kept};
use crate::ids::{StoreId, StreamId};
use crate::mutants::{Mutant, mutant};
use crate::records::{Body, Fold, ReadError, Record, RecordHash};
use crate::state::{RunState, State};

/// What is wrong with a bundle, first found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    #[error("{file}: {what}")]
    Altered { file: String, what: String },
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("record {seq} of {stream}: the content {commit} is neither there nor erased nor withheld")]
    Lost { stream: StreamId, seq: u64, commit: Commit },
    #[error("facts.json: its {0} is not what follows from the records")]
    Facts(&'static str),
    #[error("the proof for {stream} does not show that it is under the seal: {what}")]
    Unproven { stream: StreamId, what: &'static str },
    #[error("the seal: {0}")]
    Seal(#[from] NoteError),
}

impl BundleError {
    /// The stream and the record that it is about, where there is one.
    pub fn place(&self) -> (Option<StreamId>, Option<u64>) {
        match self {
            Self::Chain(error) => (Some(error.stream), Some(error.seq)),
            Self::Lost { stream, seq, .. } => (Some(*stream), Some(*seq)),
            Self::Unproven { stream, .. } => (Some(*stream), None),
            Self::Altered { .. } | Self::Facts(_) | Self::Seal(_) => (None, None),
        }
    }
}

impl Coded for BundleError {
    fn code(&self) -> Code {
        match self {
            Self::Altered { .. } => Code::BundleAltered,
            Self::Chain(error) => error.code(),
            Self::Lost { .. } => Code::ContentLost,
            Self::Facts(_) => Code::FactsForged,
            Self::Unproven { .. } => Code::ProofInvalid,
            Self::Seal(error) => error.code(),
        }
    }
}

/// What a frame is in the tree. Its head stands for every record of its stream up to it.
pub fn frame_leaf(stream: StreamId, first_seq: u64, last_seq: u64, head: &RecordHash) -> Hash {
    let text = format!(
        "holdfast/frame/v1\n{{\"first_seq\":{first_seq},\"head\":\"{head}\",\"last_seq\":{last_seq},\"stream\":\"{stream}\"}}"
    );
    leaf_hash(text.as_bytes())
}

/// A frame of a stream that is under a seal, and the way from it to the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    pub first_seq: u64,
    pub head: RecordHash,
    pub last_seq: u64,
    pub leaf: u64,
    /// Hashes in hex.
    pub path: Vec<String>,
}

/// The two parts of a stream's line, or none if it is not one.
pub fn line(text: &[u8]) -> Option<(&str, &[u8])> {
    let rest = text.strip_prefix(b"{\"contents\":")?.strip_suffix(b"}")?;
    let at = crate::frame::object_end(rest)?;
    let (contents, rest) = rest.split_at(at);
    Some((std::str::from_utf8(contents).ok()?, rest.strip_prefix(b",\"records\":")?))
}

/// A record that was read, and the hash of its text.
type Read = Result<(Record, RecordHash), ReadError>;

/// One stream of a bundle on its way through the audit.
#[derive(Debug)]
pub struct StreamAudit {
    auditor: Auditor,
    state: Option<State>,
    facts: Facts,
    erased: BTreeSet<Commit>,
    missing: BTreeMap<Commit, u64>,
    /// Contents that are files of their own, and were checked.
    blobs: Arc<BTreeMap<Commit, u64>>,
    /// Those of them that a record names.
    named: BTreeSet<Commit>,
    proof: Option<Proof>,
    proven: bool,
    /// Its newest frames under older seals, and whether they came by.
    earlier: Vec<(Proof, bool)>,
    /// Where a fork of it begins, and what it was there.
    fork_at: Option<u64>,
    forked: Option<Box<RunState>>,
    opened: u64,
}

/// What an audited stream is.
#[derive(Debug, Clone)]
pub struct StreamReport {
    pub head: RecordHash,
    pub records: u64,
    pub opened: u64,
    pub erased: u64,
    pub withheld: BTreeSet<Commit>,
    /// The contents that are files of their own and that a record names.
    pub named: BTreeSet<Commit>,
    /// The last record that the seal covers.
    pub sealed: u64,
    /// The last record that each older seal covers, in the order in which they were given.
    pub earlier: Vec<u64>,
    pub state: Option<State>,
    pub facts: Facts,
    pub forked: Option<Box<RunState>>,
}

impl StreamAudit {
    pub fn new(store: StoreId, stream: StreamId, blobs: Arc<BTreeMap<Commit, u64>>) -> Self {
        Self {
            auditor: Auditor::new(store, stream),
            state: None,
            facts: Facts::default(),
            erased: BTreeSet::new(),
            missing: BTreeMap::new(),
            blobs,
            named: BTreeSet::new(),
            proof: None,
            proven: false,
            earlier: Vec::new(),
            fork_at: None,
            forked: None,
            opened: 0,
        }
    }

    /// Its newest frame under a seal with this size and root.
    pub fn prove(&mut self, proof: Proof, size: u64, root: &Hash) -> Result<(), BundleError> {
        self.proof = Some(self.leads(proof, size, root)?);
        Ok(())
    }

    /// Its newest frame under an older seal, which a reader may have kept.
    pub fn prove_earlier(&mut self, proof: Proof, size: u64, root: &Hash) -> Result<(), BundleError> {
        let proof = self.leads(proof, size, root)?;
        self.earlier.push((proof, false));
        Ok(())
    }

    fn leads(&self, proof: Proof, size: u64, root: &Hash) -> Result<Proof, BundleError> {
        let stream = self.auditor.head().stream;
        let bad = |what| BundleError::Unproven { stream, what };
        let leaf = frame_leaf(stream, proof.first_seq, proof.last_seq, &proof.head);
        let path: Option<Vec<Hash>> = proof.path.iter().map(|hash| read_hash(hash)).collect();
        let path = path.ok_or(bad("a hash of its path is not one"))?;
        if !verify_inclusion(&leaf, proof.leaf, size, &path, root) {
            return Err(bad("the path does not lead to the root"));
        }
        Ok(proof)
    }

    /// A fork begins after this record: what the stream is there will be asked for.
    pub fn fork_at(&mut self, seq: u64) {
        self.fork_at = Some(seq);
    }

    /// The next frame; `parent` is what a fork came from.
    pub fn frame(
        &mut self,
        contents: &str,
        records: impl IntoIterator<Item = Read>,
        parent: Option<&RunState>,
    ) -> Result<(), BundleError> {
        let stream = self.auditor.head().stream;
        let here = |flaw: Flaw, seq: u64| BundleError::Chain(ChainError { flaw, seq, stream });
        let kept = kept(contents);
        let kept = kept.ok_or_else(|| self.altered("what stands beside a frame is not contents"))?;
        let (mut opened, mut values) = (BTreeSet::new(), None);
        let mut any = false;
        for read in records {
            any = true;
            let record = self.auditor.link(read)?;
            self.contents(&record, &kept, &mut opened).map_err(|e| here(Flaw::Content(e), record.seq))?;
            if matches!(record.body.folds(), Fold::Run | Fold::State) && values.is_none() {
                let openings = kept.iter().map(|(commit, kept)| Ok((*commit, kept.opening()?)));
                let openings: Result<Openings, ContentError> = openings.collect();
                values = Some(openings.map_err(|e| here(Flaw::Content(e), record.seq))?);
            }
            self.fold(&record, values.as_ref().unwrap_or(&Openings::new()), parent)?;
        }
        if !any || kept.keys().any(|commit| !opened.contains(commit)) {
            return Err(
                self.altered("a frame is empty, or contents stand beside it that no record of it has")
            );
        }
        Ok(())
    }

    /// What is wrong after the last good record.
    pub fn altered(&self, what: &str) -> BundleError {
        let head = self.auditor.head();
        let file = format!("streams/{}.jsonl", head.stream);
        BundleError::Altered { file, what: format!("after record {}: {what}", head.seq) }
    }

    fn contents(
        &mut self,
        record: &Record,
        kept: &BTreeMap<Commit, Kept<'_>>,
        opened: &mut BTreeSet<Commit>,
    ) -> Result<(), ContentError> {
        if let Body::ContentErased(erased) = &record.body {
            self.erased.extend(&erased.commits);
        }
        for found in record.contents() {
            if let Some(opening) = kept.get(&found.commit) {
                opened.insert(found.commit);
                if !opening.opens(&found.commit) && !mutant(Mutant::LooseOpening) {
                    return Err(ContentError::Forged(found.commit));
                }
                self.opened += 1;
            } else if let Some(bytes) = self.blobs.get(&found.commit) {
                if *bytes != found.bytes {
                    return Err(ContentError::Forged(found.commit));
                }
                self.named.insert(found.commit);
                self.opened += 1;
            } else {
                self.missing.insert(found.commit, record.seq);
            }
        }
        Ok(())
    }

    fn fold(
        &mut self,
        record: &Record,
        openings: &Openings,
        parent: Option<&RunState>,
    ) -> Result<(), BundleError> {
        let head = self.auditor.head();
        let illegal = |why: &str| {
            let flaw = Flaw::Illegal(why.to_owned());
            BundleError::Chain(ChainError { flaw, seq: record.seq, stream: head.stream })
        };
        if let Some(state) = &mut self.state {
            state.apply_hashed(record, head.hash, openings).map_err(|e| illegal(e.why))?;
        } else {
            let first = State::first_hashed(record, head.hash, openings, parent);
            self.state = Some(first.map_err(|e| illegal(e.why))?);
        }
        self.facts.add(record);
        let here = |proof: &Proof| proof.last_seq == head.seq && proof.head == head.hash;
        self.proven |= self.proof.as_ref().is_some_and(here);
        for (proof, proven) in &mut self.earlier {
            *proven |= here(proof);
        }
        if self.fork_at == Some(head.seq) {
            self.forked = self.state.as_ref().and_then(State::as_run).map(|run| Box::new(run.clone()));
        }
        Ok(())
    }

    /// The end of the stream's file.
    pub fn end(self, withheld: &BTreeSet<Commit>) -> Result<StreamReport, BundleError> {
        let head = self.auditor.head();
        let stream = head.stream;
        let unmet = self.proof.is_some() && !self.proven || self.earlier.iter().any(|(_, proven)| !proven);
        if unmet && !mutant(Mutant::LooseProof) {
            return Err(BundleError::Unproven { stream, what: "the sealed frame is not in the stream" });
        }
        let (mut erased, mut left_out) = (0, BTreeSet::new());
        for (commit, seq) in self.missing {
            // What was erased is not there to be withheld, whatever the manifest says.
            if self.erased.contains(&commit) {
                erased += 1;
            } else if withheld.contains(&commit) {
                left_out.insert(commit);
            } else if mutant(Mutant::LooseLoss) {
                erased += 1;
            } else {
                return Err(BundleError::Lost { stream, seq, commit });
            }
        }
        let facts = match self.state.as_ref().and_then(State::as_run) {
            Some(run) => self.facts.close(run),
            None => self.facts,
        };
        Ok(StreamReport {
            head: head.hash,
            records: head.seq,
            opened: self.opened,
            erased,
            withheld: left_out,
            named: self.named,
            sealed: self.proof.map_or(0, |proof| proof.last_seq),
            earlier: self.earlier.iter().map(|(proof, _)| proof.last_seq).collect(),
            state: self.state,
            facts,
            forked: self.forked,
        })
    }
}

impl Facts {
    /// Whether these are the facts; else the part that is not.
    pub fn check(&self, claimed: &Self) -> Result<(), BundleError> {
        let parts: [(&'static str, bool); 10] = [
            ("head", self.head == claimed.head),
            ("records", self.records == claimed.records),
            ("state", same(self.state.as_ref(), claimed.state.as_ref())),
            ("state_version", self.state_version == claimed.state_version),
            ("status", self.status == claimed.status),
            ("steps", self.steps == claimed.steps),
            ("calls", self.calls == claimed.calls),
            ("approvals", self.approvals == claimed.approvals),
            ("costs", self.costs == claimed.costs),
            ("end", self.end == claimed.end),
        ];
        match parts.into_iter().find(|(_, same)| !same) {
            Some((part, _)) if !mutant(Mutant::LooseFacts) => Err(BundleError::Facts(part)),
            _ => Ok(()),
        }
    }
}

/// Two values are the same when their canonical bytes are.
fn same(one: Option<&serde_json::Value>, other: Option<&serde_json::Value>) -> bool {
    to_bytes(&one).ok() == to_bytes(&other).ok()
}
