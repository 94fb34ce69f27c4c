//! Where blobs are kept, by a URL without secrets.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use holdfast_core::ids::StoreId;

use super::objects::Objects;
use crate::blobs::Blobs;
use crate::error::{Result, StoreError};
use crate::sqlite::folder::sync_folder;

/// The services that keep objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    S3,
    Gcs,
    Azure,
}

impl Service {
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// A place for blobs. What it prints is what the store remembers of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Bucket { service: Service, name: String, prefix: String },
    Folder(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bucket { service, name, prefix } if prefix.is_empty() => {
                write!(f, "{}://{name}", service.scheme())
            }
            Self::Bucket { service, name, prefix } => write!(f, "{}://{name}/{prefix}", service.scheme()),
            Self::Folder(path) => write!(f, "file://{}", path.display()),
        }
    }
}

/// Not quoted: somebody may have put a password there.
fn bad(what: &str) -> StoreError {
    StoreError::BadUrl(format!("blobs=... ({what})"))
}

/// A word that means the same in every service and needs no escapes.
fn is_plain(word: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !word.is_empty() && word.len() <= 255 && word.chars().all(known) && word.chars().any(|c| c != '.')
}

impl Place {
    /// Reads `s3://bucket/prefix`, `gs://...`, `az://...`, `file:///path` or an absolute path.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once("://") else { return Self::folder(url) };
        let service = match scheme {
            "s3" => Service::S3,
            "gs" => Service::Gcs,
            "az" => Service::Azure,
            "file" => return Self::folder(rest),
            _ => return Err(bad("s3://, gs://, az://, file:/// or an absolute path begins it")),
        };
        let mut words = rest.trim_end_matches('/').split('/');
        let name = words.next().unwrap_or_default().to_owned();
        let prefix: Vec<&str> = words.collect();
        if !is_plain(&name) || !prefix.iter().all(|word| is_plain(word)) {
            return Err(bad("a bucket and a prefix are a-z, A-Z, 0-9, '.', '_' and '-', with '/' between"));
        }
        Ok(Self::Bucket { service, name, prefix: prefix.join("/") })
    }

    fn folder(path: &str) -> Result<Self> {
        let is_absolute = path.starts_with('/') && !path.contains('\0');
        let steps_up =
            Path::new(path).components().any(|part| matches!(part, std::path::Component::ParentDir));
        if !is_absolute || steps_up {
            return Err(bad("a folder is an absolute path, without '..'"));
        }
        Ok(Self::Folder(Path::new(path).components().collect())) // without a slash at its end
    }

    /// Makes room for a new store's blobs, so that a place that is not there is noticed before the store is
    /// made, not when the first large content comes.
    pub(crate) fn begin(&self, store: StoreId) -> Result<()> {
        match self {
            Self::Bucket { service, name, prefix } => {
                Objects::new(*service, name, prefix, store, self.to_string())?.begin(store)
            }
            Self::Folder(path) => {
                self.is_there(path)?;
                let told = |error| StoreError::io("cannot make a folder for blobs", &error);
                let own = path.join(store.to_string());
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&own).map_err(told)?;
                sync_folder(path)
            }
        }
    }

    /// The blobs of a store that began there. A folder that nobody mounted is not taken for an empty one.
    pub(crate) fn open(&self, store: StoreId) -> Result<Blobs> {
        match self {
            Self::Bucket { service, name, prefix } => {
                let objects = Objects::new(*service, name, prefix, store, self.to_string())?;
                Ok(Blobs::Elsewhere(Box::new(objects)))
            }
            Self::Folder(path) => {
                let own = path.join(store.to_string());
                self.is_there(&own)?;
                Ok(Blobs::Folder(own))
            }
        }
    }

    fn is_there(&self, path: &Path) -> Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        Err(StoreError::BlobsUnreachable(format!("{self}: there is no folder {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_and_printed_in_one_way() {
        for (url, printed) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("gs://some.bucket/a/b-c/", "gs://some.bucket/a/b-c"),
            ("az://container/x_1", "az://container/x_1"),
            ("file:///srv/blobs/", "file:///srv/blobs"),
            ("/srv//blobs", "file:///srv/blobs"),
        ] {
            let place = Place::parse(url).unwrap();
            assert_eq!(place.to_string(), printed);
            assert_eq!(Place::parse(printed).unwrap(), place);
        }
    }

    #[test]
    fn what_is_no_place_is_refused_and_not_quoted() {
        for url in [
            "",
            "relative/hunter2",
            "file://relative/hunter2",
            "/srv/../hunter2",
            "ftp://hunter2",
            "s3://",
            "s3:///hunter2",
            "s3://key:hunter2@bucket",
            "s3://bucket//hunter2",
            "s3://bucket/../hunter2",
            "s3://bucket/a?secret=hunter2",
            "s3://bucket/a#hunter2",
            "s3://bucket/hunter2%2F",
        ] {
            let told = Place::parse(url).unwrap_err();
            assert!(matches!(told, StoreError::BadUrl(_)), "{url}");
            assert!(!told.to_string().contains("hunter2"), "{told}");
        }
    }
}
