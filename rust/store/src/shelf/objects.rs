//! Objects in a bucket as a [`Shelf`]. Whoever calls has a client to itself and waits for the answer; clients
//! are kept for the next caller. Every call ends: retries are few, and [`limits::OBJECT_WAIT_MS`] bounds each
//! request.

use std::error::Error as _;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use holdfast_core::content::Commit;
use holdfast_core::ids::StoreId;
use holdfast_core::limits;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, RetryConfig,
};
use tokio::runtime::{Builder, Runtime};

use super::place::Service;
use crate::blobs::{BlobFile, STORED_MAX, Shelf, hex_name, is_blob, parse_name};
use crate::error::{Result, StoreError};

/// The object that says whose blobs these are.
const MARK: &str = "store";
/// A server that is restarting is given this long; who waits longer is told.
const RETRIES: usize = 3;
const RETRY_TIME: Duration = Duration::from_secs(10);
/// The client's own bound on one request. Ours, which knows how much there is to send, comes first.
const REQUEST_TIME: &str = "1800 seconds";

/// What became of a request.
type Done<T> = std::result::Result<T, Error>;
type Asked<T> = std::result::Result<T, Failure>;
type Make = Box<dyn Fn() -> Done<Arc<dyn ObjectStore>> + Send + Sync>;

/// A client with its connections, and the event loop that they live on, which runs while somebody waits.
struct Hand {
    client: Arc<dyn ObjectStore>,
    runtime: Runtime,
}

impl Hand {
    /// Waits for a request that moves so many bytes.
    fn wait<T>(&self, bytes: usize, request: impl Future<Output = Done<T>>) -> Asked<T> {
        let ms = limits::OBJECT_WAIT_MS.saturating_add(u64::try_from(bytes / 1024).unwrap_or(u64::MAX));
        let done =
            self.runtime.block_on(async { tokio::time::timeout(Duration::from_millis(ms), request).await });
        done.map_err(|_| Failure::Late)?.map_err(Failure::Request)
    }
}

/// The blobs of one store in a bucket.
pub(super) struct Objects {
    make: Make,
    root: Path,
    /// For messages.
    place: String,
    pid: u32,
    spare: Mutex<Vec<Hand>>,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Objects({})", self.place)
    }
}

impl Objects {
    pub(super) fn new(
        service: Service,
        bucket: &str,
        prefix: &str,
        store: StoreId,
        place: String,
    ) -> Result<Self> {
        // Whoever was first has installed the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bucket = bucket.to_owned();
        let objects = Self::on(Box::new(move || client(service, &bucket)), prefix, store, place);
        objects.with(|_| Ok(()))?; // what the environment says can be used
        Ok(objects)
    }

    fn on(make: Make, prefix: &str, store: StoreId, place: String) -> Self {
        let root = Path::from(prefix).join(store.to_string());
        Self { make, root, place, pid: std::process::id(), spare: Mutex::default() }
    }

