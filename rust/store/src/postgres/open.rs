//! Opening: which server, which version, whose schema, who the store is.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use holdfast_core::ids::StoreId;

use super::address::PgAddress;
use super::blobs::Table;
use super::ear::Ear;
use super::link::Link;
use super::migrate::{self, meta, set_meta};
use super::sync::Syncer;
use super::turn::number;
use super::{PgStore, ServerClock};
use crate::blobs::Blobs;
use crate::clock::{random, random_name};
use crate::error::{Result, StoreError};
use crate::shelf::Place;
use crate::sqlite::open::Options;

/// The oldest server that is spoken to: 13 has everything that is used.
const SERVER_MIN: i64 = 130_000;
/// The word under which a store remembers where its blobs are; without it they are in its database.
const BLOBS: &str = "blobs";

/// Stands in the table `meta` while a store is carried here.
const UNFINISHED: &str = "unfinished";

/// Whether a store is there.
pub fn is_there(address: &PgAddress) -> Result<bool> {
    let mut link = Link::open(address, "copy", false)?;
    migrate::exists(&mut link, &address.schema)
}

impl PgStore {
    /// What was carried here is whole: from now on it is a store.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut link = Link::open(&self.address, &self.process, true)?;
        link.execute("DELETE FROM meta WHERE name = $1", &[UNFINISHED.into()]).map(|_| ())
    }
}

/// Opens the store in a schema of a database, and makes it if there is none.
pub fn open(address: &PgAddress, options: &Options) -> Result<PgStore> {
    let process = random_name()?;
    let mut link = Link::open(address, &process, false)?;
    check_server(&mut link, options.read_only)?;
    let found = migrate::exists(&mut link, &address.schema)?;
    if !found && (options.read_only || options.repair) {
        return Err(StoreError::NoSuchStore(address.to_string()));
    }
    if options.read_only {
        check_reading(&mut link)?;
    } else {
        migrate::bring_up(&mut link, &address.schema, options.migrate)?;
    }
    let (id, epoch) = identify(&mut link, options, address.blobs.as_ref())?;
    same_blobs(&mut link, address.blobs.as_ref())?;
    let clock =
        ServerClock { own: options.clock(), is_given: options.clock.is_some(), ahead_ms: Mutex::new(0) };
    let asked = clock.boot_ms();
    let now = link.query("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[])?;
    clock.seen(now.first().map_or(0, |row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)), asked);
    let mut durable = None;
    if !options.read_only {
        let mut link = Link::open(address, &process, true)?;
        register(&mut link, &process)?;
        durable = Some(link);
    }
    let blobs = match &address.blobs {
        None => Blobs::Elsewhere(Box::new(Table::new(address.clone(), process.clone()))),
        Some(place) => place.open(id)?,
    };
    Ok(PgStore {
        id,
        epoch,
        schema: migrate::newest(),
        pid: std::process::id(),
        syncer: Arc::new(Syncer::new(address.clone(), process.clone(), options.turn_wait_ms, durable)),
        ear: Arc::new(Ear::new(address.clone(), process.clone())),
        process,
        read_only: options.read_only,
        address: address.clone(),
        clock,
        writer: Mutex::new(Some(link)),
        readers: Mutex::new(Vec::new()),
        blobs,
        wait_ms: options.turn_wait_ms,
        commits: AtomicU64::new(0),
        barriers: AtomicU64::new(0),
        commands: AtomicU64::new(0),
        closed: AtomicBool::new(false),
    })
}

fn check_server(link: &mut Link, read_only: bool) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(),
                   current_setting('server_encoding'), current_setting('server_version')";
    let rows = link.query(sql, &[])?;
    let Some(row) = rows.first() else { return Err(StoreError::Panicked) };
    if row.get::<_, i64>(0) < SERVER_MIN {
        let version: String = row.get(3);
        return Err(StoreError::OldServer(format!(
            "it is {version}, and 13 is the oldest that is supported"
        )));
    }
    if row.get::<_, bool>(1) && !read_only {
        return Err(StoreError::ReadOnly); // a standby
    }
    let encoding: String = row.get(2);
    if encoding != "UTF8" {
        return Err(StoreError::NotAStore(format!("the database is in {encoding}, and records are in UTF8")));
    }
    Ok(())
}

fn check_reading(link: &mut Link) -> Result<()> {
    let needed = meta(link, "min_reader")?;
    if needed.and_then(|needed| needed.parse::<u32>().ok()).is_some_and(|needed| needed > migrate::newest()) {
        return Err(StoreError::NewerStore("this Holdfast cannot read it".to_owned()));
    }
    match migrate::missing(link)?.first() {
        Some(migration) => Err(StoreError::MigrationNeeded(migration.number.to_string())),
        None => Ok(()),
    }
}

/// Who the store is; a new one gets its id, from whoever is first, and a place for its blobs.
fn identify(link: &mut Link, options: &Options, blobs: Option<&Place>) -> Result<(StoreId, u32)> {
    if meta(link, "store")?.is_none() {
        if options.read_only {
            return Err(StoreError::NotAStore(
                "the store was never finished: open it for writing".to_owned(),
            ));
        }
        let (id, epoch) = match options.identity {
            Some(identity) => identity,
            None => (StoreId::new(options.clock().now().wall_ms, random()?), 1),
        };
        link.begin(
            "BEGIN",
            "SELECT pg_advisory_xact_lock(hashtext('holdfast begins ' || current_schema()))",
        )?;
        if meta(link, "store")?.is_none() {
            if let Some(place) = blobs {
                place.begin(id)?;
                set_meta(link, BLOBS, &place.to_string())?;
            }
            set_meta(link, "epoch", &epoch.to_string())?;
            if options.identity.is_some() {
                set_meta(link, UNFINISHED, "a copy")?;
            }
            set_meta(link, "store", &id.to_string())?;
        }
        link.commit()?;
    }
    if options.identity.is_none() && meta(link, UNFINISHED)?.is_some() {
        let told = "a copy into this schema was interrupted: drop the schema, and copy again";
        return Err(StoreError::NotAStore(told.to_owned()));
    }
    let unknown = || StoreError::Corrupt("the store does not know who it is".to_owned());
    let id = meta(link, "store")?.ok_or_else(unknown)?;
    let epoch = meta(link, "epoch")?.and_then(|epoch| epoch.parse().ok()).ok_or_else(unknown)?;
    Ok((id.parse()?, epoch))
}

/// A store stays with the place that it was made with: elsewhere its large contents would be missing.
fn same_blobs(link: &mut Link, given: Option<&Place>) -> Result<()> {
    let (kept, given) = (meta(link, BLOBS)?, given.map(ToString::to_string));
    if kept == given {
        return Ok(());
    }
    let told = |place: Option<String>| place.unwrap_or_else(|| "its database".to_owned());
    Err(StoreError::OtherBlobs { kept: told(kept), given: told(given) })
}

/// Lets others see that this process has the store open.
pub(super) fn register(link: &mut Link, process: &str) -> Result<()> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    link.execute(
        "DELETE FROM processes WHERE id NOT IN (
             SELECT substr(application_name, 10) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %')",
        &[],
    )?;
    link.execute(
        "INSERT INTO processes (id, pid, host, schema, started_at, version)
         VALUES ($1, $2, $3, $4, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, $5)
         ON CONFLICT (id) DO NOTHING",
        &[
            process.into(),
            number(u64::from(std::process::id())),
            host.trim().into(),
            migrate::schema_cell(),
            env!("CARGO_PKG_VERSION").into(),
        ],
    )
    .map(|_| ())
}
