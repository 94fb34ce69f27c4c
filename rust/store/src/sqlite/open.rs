//! Opening: which folder, which version, whose file, how it ends.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use holdfast_core::ids::{StoreId, StreamId};
use holdfast_core::limits;
use holdfast_core::records::{Record, RecordHash};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::folder::{self, BLOBS, DATABASE, Folder, Found};
use super::locks;
use super::migrate::{self, Migration, migrations};
use super::sync::{Files, Syncer};
use super::writeback::WriteBack;
use super::{SqliteStore, Writer, failed};
use crate::blobs::Blobs;
use crate::clock::{Clock, SystemClock, random};
use crate::error::{Result, StoreError};

/// SQLite before 3.51.3 can corrupt a database in WAL mode that several connections use.
const SQLITE_MIN: i32 = 3_051_003;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    pub read_only: bool,
    /// Stands in for the clocks that an engine measures by: for tests.
    pub clock: Option<Arc<dyn Clock>>,
    pub turn_wait_ms: u64,
    /// Opens a poisoned or shortened store all the same: for doctor only.
    pub repair: bool,
    /// Who a new store is: one that is carried from elsewhere stays who it was.
    pub identity: Option<(StoreId, u32)>,
    /// Applies migrations that older processes cannot live with.
    pub migrate: bool,
    pub migrations: &'static [Migration],
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            clock: None,
            turn_wait_ms: limits::TURN_WAIT_MS,
            repair: false,
            identity: None,
            migrate: false,
            migrations: migrations(),
        }
    }
}

impl Options {
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::new()))
    }
}

fn configure(connection: &Connection) -> Result<()> {
    // Every pragma answers with a row that must be read: an unread one hides its error.
    let set = |sql: &str| -> Result<String> {
        let answer: Option<rusqlite::types::Value> =
            connection.query_row(sql, [], |row| row.get(0)).optional().map_err(|e| failed(&e))?;
        Ok(answer.map(|answer| format!("{answer:?}").to_lowercase()).unwrap_or_default())
    };
    set("PRAGMA busy_timeout = 5000")?;
    set("PRAGMA synchronous = NORMAL")?;
    set("PRAGMA wal_autocheckpoint = 0")?;
    set("PRAGMA cache_size = -16000")?;
    set("PRAGMA temp_store = MEMORY")?;
    // What is erased is overwritten, not only unlinked.
    set("PRAGMA secure_delete = ON")?;
    set("PRAGMA trusted_schema = OFF")?;
    set("PRAGMA cell_size_check = ON")?;
    connection.set_prepared_statement_cache_capacity(64);
    // A statement is planned once. Without it SQLite plans it anew whenever a parameter that could matter to the
    // plan has another value, which here is each time.
    let planned = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    planned.map(|_| ()).map_err(|e| failed(&e))
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    locks::belong_to_files()?;
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = match (path.parent(), path.file_name()) {
        // Only the last part may be missing: SQLite makes the file, and refuses links on the way.
        (Some(parent), Some(name)) => parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name),
        _ => path,
    };
    let connection = Connection::open_with_flags(path, flags).map_err(|e| failed(&e))?;
    configure(&connection)?;
    Ok(connection)
}

/// A connection that can only read.
pub(crate) fn reader(folder: &Path) -> Result<Connection> {
    let connection = connect(&folder.join(DATABASE), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.pragma_update(None, "query_only", true).map_err(|e| failed(&e))?;
    Ok(connection)
}

/// A connection that can write to a database that is there.
pub(super) fn writer(folder: &Path) -> Result<Connection> {
    connect(&folder.join(DATABASE), OpenFlags::SQLITE_OPEN_READ_WRITE)
}

/// A migration and whether the store has it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Planned {
    pub number: u32,
    pub name: &'static str,
    pub additive: bool,
    pub applied: bool,
    /// Processes of an older schema that have the store open: they stand in the way of one that is not
    /// additive.
    pub older_processes: u64,
}

