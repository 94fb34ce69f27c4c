//! Copying a store to another place or another engine. Every record arrives byte for byte, with the seals over
//! them; rows are made anew, and the whole is audited before it may be used. The copy has a new epoch, and
//! every open run of it waits for a person: the store that it was copied from may have gone on.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::ids::StoreId;

use crate::doctor::rebuild;
use crate::engine::{Engine, Import};
use crate::error::{Result, StoreError};
use crate::open::{Address, Opened, Options, open, plan};
use crate::postgres;
use crate::rows::{Look, StreamRow};
use crate::sqlite::backup::Hidden;
use crate::sqlite::open::open as open_folder;
use crate::store::Store;
use crate::verify::{Scope, verify};

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    pub store: StoreId,
    /// The epoch of the copy.
    pub epoch: u32,
    pub streams: u64,
    pub frames: u64,
    pub blobs: u64,
    /// Open runs that wait for a person in the copy.
    pub waiting: u64,
}

/// Copies the store at an address to another, where none is yet.
pub fn copy(
    source: &Address,
    target: &Address,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Copied> {
    if *source == Address::Memory {
        return Err(StoreError::BadUrl("memory: (there is nothing in it yet)".to_owned()));
    }
    plan(source)?; // says that there is none, where opening would make one
    let from = Engine::new(open(source, &Options::default())?.store(), false)?;
    from.barrier()?; // only what nobody can lose any more is given away
    let epoch = from.store().epoch() + 1;
    let options = Options { identity: Some((from.store().id(), epoch)), ..Options::default() };
    let copied = match target {
        Address::Folder(path) => {
            let hidden = Hidden::make(path)?;
            let store: Arc<dyn Store> = Arc::new(open_folder(Some(&hidden.path), &options)?);
            let copied = carry(&from, store, progress)?;
            hidden.finish()?;
            copied
        }
        Address::Postgres(address) => {
            if postgres::is_there(address)? {
                return Err(StoreError::TargetExists(address.to_string()));
            }
            let Opened::Postgres(store) = open(target, &options)? else { return Err(StoreError::Panicked) };
            let copied = carry(&from, store.clone(), progress)?;
            store.finish()?;
            copied
        }
        Address::Memory => return Err(StoreError::BadUrl("memory: (a copy must last)".to_owned())),
    };
    from.store().close()?;
    Ok(copied)
}

fn carry(from: &Engine, store: Arc<dyn Store>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Copied> {
    let to = Engine::new(store, true)?; // its stream begins with what is copied
    let mut copied = Copied {
        store: to.store().id(),
        epoch: to.store().epoch(),
        streams: 0,
        frames: 0,
        blobs: 0,
        waiting: 0,
    };
    let mut streams = Vec::new();
    let total = from.store().stats()?.frames;
    from.store().look(&mut |look| {
        copied.frames = carry_frames(look, &to, total, progress)?;
        streams = all_streams(look)?;
        copied.blobs = carry_blobs(look, &streams, from.store(), to.store())?;
        Ok(())
    })?;
    copied.streams = u64::try_from(streams.len()).unwrap_or(0);
    rebuild(&to, false)?;
    same_ends(&streams, &to)?;
    copied.waiting = to.restored(copied.epoch)?;
    let report = verify(&to, &Scope::default(), progress)?;
    if !report.ok() {
        let what = report.listed.first().map_or("it cannot be read", |problem| problem.what.as_str());
        return Err(StoreError::Corrupt(format!("what arrived is not whole: {what}")));
    }
    to.store().close()?;
    Ok(copied)
}

fn carry_frames(
    look: &dyn Look,
    to: &Engine,
    total: u64,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<u64> {
    let mut seals = look.seals(usize::MAX)?;
    let import = Arc::new(Mutex::new(Import::of(seals.iter().map(|seal| seal.pos))));
    let (mut frames, mut leaf, mut pos) = (0u64, None, 0);
    loop {
        let sealed = look.sealed_frames(leaf)?;
        let page = if sealed.is_empty() { look.unsealed_frames(pos)? } else { sealed };
        let Some(last) = page.last() else { break };
        match last.leaf {
            Some(n) => leaf = Some(n),
            None => pos = last.row.pos,
        }
        frames += u64::try_from(page.len()).unwrap_or(0);
        to.import(page, &import)?;
        if !progress(frames.min(total), total) {
            return Err(StoreError::Failed("stopped".to_owned()));
        }
    }
    let import = import.lock().unwrap_or_else(PoisonError::into_inner);
    for seal in &mut seals {
        let lost = || StoreError::Corrupt(format!("the seal of {} has no record", seal.size));
        seal.pos = import.moved.get(&seal.pos).copied().flatten().ok_or_else(lost)?;
    }
    to.import_rest(look.envelope_rows()?, seals)?;
    Ok(frames)
}

fn all_streams(look: &dyn Look) -> Result<Vec<StreamRow>> {
    let mut found: Vec<StreamRow> = Vec::new();
    loop {
        let page = look.streams(found.last().map_or(0, |row| row.key), 1000)?;
        if page.is_empty() {
            return Ok(found);
        }
        found.extend(page);
    }
}

/// The blobs that the frames refer to, each checked on its way.
fn carry_blobs(
    look: &dyn Look,
    streams: &[StreamRow],
    from: &Arc<dyn Store>,
    to: &Arc<dyn Store>,
) -> Result<u64> {
    let mut carried = 0;
    for row in streams {
        for commit in look.blob_refs(row.key)?.into_keys() {
            let blob = from.blobs().get(&commit)?;
            to.blobs().put_salted(blob.salt, &blob.bytes)?;
            carried += 1;
        }
    }
    Ok(carried)
}

/// Every stream ends where it did.
fn same_ends(streams: &[StreamRow], to: &Engine) -> Result<()> {
    to.store().look(&mut |look| {
        for row in streams {
            let found = look.stream(row.id)?;
            if found.is_none_or(|found| (found.last_seq, found.head) != (row.last_seq, row.head)) {
                return Err(StoreError::Corrupt(format!("{} did not arrive whole", row.id)));
            }
        }
        Ok(())
    })
}
