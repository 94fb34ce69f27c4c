//! The audit of a store: frames against the chain, rows against the fold, contents and blobs against
//! their commitments. Streaming and in bounded memory: one page of one stream at a time. Nothing is
//! trusted that can be computed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;

use holdfast_core::canonical::to_bytes;
use holdfast_core::chain::{self, Auditor, ChainError};
use holdfast_core::content::{Commit, ContentError, Openings};
use holdfast_core::error::{Code, Coded};
use holdfast_core::evidence::{Note, VerifierKey};
use holdfast_core::frame::Kept;
use holdfast_core::ids::StreamId;
use holdfast_core::limits;
use holdfast_core::mutants::{Mutant, mutant};
use holdfast_core::records::{Body, Fold, Record, RecordHash};
use holdfast_core::state::{RunState, State};

use crate::engine::{Engine, fold_run_at, openings, project, snapshot};
use crate::error::{Result, StoreError};
use crate::pages::{Page, Read};
use crate::rows::{FrameRow, StreamRow};
use crate::seals::{self, Sealed};
use crate::store::Store;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    pub code: &'static str,
    pub stream: Option<String>,
    pub seq: Option<u64>,
    pub pos: Option<i64>,
    pub what: String,
}

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    pub streams: u64,
    pub frames: u64,
    pub records: u64,
    pub contents: u64,
    pub erased: u64,
    pub blobs: u64,
    pub problems: u64,
    /// The first ones.
    pub listed: Vec<Problem>,
    /// Where each audited run ended, when only one was asked for: to be kept elsewhere.
    pub head: Option<String>,
    /// How many frames are under the newest seal.
    pub sealed: u64,
    pub guarantee: String,
}

impl Report {
    pub fn ok(&self) -> bool {
        self.problems == 0
    }

    fn add(&mut self, problem: Problem) {
        self.problems += 1;
        if self.listed.len() < limits::PROBLEMS_MAX {
            self.listed.push(problem);
        }
    }
}

/// What is to be audited.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// One stream; none: all of them, and the files.
    pub stream: Option<StreamId>,
    /// Heads that were kept elsewhere.
    pub heads: BTreeMap<StreamId, RecordHash>,
    /// Seals that were kept elsewhere, and the keys that seals are signed with.
    pub seals: Vec<Note>,
    pub keys: Vec<VerifierKey>,
}

/// Audits a store. `progress` hears the frames that were audited and how many there are, and says
/// whether to go on.
pub fn verify(engine: &Engine, scope: &Scope, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Report> {
    let store = engine.store();
    let mut audit = Audit { store: &**store, report: Report::default(), total: 0, progress, stopped: false };
    audit.total = match scope.stream {
        Some(_) => 0,
        None => u64::try_from(newest(&**store)?).unwrap_or(0),
    };
    if let Some(stream) = scope.stream {
        let row = find(&**store, stream)?.ok_or(holdfast_core::run::Refused::NoSuchRun)?;
        audit.report.head = Some(audit.stream(&row, scope)?.to_string());
    } else {
        for problem in store.check_files()? {
            audit.report.add(problem);
        }
        audit.all(scope)?;
    }
    let mut sealed = Sealed::default();
    if scope.stream.is_none() && !audit.stopped {
        sealed = seals::audit(engine, &scope.seals, &scope.keys)?;
        for problem in std::mem::take(&mut sealed.problems) {
            audit.report.add(problem);
        }
    }
    audit.report.sealed = sealed.size;
    audit.report.guarantee = guarantee(scope, &sealed);
    Ok(audit.report)
}

/// What an audit without a problem has shown, and what it cannot show.
fn guarantee(scope: &Scope, sealed: &Sealed) -> String {
    let mut told = vec!["every record follows from the one before".to_owned()];
    if !scope.heads.is_empty() {
        told.push("the streams whose heads were kept elsewhere have had them".to_owned());
    }
    if sealed.kept > 0 {
        told.push(format!(
            "the first {} frames are those under the seal that was kept elsewhere",
            sealed.size
        ));
    } else if sealed.signed > 0 {
        told.push(format!("the first {} frames are those that the given keys have sealed", sealed.size));
    }
    if scope.heads.is_empty() && sealed.kept == 0 {
        told.push(
            "that the end is missing or that everything was written anew can only be shown against a head or \
             a seal that was kept elsewhere"
                .to_owned(),
        );
    }
    told.join("; ")
}

fn newest(store: &dyn Store) -> Result<i64> {
    let mut newest = None;
    store.look(&mut |look| {
        newest = look.newest()?;
        Ok(())
    })?;
    Ok(newest.map_or(0, |(pos, _)| pos))
}

fn find(store: &dyn Store, stream: StreamId) -> Result<Option<StreamRow>> {
    let mut row = None;
    store.look(&mut |look| {
        row = look.stream(stream)?;
        Ok(())
    })?;
    Ok(row)
}

struct Audit<'a> {
    store: &'a dyn Store,
    report: Report,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> bool,
    stopped: bool,
}

