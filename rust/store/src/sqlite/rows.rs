//! Writing rows, inside a turn.

use std::collections::BTreeMap;

use holdfast_core::canonical::to_bytes;
use holdfast_core::clock::Now;
use holdfast_core::content::{Commit, Openings};
use holdfast_core::evidence::Hash;
use holdfast_core::ids::{EnvelopeId, GrantId, RunId, StepId, StreamId};
use holdfast_core::records::{Key, Name, RecordHash};
use holdfast_core::run::{Envelope, Lease};
use rusqlite::{Connection, OptionalExtension, Params, params, params_from_iter};

use super::look::{LEASE_COLUMNS, SqlLook, lease_row, parsed, typed, wait_of};
use super::{SqlDone, failed};
use crate::cells::{self, signed};
use crate::error::{Result, StoreError};
use crate::rows::{
    ApprovalRow, Candidate, CarriedFrame, DueWait, EnvelopeRow, Filter, FrameRow, GrantRow, GrantUseRow,
    KeyHeld, KeyRow, LeafRow, LeaseRow, Look, Projection, Rows, RunRow, SealRow, SealedFrame, StepRow,
    StreamRow,
};

/// Rows as the turn's transaction sees and writes them.
pub(super) struct SqlRows<'c> {
    look: SqlLook<'c>,
    process: &'c str,
    newest: Option<(i64, RecordHash)>,
}

impl<'c> SqlRows<'c> {
    pub(super) fn new(connection: &'c Connection, process: &'c str) -> Self {
        Self { look: SqlLook(connection), process, newest: None }
    }

    pub(super) fn done(&self) -> SqlDone {
        SqlDone { newest: self.newest }
    }

    fn execute(&self, sql: &str, values: impl Params) -> Result<usize> {
        let mut statement = self.look.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        statement.execute(values).map_err(|e| failed(&e))
    }

    fn one(&self, sql: &str, values: impl Params) -> Result<()> {
        match self.execute(sql, values)? {
            1 => Ok(()),
            n => Err(StoreError::Failed(format!("{n} rows were written where there should be one"))),
        }
    }

    fn put_waits(&self, row: &StepRow) -> Result<()> {
        let id = row.id.to_string();
        self.execute("DELETE FROM waits WHERE run = ?1 AND step = ?2", params![row.run, id])?;
        for (n, wait) in row.waits.iter().enumerate() {
            self.one(
                "INSERT INTO waits (run, step, n, what, subject, call, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params_from_iter(cells::of_wait(row, n, wait)),
            )?;
        }
        Ok(())
    }
}

/// Steps that a worker may have or not have together.
struct Group {
    queue: String,
    agent: String,
    package: String,
}

impl Group {
    fn is_wanted(&self, filter: &Filter) -> bool {
        let any = |names: &[Name], name: &str| names.is_empty() || names.iter().any(|n| n.as_str() == name);
        any(&filter.queues, &self.queue)
            && any(&filter.agents, &self.agent)
            && (filter.packages.is_empty() || filter.packages.contains(&self.package))
    }
}

/// Where a step stands among all that are ready: by rank, deadline and age.
type Place = (i64, i64, i64);

