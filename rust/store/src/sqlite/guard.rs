//! Locks that another copy of SQLite in this process cannot take from us.
//!
//! SQLite locks its files for the process: when Python's own `sqlite3` opens the same database and closes it,
//! the system drops every such lock that our copy believes to hold. The other copy can then take our database
//! for unused, rebuild the index of the log under our writers, or write the log back and delete it. These
//! locks belong to descriptors of our own instead. They stand for "in use" where SQLite looks for it: the
//! shared range of the database, and the switch in the index of the log.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use holdfast_core::mutants::{Mutant, mutant};

use super::folder::{DATABASE, SHM};
use crate::error::{Result, StoreError};

/// Where SQLite's shared lock lies in the database, and how long it is.
const SHARED: (i64, i64) = (0x4000_0002, 510);
/// Whoever can lock this byte of the index exclusively takes it for left behind.
const SWITCH: (i64, i64) = (128, 1);
const TRIES: u32 = 2000;

/// Held for as long as the handle is open, and let go just before SQLite closes.
#[derive(Debug)]
pub(crate) struct Guard {
    files: Vec<File>,
}

impl Guard {
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        if mutant(Mutant::AnyWal) {
            return Ok(Self { files: Vec::new() });
        }
        let database = hold(&folder.join(DATABASE), SHARED)?;
        let index = hold(&folder.join(SHM), SWITCH)?;
        Ok(Self { files: vec![database, index] })
    }

    pub(crate) fn descriptors(&self) -> Vec<i32> {
        self.files.iter().map(AsRawFd::as_raw_fd).collect()
    }
}

fn hold(path: &Path, (start, length): (i64, i64)) -> Result<File> {
    let told = |error: &std::io::Error| StoreError::io(&format!("cannot guard {}", path.display()), error);
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW).open(path).map_err(|e| told(&e))?;
    let lock = libc::flock {
        l_type: i16::try_from(libc::F_RDLCK).unwrap_or(0),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // Somebody may hold it for a moment, to look whether the files are in use.
    for _ in 0..TRIES {
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => return Ok(file),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            Err(error) => return Err(told(&error.into())),
        }
    }
    Err(StoreError::Busy {
        holder: "another program has the database".to_owned(),
        waited_ms: u64::from(TRIES),
    })
}