/// What opening the store for writing would do to its schema.
pub fn plan(path: &Path, migrations: &'static [Migration]) -> Result<Vec<Planned>> {
    if folder::find(path)? == Found::Nothing {
        return Err(StoreError::NoSuchStore(path.display().to_string()));
    }
    let connection = reader(path)?;
    known(&connection)?;
    let folder = Folder::open(path, migrate::newest(migrations), 0, false)?;
    let missing = migrate::missing(&connection, migrations)?;
    let processes = folder.processes();
    let planned = |migration: &Migration| {
        let older = processes.iter().filter(|process| process.schema < migration.number).count();
        Planned {
            number: migration.number,
            name: migration.name,
            additive: migration.additive,
            applied: !missing.iter().any(|found| found.number == migration.number),
            older_processes: u64::try_from(older).unwrap_or(0),
        }
    };
    Ok(migrations.iter().map(planned).collect())
}

/// Opens the store in a folder, and makes it if there is none; without a folder, one in memory.
pub fn open(folder: Option<&Path>, options: &Options) -> Result<SqliteStore> {
    if rusqlite::version_number() < SQLITE_MIN {
        return Err(StoreError::Failed(format!("SQLite {} is too old", rusqlite::version())));
    }
    folder.map_or_else(|| open_memory(options), |path| open_folder(path, options))
}

fn open_memory(options: &Options) -> Result<SqliteStore> {
    let mut connection = Connection::open_in_memory().map_err(|e| failed(&e))?;
    configure(&connection)?;
    migrate::claim_file(&mut connection)?;
    for migration in options.migrations {
        migrate::apply(&mut connection, migration, options.clock().now().wall_ms)?;
    }
    let (id, epoch) = identify(&connection, options)?;
    Ok(build(connection, id, epoch, options, None, Blobs::memory()))
}

fn open_folder(path: &Path, options: &Options) -> Result<SqliteStore> {
    let shown = path.display().to_string();
    match folder::find(path)? {
        Found::Nothing if options.read_only || options.repair => return Err(StoreError::NoSuchStore(shown)),
        Found::Nothing => folder::make(path)?,
        Found::Store => {}
    }
    let schema = migrate::newest(options.migrations);
    let wall_ms = options.clock().now().wall_ms;
    if options.read_only {
        return open_reading(path, schema, wall_ms, options);
    }
    let folder = Folder::open(path, schema, wall_ms, true)?;
    let opened = (|| {
        let turn = folder.take_turn(options.turn_wait_ms)?;
        if let Some(why) = folder.poisoned().filter(|_| !options.repair) {
            return Err(StoreError::Poisoned(why));
        }
        folder::clear_remains(path, &turn)?;
        let mut connection =
            connect(&path.join(DATABASE), OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        if connection.is_readonly("main").map_err(|e| failed(&e))? {
            return Err(StoreError::NoPermission("holdfast.db may not be written to".to_owned()));
        }
        let mode: String = connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(|e| failed(&e))?;
        if mode != "wal" {
            return Err(StoreError::Failed(format!("the database is in the mode '{mode}', not in WAL mode")));
        }
        migrate::claim_file(&mut connection)?;
        bring_up(&mut connection, &folder, options, wall_ms)?;
        let (id, epoch) = identify(&connection, options)?;
        if !options.repair {
            check_end(&connection, &folder, id)?;
        }
        folder.keep_reserve(false);
        // The names of the files are durable before anything in them has to be.
        folder::sync_folder(folder.path())?;
        let files = Files::open(folder.path())?;
        drop(turn);
        Ok((connection, id, epoch, files))
    })();
    let (connection, id, epoch, files) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            folder.leave();
            return Err(error);
        }
    };
    let blobs = Blobs::Folder(folder.path().join(BLOBS));
    Ok(build(connection, id, epoch, options, Some((folder, files)), blobs))
}

