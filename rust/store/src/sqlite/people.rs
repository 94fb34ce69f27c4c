//! What people ask of a store: their own SQL, and how it does.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use holdfast_core::error::Code;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, params_from_iter};

use super::folder::{DATABASE, WAL};
use super::look::{text, unsigned};
use super::{SqliteStore, failed};
use crate::error::{Result, StoreError};
use crate::store::{Cell, Stats, Store as _, Table};
use crate::verify::Problem;

/// Pragmas that only tell.
const TELLING: &[&str] = &["table_info", "table_xinfo", "table_list", "index_list", "index_info"];

/// What a query for people may do: read. Pragmas change settings even of a connection that cannot write,
/// some of them of the whole process, and already while the statement is prepared.
fn only_reading(asked: AuthContext<'_>) -> Authorization {
    match asked.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if function_name != "load_extension" => Authorization::Allow,
        AuthAction::Pragma { pragma_name, .. } if TELLING.contains(&pragma_name) => Authorization::Allow,
        _ => Authorization::Deny,
    }
}

/// One reading statement. The connection is read-only, so that nothing can be written whatever is sent.
pub(super) fn query(
    connection: &mut Connection,
    sql: &str,
    parameters: &[Cell],
    most: usize,
) -> Result<Table> {
    connection.authorizer(Some(only_reading)).map_err(|e| failed(&e))?;
    let done = run_query(connection, sql, parameters, most);
    connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).map_err(|e| failed(&e))?;
    done
}

fn run_query(connection: &Connection, sql: &str, parameters: &[Cell], most: usize) -> Result<Table> {
    // Without the query itself, which may quote values.
    let bad = |error: &rusqlite::Error| {
        let told = match error {
            rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
            rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
            _ => "it cannot be run as it is".to_owned(),
        };
        StoreError::BadSql(format!("SQLite: {told}"))
    };
    let mut statement = connection.prepare(sql).map_err(|e| bad(&e))?;
    if !statement.readonly() || statement.column_count() == 0 {
        return Err(StoreError::BadSql("the statement does not only read".to_owned()));
    }
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query(params_from_iter(parameters)).map_err(|e| bad(&e))?;
    let mut table = Table { columns, rows: Vec::new() };
    while let Some(row) = rows.next().map_err(|e| bad(&e))? {
        if table.rows.len() >= most {
            return Err(StoreError::LimitExceeded("sql_rows_max"));
        }
        let cells = (0..table.columns.len()).map(|at| row.get_ref(at).map(cell));
        table.rows.push(cells.collect::<rusqlite::Result<_>>().map_err(|e| bad(&e))?);
    }
    Ok(table)
}

impl rusqlite::ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Integer(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
    }
}

pub(super) fn stats(store: &SqliteStore) -> Result<Stats> {
    let (frames, streams, runs) = store.with_reader(|connection| {
        let count = |sql: &str| {
            let counted: i64 = connection.query_row(sql, [], |row| row.get(0)).map_err(|e| failed(&e))?;
            unsigned(counted)
        };
        let mut statement = connection
            .prepare("SELECT status, count(*) FROM runs GROUP BY status")
            .map_err(|e| failed(&e))?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(|e| failed(&e))?;
        let mut runs = BTreeMap::new();
        for row in rows {
            let (status, counted): (String, i64) = row.map_err(|e| failed(&e))?;
            runs.insert(status, unsigned(counted)?);
        }
        Ok((count("SELECT coalesce(max(pos), 0) FROM frames")?, count("SELECT count(*) FROM streams")?, runs))
    })?;
    let size = |name: &str| {
        let path = store.folder.as_ref().map(|folder| folder.path().join(name));
        path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len())
    };
    let (blobs, _) = store.blobs.list()?;
    Ok(Stats {
        store: store.id(),
        epoch: store.epoch(),
        engine: format!("sqlite {}", rusqlite::version()),
        schema: store.schema,
        frames,
        streams,
        runs,
        database_bytes: size(DATABASE),
        wal_bytes: size(WAL),
        blob_bytes: blobs.iter().map(|blob| blob.bytes).sum(),
        blobs: u64::try_from(blobs.len()).unwrap_or(0),
        processes: store.folder.as_ref().map(|folder| folder.processes()).unwrap_or_default(),
        barriers: store.barriers.load(Ordering::Relaxed),
        syncs: store.syncer.as_ref().map_or(0, |syncer| syncer.syncs.load(Ordering::Relaxed)),
        commits: store.commits.load(Ordering::Relaxed),
        commands: store.commands.load(Ordering::Relaxed),
    })
}

