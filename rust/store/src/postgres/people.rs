//! What people ask of a store: their own SQL, and how it does.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use holdfast_core::error::Code;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::PgStore;
use super::link::Link;
use super::look::unsigned;
use crate::error::{Result, StoreError};
use crate::store::{Cell, ProcessInfo, Stats, Store as _, Table};
use crate::verify::Problem;

impl ToSql for Cell {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(number) => match *kind {
                Type::INT2 => i16::try_from(*number)?.to_sql(kind, out),
                Type::INT4 => i32::try_from(*number)?.to_sql(kind, out),
                Type::BOOL => (*number != 0).to_sql(kind, out),
                Type::TEXT => number.to_string().to_sql(kind, out),
                _ => number.to_sql(kind, out),
            },
            Self::Real(number) => number.to_sql(kind, out),
            Self::Text(text) => text.to_sql(kind, out),
            Self::Bytes(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true // what does not fit, the server refuses
    }

    to_sql_checked!();
}

/// The question marks of a query as the server numbers them; those in quotes stay, and `?2` has its number.
fn numbered(query: &str) -> String {
    let (mut sql, mut quote, mut n) = (String::with_capacity(query.len() + 8), None, 0);
    let mut chars = query.chars().peekable();
    while let Some(c) = chars.next() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == '?' => {
                sql.push('$');
                if !chars.peek().is_some_and(char::is_ascii_digit) {
                    n += 1;
                    sql.push_str(&n.to_string());
                }
                continue;
            }
            _ => {}
        }
        sql.push(c);
    }
    sql
}

fn bad(error: &StoreError) -> StoreError {
    match error {
        StoreError::Failed(told) | StoreError::NoPermission(told) | StoreError::Conflict(told) => {
            StoreError::BadSql(told.clone())
        }
        StoreError::ReadOnly => StoreError::BadSql("the statement does not only read".to_owned()),
        other => other.clone(),
    }
}

/// One reading statement, in a transaction that cannot write.
pub(super) fn query(link: &mut Link, sql: &str, parameters: &[Cell], most: usize) -> Result<Table> {
    link.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT 1")?;
    let done = run_query(link, &numbered(sql), parameters, most);
    let ended = link.rollback();
    done.and_then(|table| ended.map(|()| table))
}

fn run_query(link: &mut Link, sql: &str, parameters: &[Cell], most: usize) -> Result<Table> {
    let statement = link.prepared(sql).map_err(|error| bad(&error))?;
    if statement.columns().is_empty() {
        return Err(StoreError::BadSql("the statement does not only read".to_owned()));
    }
    if statement.params().len() != parameters.len() {
        let told = format!("it has {} places for {} values", statement.params().len(), parameters.len());
        return Err(StoreError::BadSql(told));
    }
    let columns = statement.columns().iter().map(|column| column.name().to_owned()).collect();
    let rows = link.query_prepared(&statement, parameters).map_err(|error| bad(&error))?;
    if rows.len() > most {
        return Err(StoreError::LimitExceeded("sql_rows_max"));
    }
    let cells = |row: &Row| (0..row.len()).map(|at| cell(row, at)).collect::<Result<Vec<_>>>();
    Ok(Table { columns, rows: rows.iter().map(cells).collect::<Result<_>>()? })
}

fn cell(row: &Row, at: usize) -> Result<Cell> {
    let column = &row.columns()[at];
    let told = || StoreError::BadSql(format!("cast the column {} to text", column.name()));
    let found = match *column.type_() {
        Type::BOOL => row.get::<_, Option<bool>>(at).map(Cell::from),
        Type::INT2 => row.get::<_, Option<i16>>(at).map(|number| Cell::Integer(number.into())),
        Type::INT4 => row.get::<_, Option<i32>>(at).map(Cell::from),
        Type::INT8 => row.get::<_, Option<i64>>(at).map(Cell::Integer),
        Type::FLOAT4 => row.get::<_, Option<f32>>(at).map(|number| Cell::Real(number.into())),
        Type::FLOAT8 => row.get::<_, Option<f64>>(at).map(Cell::Real),
        Type::NUMERIC => row.try_get::<_, Option<Numeric>>(at).map_err(|_| told())?.map(|number| number.0),
        Type::JSON => row.get::<_, Option<Json>>(at).map(|json| Cell::Text(json.0)),
        Type::BYTEA => row.get::<_, Option<Vec<u8>>>(at).map(Cell::Bytes),
        Type::TEXT | Type::VARCHAR | Type::NAME | Type::BPCHAR | Type::UNKNOWN => {
            row.get::<_, Option<String>>(at).map(Cell::Text)
        }
        _ => return Err(told()),
    };
    Ok(found.unwrap_or(Cell::Null))
}

/// JSON as it was written.
struct Json(String);

impl<'a> FromSql<'a> for Json {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> std::result::Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(raw)?.to_owned()))
    }
    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSON
    }
}