impl SqlRows<'_> {
    /// The next group that has a step that is ready: a few looks into the index, however many steps it has.
    fn ready_group(&self, after: Option<&Group>) -> Result<Option<Group>> {
        // Not one comparison of all three: SQLite would walk over every step of the group before.
        let next = ["queue = ?1 AND agent = ?2 AND package > ?3", "queue = ?1 AND agent > ?2", "queue > ?1"];
        let Some(Group { queue, agent, package }) = after else {
            return self.first_group("1", &[]);
        };
        let values = [queue.as_str(), agent.as_str(), package.as_str()];
        for (at, condition) in next.into_iter().enumerate() {
            let found = self.first_group(condition, &values[..values.len() - at])?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn first_group(&self, condition: &str, values: &[&str]) -> Result<Option<Group>> {
        let sql = format!(
            "SELECT queue, agent, package FROM steps INDEXED BY steps_ready WHERE ready = 1 AND {condition}
             ORDER BY queue, agent, package LIMIT 1"
        );
        let mut statement = self.look.0.prepare_cached(&sql).map_err(|e| failed(&e))?;
        let group = |row: &rusqlite::Row<'_>| {
            Ok(Group { queue: row.get(0)?, agent: row.get(1)?, package: row.get(2)? })
        };
        statement.query_row(params_from_iter(values), group).optional().map_err(|e| failed(&e))
    }

    /// The first steps of a group whose concurrency key nobody holds.
    fn ready_of(&self, group: &Group, most: usize, found: &mut Vec<(Place, Candidate)>) -> Result<()> {
        let sql = "SELECT rank, coalesce(deadline, 9223372036854775807), run, streams.id, steps.id,
                       concurrency_key
                   FROM steps INDEXED BY steps_ready JOIN streams ON streams.key = steps.run
                   WHERE ready = 1 AND queue = ?1 AND agent = ?2 AND package = ?3
                   AND (concurrency_key IS NULL OR NOT EXISTS (SELECT 1 FROM steps AS busy
                       WHERE busy.concurrency_key = steps.concurrency_key AND busy.status = 'running'
                       AND busy.concurrency_key IS NOT NULL))
                   ORDER BY rank, coalesce(deadline, 9223372036854775807), run LIMIT ?4";
        let mut statement = self.look.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement
            .query(params![group.queue, group.agent, group.package, most])
            .map_err(|e| failed(&e))?;
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            let number = |at: usize| row.get::<_, i64>(at).map_err(|e| failed(&e));
            let text = |at: usize| row.get::<_, String>(at).map_err(|e| failed(&e));
            let key: Option<String> = row.get(5).map_err(|e| failed(&e))?;
            let candidate = Candidate {
                run: parsed(&text(3)?)?,
                step: parsed(&text(4)?)?,
                concurrency_key: key.and_then(Key::new),
            };
            found.push(((number(0)?, number(1)?, number(2)?), candidate));
        }
        Ok(())
    }
}

fn text_of<T: serde::Serialize>(value: &T) -> Result<String> {
    String::from_utf8(to_bytes(value)?).map_err(|_| StoreError::Panicked)
}

