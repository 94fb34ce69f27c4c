//! The folder of a store and the files in it that are not SQLite's: whose turn it is, which processes
//! live, whether the store is poisoned, how far it was once durable, and the reserve.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_core::canonical::{Digest, domains};
use holdfast_core::limits;
use holdfast_core::records::RecordHash;

use crate::clock::{Stopwatch, random_name};
use crate::error::{Result, StoreError};
use crate::sqlite::migrate::APPLICATION_ID;
use crate::store::ProcessInfo;

pub(crate) const DATABASE: &str = "holdfast.db";
pub(crate) const WAL: &str = "holdfast.db-wal";
pub(crate) const SHM: &str = "holdfast.db-shm";
const LOCK: &str = "holdfast.lock";
const TURNSTILE: &str = "holdfast.turn";
const MARK: &str = "holdfast.mark";
const RESERVE: &str = "holdfast.reserve";
const POISONED: &str = "POISONED";
const PROCESSES: &str = "processes";
pub(crate) const BLOBS: &str = "blobs";
/// What a folder may hold and still be made a store: what an interrupted creation leaves behind.
pub(crate) const OURS: &[&str] =
    &[DATABASE, WAL, SHM, "holdfast.db-journal", LOCK, TURNSTILE, MARK, RESERVE, POISONED, PROCESSES, BLOBS];

const O_NOFOLLOW: i32 = 0o400_000;

/// Filesystems whose locks or syncs are not those of a local disk, by their magic numbers.
const REMOTE: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x517B, "SMB"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x5346_414F, "AFS"),
];

/// The files of a folder, open.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
    turnstile: File,
    mark: File,
    process: Option<(ProcessInfo, File)>,
}

/// One turn: the right to write, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a File);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // An unlock that fails would leave the lock to the process: its next turn has it anyway.
        let _ = self.0.unlock();
    }
}

fn open_file(path: &Path, write: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).create(write).mode(0o600).custom_flags(O_NOFOLLOW);
    options.open(path)
}

/// What the folder is before anything is opened in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Store,
}

/// Looks at a path without changing anything.
pub(crate) fn find(path: &Path) -> Result<Found> {
    let shown = path.display();
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(StoreError::io(&format!("cannot look at {shown}"), &error)),
        Ok(found) => found,
    };
    if !found.is_dir() {
        return Err(StoreError::NotAStore(format!("{shown} is not a folder")));
    }
    check_local(path)?;
    check_links(path)?;
    if let Ok(database) = fs::symlink_metadata(path.join(DATABASE))
        && database.len() > 0
        && !never_was(path)
    {
        if !database.is_file() {
            return Err(StoreError::NotAStore("holdfast.db is not a file".to_owned()));
        }
        return check_header(&path.join(DATABASE)).map(|()| Found::Store);
    }
    let entries = fs::read_dir(path).map_err(|e| StoreError::io(&format!("cannot read {shown}"), &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| StoreError::io(&format!("cannot read {shown}"), &e))?;
        if !OURS.iter().any(|ours| entry.file_name() == *ours) {
            return Err(StoreError::NotAStore(format!("{shown} holds other things than a store")));
        }
    }
    Ok(Found::Nothing)
}

/// Whether the database is what a power cut leaves of one that was just being made: a page without
/// anything in it, and beside it neither a log nor a mark.
fn never_was(path: &Path) -> bool {
    let empty = |name: &str| fs::metadata(path.join(name)).map_or(true, |file| file.len() == 0);
    let blank = |bytes: Vec<u8>| bytes.iter().all(|byte| *byte == 0);
    let small = fs::metadata(path.join(DATABASE)).is_ok_and(|file| file.is_file() && file.len() <= 4096);
    small && empty(WAL) && empty(MARK) && fs::read(path.join(DATABASE)).is_ok_and(blank)
}

/// Takes away what a creation that was cut off left of its database. Only whoever has the turn may: without
/// it, this would empty the store that another process has just made.
pub(crate) fn clear_remains(path: &Path, _turn: &Turn<'_>) -> Result<()> {
    if !never_was(path) {
        return Ok(());
    }
    let cleared = open_file(&path.join(DATABASE), true).and_then(|database| database.set_len(0));
    cleared.map_err(|error| StoreError::io("cannot begin the database anew", &error))
}