fn open_reading(path: &Path, schema: u32, wall_ms: u64, options: &Options) -> Result<SqliteStore> {
    let connection = reader(path)?;
    let application: i32 =
        connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(|e| failed(&e))?;
    if application != migrate::APPLICATION_ID {
        return Err(StoreError::NotAStore("holdfast.db belongs to another program".to_owned()));
    }
    let unfinished = || StoreError::NotAStore("the store was never finished: open it for writing".to_owned());
    let (id, epoch) = known(&connection)?.ok_or_else(unfinished)?;
    let needed = migrate::meta(&connection, "min_reader")?;
    if needed.and_then(|needed| needed.parse::<u32>().ok()).is_some_and(|needed| needed > schema) {
        return Err(StoreError::NewerStore("this Holdfast cannot read it".to_owned()));
    }
    let missing = migrate::missing(&connection, options.migrations)?;
    if let Some(migration) = missing.first() {
        return Err(StoreError::MigrationNeeded(format!("{} ({})", migration.number, migration.name)));
    }
    let folder = Folder::open(path, schema, wall_ms, false)?;
    let blobs = Blobs::Folder(folder.path().join(BLOBS));
    let mut store = build(connection, id, epoch, options, None, blobs);
    store.folder = Some(Arc::new(folder));
    Ok(store)
}

fn build(
    connection: Connection,
    id: StoreId,
    epoch: u32,
    options: &Options,
    files: Option<(Folder, Files)>,
    blobs: Blobs,
) -> SqliteStore {
    let (folder, files) = files.map_or((None, None), |(folder, files)| (Some(folder), Some(files)));
    SqliteStore {
        id,
        epoch,
        schema: migrate::newest(options.migrations),
        pid: std::process::id(),
        read_only: options.read_only,
        clock: options.clock(),
        log: folder.as_ref().map(|folder| Arc::new(WriteBack::new(folder.path()))),
        folder: folder.map(Arc::new),
        syncer: files.map(|files| Arc::new(Syncer::new(files))),
        writer: Mutex::new(Writer { connection: Some(connection), written_back: 0 }),
        readers: Mutex::new(Vec::new()),
        poison: Arc::new(OnceLock::new()),
        blobs,
        turn_wait_ms: AtomicU64::new(options.turn_wait_ms),
        commits: AtomicU64::new(0),
        barriers: AtomicU64::new(0),
        commands: AtomicU64::new(0),
        closed: AtomicBool::new(false),
    }
}

/// Applies what the schema lacks: additive migrations at once, others only when asked to and with no
/// older process about.
fn bring_up(connection: &mut Connection, folder: &Folder, options: &Options, wall_ms: u64) -> Result<()> {
    let fresh = known(connection)?.is_none();
    let missing: Vec<Migration> =
        migrate::missing(connection, options.migrations)?.into_iter().copied().collect();
    for migration in missing {
        let older = || folder.processes().into_iter().any(|process| process.schema < migration.number);
        if !fresh && !migration.additive && (!options.migrate || older()) {
            return Err(StoreError::MigrationNeeded(format!("{} ({})", migration.number, migration.name)));
        }
        migrate::apply(connection, &migration, wall_ms)?;
    }
    migrate::check_writer(connection, migrate::newest(options.migrations))
}

fn known(connection: &Connection) -> Result<Option<(StoreId, u32)>> {
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master WHERE name = 'meta'", [], |row| row.get(0))
        .map_err(|e| failed(&e))?;
    if tables == 0 {
        return Ok(None);
    }
    let Some(id) = migrate::meta(connection, "store")? else { return Ok(None) };
    if migrate::meta(connection, "is_backup")?.is_some() {
        return Err(StoreError::NotAStore("this is a backup: restore it with holdfast restore".to_owned()));
    }
    let unknown = || StoreError::Corrupt("the store does not know its epoch".to_owned());
    let epoch =
        migrate::meta(connection, "epoch")?.and_then(|epoch| epoch.parse().ok()).ok_or_else(unknown)?;
    Ok(Some((id.parse()?, epoch)))
}

