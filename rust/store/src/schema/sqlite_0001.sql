-- The journal. `body` is the JSON array of the frame's records, byte for byte as they were hashed;
-- `contents` holds the salted values that open their commitments, and can be erased.
CREATE TABLE streams (
    key      INTEGER PRIMARY KEY,
    id       TEXT NOT NULL UNIQUE,
    kind     TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    head     TEXT NOT NULL,
    at       INTEGER NOT NULL
) STRICT;

CREATE TABLE frames (
    pos       INTEGER PRIMARY KEY,
    stream    INTEGER NOT NULL REFERENCES streams (key),
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    head      TEXT NOT NULL,
    body      TEXT NOT NULL,
    contents  TEXT
) STRICT;

CREATE UNIQUE INDEX frames_place ON frames (stream, first_seq);

-- One row per record, for people's SQL. A frame that is no JSON any more is left out; verify names it.
CREATE VIEW events AS
SELECT
    frames.pos,
    streams.id AS stream,
    json_extract(record.value, '$.seq') AS seq,
    json_extract(record.value, '$.at') AS at,
    json_extract(record.value, '$.kind') AS kind,
    json_extract(record.value, '$.step') AS step,
    json_extract(record.value, '$.attempt') AS attempt,
    json_extract(record.value, '$.call') AS call,
    json_extract(record.value, '$.by.type') AS by_type,
    json_extract(record.value, '$.by.id') AS by_id,
    json_extract(record.value, '$.body') AS body
FROM frames
JOIN streams ON streams.key = frames.stream
JOIN json_each(CASE WHEN json_valid(frames.body) THEN frames.body ELSE '[]' END) AS record;

-- Folds of streams, so that a command reads a snapshot and what follows it.
CREATE TABLE snapshots (
    stream INTEGER PRIMARY KEY REFERENCES streams (key),
    seq    INTEGER NOT NULL,
    state  TEXT NOT NULL
) STRICT;

-- What follows are projections, written with the frames they follow from; doctor can make them anew.
CREATE TABLE runs (
    stream        INTEGER PRIMARY KEY REFERENCES streams (key),
    id            TEXT NOT NULL,
    agent         TEXT NOT NULL,
    role          TEXT NOT NULL,
    session       TEXT,
    parent        TEXT,
    fork_of       TEXT,
    mode          TEXT NOT NULL,
    status        TEXT NOT NULL,
    reason        TEXT,
    state_version INTEGER NOT NULL,
    priority      INTEGER NOT NULL,
    deadline      INTEGER,
    labels        TEXT NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX runs_status ON runs (status, stream);
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_fork ON runs (fork_of) WHERE fork_of IS NOT NULL;

-- The claim queue. `ready`: could be claimed now; `due`: becomes ready then. `rank` is its age less its
-- priority, which orders steps by priority with ageing at any time without being touched again.
CREATE TABLE steps (
    run             INTEGER NOT NULL REFERENCES streams (key),
    id              TEXT NOT NULL,
    name            TEXT NOT NULL,
    queue           TEXT NOT NULL,
    agent           TEXT NOT NULL,
    package         TEXT NOT NULL,
    status          TEXT NOT NULL,
    ready           INTEGER NOT NULL,
    due             INTEGER,
    rank            INTEGER NOT NULL,
    deadline        INTEGER,
    concurrency_key TEXT,
    attempt         INTEGER NOT NULL,
    fence_epoch     INTEGER,
    fence_n         INTEGER,
    owner           TEXT,
    process         TEXT,
    lease_boot      TEXT,
    lease_until     INTEGER,
    PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

-- A claim looks up each group of steps that a worker may have, and takes the first of them.
CREATE INDEX steps_ready ON steps (queue, agent, package, rank, coalesce(deadline, 9223372036854775807), run)
WHERE ready = 1;
CREATE INDEX steps_due ON steps (due) WHERE due IS NOT NULL;
CREATE INDEX steps_leased ON steps (lease_until) WHERE owner IS NOT NULL;
CREATE INDEX steps_busy ON steps (concurrency_key) WHERE status = 'running' AND concurrency_key IS NOT NULL;

CREATE TABLE waits (
    run     INTEGER NOT NULL REFERENCES streams (key),
    step    TEXT NOT NULL,
    n       INTEGER NOT NULL,
    what    TEXT NOT NULL,
    subject TEXT,
    call    TEXT,
    until   INTEGER,
    PRIMARY KEY (run, step, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX waits_until ON waits (until) WHERE until IS NOT NULL;
CREATE INDEX waits_what ON waits (what, subject);

CREATE VIEW timers AS
SELECT streams.id AS run, step, call, until FROM waits JOIN streams ON streams.key = waits.run
WHERE until IS NOT NULL;

-- From a run to a run: written with the sender's frame, gone with the receiver's. One that the receiver
-- refuses stays, with the code.
CREATE TABLE envelopes (
    id       TEXT PRIMARY KEY,
    receiver TEXT NOT NULL,
    body     TEXT NOT NULL,
    sent_at  INTEGER NOT NULL,
    refused  TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX envelopes_receiver ON envelopes (receiver) WHERE refused IS NULL;

CREATE TABLE approvals (
    id         TEXT PRIMARY KEY,
    run        INTEGER NOT NULL REFERENCES streams (key),
    call       TEXT,
    status     TEXT NOT NULL,
    quorum     INTEGER NOT NULL,
    votes      INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_status ON approvals (status, expires_at);

CREATE TABLE grants (
    id         TEXT PRIMARY KEY,
    stream     INTEGER NOT NULL REFERENCES streams (key),
    tool       TEXT NOT NULL,
    uses       INTEGER NOT NULL,
    spent      INTEGER NOT NULL,
    revoked    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which calls have spent a session's grant: what is left of it follows from these.
CREATE TABLE grant_uses (
    grant_id TEXT NOT NULL,
    run      INTEGER NOT NULL REFERENCES streams (key),
    call     TEXT NOT NULL,
    PRIMARY KEY (grant_id, run, call)
) STRICT, WITHOUT ROWID;

CREATE INDEX grant_uses_run ON grant_uses (run);

-- Who has a key: a run under its own key, or a call under one that spans runs.
CREATE TABLE keys (
    scope   TEXT NOT NULL,
    key     TEXT NOT NULL,
    run     INTEGER NOT NULL REFERENCES streams (key),
    call    TEXT,
    settled INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE names (
    name TEXT PRIMARY KEY,
    run  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE seals (
    size       INTEGER PRIMARY KEY,
    pos        INTEGER NOT NULL,
    root       TEXT NOT NULL,
    checkpoint TEXT NOT NULL
) STRICT;

-- The blobs that frames refer to.
CREATE TABLE blob_refs (
    commitment TEXT NOT NULL,
    stream     INTEGER NOT NULL REFERENCES streams (key),
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (commitment, stream)
) STRICT, WITHOUT ROWID;

CREATE INDEX blob_refs_stream ON blob_refs (stream);
