//! Numbered migrations. Each runs in one transaction under the turn, so a process that dies in the
//! middle leaves the schema as it was. A migration is never edited after its release: its checksum is
//! kept, and a store that had another one is refused.

use holdfast_core::canonical::{Digest, domains};
use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::{Batch, Connection, OptionalExtension, TransactionBehavior, params};

use crate::error::{Result, StoreError};
use crate::sqlite::failed;

/// "HFST", in the header of the database: the file is ours.
pub(crate) const APPLICATION_ID: i32 = 0x4846_5354;

/// One step of the schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub number: u32,
    pub name: &'static str,
    pub sql: &'static str,
    /// Whether processes of the schema before it can live with it.
    pub additive: bool,
}

const JOURNAL: Migration =
    Migration { number: 1, name: "journal", sql: include_str!("../schema/sqlite_0001.sql"), additive: true };
const TREE: Migration =
    Migration { number: 2, name: "tree", sql: include_str!("../schema/sqlite_0002.sql"), additive: true };

/// The schema of this build.
#[cfg(not(mutants))]
pub fn migrations() -> &'static [Migration] {
    &[JOURNAL, TREE]
}

/// The schema of this build. In the one that tests break on purpose, one more migration can be asked for:
/// what will be true of a real one is tried on it.
#[cfg(mutants)]
pub fn migrations() -> &'static [Migration] {
    const NEXT: &str = "CREATE TABLE tags (run INTEGER PRIMARY KEY, tag TEXT NOT NULL) STRICT;
        ALTER TABLE runs ADD COLUMN tag TEXT;
        INSERT INTO tags SELECT stream, agent FROM runs;
        UPDATE runs SET tag = 'old';
        CREATE INDEX tags_tag ON tags (tag);";
    const ADDITIVE: Migration = Migration { number: 3, name: "tags", sql: NEXT, additive: true };
    match std::env::var("HOLDFAST_NEXT_MIGRATION").as_deref() {
        Ok("additive") => &[JOURNAL, TREE, ADDITIVE],
        Ok("breaking") => &[JOURNAL, TREE, Migration { additive: false, ..ADDITIVE }],
        _ => &[JOURNAL, TREE],
    }
}

/// Dies before a statement, as a test asks it to.
#[cfg(mutants)]
fn may_die_at(migration: &Migration, statement: usize) {
    let wanted = std::env::var("HOLDFAST_DIE_AT_STATEMENT").ok();
    if migration.number > 2 && wanted.and_then(|n| n.parse().ok()) == Some(statement) {
        std::process::abort();
    }
}

#[cfg(not(mutants))]
fn may_die_at(_: &Migration, _: usize) {}

/// The newest schema number of a list.
pub(crate) fn newest(migrations: &[Migration]) -> u32 {
    migrations.last().map_or(0, |migration| migration.number)
}

fn checksum(migration: &Migration) -> String {
    Digest::<domains::Schema>::of_bytes(&[migration.sql.as_bytes()]).to_string()
}

/// Refuses a file that some other program made, and makes an empty one ours.
pub(crate) fn claim_file(connection: &mut Connection) -> Result<()> {
    let application: i32 =
        connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(|e| failed(&e))?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(|e| failed(&e))?;
    if application == APPLICATION_ID {
        return Ok(());
    }
    if application != 0 || tables != 0 {
        return Err(StoreError::NotAStore("holdfast.db belongs to another program".to_owned()));
    }
    let turn = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let turn = turn.map_err(|e| failed(&e))?;
    turn.pragma_update(None, "application_id", APPLICATION_ID).map_err(|e| failed(&e))?;
    turn.execute_batch(
        "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL,
             checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT;",
    )
    .map_err(|e| failed(&e))?;
    turn.commit().map_err(|e| failed(&e))
}

/// The migrations that the store lacks, after those that it has were found to be the same.
pub(crate) fn missing<'m>(
    connection: &Connection,
    migrations: &'m [Migration],
) -> Result<Vec<&'m Migration>> {
    let applied: i64 = connection
        .query_row("SELECT coalesce(max(number), 0) FROM migrations", [], |row| row.get(0))
        .map_err(|e| failed(&e))?;
    if applied > i64::from(newest(migrations)) && min_writer(connection)? > newest(migrations) {
        return Err(StoreError::NewerStore(format!(
            "its schema is {applied}, this one knows {}",
            newest(migrations)
        )));
    }
    let mut missing = Vec::new();
    for migration in migrations {
        let found: Option<String> = connection
            .query_row("SELECT checksum FROM migrations WHERE number = ?1", [migration.number], |row| {
                row.get(0)
            })
            .optional()
            .map_err(|e| failed(&e))?;
        match found {
            None => missing.push(migration),
            Some(found) if found != checksum(migration) => {
                return Err(StoreError::MigrationChanged(migration.number));
            }
            Some(_) => {}
        }
    }
    Ok(missing)
}

/// The lowest schema number whose processes may write.
fn min_writer(connection: &Connection) -> Result<u32> {
    let value = meta(connection, "min_writer")?;
    Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// Refuses a store that asks for newer processes: checked under each turn, because another process may
/// have migrated it since it was opened.
pub(crate) fn check_writer(connection: &Connection, schema: u32) -> Result<()> {
    let needed = min_writer(connection)?;
    if needed > schema {
        return Err(StoreError::NewerStore(format!("it needs schema {needed}, this process has {schema}")));
    }
    Ok(())
}

/// Applies one migration, whole or not at all. The caller holds the turn.
pub(crate) fn apply(connection: &mut Connection, migration: &Migration, wall_ms: u64) -> Result<()> {
    let turn = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let turn = turn.map_err(|e| failed(&e))?;
    let mut batch = Batch::new(&turn, migration.sql);
    let mut statements = 0;
    while let Some(mut statement) = batch.next().map_err(|e| failed(&e))? {
        may_die_at(migration, statements);
        statement.raw_execute().map_err(|e| failed(&e))?;
        statements += 1;
    }
    may_die_at(migration, statements);
    turn.execute(
        "INSERT INTO migrations (number, name, checksum, applied_at) VALUES (?1, ?2, ?3, ?4)",
        params![migration.number, migration.name, checksum(migration), i64::try_from(wall_ms).unwrap_or(0)],
    )
    .map_err(|e| failed(&e))?;
    if !migration.additive {
        set_meta(&turn, "min_writer", &migration.number.to_string())?;
        set_meta(&turn, "min_reader", &migration.number.to_string())?;
    }
    may_die_at(migration, statements + 1);
    turn.commit().map_err(|e| failed(&e))?;
    may_die_at(migration, statements + 2);
    Ok(())
}

pub(crate) fn meta(connection: &Connection, name: &str) -> Result<Option<String>> {
    let mut statement =
        connection.prepare_cached("SELECT value FROM meta WHERE name = ?1").map_err(|e| failed(&e))?;
    statement.query_row([name], |row| row.get(0)).optional().map_err(|e| failed(&e))
}

pub(crate) fn set_meta(connection: &Connection, name: &str, value: &str) -> Result<()> {
    connection
        .execute(
            "INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2",
            [name, value],
        )
        .map(|_| ())
        .map_err(|e| failed(&e))
}
