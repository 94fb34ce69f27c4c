//! SQLite's locks, held by open files instead of by the process.
//!
//! SQLite locks with `fcntl`, and such a lock belongs to the process: two copies of SQLite in one process do
//! not keep each other out, and when Python's own `sqlite3` closes the database, the system drops every lock
//! that our copy believes to hold. The other copy could then rebuild the index of the log under our writer,
//! or write the log back and delete it. A lock of an open file description keeps out everybody else, also in
//! this process, and lives as long as something refers to the description. SQLite lets its system calls be
//! replaced, and that is done here.
//!
//! A forked child refers to the descriptions too, by its copies of the descriptors and of the mapped index
//! of the log, so it would keep its parent's locks after the parent was killed. The descriptors it closes
//! (`forks.py`); the index it does not get, for which `mmap` is replaced. A child that opens the store itself
//! must not find what SQLite remembers of the files that its parent had open: SQLite tells files by their
//! numbers, and with `stat` and `fstat` replaced they have other numbers in the child.
//!
//! Safety argument, for the whole file:
//! - `sqlite3_vfs_find` initializes SQLite and returns a static object, or null.
//! - SQLite calls `fcntl` through `int (*)(int, int, ...)` with two integers and at most one more integer or
//!   pointer. On the systems named below a function with fixed arguments finds them in the same registers.
//! - For the three commands that are translated the argument is SQLite's own `struct flock`, alive and
//!   writable during the call; anything else goes to the system as it came.
//! - What is advised about is what `mmap` has just returned. A child that read it would die of it: the
//!   parent's handle refuses every call there and is not closed, and a handle of its own maps its own.
//! - What `stat` and `fstat` are given is SQLite's own `struct stat`, alive and writable during the call.
#![allow(unsafe_code)]

use crate::error::Result;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod linux {
    use std::ffi::{c_char, c_int, c_void};
    use std::mem::transmute;
    use std::ptr;
    use std::sync::OnceLock;

    use holdfast_core::mutants::{Mutant, mutant};
    use nix::libc;
    use rusqlite::ffi;

    use crate::error::{Result, StoreError};

    type Fcntl = unsafe extern "C" fn(c_int, c_int, *mut c_void) -> c_int;
    type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
    type Mmap =
        unsafe extern "C" fn(*mut c_void, libc::size_t, c_int, c_int, c_int, libc::off_t) -> *mut c_void;

    unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let translated = match command {
            libc::F_SETLK => libc::F_OFD_SETLK,
            libc::F_SETLKW => libc::F_OFD_SETLKW,
            libc::F_GETLK => libc::F_OFD_GETLK,
            other => other,
        };
        if translated == command || !are_known(descriptor) || mutant(Mutant::AnyWal) {
            return unsafe { libc::fcntl(descriptor, command, argument) };
        }
        // SQLite leaves it as it happens to be; the system wants to see that no process is meant.
        unsafe { (*argument.cast::<libc::flock>()).l_pid = 0 };
        unsafe { libc::fcntl(descriptor, translated, argument) }
    }

    static KNOWN: OnceLock<bool> = OnceLock::new();

    /// Whether locks belong to files, as far as that was found out.
    pub(super) fn are_of_files() -> bool {
        KNOWN.get().is_some_and(|known| *known)
    }

    /// Whether the system has such locks; some that imitate Linux do not. There it is as on other systems.
    fn are_known(descriptor: c_int) -> bool {
        *KNOWN.get_or_init(|| {
            let mut asked: libc::flock = unsafe { std::mem::zeroed() };
            let answered = unsafe { libc::fcntl(descriptor, libc::F_OFD_GETLK, &raw mut asked) };
            answered == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
        })
    }

    unsafe extern "C" fn mmap(
        at: *mut c_void,
        length: libc::size_t,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: libc::off_t,
    ) -> *mut c_void {
        let mapped = unsafe { libc::mmap(at, length, protection, flags, descriptor, offset) };
        if mapped != libc::MAP_FAILED {
            // If it cannot be kept from children, a child that outlives its parent keeps the parent's locks.
            unsafe { libc::madvise(mapped, length, libc::MADV_DONTFORK) };
        }
        mapped
    }

    /// The process that replaced the calls; in its forked children files are numbered anew.
    static HOME: OnceLock<u32> = OnceLock::new();

    /// Gives a file another number in a forked child, the same one each time.
    unsafe fn numbered(done: c_int, found: *mut libc::stat) -> c_int {
        let process = std::process::id();
        if done == 0 && HOME.get().is_some_and(|home| *home != process) {
            unsafe { (*found).st_ino ^= u64::from(process) << 32 };
        }
        done
    }

    unsafe extern "C" fn stat(path: *const c_char, found: *mut libc::stat) -> c_int {
        unsafe { numbered(libc::stat(path, found), found) }
    }

    unsafe extern "C" fn fstat(descriptor: c_int, found: *mut libc::stat) -> c_int {
        unsafe { numbered(libc::fstat(descriptor, found), found) }
    }

    pub(super) fn replace() -> Result<()> {
        static DONE: OnceLock<bool> = OnceLock::new();
        let done = DONE.get_or_init(|| {
            let vfs = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
            let Some(set) = (unsafe { vfs.as_ref() }).and_then(|vfs| vfs.xSetSystemCall) else {
                return false;
            };
            let fcntl = unsafe { transmute::<Fcntl, unsafe extern "C" fn()>(fcntl) };
            let mmap = unsafe { transmute::<Mmap, unsafe extern "C" fn()>(mmap) };
            let stat = unsafe { transmute::<Stat, unsafe extern "C" fn()>(stat) };
            let fstat = unsafe { transmute::<Fstat, unsafe extern "C" fn()>(fstat) };
            let calls = [(c"fcntl", fcntl), (c"mmap", mmap), (c"stat", stat), (c"fstat", fstat)];
            HOME.get_or_init(std::process::id);
            calls.iter().all(|(name, ours)| unsafe { set(vfs, name.as_ptr(), Some(*ours)) == ffi::SQLITE_OK })
        });
        if *done { Ok(()) } else { Err(StoreError::Failed("SQLite's locks cannot be replaced".to_owned())) }
    }
}

/// Called before the first connection is opened. On other systems SQLite locks as it always does, and the
/// database must not be opened with another copy of SQLite in the same process.
pub(super) fn belong_to_files() -> Result<()> {
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    linux::replace()?;
    Ok(())
}

/// Whether they do. If not, closing any descriptor of a file drops every lock that this process has on it.
pub(super) fn are_of_files() -> bool {
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    return linux::are_of_files();
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    return false;
}