/// Who the store is; a new one gets its id.
fn identify(connection: &Connection, options: &Options) -> Result<(StoreId, u32)> {
    if let Some(known) = known(connection)? {
        return Ok(known);
    }
    let (id, epoch) = match options.identity {
        Some(identity) => identity,
        None => (StoreId::new(options.clock().now().wall_ms, random()?), 1),
    };
    migrate::set_meta(connection, "epoch", &epoch.to_string())?;
    migrate::set_meta(connection, "store", &id.to_string())?;
    Ok((id, epoch))
}

/// Looks at how the journal ends: not before what was once durable, and with whole frames that follow
/// each other. A bounded number of them, so that opening is quick whatever the history.
fn check_end(connection: &Connection, folder: &Folder, store: StoreId) -> Result<()> {
    let marked = folder.marked(); // before the end is looked at: it never lies beyond it
    let newest: Option<i64> =
        connection.query_row("SELECT max(pos) FROM frames", [], |row| row.get(0)).map_err(|e| failed(&e))?;
    let newest = newest.unwrap_or(0);
    if let Some((pos, head)) = marked {
        let found: Option<String> = connection
            .query_row("SELECT head FROM frames WHERE pos = ?1", [pos], |row| row.get(0))
            .optional()
            .map_err(|e| failed(&e))?;
        if newest < pos {
            return Err(StoreError::Truncated { found: newest, marked: pos });
        }
        if found != Some(head.to_string()) {
            return Err(StoreError::Corrupt(format!("frame {pos} is not the one that was once durable")));
        }
    }
    let first = newest - i64::try_from(limits::OPEN_FRAMES_MAX).unwrap_or(0);
    let mut statement = connection
        .prepare(
            "SELECT frames.pos, streams.id, frames.first_seq, frames.last_seq, frames.head, frames.body,
                    (SELECT before.head FROM frames AS before WHERE before.stream = frames.stream
                     AND before.first_seq < frames.first_seq ORDER BY before.first_seq DESC LIMIT 1)
             FROM frames JOIN streams ON streams.key = frames.stream WHERE frames.pos > ?1 ORDER BY frames.pos DESC",
        )
        .map_err(|e| failed(&e))?;
    let mut rows = statement.query([first]).map_err(|e| failed(&e))?;
    let mut records = 0;
    while let Some(row) = rows.next().map_err(|e| failed(&e))? {
        records += check_frame(row, store)?;
        if records > limits::OPEN_RECORDS_MAX {
            break;
        }
    }
    Ok(())
}

fn check_frame(row: &rusqlite::Row<'_>, store: StoreId) -> Result<usize> {
    let get = |at: usize| super::look::text(row, at);
    let pos: i64 = row.get(0).map_err(|e| failed(&e))?;
    let first: i64 = row.get(2).map_err(|e| failed(&e))?;
    let last: i64 = row.get(3).map_err(|e| failed(&e))?;
    let (stream, head, body) = (get(1)?, get(4)?, get(5)?);
    let before = super::look::optional_text(row, 6)?;
    let bad = |why: &str| StoreError::Corrupt(format!("frame {pos} of {stream}: {why}"));
    let id: StreamId = stream.parse().map_err(|_| bad("no such stream"))?;
    let texts = holdfast_core::frame::split(body.as_bytes()).ok_or_else(|| bad("not an array of records"))?;
    if i64::try_from(texts.len()).unwrap_or(0) != last - first + 1 || texts.is_empty() {
        return Err(bad("its records are not as many as it says"));
    }
    let mut expected = match before {
        Some(before) => self::head(&before)?,
        None => holdfast_core::records::genesis(store, id),
    };
    for text in &texts {
        let record = Record::parse(text).map_err(|_| bad("a record of it cannot be read"))?;
        if record.prev != expected {
            return Err(bad("a record of it does not follow the one before"));
        }
        expected = holdfast_core::frame::hash(text);
    }
    if expected.to_string() != head {
        return Err(bad("its head is not its last record's hash"));
    }
    Ok(texts.len())
}

/// Parses a head as it is kept.
pub(crate) fn head(text: &str) -> Result<RecordHash> {
    holdfast_core::records::read(&serde_json::Value::String(text.to_owned()))
        .map_err(|_| StoreError::Corrupt("a head is not a hash".to_owned()))
}
