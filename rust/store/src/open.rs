//! Opening a store, whichever engine is under it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Result, StoreError};
use crate::postgres::{self, PgAddress};
use crate::sqlite::{self, SqliteStore};
use crate::store::Store;

pub use crate::sqlite::open::{Options, Planned};

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Folder(PathBuf),
    Memory,
    Postgres(Box<PgAddress>),
}

impl Address {
    /// A path, `sqlite:///path`, `memory:` or `postgresql://...`.
    pub fn parse(url: &str) -> Result<Self> {
        match url {
            "memory:" => Ok(Self::Memory),
            "" => Err(StoreError::BadUrl(String::new())),
            _ => match url.split_once("://") {
                Some(("sqlite", path)) => match path.strip_prefix('/') {
                    Some(path) if !path.is_empty() => Ok(Self::Folder(PathBuf::from(path))),
                    _ => Err(StoreError::BadUrl(url.to_owned())),
                },
                Some(("postgresql" | "postgres", _)) => {
                    PgAddress::parse(url).map(|address| Self::Postgres(Box::new(address)))
                }
                // The rest of it may hold a password.
                Some((scheme, _)) => Err(StoreError::BadUrl(format!("{scheme}://..."))),
                None if url.contains('\0') => Err(StoreError::BadUrl("a path with a NUL".to_owned())),
                None => Ok(Self::Folder(PathBuf::from(url))),
            },
        }
    }
}

/// An open store, by its engine.
#[derive(Debug, Clone)]
pub enum Opened {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<postgres::PgStore>),
}

impl Opened {
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => store.clone(),
            Self::Postgres(store) => store.clone(),
        }
    }
}

/// Opens the store at an address, and makes it if there is none.
pub fn open(address: &Address, options: &Options) -> Result<Opened> {
    match address {
        Address::Memory => sqlite::open::open(None, options).map(|store| Opened::Sqlite(Arc::new(store))),
        Address::Folder(path) => {
            sqlite::open::open(Some(path), options).map(|store| Opened::Sqlite(Arc::new(store)))
        }
        Address::Postgres(address) => {
            postgres::open(address, options).map(|store| Opened::Postgres(Arc::new(store)))
        }
    }
}

/// What opening the store for writing would do to its schema.
pub fn plan(address: &Address) -> Result<Vec<Planned>> {
    match address {
        Address::Memory => Ok(Vec::new()),
        Address::Folder(path) => sqlite::open::plan(path, sqlite::migrate::migrations()),
        Address::Postgres(address) => postgres::plan(address),
    }
}