/// Rows that belong to nothing: each query counts some.
pub(crate) const ORPHANS: &[(&str, &str)] = &[
    (
        "streams whose kind is not that of their id",
        "SELECT count(*) FROM streams WHERE kind <> CASE WHEN id = 'store' THEN 'store' WHEN id LIKE 'run%' THEN 'run' ELSE 'session' END",
    ),
    ("frames of no stream", "SELECT count(*) FROM frames WHERE stream NOT IN (SELECT key FROM streams)"),
    ("streams without frames", "SELECT count(*) FROM streams WHERE key NOT IN (SELECT stream FROM frames)"),
    (
        "rows of runs that do not exist",
        "SELECT count(*) FROM runs WHERE stream NOT IN (SELECT key FROM streams WHERE kind = 'run')",
    ),
    (
        "runs without a row",
        "SELECT count(*) FROM streams WHERE kind = 'run' AND key NOT IN (SELECT stream FROM runs)",
    ),
    (
        "steps of runs that do not exist",
        "SELECT count(*) FROM steps WHERE run NOT IN (SELECT stream FROM runs)",
    ),
    (
        "waits of steps that do not exist",
        "SELECT count(*) FROM waits WHERE (run, step) NOT IN (SELECT run, id FROM steps)",
    ),
    (
        "snapshots of streams that do not exist",
        "SELECT count(*) FROM snapshots WHERE stream NOT IN (SELECT key FROM streams)",
    ),
    (
        "snapshots beyond the end of their stream",
        "SELECT count(*) FROM snapshots JOIN streams ON key = stream WHERE seq > last_seq",
    ),
    (
        "blobs of streams that do not exist",
        "SELECT count(*) FROM blob_refs WHERE stream NOT IN (SELECT key FROM streams)",
    ),
    (
        "keys of runs that do not exist",
        "SELECT count(*) FROM keys WHERE run NOT IN (SELECT stream FROM runs)",
    ),
];

/// Tables, views and indexes whose text is not the one that the migrations wrote.
fn schema_differences(connection: &Connection) -> Result<Vec<String>> {
    let listed = |connection: &Connection| -> Result<BTreeMap<String, String>> {
        let sql = "SELECT type || ' ' || name || ' on ' || tbl_name, coalesce(sql, '') FROM sqlite_master";
        let mut statement = connection.prepare(sql).map_err(|e| failed(&e))?;
        let mut rows = statement.query([]).map_err(|e| failed(&e))?;
        let mut found = BTreeMap::new();
        while let Some(row) = rows.next().map_err(|e| failed(&e))? {
            found.insert(text(row, 0)?, text(row, 1)?);
        }
        Ok(found)
    };
    let mut fresh = Connection::open_in_memory().map_err(|e| failed(&e))?;
    super::migrate::claim_file(&mut fresh)?;
    for migration in super::migrate::migrations() {
        super::migrate::apply(&mut fresh, migration, 0)?;
    }
    let newest = |connection: &Connection| -> Result<i64> {
        let sql = "SELECT coalesce(max(number), 0) FROM migrations";
        connection.query_row(sql, [], |row| row.get(0)).map_err(|e| failed(&e))
    };
    if newest(connection)? != newest(&fresh)? {
        return Ok(Vec::new()); // a newer Holdfast has added to it
    }
    let (found, expected) = (listed(connection)?, listed(&fresh)?);
    let differs = |(name, sql): (&String, &String)| {
        (found.get(name) != Some(sql)).then(|| format!("the schema of {name} is not what it was made as"))
    };
    Ok(expected.iter().filter_map(differs).collect())
}

/// SQLite's own audit of its pages and indexes, and rows that belong to nothing.
pub(super) fn check(connection: &Connection) -> Result<Vec<Problem>> {
    let problem =
        |code: Code, what: String| Problem { code: code.as_str(), stream: None, seq: None, pos: None, what };
    let mut found = Vec::new();
    let mut statement = connection.prepare("PRAGMA integrity_check(20)").map_err(|e| failed(&e))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0)).map_err(|e| failed(&e))?;
    for line in lines {
        match line {
            Ok(line) if line == "ok" => {}
            Ok(line) => found.push(problem(Code::StoreCorrupt, format!("SQLite: {line}"))),
            Err(error) => {
                found.push(problem(Code::StoreCorrupt, format!("SQLite: {error}")));
                return Ok(found);
            }
        }
    }
    found.extend(schema_differences(connection)?.into_iter().map(|what| problem(Code::StoreCorrupt, what)));
    for (what, sql) in ORPHANS {
        let counted: i64 = connection.query_row(sql, [], |row| row.get(0)).map_err(|e| failed(&e))?;
        if counted != 0 {
            found.push(problem(Code::RowsDiffer, format!("{counted} {what}")));
        }
    }
    Ok(found)
}