    /// With a client that nobody else uses meanwhile.
    fn with<T>(&self, act: impl FnOnce(&Hand) -> Result<T>) -> Result<T> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let hand = match spare {
            Some(hand) => hand,
            None => Hand { client: self.client()?, runtime: event_loop()? },
        };
        let done = act(&hand);
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(hand);
        done
    }

    fn client(&self) -> Result<Arc<dyn ObjectStore>> {
        // The library's own words quote what stands in the environment.
        let told = "what the environment says about it cannot be used";
        (self.make)().map_err(|_| StoreError::BadUrl(format!("{} ({told})", self.place)))
    }

    /// Leaves a mark that the store is here, which shows that blobs can be put.
    pub(super) fn begin(&self, store: StoreId) -> Result<()> {
        let text = format!("Large contents of the Holdfast store {store}.\n");
        let path = self.root.clone().join(MARK);
        self.with(|hand| match create(hand, &path, text.as_bytes()) {
            Ok(()) | Err(Failure::Request(Error::AlreadyExists { .. })) => Ok(()),
            Err(failure) => Err(self.told(&failure)),
        })
    }

    fn path(&self, name: &Commit) -> Path {
        let name = hex_name(name);
        self.root.clone().join(&name[..2]).join(name.as_str())
    }

    fn head(&self, hand: &Hand, name: &Commit) -> Result<Option<ObjectMeta>> {
        match hand.wait(0, hand.client.head(&self.path(name))) {
            Ok(found) => Ok(Some(found)),
            Err(Failure::Request(Error::NotFound { .. })) => Ok(None),
            Err(failure) => Err(self.told(&failure)),
        }
    }

    fn read(&self, hand: &Hand, name: &Commit) -> Result<Option<Vec<u8>>> {
        let found = match hand.wait(0, hand.client.get(&self.path(name))) {
            Ok(found) => found,
            Err(Failure::Request(error @ Error::NotFound { .. })) if !lacks_bucket(&error) => {
                return Ok(None);
            }
            Err(failure) => return Err(self.told(&failure)),
        };
        let bytes = usize::try_from(found.meta.size).unwrap_or(usize::MAX);
        if bytes > STORED_MAX {
            return Err(StoreError::BlobForged(*name)); // no blob is as large as that
        }
        let read = hand.wait(bytes, found.bytes()).map_err(|failure| self.told(&failure))?;
        Ok(Some(read.to_vec()))
    }

    /// What a failure means for the user.
    fn told(&self, failure: &Failure) -> StoreError {
        let place = &self.place;
        let Failure::Request(error) = failure else {
            return StoreError::BlobsUnreachable(format!("{place}: no answer in time"));
        };
        match error {
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                return StoreError::NoPermission(format!("{place} does not let us: check the credentials"));
            }
            Error::NotFound { .. } => {
                return StoreError::BlobsUnreachable(format!("{place}: there is no such bucket"));
            }
            _ => {}
        }
        match (kind(error), status(error)) {
            (Some(kind), _) => StoreError::BlobsUnreachable(format!("{place}: {}", in_words(kind))),
            (None, Some(status)) if status.starts_with('5') || status == "429" => {
                StoreError::BlobsUnreachable(format!("{place}: it answers with status {status}"))
            }
            (None, Some(status)) => {
                StoreError::Failed(format!("{place}: a request was refused with status {status}"))
            }
            (None, None) => StoreError::Failed(format!("{place}: a request failed")),
        }
    }
}

fn event_loop() -> Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| StoreError::io("cannot wait for a server", &error))
}

fn create(hand: &Hand, path: &Path, bytes: &[u8]) -> Asked<()> {
    let put = hand.client.put_opts(path, bytes.to_vec().into(), PutMode::Create.into());
    hand.wait(bytes.len(), put).map(|_| ())
}

/// What a request came to instead of an answer.
#[derive(Debug)]
enum Failure {
    Late,
    Request(Error),
}

fn kind(error: &Error) -> Option<HttpErrorKind> {
    let mut cause = error.source();
    while let Some(found) = cause {
        if let Some(http) = found.downcast_ref::<HttpError>() {
            return Some(http.kind());
        }
        cause = found.source();
    }
    None
}

fn in_words(kind: HttpErrorKind) -> &'static str {
    match kind {
        HttpErrorKind::Connect => "no connection",
        HttpErrorKind::Timeout => "no answer in time",
        HttpErrorKind::Request | HttpErrorKind::Interrupted => "the connection broke",
        _ => "the answer cannot be read",
    }
}

/// The status of the answer. The library has it only in its words.
fn status(error: &Error) -> Option<String> {
    let told = error.to_string();
    let (_, after) = told.split_once("status code: ")?;
    let digits: String = after.chars().take(3).collect();
    digits.chars().all(|c| c.is_ascii_digit()).then_some(digits)
}

/// Whether it is the bucket that is missing, not the object.
fn lacks_bucket(error: &Error) -> bool {
    let told = error.to_string();
    ["NoSuchBucket", "ContainerNotFound"].iter().any(|code| told.contains(code))
}

fn client(service: Service, bucket: &str) -> Done<Arc<dyn ObjectStore>> {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(2),
        base: 2.0,
    };
    let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_TIME };
    let time = ClientConfigKey::Timeout;
    Ok(match service {
        Service::S3 => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.with_config(AmazonS3ConfigKey::Client(time), REQUEST_TIME).build()?)
        }
        Service::Gcs => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            Arc::new(builder.with_config(GoogleConfigKey::Client(time), REQUEST_TIME).build()?)
        }
        Service::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            Arc::new(builder.with_config(AzureConfigKey::Client(time), REQUEST_TIME).build()?)
        }
    })
}

