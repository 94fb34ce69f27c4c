//! Writing rows, inside a transaction.

use std::cell::RefCell;
use std::collections::BTreeMap;

use holdfast_core::canonical::to_bytes;
use holdfast_core::clock::Now;
use holdfast_core::content::{Commit, Openings};
use holdfast_core::evidence::Hash;
use holdfast_core::ids::{EnvelopeId, GrantId, RunId, StepId, StreamId};
use holdfast_core::records::{Key, Name, RecordHash};
use holdfast_core::run::{Envelope, Lease};

use super::ear::TELL;
use super::link::Link;
use super::look::{PgLook, STREAM_LOCKED, stream_row};
use super::queue;
use super::turn::{Frame, number};
use crate::cells;
use crate::error::{Result, StoreError};
use crate::rows::{
    ApprovalRow, Candidate, CarriedFrame, DueWait, EnvelopeRow, Filter, FrameRow, GrantRow, GrantUseRow,
    KeyHeld, KeyRow, LeafRow, LeaseRow, Look, Projection, Rows, RunRow, SealRow, SealedFrame, StepRow,
    StreamRow,
};
use crate::store::Cell;

/// Rows as a work's transaction sees and writes them.
pub(super) struct PgRows<'c> {
    pub(super) look: PgLook<'c>,
    process: &'c str,
    /// Takes the lock of each stream that it reads: it has lost races before.
    locks: bool,
    /// A stream's row that was read when the transaction began, until somebody asks for it.
    seen: RefCell<Option<(StreamId, Option<StreamRow>)>>,
    frames: Vec<Frame>,
    /// Somebody may have something to do now.
    wakes: bool,
}

fn text_of<T: serde::Serialize>(value: &T) -> Result<String> {
    String::from_utf8(to_bytes(value)?).map_err(|_| StoreError::Panicked)
}

impl<'c> PgRows<'c> {
    pub(super) fn new(
        link: &'c mut Link,
        process: &'c str,
        locks: bool,
        seen: Option<(StreamId, Option<StreamRow>)>,
    ) -> Self {
        Self {
            look: PgLook::new(link),
            process,
            locks,
            seen: RefCell::new(seen),
            frames: Vec::new(),
            wakes: false,
        }
    }

    /// The frames that were written. Whoever waits for work is told with the commit.
    pub(super) fn finish(self) -> Result<Vec<Frame>> {
        if self.wakes {
            self.look.later(TELL, Vec::new(), None)?;
        }
        Ok(self.frames)
    }

    /// Written with whatever comes next: nobody reads its answer.
    fn put(&self, sql: &str, values: impl IntoIterator<Item = Cell>) -> Result<()> {
        self.look.later(sql, values.into_iter().collect(), None)
    }

    /// The same where it must have written one row.
    fn put_one(&self, sql: &str, values: impl IntoIterator<Item = Cell>) -> Result<()> {
        self.look.later(sql, values.into_iter().collect(), Some(1))
    }

    fn put_waits(&self, row: &StepRow) -> Result<()> {
        let id = row.id.to_string();
        self.put("DELETE FROM waits WHERE run = $1 AND step = $2", [row.run.into(), id.into()])?;
        for (n, wait) in row.waits.iter().enumerate() {
            self.put(
                "INSERT INTO waits (run, step, n, what, subject, call, until)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
                cells::of_wait(row, n, wait),
            )?;
        }
        Ok(())
    }

    fn erase_frame(&self, pos: i64, contents: &str, commits: &[Commit]) -> Result<usize> {
        let mut kept: Openings = crate::engine::openings_of(contents, pos)?;
        let erased = holdfast_core::content::erase(&mut kept, commits);
        let left = if kept.is_empty() { None } else { Some(text_of(&kept)?) };
        self.put_one("UPDATE frames SET contents = $2 WHERE pos = $1", [pos.into(), left.into()])?;
        Ok(erased)
    }
}