/// Looks at the first bytes of the database, before any file of ours lies beside it: a database of
/// another program, or something else, stays as it is.
fn check_header(path: &Path) -> Result<()> {
    let told = |error: &std::io::Error| StoreError::io(&format!("cannot read {}", path.display()), error);
    let mut header = [0u8; 108];
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(path).map_err(|e| told(&e))?;
    let read = file.read_at(&mut header, 0).map_err(|e| told(&e))?;
    if read < header.len() || &header[..16] != b"SQLite format 3\0" {
        return Err(StoreError::NotAStore("holdfast.db is not an SQLite database".to_owned()));
    }
    let application = i32::from_be_bytes([header[68], header[69], header[70], header[71]]);
    // Not yet said in one whose creation was interrupted: its first page is a leaf without a table in it.
    let fresh = application == 0 && header[100] == 0x0D && header[103..105] == [0, 0];
    if application != APPLICATION_ID && !fresh {
        return Err(StoreError::NotAStore("holdfast.db belongs to another program".to_owned()));
    }
    Ok(())
}

fn check_local(path: &Path) -> Result<()> {
    let system = rustix::fs::statfs(path)
        .map_err(|error| StoreError::io(&format!("cannot look at {}", path.display()), &error.into()))?;
    // The magic numbers have 32 bits; some systems fill the rest with their sign.
    let magic = system.f_type & 0xFFFF_FFFF;
    match REMOTE.iter().find(|(number, _)| *number == magic) {
        Some((_, kind)) => Err(StoreError::NetworkFilesystem { path: path.display().to_string(), kind }),
        None => Ok(()),
    }
}

/// Makes the folder, readable by its owner only, and makes its name durable.
pub(crate) fn make(path: &Path) -> Result<()> {
    let told = |error: &std::io::Error| StoreError::io(&format!("cannot make {}", path.display()), error);
    // Of what is not there yet, the next folder above decides.
    check_local(path.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new(".")))?;
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| told(&e))?;
    make_inner(path)?;
    check_local(path)?;
    // Made here so that it is readable by its owner only; SQLite would ask the umask. What is in it stays:
    // another process may have made the store since we looked.
    open_file(&path.join(DATABASE), true).map_err(|e| told(&e))?;
    sync_folder(path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => sync_folder(parent),
        None => Ok(()),
    }
}

/// The folders inside are folders, not ways to somewhere else.
fn check_links(path: &Path) -> Result<()> {
    match [PROCESSES, BLOBS].iter().find(|inner| path.join(inner).is_symlink()) {
        Some(inner) => Err(StoreError::NotAStore(format!("{inner} is a link"))),
        None => Ok(()),
    }
}

fn make_inner(path: &Path) -> Result<()> {
    for inner in [PROCESSES, BLOBS].map(|inner| path.join(inner)) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&inner);
        made.map_err(|e| StoreError::io(&format!("cannot make {}", inner.display()), &e))?;
    }
    Ok(())
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|error| StoreError::io(&format!("cannot sync {}", path.display()), &error))
}

impl Folder {
    /// Opens the files; a reader takes no place among the processes.
    pub(crate) fn open(path: &Path, schema: u32, wall_ms: u64, write: bool) -> Result<Self> {
        if write {
            make_inner(path)?; // a copy may have left out what is empty
        }
        let file = |name: &str| {
            let opened = open_file(&path.join(name), write);
            opened.map_err(|e| StoreError::io(&format!("cannot open {}", path.join(name).display()), &e))
        };
        let (lock, turnstile, mark) = (file(LOCK)?, file(TURNSTILE)?, file(MARK)?);
        let process = if write { Some(register(path, schema, wall_ms)?) } else { None };
        let path = path.canonicalize().map_err(|e| StoreError::io("cannot resolve the folder", &e))?;
        Ok(Self { path, lock, turnstile, mark, process })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn process_id(&self) -> &str {
        self.process.as_ref().map_or("", |(info, _)| info.id.as_str())
    }

    /// Waits for the turn, and says who has it when the wait is over. The turnstile lets whoever has
    /// waited longest go first: a busy process cannot pass a waiting one twice.
    pub(crate) fn take_turn(&self, wait_ms: u64) -> Result<Turn<'_>> {
        let clock = Stopwatch::start();
        self.wait_for(&self.turnstile, TURNSTILE, clock, wait_ms)?;
        let got = self.wait_for(&self.lock, LOCK, clock, wait_ms);
        let _ = self.turnstile.unlock();
        got.map(|()| Turn(&self.lock))
    }

