//! Numbered migrations of a schema, each in one transaction under a lock that all processes honour. A
//! migration is never edited after its release: its checksum is kept, and a store that had another one is
//! refused.

use holdfast_core::canonical::{Digest, domains};

use super::address::PgAddress;
use super::link::Link;
use super::people::processes;
use super::turn::number;
use crate::error::{Result, StoreError};
use crate::sqlite::open::Planned;
use crate::store::Cell;

/// One step of the schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Migration {
    pub(super) number: u32,
    name: &'static str,
    sql: &'static str,
    /// Whether processes of the schema before it can live with it.
    additive: bool,
}

const MIGRATIONS: &[Migration] = &[Migration {
    number: 1,
    name: "journal",
    sql: include_str!("../schema/postgres_0001.sql"),
    additive: true,
}];

/// The newest schema number of this build.
pub(super) fn newest() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

fn checksum(migration: &Migration) -> String {
    Digest::<domains::Schema>::of_bytes(&[migration.sql.as_bytes()]).to_string()
}

/// Whether the schema is there, and ours.
pub(super) fn exists(link: &mut Link, schema: &str) -> Result<bool> {
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = $1";
    let count = |rows: Vec<tokio_postgres::Row>| rows.first().map_or(0, |row| row.get::<_, i64>(0));
    let ours = format!("{tables} AND table_name IN ('meta', 'migrations')");
    if count(link.query(&ours, &[schema.into()])?) == 2 {
        return Ok(true);
    }
    if count(link.query(tables, &[schema.into()])?) > 0 {
        let told = format!("the schema {schema} belongs to another program");
        return Err(StoreError::NotAStore(told));
    }
    Ok(false)
}

/// The migrations that the store lacks, after those that it has were found to be the same.
pub(super) fn missing(link: &mut Link) -> Result<Vec<Migration>> {
    let rows = link.query("SELECT number, checksum FROM migrations ORDER BY number", &[])?;
    let applied: Vec<(i64, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let last = applied.last().map_or(0, |(number, _)| *number);
    let needed: u32 = meta(link, "min_writer")?.and_then(|needed| needed.parse().ok()).unwrap_or(0);
    if last > i64::from(newest()) && needed > newest() {
        return Err(StoreError::NewerStore(format!("its schema is {last}, this one knows {}", newest())));
    }
    let mut missing = Vec::new();
    for migration in MIGRATIONS {
        match applied.iter().find(|(number, _)| *number == i64::from(migration.number)) {
            None => missing.push(*migration),
            Some((_, found)) if *found != checksum(migration) => {
                return Err(StoreError::MigrationChanged(migration.number));
            }
            Some(_) => {}
        }
    }
    Ok(missing)
}

/// Makes the schema if there is none, and applies what it lacks: additive migrations at once, others only
/// when asked to and with no older process about.
pub(super) fn bring_up(link: &mut Link, schema: &str, migrate: bool) -> Result<()> {
    let first = "SELECT pg_advisory_xact_lock(hashtext('holdfast migrates ' || current_database()))";
    link.begin("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", first)?;
    let fresh = !exists(link, schema)?;
    if fresh {
        link.batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"))?;
        link.batch(
            "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
             CREATE TABLE migrations (number BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL,
                 applied_at BIGINT NOT NULL)",
        )?;
    }
    for migration in missing(link)? {
        if !fresh && !migration.additive {
            let older = processes(link)?.into_iter().any(|process| process.schema < migration.number);
            if !migrate || older {
                let told = format!("{} ({})", migration.number, migration.name);
                return Err(StoreError::MigrationNeeded(told));
            }
        }
        apply(link, &migration)?;
    }
    link.commit()
}

fn apply(link: &mut Link, migration: &Migration) -> Result<()> {
    link.batch(migration.sql)?;
    link.execute(
        "INSERT INTO migrations (number, name, checksum, applied_at)
         VALUES ($1, $2, $3, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
        &[migration.number.into(), migration.name.into(), checksum(migration).into()],
    )?;
    if !migration.additive {
        for name in ["min_writer", "min_reader"] {
            set_meta(link, name, &migration.number.to_string())?;
        }
    }
    Ok(())
}

pub(super) fn meta(link: &mut Link, name: &str) -> Result<Option<String>> {
    let found = link.query("SELECT value FROM meta WHERE name = $1", &[name.into()])?;
    Ok(found.first().map(|row| row.get(0)))
}

pub(super) fn set_meta(link: &mut Link, name: &str, value: &str) -> Result<()> {
    let sql = "INSERT INTO meta (name, value) VALUES ($1, $2)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    link.execute(sql, &[name.into(), Cell::Text(value.to_owned())]).map(|_| ())
}

/// What opening the store for writing would do to its schema.
pub fn plan(address: &PgAddress) -> Result<Vec<Planned>> {
    let mut link = Link::open(address, "plan", false)?;
    if !exists(&mut link, &address.schema)? {
        return Err(StoreError::NoSuchStore(address.to_string()));
    }
    let missing = missing(&mut link)?;
    let running = processes(&mut link)?;
    link.close();
    let planned = |migration: &Migration| {
        let older = running.iter().filter(|process| process.schema < migration.number).count();
        Planned {
            number: migration.number,
            name: migration.name,
            additive: migration.additive,
            applied: !missing.iter().any(|found| found.number == migration.number),
            older_processes: u64::try_from(older).unwrap_or(0),
        }
    };
    Ok(MIGRATIONS.iter().map(planned).collect())
}

/// The number of a schema as a cell.
pub(super) fn schema_cell() -> Cell {
    number(u64::from(newest()))
}