impl Rows for PgRows<'_> {
    fn add_stream(&mut self, id: StreamId, head: RecordHash) -> Result<i64> {
        let kind = match id {
            StreamId::Run(_) => "run",
            StreamId::Session(_) => "session",
            StreamId::Store => "store",
        };
        let sql =
            "INSERT INTO streams (id, kind, last_seq, head, at) VALUES ($1, $2, 0, $3, 0) RETURNING key";
        let values = [id.to_string().into(), kind.into(), head.to_string().into()];
        self.look.first(sql, &values)?.map(|row| row.get(0)).ok_or(StoreError::Panicked)
    }

    fn add_frame(&mut self, frame: &FrameRow) -> Result<i64> {
        // The stream's row moves on only from where the frame begins: of two writers one finds no row.
        let sql = "WITH moved AS (
                       UPDATE streams SET last_seq = $3, head = $4, at = $7
                       WHERE key = $1 AND last_seq = $2 - 1 RETURNING key),
                   written AS (
                       INSERT INTO frames (stream, first_seq, last_seq, head, body, contents)
                       SELECT key, $2, $3, $4, $5, $6 FROM moved RETURNING pos)
                   INSERT INTO unsealed (pos) SELECT pos FROM written RETURNING pos";
        let head = frame.head.to_string();
        let values = [
            frame.stream.into(),
            number(frame.first_seq),
            number(frame.last_seq),
            head.into(),
            frame.body.as_str().into(),
            frame.contents.as_deref().into(),
            number(frame.at),
        ];
        let Some(row) = self.look.first(sql, &values)? else {
            return Err(StoreError::Conflict("the stream has moved on".to_owned()));
        };
        let pos = row.get(0);
        self.frames.push(Frame { pos, head: frame.head });
        Ok(pos)
    }

    fn put_snapshot(&mut self, stream: i64, seq: u64, state: &str) -> Result<()> {
        self.put(
            "INSERT INTO snapshots (stream, seq, state) VALUES ($1, $2, $3)
             ON CONFLICT (stream) DO UPDATE SET seq = excluded.seq, state = excluded.state",
            [stream.into(), number(seq), state.into()],
        )
    }

    fn put_run(&mut self, row: &RunRow) -> Result<()> {
        if let Some(parent) = &row.fork_of {
            // Whoever erases the parent's contents looks for forks: neither may miss the other. A lock would not
            // do: who waited for one goes on, under REPEATABLE READ, as if nothing had happened.
            let sql = "UPDATE streams SET at = at
                       WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM runs WHERE stream = $2)";
            self.put(sql, [parent.as_str().into(), row.stream.into()])?;
        }
        self.put(
            "INSERT INTO runs (stream, id, agent, role, session, parent, fork_of, mode, status, reason,
                 state_version, priority, deadline, labels, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
             ON CONFLICT (stream) DO UPDATE SET status = excluded.status, reason = excluded.reason,
                 state_version = excluded.state_version, labels = excluded.labels",
            cells::of_run(row),
        )
    }

    fn put_step(&mut self, row: &StepRow) -> Result<()> {
        self.wakes |= row.ready;
        // A lease holds only while its step is running.
        self.put(
            "INSERT INTO steps (run, id, name, queue, agent, package, status, ready, due, rank, deadline,
                 concurrency_key, attempt, fence_epoch, fence_n)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
             ON CONFLICT (run, id) DO UPDATE SET package = excluded.package, status = excluded.status,
                 ready = excluded.ready, due = excluded.due, attempt = excluded.attempt,
                 fence_epoch = excluded.fence_epoch, fence_n = excluded.fence_n,
                 owner = CASE WHEN excluded.status = 'running' THEN steps.owner END,
                 process = CASE WHEN excluded.status = 'running' THEN steps.process END,
                 lease_boot = CASE WHEN excluded.status = 'running' THEN steps.lease_boot END,
                 lease_until = CASE WHEN excluded.status = 'running' THEN steps.lease_until END",
            cells::of_step(row),
        )?;
        self.put_waits(row)
    }

    fn put_approval(&mut self, row: &ApprovalRow) -> Result<()> {
        self.put(
            "INSERT INTO approvals (id, run, call, status, quorum, votes, digest, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (id) DO UPDATE SET status = excluded.status, votes = excluded.votes,
                 digest = excluded.digest, expires_at = excluded.expires_at",
            cells::of_approval(row),
        )
    }

    fn put_grant(&mut self, row: &GrantRow) -> Result<()> {
        self.put(
            "INSERT INTO grants (id, stream, tool, uses, spent, revoked, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             ON CONFLICT (id) DO UPDATE SET spent = greatest(grants.spent, excluded.spent),
                 revoked = excluded.revoked",
            cells::of_grant(row),
        )
    }

    fn put_grant_use(&mut self, row: &GrantUseRow) -> Result<()> {
        // Runs of a session that spend one grant at the same time meet at its row.
        self.put("UPDATE grants SET spent = spent WHERE id = $1", [row.grant.as_str().into()])?;
        self.put("INSERT INTO grant_uses (grant_id, run, call) VALUES ($1, $2, $3)", cells::of_grant_use(row))
    }

    fn put_key(&mut self, row: &KeyRow) -> Result<()> {
        // Somebody who did not see the holder is run again.
        let sql = "INSERT INTO keys (scope, key, run, call, settled) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (scope, key) DO UPDATE
             SET run = excluded.run, call = excluded.call, settled = excluded.settled
             WHERE keys.run = excluded.run OR keys.scope = 'store' AND keys.settled > 0
             AND (excluded.settled = 0 OR keys.settled < excluded.settled)";
        self.wakes |= row.settled > 0;
        match row.scope {
            "run" => self.put_one(sql, cells::of_key(row)),
            _ => self.put(sql, cells::of_key(row)),
        }
    }

    fn drop_key(&mut self, row: &KeyRow) -> Result<()> {
        self.wakes = true;
        let sql =
            "DELETE FROM keys WHERE scope = $1 AND key = $2 AND run = $3 AND call IS NOT DISTINCT FROM $4";
        let key = row.key.as_str();
        self.put(sql, [row.scope.into(), key.into(), row.run.into(), row.call.clone().into()])
    }

    fn put_name(&mut self, name: &Name, run: Option<RunId>) -> Result<()> {
        match run {
            Some(run) => self.put(
                "INSERT INTO names (name, run) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET run = excluded.run",
                [name.as_str().into(), run.to_string().into()],
            ),
            None => self.put("DELETE FROM names WHERE name = $1", [name.as_str().into()]),
        }
    }

    fn set_lease(&mut self, run: i64, step: StepId, lease: &Lease) -> Result<()> {
        self.put_one(
            "UPDATE steps SET owner = $3, process = $4, lease_boot = $5, lease_until = $6, fence_epoch = $7,
                 fence_n = $8 WHERE run = $1 AND id = $2",
            [
                run.into(),
                step.to_string().into(),
                lease.owner.as_str().into(),
                self.process.into(),
                lease.boot_id.as_str().into(),
                number(lease.expires_boot_ms),
                lease.fence.0.into(),
                lease.fence.1.into(),
            ],
        )
    }

    fn drop_lease(&mut self, run: i64, step: StepId) -> Result<()> {
        self.put_one(
            "UPDATE steps SET owner = NULL, process = NULL, lease_boot = NULL, lease_until = NULL
             WHERE run = $1 AND id = $2",
            [run.into(), step.to_string().into()],
        )
    }

    fn put_envelope(&mut self, envelope: &Envelope, sent_at: u64) -> Result<()> {
        self.wakes = true;
        self.put(
            "INSERT INTO envelopes (id, receiver, body, sent_at) VALUES ($1, $2, $3, $4)",
            [
                envelope.id.to_string().into(),
                envelope.to.to_string().into(),
                text_of(envelope)?.into(),
                number(sent_at),
            ],
        )
    }

    fn drop_envelope(&mut self, id: EnvelopeId) -> Result<()> {
        self.put("DELETE FROM envelopes WHERE id = $1", [id.to_string().into()])
    }

    fn refuse_envelope(&mut self, id: EnvelopeId, code: &str) -> Result<()> {
        self.put("UPDATE envelopes SET refused = $2 WHERE id = $1", [id.to_string().into(), code.into()])
    }

    fn hold_blob(&mut self, blob: &Commit, alone: bool) -> Result<()> {
        let how = if alone { "" } else { "_shared" };
        let sql = format!(
            "SELECT pg_advisory_xact_lock{how}(
                 hashtextextended('holdfast blob ' || current_schema() || $1, 0))"
        );
        self.look.query(&sql, &[blob.to_string().into()]).map(|_| ())
    }

    fn put_blob_ref(&mut self, blob: &Commit, stream: i64, bytes: u64) -> Result<()> {
        self.put(
            "INSERT INTO blob_refs (commitment, stream, bytes) VALUES ($1, $2, $3)
             ON CONFLICT (commitment, stream) DO NOTHING",
            [blob.to_string().into(), stream.into(), number(bytes)],
        )
    }

    fn drop_blob_ref(&mut self, blob: &Commit, stream: i64) -> Result<()> {
        let sql = "DELETE FROM blob_refs WHERE commitment = $1 AND stream = $2";
        self.put(sql, [blob.to_string().into(), stream.into()])
    }

    fn erase(&mut self, stream: i64, commits: &[Commit]) -> Result<u64> {
        let (mut erased, mut after) = (0, 0);
        loop {
            let frames = self.look.frames(stream, after)?;
            let Some(last) = frames.last() else { break };
            after = last.last_seq;
            for frame in &frames {
                let Some(contents) = &frame.contents else { continue };
                if commits.iter().any(|commit| contents.contains(&commit.to_string())) {
                    erased += self.erase_frame(frame.pos, contents, commits)?;
                }
            }
        }
        // Forks have copies of what they inherited in their snapshots.
        self.put(
            "WITH RECURSIVE heirs (stream, id) AS (
                 SELECT key, id FROM streams WHERE key = $1
                 UNION SELECT runs.stream, runs.id FROM runs JOIN heirs ON runs.fork_of = heirs.id)
             DELETE FROM snapshots WHERE stream IN (SELECT stream FROM heirs)",
            [stream.into()],
        )?;
        Ok(u64::try_from(erased).unwrap_or(0))
    }

    fn put_leaf(&mut self, n: u64, pos: i64, hash: &Hash) -> Result<()> {
        let hash = Cell::Bytes(hash.to_vec());
        self.put("INSERT INTO leaves (n, pos, hash) VALUES ($1, $2, $3)", [number(n), pos.into(), hash])?;
        self.put_one("DELETE FROM unsealed WHERE pos = $1", [pos.into()])
    }

    fn put_node(&mut self, level: u32, n: u64, hash: &Hash) -> Result<()> {
        let sql = "INSERT INTO nodes (level, n, hash) VALUES ($1, $2, $3)";
        self.put(sql, [level.into(), number(n), Cell::Bytes(hash.to_vec())])
    }

    fn put_seal(&mut self, seal: &SealRow) -> Result<()> {
        self.put(
            "INSERT INTO seals (size, pos, root, checkpoint) VALUES ($1, $2, $3, $4)
             ON CONFLICT (size) DO UPDATE SET pos = excluded.pos, root = excluded.root,
                 checkpoint = excluded.checkpoint",
            [number(seal.size), seal.pos.into(), seal.root.as_str().into(), seal.checkpoint.as_str().into()],
        )
    }

    fn clear_projections(&mut self, stream: &StreamRow) -> Result<()> {
        if stream.id == StreamId::Store {
            self.put("DELETE FROM names", [])?;
        }
        for sql in [
            "DELETE FROM snapshots WHERE stream = $1",
            "DELETE FROM waits WHERE run = $1",
            "DELETE FROM steps WHERE run = $1",
            "DELETE FROM runs WHERE stream = $1",
            "DELETE FROM approvals WHERE run = $1",
            "DELETE FROM grants WHERE stream = $1",
            "DELETE FROM grant_uses WHERE run = $1",
            "DELETE FROM keys WHERE run = $1",
            "DELETE FROM blob_refs WHERE stream = $1",
        ] {
            self.put(sql, [stream.key.into()])?;
        }
        Ok(())
    }

    fn promote_due(&mut self, wall_ms: u64) -> Result<()> {
        queue::promote_due(&self.look, wall_ms)
    }

    fn leases(&mut self, now: &Now) -> Result<Vec<LeaseRow>> {
        queue::lost_leases(&self.look, now)
    }

    fn due_waits(&mut self, wall_ms: u64, most: usize) -> Result<Vec<DueWait>> {
        queue::due_waits(&self.look, wall_ms, most)
    }

    fn candidates(&mut self, filter: &Filter, most: usize) -> Result<Vec<Candidate>> {
        queue::candidates(&self.look, filter, most)
    }

    fn take(&mut self, candidate: &Candidate) -> Result<bool> {
        queue::take(&self.look, candidate)
    }

    fn envelopes(&mut self, to: Option<RunId>, most: usize) -> Result<Vec<Envelope>> {
        queue::envelopes(&self.look, to, most)
    }
}