impl Rows for SqlRows<'_> {
    fn add_stream(&mut self, id: StreamId, head: RecordHash) -> Result<i64> {
        let kind = match id {
            StreamId::Run(_) => "run",
            StreamId::Session(_) => "session",
            StreamId::Store => "store",
        };
        self.one(
            "INSERT INTO streams (id, kind, last_seq, head, at) VALUES (?1, ?2, 0, ?3, 0)",
            params![id.to_string(), kind, head.to_string()],
        )?;
        Ok(self.look.0.last_insert_rowid())
    }

    fn add_frame(&mut self, frame: &FrameRow) -> Result<i64> {
        let head = frame.head.to_string();
        self.one(
            "INSERT INTO frames (stream, first_seq, last_seq, head, body, contents)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                frame.stream,
                signed(frame.first_seq),
                signed(frame.last_seq),
                head,
                frame.body,
                frame.contents
            ],
        )?;
        let pos = self.look.0.last_insert_rowid();
        self.one(
            "UPDATE streams SET last_seq = ?2, head = ?3, at = ?4 WHERE key = ?1 AND last_seq = ?5",
            params![
                frame.stream,
                signed(frame.last_seq),
                head,
                signed(frame.at),
                signed(frame.first_seq - 1)
            ],
        )?;
        self.newest = Some((pos, frame.head));
        Ok(pos)
    }

    fn put_snapshot(&mut self, stream: i64, seq: u64, state: &str) -> Result<()> {
        self.one(
            "INSERT INTO snapshots (stream, seq, state) VALUES (?1, ?2, ?3)
             ON CONFLICT (stream) DO UPDATE SET seq = ?2, state = ?3",
            params![stream, signed(seq), state],
        )
    }

    fn put_run(&mut self, row: &RunRow) -> Result<()> {
        self.one(
            "INSERT INTO runs (stream, id, agent, role, session, parent, fork_of, mode, status, reason,
                 state_version, priority, deadline, labels, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
             ON CONFLICT (stream) DO UPDATE SET status = ?9, reason = ?10, state_version = ?11,
                 labels = ?14",
            params_from_iter(cells::of_run(row)),
        )
    }

    fn put_step(&mut self, row: &StepRow) -> Result<()> {
        // A lease holds only while its step is running.
        let running = row.status == "running";
        self.one(
            "INSERT INTO steps (run, id, name, queue, agent, package, status, ready, due, rank, deadline,
                 concurrency_key, attempt, fence_epoch, fence_n)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
             ON CONFLICT (run, id) DO UPDATE SET package = ?6, status = ?7, ready = ?8, due = ?9,
                 attempt = ?13, fence_epoch = ?14, fence_n = ?15,
                 owner = iif(?16, owner, NULL), process = iif(?16, process, NULL),
                 lease_boot = iif(?16, lease_boot, NULL), lease_until = iif(?16, lease_until, NULL)",
            params_from_iter(cells::of_step(row).into_iter().chain([running.into()])),
        )?;
        self.put_waits(row)
    }

    fn put_approval(&mut self, row: &ApprovalRow) -> Result<()> {
        self.one(
            "INSERT INTO approvals (id, run, call, status, quorum, votes, digest, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET status = ?4, votes = ?6, digest = ?7, expires_at = ?8",
            params_from_iter(cells::of_approval(row)),
        )
    }

    fn put_grant(&mut self, row: &GrantRow) -> Result<()> {
        self.one(
            "INSERT INTO grants (id, stream, tool, uses, spent, revoked, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (id) DO UPDATE SET spent = max(spent, ?5), revoked = ?6",
            params_from_iter(cells::of_grant(row)),
        )
    }

    fn put_grant_use(&mut self, row: &GrantUseRow) -> Result<()> {
        self.one(
            "INSERT INTO grant_uses (grant_id, run, call) VALUES (?1, ?2, ?3)",
            params_from_iter(cells::of_grant_use(row)),
        )
    }

    fn put_key(&mut self, row: &KeyRow) -> Result<()> {
        self.execute(
            "INSERT INTO keys (scope, key, run, call, settled) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (scope, key) DO UPDATE SET run = ?3, call = ?4, settled = ?5
             WHERE run = ?3 OR scope = 'store' AND settled > 0 AND (?5 = 0 OR settled < ?5)",
            params_from_iter(cells::of_key(row)),
        )
        .map(|_| ())
    }

    fn drop_key(&mut self, row: &KeyRow) -> Result<()> {
        let sql = "DELETE FROM keys WHERE scope = ?1 AND key = ?2 AND run = ?3 AND call IS ?4";
        self.execute(sql, params![row.scope, row.key, row.run, row.call]).map(|_| ())
    }

    fn put_name(&mut self, name: &Name, run: Option<RunId>) -> Result<()> {
        self.execute("DELETE FROM names WHERE name = ?1", [name.as_str()])?;
        match run {
            Some(run) => {
                self.one("INSERT INTO names (name, run) VALUES (?1, ?2)", [name.as_str(), &run.to_string()])
            }
            None => Ok(()),
        }
    }

    fn set_lease(&mut self, run: i64, step: StepId, lease: &Lease) -> Result<()> {
        self.one(
            "UPDATE steps SET owner = ?3, process = ?4, lease_boot = ?5, lease_until = ?6, fence_epoch = ?7,
                 fence_n = ?8 WHERE run = ?1 AND id = ?2",
            params![
                run,
                step.to_string(),
                lease.owner.as_str(),
                self.process,
                lease.boot_id,
                signed(lease.expires_boot_ms),
                lease.fence.0,
                lease.fence.1,
            ],
        )
    }

    fn drop_lease(&mut self, run: i64, step: StepId) -> Result<()> {
        self.one(
            "UPDATE steps SET owner = NULL, process = NULL, lease_boot = NULL, lease_until = NULL
             WHERE run = ?1 AND id = ?2",
            params![run, step.to_string()],
        )
    }

    fn put_envelope(&mut self, envelope: &Envelope, sent_at: u64) -> Result<()> {
        self.one(
            "INSERT INTO envelopes (id, receiver, body, sent_at) VALUES (?1, ?2, ?3, ?4)",
            params![envelope.id.to_string(), envelope.to.to_string(), text_of(envelope)?, signed(sent_at)],
        )
    }

    fn drop_envelope(&mut self, id: EnvelopeId) -> Result<()> {
        self.execute("DELETE FROM envelopes WHERE id = ?1", [id.to_string()]).map(|_| ())
    }

    fn refuse_envelope(&mut self, id: EnvelopeId, code: &str) -> Result<()> {
        self.execute("UPDATE envelopes SET refused = ?2 WHERE id = ?1", params![id.to_string(), code])
            .map(|_| ())
    }

    fn hold_blob(&mut self, _: &Commit, _: bool) -> Result<()> {
        Ok(()) // whoever has the turn is alone
    }

    fn put_blob_ref(&mut self, blob: &Commit, stream: i64, bytes: u64) -> Result<()> {
        self.execute(
            "INSERT INTO blob_refs (commitment, stream, bytes) VALUES (?1, ?2, ?3)
             ON CONFLICT (commitment, stream) DO NOTHING",
            params![blob.to_string(), stream, signed(bytes)],
        )
        .map(|_| ())
    }

    fn drop_blob_ref(&mut self, blob: &Commit, stream: i64) -> Result<()> {
        let sql = "DELETE FROM blob_refs WHERE commitment = ?1 AND stream = ?2";
        self.execute(sql, params![blob.to_string(), stream]).map(|_| ())
    }

    fn erase(&mut self, stream: i64, commits: &[Commit]) -> Result<u64> {
        let sql = "SELECT pos, contents FROM frames WHERE stream = ?1 AND contents IS NOT NULL";
        let mut found: Vec<(i64, String)> = Vec::new();
        {
            let mut statement = self.look.0.prepare(sql).map_err(|e| failed(&e))?;
            let mut rows = statement.query([stream]).map_err(|e| failed(&e))?;
            while let Some(row) = rows.next().map_err(|e| failed(&e))? {
                let contents: String = row.get(1).map_err(|e| failed(&e))?;
                if commits.iter().any(|commit| contents.contains(&commit.to_string())) {
                    found.push((row.get(0).map_err(|e| failed(&e))?, contents));
                }
            }
        }
        let mut erased = 0;
        for (pos, contents) in found {
            let mut kept: Openings = crate::engine::openings_of(&contents, pos)?;
            erased += holdfast_core::content::erase(&mut kept, commits);
            let left = if kept.is_empty() { None } else { Some(text_of(&kept)?) };
            self.one("UPDATE frames SET contents = ?2 WHERE pos = ?1", params![pos, left])?;
        }
        // Forks have copies of what they inherited in their snapshots.
        self.execute(
            "WITH RECURSIVE heirs (stream, id) AS (
                 SELECT key, id FROM streams WHERE key = ?1
                 UNION SELECT runs.stream, runs.id FROM runs JOIN heirs ON runs.fork_of = heirs.id)
             DELETE FROM snapshots WHERE stream IN (SELECT stream FROM heirs)",
            [stream],
        )?;
        Ok(u64::try_from(erased).unwrap_or(0))
    }

    fn put_leaf(&mut self, n: u64, pos: i64, hash: &Hash) -> Result<()> {
        let sql = "INSERT INTO leaves (n, pos, hash) VALUES (?1, ?2, ?3)";
        self.one(sql, params![signed(n), pos, hash.as_slice()])
    }

    fn put_node(&mut self, level: u32, n: u64, hash: &Hash) -> Result<()> {
        let sql = "INSERT INTO nodes (level, n, hash) VALUES (?1, ?2, ?3)";
        self.one(sql, params![level, signed(n), hash.as_slice()])
    }

    fn put_seal(&mut self, seal: &SealRow) -> Result<()> {
        self.one(
            "INSERT INTO seals (size, pos, root, checkpoint) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (size) DO UPDATE SET pos = ?2, root = ?3, checkpoint = ?4",
            params![signed(seal.size), seal.pos, seal.root, seal.checkpoint],
        )
    }

    fn clear_projections(&mut self, stream: &StreamRow) -> Result<()> {
        if stream.id == StreamId::Store {
            self.execute("DELETE FROM names", [])?;
        }
        for sql in [
            "DELETE FROM snapshots WHERE stream = ?1",
            "DELETE FROM waits WHERE run = ?1",
            "DELETE FROM steps WHERE run = ?1",
            "DELETE FROM runs WHERE stream = ?1",
            "DELETE FROM approvals WHERE run = ?1",
            "DELETE FROM grants WHERE stream = ?1",
            "DELETE FROM grant_uses WHERE run = ?1",
            "DELETE FROM keys WHERE run = ?1",
            "DELETE FROM blob_refs WHERE stream = ?1",
        ] {
            self.execute(sql, [stream.key])?;
        }
        Ok(())
    }

    fn promote_due(&mut self, wall_ms: u64) -> Result<()> {
        self.execute("UPDATE steps SET ready = 1, due = NULL WHERE due <= ?1", [signed(wall_ms)]).map(|_| ())
    }

    fn leases(&mut self, now: &Now) -> Result<Vec<LeaseRow>> {
        let sql = format!(
            "SELECT {LEASE_COLUMNS} FROM steps JOIN streams ON streams.key = steps.run
             WHERE owner IS NOT NULL AND (lease_until <= ?1 OR lease_boot IS NOT ?2 OR process IS NOT ?3)
             ORDER BY lease_until"
        );
        let mut statement = self.look.0.prepare_cached(&sql).map_err(|e| failed(&e))?;
        let known = (signed(now.boot_ms), now.boot_id.as_str(), self.process);
        let mut rows = statement.query(known).map_err(|e| failed(&e))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            found.extend(lease_row(row)?);
        }
        Ok(found)
    }

    fn due_waits(&mut self, wall_ms: u64, most: usize) -> Result<Vec<DueWait>> {
        let sql = "SELECT streams.id, step, what, subject, call, until FROM (
                       SELECT * FROM (SELECT * FROM waits WHERE until <= ?1 ORDER BY until LIMIT ?2)
                       UNION ALL
                       SELECT * FROM (SELECT * FROM waits WHERE what = 'key' AND NOT EXISTS (
                           SELECT 1 FROM keys WHERE scope = 'store' AND key = subject AND settled = 0) LIMIT ?2)
                   ) AS due JOIN streams ON streams.key = due.run";
        let mut statement = self.look.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement.query((signed(wall_ms), most)).map_err(|e| failed(&e))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            let text = |at: usize| row.get::<_, String>(at).map_err(|e| failed(&e));
            let parts = (
                text(2)?,
                row.get(3).map_err(|e| failed(&e))?,
                row.get(4).map_err(|e| failed(&e))?,
                row.get(5).map_err(|e| failed(&e))?,
            );
            found.push(DueWait { run: parsed(&text(0)?)?, step: parsed(&text(1)?)?, wait: wait_of(parts)? });
        }
        Ok(found)
    }

    fn candidates(&mut self, filter: &Filter, most: usize) -> Result<Vec<Candidate>> {
        let mut found = Vec::new();
        let mut after = None;
        while let Some(group) = self.ready_group(after.as_ref())? {
            if group.is_wanted(filter) {
                self.ready_of(&group, most, &mut found)?;
            }
            after = Some(group);
        }
        found.sort_by_key(|(place, _)| *place);
        found.truncate(most);
        Ok(found.into_iter().map(|(_, candidate)| candidate).collect())
    }

    fn take(&mut self, _candidate: &Candidate) -> Result<bool> {
        Ok(true) // one writes at a time
    }

    fn envelopes(&mut self, to: Option<RunId>, most: usize) -> Result<Vec<Envelope>> {
        let receiver = to.map(|to| to.to_string());
        let sql = match to {
            Some(_) => {
                "SELECT body FROM envelopes WHERE receiver = ?1 AND refused IS NULL ORDER BY id LIMIT ?2"
            }
            None => "SELECT body FROM envelopes WHERE ?1 IS NULL AND refused IS NULL ORDER BY id LIMIT ?2",
        };
        let mut statement = self.look.0.prepare_cached(sql).map_err(|e| failed(&e))?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut rows = statement.query((receiver, most)).map_err(|e| failed(&e))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            found.push(typed(&row.get::<_, String>(0).map_err(|e| failed(&e))?)?);
        }
        Ok(found)
    }
}

impl Look for SqlRows<'_> {
    fn stream(&self, id: StreamId) -> Result<Option<StreamRow>> {
        self.look.stream(id)
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