impl Shelf for Objects {
    /// Who comes second finds the first one's. It was packed by another version perhaps, and has then another
    /// length, but opens to the same.
    fn put(&self, name: &Commit, stored: &[u8]) -> Result<()> {
        let path = self.path(name);
        self.with(|hand| {
            let mut done = create(hand, &path, stored);
            if matches!(&done, Err(Failure::Request(error)) if kind(error).is_some()) {
                done = create(hand, &path, stored); // if only the answer was lost, this finds it there
            }
            match done {
                Ok(()) => Ok(()),
                Err(Failure::Request(Error::AlreadyExists { .. })) => {
                    let same = |found: ObjectMeta| usize::try_from(found.size) == Ok(stored.len());
                    let known = self.head(hand, name)?.is_some_and(same)
                        || self.read(hand, name)?.is_some_and(|found| is_blob(name, &found));
                    if known { Ok(()) } else { Err(StoreError::BlobForged(*name)) }
                }
                Err(failure) => Err(self.told(&failure)),
            }
        })
    }

    fn get(&self, name: &Commit) -> Result<Option<Vec<u8>>> {
        self.with(|hand| self.read(hand, name))
    }

    fn has(&self, name: &Commit) -> Result<bool> {
        self.with(|hand| Ok(self.head(hand, name)?.is_some()))
    }

    fn remove(&self, name: &Commit) -> Result<bool> {
        self.with(|hand| {
            if self.head(hand, name)?.is_none() {
                return Ok(false);
            }
            match hand.wait(0, hand.client.delete(&self.path(name))) {
                Ok(()) => Ok(true),
                Err(Failure::Request(Error::NotFound { .. })) => Ok(false), // somebody else was faster
                Err(failure) => Err(self.told(&failure)),
            }
        })
    }

    fn list(&self) -> Result<Vec<BlobFile>> {
        self.with(|hand| {
            let (mut blobs, mut found) = (Vec::new(), hand.client.list(Some(&self.root)));
            // Each page has its own time.
            let mut next = || hand.wait(0, async { found.next().await.transpose() });
            while let Some(object) = next().map_err(|failure| self.told(&failure))? {
                let Some(commit) = object.location.filename().and_then(parse_name) else { continue };
                let modified_ms = u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0);
                blobs.push(BlobFile { commit, bytes: object.size, modified_ms });
            }
            blobs.sort_by_key(|blob| blob.commit);
            Ok(blobs)
        })
    }
}

impl Drop for Objects {
    /// A loop may have threads that look up names. In a forked child they are not there, and nobody may wait
    /// for them.
    fn drop(&mut self) {
        for hand in self.spare.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if std::process::id() == self.pid {
                hand.runtime.shutdown_background();
            } else {
                std::mem::forget(hand);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::content::Salt;
    use object_store::memory::InMemory;

    use super::*;
    use crate::blobs::Blobs;

    fn store(number: u8) -> StoreId {
        StoreId::new(1, [number; 10])
    }

    fn blobs(client: &Arc<InMemory>, number: u8) -> Blobs {
        let client: Arc<dyn ObjectStore> = Arc::<InMemory>::clone(client);
        let make = Box::new(move || Ok(Arc::clone(&client)));
        Blobs::Elsewhere(Box::new(Objects::on(make, "a/b", store(number), "memory".to_owned())))
    }

    #[test]
    fn what_lies_under_a_name_is_kept_and_what_does_not_belong_there_is_noticed() {
        let client = Arc::new(InMemory::new());
        let (one, other) = (blobs(&client, 1), blobs(&client, 2));
        let name = one.put_salted(Salt([7; 16]), b"large").unwrap();
        assert_eq!(one.put_salted(Salt([7; 16]), b"large").unwrap(), name);
        assert!(!other.has(&name).unwrap(), "each store has its own");

        let hex = hex_name(&name);
        let path = Path::from(format!("a/b/{}/{}/{hex}", store(1), &hex[..2]));
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(client.put(&path, b"somebody else's".to_vec().into())).unwrap();
        assert_eq!(one.put_salted(Salt([7; 16]), b"large").unwrap_err(), StoreError::BlobForged(name));
        assert_eq!(one.get(&name).unwrap_err(), StoreError::BlobForged(name));

        assert_eq!(one.list().unwrap().0.iter().map(|blob| blob.commit).collect::<Vec<_>>(), [name]);
        assert!(one.remove(&name).unwrap() && !one.remove(&name).unwrap());
        assert_eq!(one.get(&name).unwrap_err(), StoreError::NoSuchBlob(name));
    }
}