impl Look for PgRows<'_> {
    fn stream(&self, id: StreamId) -> Result<Option<StreamRow>> {
        if let Some((_, row)) = self.seen.take().filter(|(seen, _)| *seen == id) {
            return Ok(row);
        }
        if !self.locks {
            return self.look.stream(id);
        }
        self.look.first(STREAM_LOCKED, &[id.to_string().into()])?.as_ref().map(stream_row).transpose()
    }
    fn streams(&self, after: i64, most: usize) -> Result<Vec<StreamRow>> {
        self.look.streams(after, most)
    }
    fn frames(&self, stream: i64, after: u64) -> Result<Vec<FrameRow>> {
        self.look.frames(stream, after)
    }
    fn frame(&self, stream: i64, seq: u64) -> Result<Option<FrameRow>> {
        self.look.frame(stream, seq)
    }
    fn snapshot(&self, stream: i64) -> Result<Option<(u64, String)>> {
        self.look.snapshot(stream)
    }
    fn newest(&self) -> Result<Option<(i64, RecordHash)>> {
        self.look.newest()
    }
    fn lease(&self, run: i64, step: StepId) -> Result<Option<LeaseRow>> {
        self.look.lease(run, step)
    }
    fn run_of_key(&self, key: &Key) -> Result<Option<RunId>> {
        self.look.run_of_key(key)
    }
    fn grant_spent(&self, grant: GrantId) -> Result<u32> {
        self.look.grant_spent(grant)
    }
    fn key_held(&self, key: &Key) -> Result<Option<KeyHeld>> {
        self.look.key_held(key)
    }
    fn key_busy(&self, key: &Key) -> Result<bool> {
        self.look.key_busy(key)
    }
    fn has_open_forks(&self, run: RunId) -> Result<bool> {
        self.look.has_open_forks(run)
    }
    fn blob_refs(&self, stream: i64) -> Result<BTreeMap<Commit, u64>> {
        self.look.blob_refs(stream)
    }
    fn refers_to(&self, blob: &Commit) -> Result<bool> {
        self.look.refers_to(blob)
    }
    fn differs(&self, stream: &StreamRow, expected: &Projection) -> Result<Option<&'static str>> {
        self.look.differs(stream, expected)
    }
    fn leaves(&self) -> Result<u64> {
        self.look.leaves()
    }
    fn leaf_rows(&self, from: u64, most: usize) -> Result<Vec<LeafRow>> {
        self.look.leaf_rows(from, most)
    }
    fn node(&self, level: u32, n: u64) -> Result<Option<Hash>> {
        self.look.node(level, n)
    }
    fn unsealed(&self, most: usize) -> Result<Vec<(i64, SealedFrame)>> {
        self.look.unsealed(most)
    }
    fn newest_leaf(&self, stream: i64, size: u64, until: u64) -> Result<Option<LeafRow>> {
        self.look.newest_leaf(stream, size, until)
    }
    fn sealed_frames(&self, after: Option<u64>) -> Result<Vec<CarriedFrame>> {
        self.look.sealed_frames(after)
    }
    fn unsealed_frames(&self, after: i64) -> Result<Vec<CarriedFrame>> {
        self.look.unsealed_frames(after)
    }
    fn envelope_rows(&self) -> Result<Vec<EnvelopeRow>> {
        self.look.envelope_rows()
    }
    fn seals(&self, most: usize) -> Result<Vec<SealRow>> {
        self.look.seals(most)
    }
}
