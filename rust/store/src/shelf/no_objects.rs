//! Stands in for buckets in a build that has none: there is no such shelf, and whoever asks for one is told.

use holdfast_core::content::Commit;
use holdfast_core::ids::StoreId;

use super::place::Service;
use crate::blobs::{BlobFile, Shelf};
use crate::error::{Result, StoreError};

#[derive(Debug)]
pub(super) enum Objects {}

impl Objects {
    pub(super) fn new(_: Service, _: &str, _: &str, _: StoreId, place: String) -> Result<Self> {
        Err(StoreError::BadUrl(place + " (this build of Holdfast speaks to no buckets)"))
    }

    pub(super) fn begin(&self, _: StoreId) -> Result<()> {
        match *self {}
    }
}

impl Shelf for Objects {
    fn put(&self, _: &Commit, _: &[u8]) -> Result<()> {
        match *self {}
    }
    fn get(&self, _: &Commit) -> Result<Option<Vec<u8>>> {
        match *self {}
    }
    fn has(&self, _: &Commit) -> Result<bool> {
        match *self {}
    }
    fn remove(&self, _: &Commit) -> Result<bool> {
        match *self {}
    }
    fn list(&self) -> Result<Vec<BlobFile>> {
        match *self {}
    }
}
