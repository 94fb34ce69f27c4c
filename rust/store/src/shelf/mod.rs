//! Blobs in an object storage or in a folder that machines share: where a store on a server keeps them when
//! its address says so.
//!
//! A blob is one object, `<prefix>/<the store's id>/<two hex digits>/<64 hex digits>`, with the bytes that a
//! file of a folder would have. The store's id stands in it so that stores can share a place: what one of them
//! collects is its own. An object is only ever created, never overwritten, and its name is a commitment to
//! what is in it.
//!
//! Credentials, region and endpoint come from the environment, under the names that each service's own tools
//! use. Of what a server answers nothing gets into an error but its status: answers quote requests.

#[cfg(feature = "objects")]
mod objects;
#[cfg(not(feature = "objects"))]
#[path = "no_objects.rs"]
mod objects;
mod place;

pub(crate) use place::Place;
