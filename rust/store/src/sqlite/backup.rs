//! Online backup, and restore under a new epoch.
//!
//! A backup is taken from one view of the database while others write; everything that was acknowledged
//! before it began is in it. It is not a store: it must be restored, because fences that were given out
//! after it are unknown here and must never be given out again.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::content::Commit;
use holdfast_core::ids::StoreId;
use holdfast_core::mutants::{Mutant, mutant};
use rusqlite::{Connection, OpenFlags};

use super::folder::{BLOBS, DATABASE, OURS, sync_folder};
use super::migrate::{meta, set_meta};
use super::open::{Options, open};
use super::{SqliteStore, failed};
use crate::blobs::Blobs;
use crate::engine::Engine;
use crate::error::{Result, StoreError};
use crate::store::Store as _;

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Backup {
    pub store: StoreId,
    pub epoch: u32,
    /// The newest frame in it.
    pub pos: i64,
    pub blobs: u64,
}

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    pub store: StoreId,
    pub epoch: u32,
    /// Open runs that wait for a person now.
    pub waiting: u64,
}

/// A folder that gets its name only when it is whole, and that one copy at a time is made in.
pub(crate) struct Hidden {
    pub(crate) path: PathBuf,
    target: PathBuf,
    /// Locked as long as the copy is made.
    _alone: File,
}

impl Hidden {
    pub(crate) fn make(target: &Path) -> Result<Self> {
        let name = target.file_name().map(|name| format!(".{}.new", name.to_string_lossy()));
        let path =
            target.with_file_name(name.ok_or_else(|| StoreError::BadUrl(target.display().to_string()))?);
        check_free(target)?;
        let alone = enter(&path, target)?;
        if !is_ours(&path) {
            return Err(StoreError::TargetExists(path.display().to_string()));
        }
        let hidden = Self { path, target: target.to_owned(), _alone: alone };
        check_free(target)?; // by whoever was in here before us
        empty(&hidden.path).map_err(|e| StoreError::io("cannot remove an interrupted copy", &e))?;
        super::folder::make(&hidden.path)?;
        Ok(hidden)
    }

    pub(crate) fn finish(self) -> Result<()> {
        sync_folder(&self.path)?;
        fs::rename(&self.path, &self.target).map_err(|e| StoreError::io("cannot name the copy", &e))?;
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_folder(parent.unwrap_or(Path::new(".")))?;
        Ok(())
    }
}

fn check_free(target: &Path) -> Result<()> {
    if target.exists() { Err(StoreError::TargetExists(target.display().to_string())) } else { Ok(()) }
}

/// Makes a folder, if it is not there, and keeps everybody else out of it.
fn enter(path: &Path, target: &Path) -> Result<File> {
    let told = |error: &std::io::Error| StoreError::io(&format!("cannot make {}", path.display()), error);
    loop {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| told(&e))?;
        let folder = File::open(path).map_err(|e| told(&e))?;
        match folder.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = format!("another copy to {} is under way", target.display());
                return Err(StoreError::Busy { holder, waited_ms: 0 });
            }
            Err(TryLockError::Error(error)) => return Err(told(&error)),
        }
        let number = |found: &fs::Metadata| (found.dev(), found.ino());
        let named = fs::metadata(path).ok();
        if named.as_ref().map(number) == folder.metadata().ok().as_ref().map(number) {
            return Ok(folder);
        } // else whoever was in it has ended since we opened it, and given it its name or removed it
    }
}

fn empty(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether nothing is in a folder that a copy could not have left there.
fn is_ours(path: &Path) -> bool {
    let named = |entry: &fs::DirEntry| OURS.iter().any(|name| entry.file_name() == *name);
    fs::read_dir(path).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| named(&entry))))
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if self.path.exists() {
            let _ = fs::remove_dir_all(&self.path); // what is left is told by its name and removed next time
        }
    }
}