/// A number of any length: sums are such. An integer if it is one.
struct Numeric(Cell);

impl<'a> FromSql<'a> for Numeric {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> std::result::Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let word = |at: usize| raw.get(at..at + 2).map(|two| i16::from_be_bytes([two[0], two[1]]));
        let (Some(digits), Some(weight), Some(sign)) = (word(0), word(2), word(4)) else {
            return Err("a short number".into());
        };
        let negative = match sign {
            0 => false,
            0x4000 => true,
            _ => return Ok(Self(Cell::Real(f64::NAN))),
        };
        let digit = |n: i16| {
            usize::try_from(n).ok().filter(|_| n < digits).and_then(|n| word(8 + 2 * n)).unwrap_or(0)
        };
        let whole =
            (0..=weight).try_fold(0i64, |sum, n| sum.checked_mul(10_000)?.checked_add(digit(n).into()));
        let fraction = (weight + 1).max(0)..digits;
        if fraction.clone().all(|n| digit(n) == 0)
            && let Some(whole) = whole
        {
            return Ok(Self(Cell::Integer(if negative { -whole } else { whole })));
        }
        let scale = |n: i16| f64::from(digit(n)) * 10_000f64.powi(i32::from(weight) - i32::from(n));
        let sum: f64 = (0..digits).map(scale).sum();
        Ok(Self(Cell::Real(if negative { -sum } else { sum })))
    }
    fn accepts(kind: &Type) -> bool {
        *kind == Type::NUMERIC
    }
}

/// The processes that have the store open: those with a row, and a connection of their name.
pub(super) fn processes(link: &mut Link) -> Result<Vec<ProcessInfo>> {
    let rows = link.query(
        "SELECT id, pid, schema, started_at, version FROM processes WHERE EXISTS (
             SELECT 1 FROM pg_stat_activity WHERE application_name = 'holdfast ' || processes.id)
         ORDER BY started_at, id",
        &[],
    )?;
    let small = |number: i64| u32::try_from(number).unwrap_or(0);
    let process = |row: &Row| {
        Ok(ProcessInfo {
            id: row.get(0),
            pid: small(row.get(1)),
            schema: small(row.get(2)),
            started_ms: unsigned(row.get(3))?,
            version: row.get(4),
        })
    };
    rows.iter().map(process).collect()
}

pub(super) fn stats(store: &PgStore) -> Result<Stats> {
    // Of those that lie elsewhere, what records refer to: counting the others is no query.
    let blobs = match store.address.blobs {
        None => "SELECT count(*), coalesce(sum(length(stored)), 0)::bigint FROM blobs",
        Some(_) => {
            "SELECT count(*), coalesce(sum(bytes), 0)::bigint
             FROM (SELECT commitment, max(bytes) AS bytes FROM blob_refs GROUP BY commitment) AS one"
        }
    };
    store.with_reader(|link| {
        let rows = link.query(
            "SELECT (SELECT count(*) FROM streams), (SELECT count(*) FROM frames),
                 (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
                  JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = current_schema() AND c.relkind = 'r'),
                 current_setting('server_version')",
            &[],
        )?;
        let kept = link.query(blobs, &[])?;
        let (Some(row), Some(kept)) = (rows.first(), kept.first()) else { return Err(StoreError::Panicked) };
        let mut runs = BTreeMap::new();
        for row in link.query("SELECT status, count(*) FROM runs GROUP BY status", &[])? {
            runs.insert(row.get(0), unsigned(row.get(1))?);
        }
        Ok(Stats {
            store: store.id(),
            epoch: store.epoch(),
            engine: format!("postgresql {}", row.get::<_, String>(3)),
            schema: store.schema,
            frames: unsigned(row.get(1))?,
            streams: unsigned(row.get(0))?,
            runs,
            database_bytes: unsigned(row.get(2))?,
            wal_bytes: 0,
            blob_bytes: unsigned(kept.get(1))?,
            blobs: unsigned(kept.get(0))?,
            processes: processes(link)?,
            barriers: store.barriers.load(Ordering::Relaxed),
            syncs: store.syncer.syncs.load(Ordering::Relaxed),
            commits: store.commits.load(Ordering::Relaxed),
            commands: store.commands.load(Ordering::Relaxed),
        })
    })
}

/// Rows that belong to nothing. What the server's own pages are worth, its own checksums say.
pub(super) fn check(link: &mut Link) -> Result<Vec<Problem>> {
    let mut found = Vec::new();
    for (what, sql) in crate::sqlite::people::ORPHANS {
        let counted: i64 = link.query(sql, &[])?.first().map_or(0, |row| row.get(0));
        if counted != 0 {
            let what = format!("{counted} {what}");
            let code = Code::RowsDiffer.as_str();
            found.push(Problem { code, stream: None, seq: None, pos: None, what });
        }
    }
    Ok(found)
}