/// One stream as it is walked.
struct Walk {
    auditor: Auditor,
    state: Option<State>,
    erased: BTreeSet<Commit>,
    /// Contents that are neither kept nor, so far, erased: the erasing record may yet come.
    missing: BTreeMap<Commit, u64>,
    /// The blobs that rows say it has, and those that records have.
    blobs: BTreeMap<Commit, u64>,
    opened: BTreeSet<Commit>,
    snapshot: Option<(u64, String)>,
    last_pos: i64,
    /// The record that is looked at.
    current: u64,
    /// Whether frames follow where its row says that it ends.
    beyond: bool,
    /// The head that was kept elsewhere and has not been met yet.
    awaited: Option<RecordHash>,
}

impl Audit<'_> {
    fn all(&mut self, scope: &Scope) -> Result<()> {
        let mut after = 0;
        loop {
            let mut rows = Vec::new();
            self.store.look(&mut |look| {
                rows = look.streams(after, limits::PAGE_RECORDS_MAX)?;
                Ok(())
            })?;
            let Some(last) = rows.last() else { break };
            after = last.key;
            for row in rows {
                self.stream(&row, scope)?;
                if self.stopped {
                    return Ok(());
                }
            }
        }
        for stream in scope.heads.keys() {
            if find(self.store, *stream)?.is_none() {
                self.problem(Code::HeadMismatch, Some(*stream), None, None, "the whole stream is missing");
            }
        }
        Ok(())
    }

    fn problem(
        &mut self,
        code: Code,
        stream: Option<StreamId>,
        seq: Option<u64>,
        pos: Option<i64>,
        what: impl Into<String>,
    ) {
        let stream = stream.map(|stream| stream.to_string());
        self.report.add(Problem { code: code.as_str(), stream, seq, pos, what: what.into() });
    }

    /// Audits one stream; returns its head. What others wrote meanwhile may look like damage, for example
    /// contents that were erased by a record that this audit has not come to: then it is audited anew.
    fn stream(&mut self, row: &StreamRow, scope: &Scope) -> Result<RecordHash> {
        let mut row = row.clone();
        for _ in 1..limits::AUDIT_TRIES {
            let before = self.report.clone();
            let head = self.walk(&row, scope)?;
            if self.report.problems == before.problems {
                return Ok(head);
            }
            match find(self.store, row.id)? {
                Some(now) if now != row => (row, self.report) = (now, before),
                _ => return Ok(head),
            }
        }
        self.walk(&row, scope)
    }

    /// Audits a stream up to where its row says that it ends.
    fn walk(&mut self, row: &StreamRow, scope: &Scope) -> Result<RecordHash> {
        self.report.streams += 1;
        let mut walk = Walk {
            auditor: Auditor::new(self.store.id(), row.id),
            state: None,
            erased: BTreeSet::new(),
            missing: BTreeMap::new(),
            blobs: BTreeMap::new(),
            opened: BTreeSet::new(),
            snapshot: None,
            last_pos: 0,
            current: 1,
            beyond: false,
            awaited: scope.heads.get(&row.id).copied(),
        };
        self.store.look(&mut |look| {
            walk.snapshot = look.snapshot(row.key)?;
            walk.blobs = look.blob_refs(row.key)?;
            Ok(())
        })?;
        let whole = self.frames(row, &mut walk)?;
        let head = walk.auditor.head();
        if !whole || self.stopped {
            return Ok(head.hash); // its first bad record was named; what follows it says nothing
        }
        if head.seq != row.last_seq || head.hash != row.head || head.at != row.at {
            let what = format!("its row says that it ends at {} with another head", row.last_seq);
            self.problem(Code::HeadMismatch, Some(row.id), Some(head.seq + 1), None, what);
        }
        if walk.beyond && find(self.store, row.id)?.as_ref() == Some(row) {
            let what = format!("frames follow where its row says that it ends, at {}", row.last_seq);
            self.problem(Code::HeadMismatch, Some(row.id), Some(row.last_seq + 1), None, what);
        }
        if walk.awaited.is_some() {
            let what = "it never had the head that was kept elsewhere";
            self.problem(Code::HeadMismatch, Some(row.id), Some(head.seq + 1), None, what);
        }
        self.lost(row, &walk);
        self.rows(row, &walk)?;
        Ok(head.hash)
    }

    /// Walks the frames page by page; whether all were good. The next page is read meanwhile.
    fn frames(&mut self, row: &StreamRow, walk: &mut Walk) -> Result<bool> {
        let store = self.store;
        let mut page = if row.last_seq > 0 { Some(Page::read(store, row, 0)?) } else { None };
        while let Some(this) = page {
            walk.beyond |= this.beyond;
            let Some(last) = this.last_seq() else {
                let (seq, what) = (walk.auditor.head().seq + 1, "the frame is missing");
                self.problem(Code::RecordMissing, Some(row.id), Some(seq), None, what);
                return Ok(false);
            };
            let (good, next) = std::thread::scope(|scope| {
                let more = last < row.last_seq;
                let next = more.then(|| scope.spawn(move || Page::read(store, row, last)));
                let good = self.page(row, this, walk);
                let next = next.map(|next| next.join().unwrap_or_else(|panic| resume_unwind(panic)));
                (good, next)
            });
            if !good? || self.stopped {
                return Ok(self.stopped);
            }
            page = next.transpose()?;
        }
        Ok(true)
    }

    /// One page; whether all of it was good, as far as it was looked at.
    fn page(&mut self, row: &StreamRow, page: Page, walk: &mut Walk) -> Result<bool> {
        for (frame, read) in page.frames {
            if let Err(error) = self.frame(row, &frame, read, walk) {
                let seq = walk.current;
                if error.is_of_engine() {
                    return Err(error);
                }
                let (code, what) = (error.code(), error.to_string());
                self.problem(code, Some(row.id), Some(seq), Some(frame.pos), what);
                return Ok(false);
            }
            self.report.frames += 1;
            if !(self.progress)(self.report.frames, self.total) {
                self.stopped = true;
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn frame(
        &mut self,
        row: &StreamRow,
        frame: &FrameRow,
        read: Result<Vec<Read>>,
        walk: &mut Walk,
    ) -> Result<()> {
        let corrupt = |what: String| Err(StoreError::Corrupt(format!("frame {}: {what}", frame.pos)));
        walk.current = walk.auditor.head().seq + 1;
        let read = read?;
        if frame.first_seq != walk.auditor.head().seq + 1 {
            return corrupt(format!("it begins at {}, not after the frame before it", frame.first_seq));
        }
        if frame.pos <= walk.last_pos {
            return corrupt("it was moved: its position is not after the frame before it".to_owned());
        }
        let records = u64::try_from(read.len()).unwrap_or(0);
        if records == 0 || frame.first_seq + records - 1 != frame.last_seq {
            return corrupt("it does not hold the records that it says".to_owned());
        }
        walk.last_pos = frame.pos;
        let unreadable =
            || StoreError::Corrupt(format!("the contents of frame {} cannot be read", frame.pos));
        let contents = frame.contents.as_deref().unwrap_or("{}");
        let kept = holdfast_core::frame::kept(contents).ok_or_else(unreadable)?;
        let mut opened = BTreeSet::new();
        let mut values: Option<Openings> = None;
        for read in read {
            walk.current = walk.auditor.head().seq + 1;
            let record = walk.auditor.link(read)?;
            walk.awaited = walk.awaited.filter(|head| *head != walk.auditor.head().hash);
            self.report.records += 1;
            self.contents(&record, &kept, walk, &mut opened)?;
            if matches!(record.body.folds(), Fold::Run | Fold::State) && values.is_none() {
                values = Some(openings(frame)?); // only these fold from values
            }
            self.fold(row, &record, values.as_ref().unwrap_or(&Openings::new()), walk)?;
        }
        if frame.head != walk.auditor.head().hash && !mutant(Mutant::TrustHeads) {
            return corrupt("its head is not the hash of its last record".to_owned());
        }
        match kept.keys().find(|commit| !opened.contains(*commit)) {
            Some(stray) => corrupt(format!("beside it lies a content that no record of it has: {stray}")),
            None => Ok(()),
        }
    }

    fn contents(
        &mut self,
        record: &Record,
        kept: &BTreeMap<Commit, Kept<'_>>,
        walk: &mut Walk,
        opened: &mut BTreeSet<Commit>,
    ) -> Result<()> {
        if let Body::ContentErased(erased) = &record.body {
            walk.erased.extend(&erased.commits);
        }
        for found in record.contents() {
            opened.insert(found.commit);
            if mutant(Mutant::TrustContents) {
                continue;
            }
            if let Some(opening) = kept.get(&found.commit) {
                if !opening.opens(&found.commit) {
                    return Err(ContentError::Forged(found.commit).into());
                }
                self.report.contents += 1;
            } else if let Some(bytes) = walk.blobs.get(&found.commit) {
                let blob = self.store.blobs().get(&found.commit)?;
                if u64::try_from(blob.bytes.len()).ok() != Some(found.bytes) {
                    return Err(StoreError::BlobForged(found.commit));
                }
                if *bytes != found.bytes && walk.opened.insert(found.commit) {
                    let what = format!("a row says that the blob {} has {bytes} bytes", found.commit);
                    self.problem(Code::RowsDiffer, Some(record.stream), Some(record.seq), None, what);
                }
                walk.opened.insert(found.commit);
                self.report.blobs += 1;
            } else {
                walk.missing.insert(found.commit, record.seq);
            }
        }
        Ok(())
    }

    fn fold(&mut self, row: &StreamRow, record: &Record, kept: &Openings, walk: &mut Walk) -> Result<()> {
        let hash = walk.auditor.head().hash;
        let with_blobs;
        let mut opened = kept;
        if !walk.blobs.is_empty() {
            let mut more = kept.clone();
            crate::engine::add_blobs(record, self.store.blobs(), &mut more)?;
            with_blobs = more;
            opened = &with_blobs;
        }
        let illegal = |what: String| {
            let flaw = chain::Flaw::Illegal(what);
            StoreError::Chain(ChainError { flaw, seq: record.seq, stream: row.id })
        };
        if let Some(state) = &mut walk.state {
            state.apply_hashed(record, hash, opened).map_err(|e| illegal(e.why.to_owned()))?;
        } else {
            let parent = self.parent(record)?;
            let first = State::first_hashed(record, hash, opened, parent.as_ref());
            walk.state = Some(first.map_err(|e| illegal(e.why.to_owned()))?);
        }
        self.snapshot(row, walk)
    }

    /// A kept fold is the fold.
    fn snapshot(&mut self, row: &StreamRow, walk: &Walk) -> Result<()> {
        let (Some((seq, text)), Some(state)) = (&walk.snapshot, &walk.state) else { return Ok(()) };
        if *seq != state.head().seq {
            return Ok(());
        }
        let same = snapshot(text, row, *seq).is_ok() && to_bytes(state)? == text.as_bytes();
        if !same {
            self.problem(Code::RowsDiffer, Some(row.id), Some(*seq), None, "its snapshot is not its fold");
        }
        Ok(())
    }

    fn parent(&self, record: &Record) -> Result<Option<RunState>> {
        let Body::RunForked(forked) = &record.body else { return Ok(None) };
        let mut parent = None;
        self.store.look(&mut |look| {
            let stream = StreamId::Run(forked.parent);
            parent = fold_run_at(look, self.store.blobs(), self.store.id(), stream, forked.at)?;
            Ok(())
        })?;
        Ok(parent)
    }

    /// Contents that are gone: erased on purpose, or lost.
    fn lost(&mut self, row: &StreamRow, walk: &Walk) {
        for (commit, seq) in &walk.missing {
            if walk.erased.contains(commit) {
                self.report.erased += 1;
            } else {
                let what = format!("the content {commit} is gone, and no record says that it was erased");
                self.problem(Code::ContentLost, Some(row.id), Some(*seq), None, what);
            }
        }
    }

    /// The rows of a run are what its fold says.
    fn rows(&mut self, row: &StreamRow, walk: &Walk) -> Result<()> {
        let Some(state) = &walk.state else { return Ok(()) };
        if let State::Store(own) = state
            && (own.store != self.store.id() || own.epoch != self.store.epoch())
        {
            let what = "the store's id or epoch is not what its records say";
            self.problem(Code::RowsDiffer, Some(row.id), None, None, what);
        }
        let expected = project(state, row.key)?;
        let (mut table, mut current) = (None, None);
        self.store.look(&mut |look| {
            current = look.stream(row.id)?;
            table = look.differs(row, &expected)?;
            Ok(())
        })?;
        if current.as_ref() != Some(row) {
            return Ok(()); // it has grown since: its rows are ahead of what was walked
        }
        if let Some(table) = table {
            let what = format!("its rows in {table} are not what follows from its records");
            self.problem(Code::RowsDiffer, Some(row.id), None, None, what);
        }
        if let Some(stray) = walk.blobs.keys().find(|blob| !walk.opened.contains(*blob)) {
            let what = format!("a row says that it has the blob {stray}, and no record does");
            self.problem(Code::RowsDiffer, Some(row.id), None, None, what);
        }
        Ok(())
    }
}