/// Copies a store, as it is after a barrier, into a folder that does not exist yet.
pub fn backup(engine: &Engine, sqlite: &SqliteStore, target: &Path) -> Result<Backup> {
    engine.barrier()?;
    let hidden = Hidden::make(target)?;
    let path = hidden.path.join(DATABASE);
    super::locks::belong_to_files()?;
    let mut copy = Connection::open(&path).map_err(|e| failed(&e))?;
    sqlite.with_reader(|source| {
        let steps = rusqlite::backup::Backup::new(source, &mut copy).map_err(|e| failed(&e))?;
        steps.step(-1).map(|_| ()).map_err(|e| failed(&e))
    })?;
    set_meta(&copy, "is_backup", "1")?;
    let pos: i64 = copy
        .query_row("SELECT coalesce(max(pos), 0) FROM frames", [], |row| row.get(0))
        .map_err(|e| failed(&e))?;
    let blobs = copy_blobs(&copy, sqlite.blobs(), &hidden.path)?;
    copy.close().map_err(|(_, e)| failed(&e))?;
    sync_file(&path)?;
    hidden.finish()?;
    Ok(Backup { store: sqlite.id(), epoch: sqlite.epoch(), pos, blobs })
}

fn sync_file(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|e| StoreError::io("cannot sync the copy", &e))
}

/// The blobs that the copied frames refer to, each checked on its way.
fn copy_blobs(copy: &Connection, from: &Blobs, folder: &Path) -> Result<u64> {
    let to = Blobs::Folder(folder.join(BLOBS));
    let mut statement = copy.prepare("SELECT commitment FROM blob_refs").map_err(|e| failed(&e))?;
    let names = statement.query_map([], |row| row.get::<_, String>(0)).map_err(|e| failed(&e))?;
    let mut copied = 0;
    for name in names {
        let tree = serde_json::Value::String(name.map_err(|e| failed(&e))?);
        let commit: Commit = holdfast_core::records::read(&tree)?;
        let blob = from.get(&commit)?;
        to.put_salted(blob.salt, &blob.bytes)?;
        copied += 1;
    }
    Ok(copied)
}

/// Makes a store from a backup, in a folder that does not exist yet, under a new epoch. Every open run
/// waits on `restored` until a person resumes it.
pub fn restore(backup: &Path, target: &Path, options: &Options) -> Result<Restored> {
    let hidden = Hidden::make(target)?;
    let (source, path) = (backup.join(DATABASE), hidden.path.join(DATABASE));
    let bad = |what: &str| StoreError::BadBackup(format!("{}: {what}", backup.display()));
    if !source.is_file() {
        return Err(bad("there is no backup here"));
    }
    fs::copy(&source, &path).map_err(|e| StoreError::io("cannot copy the backup", &e))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    super::locks::belong_to_files()?;
    let connection = Connection::open_with_flags(&path, flags).map_err(|e| failed(&e))?;
    let whole: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|_| bad("it is not whole"))?;
    if whole != "ok" {
        return Err(bad("it is not whole"));
    }
    let is_backup = meta(&connection, "is_backup").map_err(|_| bad("it is not a backup"))?;
    if is_backup.is_none() {
        return Err(bad("it is a store, or something else, and not a backup"));
    }
    let epoch: u32 = meta(&connection, "epoch")?
        .and_then(|epoch| epoch.parse().ok())
        .ok_or_else(|| bad("it has no epoch"))?;
    let epoch = if mutant(Mutant::KeepEpoch) { epoch } else { epoch + 1 };
    connection.execute("DELETE FROM meta WHERE name = 'is_backup'", []).map_err(|e| failed(&e))?;
    connection
        .execute_batch("UPDATE steps SET owner = NULL, process = NULL, lease_boot = NULL, lease_until = NULL")
        .map_err(|e| failed(&e))?;
    set_meta(&connection, "epoch", &epoch.to_string())?;
    copy_blobs(&connection, &Blobs::Folder(backup.join(BLOBS)), &hidden.path)?;
    connection.close().map_err(|(_, e)| failed(&e))?;
    sync_file(&path)?;
    let store = open(Some(&hidden.path), options)?;
    let engine = Engine::new(Arc::new(store), false)?;
    let waiting = engine.restored(epoch)?;
    let store = engine.store().id();
    engine.store().close()?;
    hidden.finish()?;
    Ok(Restored { store, epoch, waiting })
}
