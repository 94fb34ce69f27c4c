//! Blobs in a table of the database: where they are kept when no other place was named.

use std::sync::{Mutex, PoisonError};

use holdfast_core::content::Commit;

use super::address::PgAddress;
use super::link::Link;
use super::look::unsigned;
use crate::blobs::{BlobFile, Shelf};
use crate::error::{Result, StoreError};
use crate::sqlite::look::commit_of;
use crate::store::Cell;

/// The table `blobs`, through connections whose commits wait for the disk.
#[derive(Debug)]
pub(super) struct Table {
    address: PgAddress,
    process: String,
    spare: Mutex<Vec<Link>>,
}

impl Table {
    pub(super) fn new(address: PgAddress, process: String) -> Self {
        Self { address, process, spare: Mutex::default() }
    }

    /// A lost connection is tried once more on another: everything here can be done twice.
    fn with<T>(&self, act: impl Fn(&mut Link) -> Result<T>) -> Result<T> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fresh = || Link::open(&self.address, &self.process, true);
        let mut link = spare.filter(|link| !link.is_closed()).map_or_else(fresh, Ok)?;
        let mut done = act(&mut link);
        if matches!(done, Err(StoreError::Unreachable(_))) {
            link = fresh()?;
            done = act(&mut link);
        }
        if !link.is_closed() {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        }
        done
    }
}

impl Shelf for Table {
    fn put(&self, name: &Commit, stored: &[u8]) -> Result<()> {
        let sql = "INSERT INTO blobs (commitment, put_at, stored)
                   VALUES ($1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, $2)
                   ON CONFLICT (commitment) DO NOTHING";
        self.with(|link| link.execute(sql, &[name.to_string().into(), Cell::Bytes(stored.to_vec())]))?;
        Ok(())
    }

    fn get(&self, name: &Commit) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT stored FROM blobs WHERE commitment = $1";
        let rows = self.with(|link| link.query(sql, &[name.to_string().into()]))?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    fn has(&self, name: &Commit) -> Result<bool> {
        let sql = "SELECT 1 FROM blobs WHERE commitment = $1";
        Ok(!self.with(|link| link.query(sql, &[name.to_string().into()]))?.is_empty())
    }

    fn remove(&self, name: &Commit) -> Result<bool> {
        let sql = "DELETE FROM blobs WHERE commitment = $1";
        Ok(self.with(|link| link.execute(sql, &[name.to_string().into()]))? > 0)
    }

    fn list(&self) -> Result<Vec<BlobFile>> {
        let sql = "SELECT commitment, length(stored)::bigint, put_at FROM blobs ORDER BY commitment";
        let rows = self.with(|link| link.query(sql, &[]))?;
        let file = |row: &tokio_postgres::Row| {
            Ok(BlobFile {
                commit: commit_of(row.get(0))?,
                bytes: unsigned(row.get(1))?,
                modified_ms: unsigned(row.get(2))?,
            })
        };
        rows.iter().map(file).collect()
    }
}
