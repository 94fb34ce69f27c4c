//! What doctor needs of a store that nobody else may use.

use rustix::fs::{Advice, fadvise};

use super::folder::{DATABASE, WAL};
use super::{SqliteStore, failed};
use crate::error::{Result, StoreError};
use crate::store::Store as _;

impl SqliteStore {
    /// Why the folder is poisoned, if it is.
    pub fn poison_mark(&self) -> Option<String> {
        self.folder.as_ref().and_then(|folder| folder.poisoned())
    }

    pub fn lift_poison(&self) -> Result<()> {
        self.folder.as_ref().map_or(Ok(()), |folder| folder.unpoison())
    }

    /// Runs a repair with the mark set aside, and puts it back whatever becomes of it.
    pub(crate) fn while_poisoned<T>(&self, repair: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(folder) = &self.folder else { return repair() };
        let mark = folder.poisoned();
        folder.unpoison()?;
        let done = repair();
        if let Some(why) = mark {
            folder.poison(&why);
        }
        done
    }

    /// Writes the log back and has the kernel forget what it believes of the files, so that what is read
    /// next comes from the disk.
    pub(crate) fn read_from_disk(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        {
            let writer = self.writer();
            let connection = writer.connection.as_ref().ok_or(StoreError::Closed)?;
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(|e| failed(&e))?;
            connection.release_memory().map_err(|e| failed(&e))?;
        }
        for name in [DATABASE, WAL] {
            if let Ok(file) = std::fs::File::open(folder.path().join(name)) {
                let _ = fadvise(&file, 0, None, Advice::DontNeed); // a hint: without it the read is as good
                std::mem::forget(file); // closing it would drop the locks that SQLite has for this process
            }
        }
        Ok(())
    }

    /// Where the journal ends and where it was once durable, if that is further.
    pub(crate) fn truncation(&self) -> Result<Option<(i64, i64)>> {
        // Read before the end is looked at: it never lies beyond it.
        let Some((marked, _)) = self.folder.as_ref().and_then(|folder| folder.marked()) else {
            return Ok(None);
        };
        let mut found = 0;
        self.look(&mut |look| {
            found = look.newest()?.map_or(0, |(pos, _)| pos);
            Ok(())
        })?;
        Ok((found < marked).then_some((found, marked)))
    }

    /// From here on the journal ends where it ends.
    pub(crate) fn accept_end(&self) -> Result<()> {
        self.folder.as_ref().map_or(Ok(()), |folder| folder.clear_mark())
    }
}