    fn wait_for(&self, file: &File, name: &str, clock: Stopwatch, wait_ms: u64) -> Result<()> {
        // flock cannot be waited for with a limit, so it is asked again; a turn takes some 50 us.
        let mut pause = Duration::from_micros(10);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(error)) => {
                    return Err(StoreError::io(&format!("cannot lock {name}"), &error));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            let waited_ms = clock.elapsed_ms();
            if waited_ms >= wait_ms {
                return Err(StoreError::Busy { holder: self.holder(), waited_ms });
            }
            std::thread::park_timeout(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(1));
        }
    }

    /// Who has the turn, or is next to have it and does not move.
    fn holder(&self) -> String {
        let pid = [&self.lock, &self.turnstile].into_iter().find_map(pid_of_lock);
        match pid {
            Some(pid) => {
                let since = self.processes().into_iter().find(|p| p.pid.to_string() == pid);
                let since = since.map(|p| format!(", open since {} ms", p.started_ms)).unwrap_or_default();
                format!("the process {pid} has it{since}")
            }
            None => "another process has it".to_owned(),
        }
    }

    /// The processes that have the store open; files of those that are gone are removed.
    pub(crate) fn processes(&self) -> Vec<ProcessInfo> {
        let Ok(entries) = fs::read_dir(self.path.join(PROCESSES)) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            if self.process_id() != id && self.is_gone(&id) {
                continue;
            }
            let text = fs::read(entry.path()).unwrap_or_default();
            let tree = holdfast_core::canonical::from_text(&text).unwrap_or_default();
            found.extend(holdfast_core::records::read::<ProcessInfo>(&tree));
        }
        found.sort_by_key(|process| process.started_ms);
        found
    }

    /// Whether the lock that a process holds for life can be taken.
    pub(crate) fn is_gone(&self, id: &str) -> bool {
        if id == self.process_id() || !is_process_id(id) {
            return false;
        }
        let path = self.path.join(PROCESSES).join(id);
        match OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(&path) {
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            Ok(file) => match file.try_lock() {
                Ok(()) => {
                    let _ = fs::remove_file(&path); // tidying only: a file without a lock says the same
                    true
                }
                Err(_) => false,
            },
        }
    }

    pub(crate) fn poisoned(&self) -> Option<String> {
        let path = self.path.join(POISONED);
        match fs::read_to_string(&path) {
            Ok(why) => Some(why.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("its mark cannot be read: {error}")),
        }
    }

    /// Leaves the mark that every process honours. Best effort: the handle itself is poisoned anyway.
    pub(crate) fn poison(&self, why: &str) {
        let _ = fs::write(self.path.join(POISONED), why);
        let _ = sync_folder(&self.path);
    }

    pub(crate) fn unpoison(&self) -> Result<()> {
        match fs::remove_file(self.path.join(POISONED)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io("cannot remove the mark", &error))
            }
            _ => sync_folder(&self.path),
        }
    }

    /// Notes that everything up to a frame is durable. Two slots, so that one is whole at any time.
    pub(crate) fn mark(&self, pos: i64, head: &RecordHash) {
        let line = mark_line(pos, head);
        let slot = u64::try_from(pos & 1).unwrap_or(0) * 128;
        // A mark that cannot be written guards less; it endangers nothing.
        let _ = self.mark.write_all_at(line.as_bytes(), slot);
    }

    /// The furthest frame that was ever noted as durable.
    pub(crate) fn marked(&self) -> Option<(i64, RecordHash)> {
        let mut bytes = [0u8; 256];
        let read = self.mark.read_at(&mut bytes, 0).ok()?;
        bytes[..read].chunks(128).filter_map(read_mark).max_by_key(|(pos, _)| *pos)
    }

    pub(crate) fn clear_mark(&self) -> Result<()> {
        self.mark.set_len(0).map_err(|error| StoreError::io("cannot clear the mark", &error))
    }

    /// Sets bytes aside for the outcomes of running effects: all of them or none, or after an outcome has
    /// used some as many as there is room for, so that new work does not take the rest.
    pub(crate) fn keep_reserve(&self, after_use: bool) {
        let sized = |bytes: u64| {
            let file = open_file(&self.path.join(RESERVE), true)?;
            if file.metadata()?.len() < bytes {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
            }
            Ok::<_, std::io::Error>(())
        };
        let least = if after_use { 1 } else { 16 };
        let parts = (least..=16).rev().map(|part| limits::RESERVE_BYTES / 16 * part);
        if !parts.into_iter().any(|bytes| sized(bytes).is_ok()) {
            self.free_reserve();
        }
    }

    /// Gives the reserve up; whether there was one.
    pub(crate) fn free_reserve(&self) -> bool {
        let path = self.path.join(RESERVE);
        fs::metadata(&path).is_ok_and(|file| file.len() > 0) && fs::remove_file(&path).is_ok()
    }

    pub(crate) fn leave(&self) {
        if let Some((info, _)) = &self.process {
            let _ = fs::remove_file(self.path.join(PROCESSES).join(&info.id));
        }
    }
}

/// A mark is one line of this length.
const MARK_BYTES: usize = 20 + 1 + 71 + 1 + 16 + 1;

fn mark_line(pos: i64, head: &RecordHash) -> String {
    let told = format!("{pos:020} {head}");
    let sum = Digest::<domains::Value>::of_bytes(&[told.as_bytes()]).to_string();
    format!("{told} {}\n", &sum[7..23])
}

fn read_mark(slot: &[u8]) -> Option<(i64, RecordHash)> {
    let line = std::str::from_utf8(slot.get(..MARK_BYTES)?).ok()?;
    let mut words = line.split_whitespace();
    let (pos, head) = (words.next()?.parse().ok()?, words.next()?);
    let head = holdfast_core::records::read(&serde_json::Value::String(head.to_owned())).ok()?;
    (mark_line(pos, &head) == line).then_some((pos, head))
}

/// Which process holds a lock, as the system's list of locks tells it.
fn pid_of_lock(file: &File) -> Option<String> {
    let suffix = format!(":{}", file.metadata().ok()?.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = words.get(1) == Some(&"FLOCK") && words.get(5).is_some_and(|at| at.ends_with(&suffix));
        if ours { words.get(4).map(|pid| (*pid).to_owned()) } else { None }
    })
}

fn is_process_id(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Takes a place among the processes: a file that is locked for life.
fn register(path: &Path, schema: u32, wall_ms: u64) -> Result<(ProcessInfo, File)> {
    let info = ProcessInfo {
        id: random_name()?,
        pid: std::process::id(),
        schema,
        started_ms: wall_ms,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let told = |error: &std::io::Error| StoreError::io("cannot register the process", error);
    // Locked under a name that nobody looks at, so that no one takes it for a process that is gone.
    let (hidden, shown) =
        (path.join(PROCESSES).join(format!("{}.new", info.id)), path.join(PROCESSES).join(&info.id));
    let file = open_file(&hidden, true).map_err(|e| told(&e))?;
    file.try_lock().map_err(|e| StoreError::Failed(format!("cannot register the process: {e}")))?;
    let text = holdfast_core::canonical::to_bytes(&info)?;
    file.write_all_at(&text, 0).map_err(|e| told(&e))?;
    fs::rename(&hidden, &shown).map_err(|e| told(&e))?;
    Ok((info, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_a_damaged_one_is_not() {
        let head = Digest::of_bytes(&[b"x"]);
        let line = mark_line(42, &head);
        assert_eq!(read_mark(line.as_bytes()), Some((42, head)));
        for at in 0..line.len() - 1 {
            let mut damaged = line.clone().into_bytes();
            damaged[at] ^= 1;
            assert_ne!(read_mark(&damaged), Some((42, head)), "byte {at}");
        }
    }
}
