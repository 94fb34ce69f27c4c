//! Where a server is, and how it is spoken to: `postgresql://user@host/database?schema=...`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connecting;
use crate::error::{Result, StoreError};
use crate::shelf::Place;

/// The schema that a store has where none is named.
const SCHEMA: &str = "holdfast";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that is gone without a word, with its machine or its network, is noticed within this time: by what
/// it no longer acknowledges, or by probes of a line on which nothing is under way.
const SILENCE: Duration = Duration::from_secs(20);
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;

/// The address of a store on PostgreSQL. What it prints has no password.
#[derive(Clone)]
pub struct PgAddress {
    config: Config,
    tls: Tls,
    pub(super) schema: String,
    /// Where blobs are kept; in the database if nowhere else.
    pub(super) blobs: Option<Place>,
}

#[derive(Clone)]
enum Tls {
    Off,
    /// Asked for where the server has it; its certificate is checked all the same.
    On(Arc<ClientConfig>),
}

impl std::fmt::Debug for PgAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PgAddress({self})")
    }
}

impl std::fmt::Display for PgAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use tokio_postgres::config::Host;
        let host = self.config.get_hosts().first().map_or_else(String::new, |host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let database = self.config.get_dbname().unwrap_or_default();
        write!(f, "postgresql://{host}/{database}?schema={}", self.schema)
    }
}

impl PartialEq for PgAddress {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config && self.schema == other.schema && self.blobs == other.blobs
    }
}

impl Eq for PgAddress {}

fn bad(what: &str) -> StoreError {
    StoreError::BadUrl(format!("postgresql://... ({what})"))
}

/// A name that needs no quotes.
fn is_plain(name: &str) -> bool {
    let start = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    start
        && name.len() <= 63
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Undoes the percent signs of a value in a URL.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// What a URL says beyond what the driver understands.
#[derive(Default)]
struct Ours {
    schema: Option<String>,
    blobs: Option<Place>,
    root_certificate: Option<PathBuf>,
}

/// Takes our own words out of a URL.
fn split(url: &str) -> Result<(String, Ours)> {
    let (head, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut ours, mut theirs) = (Ours::default(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| bad("a parameter has no value"))?;
        let value = decoded(value).ok_or_else(|| bad("a percent sign stands for nothing"))?;
        match (name, value.as_str()) {
            ("schema", _) => ours.schema = Some(value),
            ("blobs", _) => ours.blobs = Some(Place::parse(&value)?),
            ("sslrootcert", _) => ours.root_certificate = Some(PathBuf::from(value)),
            // The driver knows no more than `require`; a certificate is checked in every mode.
            ("sslmode", "verify-full" | "verify-ca") => theirs.push("sslmode=require".to_owned()),
            _ => theirs.push(pair.to_owned()),
        }
    }
    let rest = if theirs.is_empty() { head.to_owned() } else { format!("{head}?{}", theirs.join("&")) };
    Ok((rest, ours))
}

/// Drives a connection, and passes on that something was notified.
async fn hear<S, T>(mut connection: Connection<S, T>, heard: impl Fn())
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
        if matches!(message, AsyncMessage::Notification(_)) {
            heard();
        }
    }
}

/// The certificates that a server's is checked against.
fn roots(file: Option<&PathBuf>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = file {
        let unreadable = |_| StoreError::Tls(format!("{} holds no certificates", file.display()));
        for certificate in CertificateDer::pem_file_iter(file).map_err(unreadable)? {
            let bad = StoreError::Tls(format!("{} holds a bad certificate", file.display()));
            roots.add(certificate.map_err(unreadable)?).map_err(|_| bad)?;
        }
        if roots.is_empty() {
            return Err(StoreError::Tls(format!("{} holds no certificates", file.display())));
        }
        return Ok(roots);
    }
    for certificate in rustls_native_certs::load_native_certs().certs {
        let _ = roots.add(certificate); // one that the system has and nobody can read
    }
    Ok(roots)
}

fn tls(config: &Config, file: Option<&PathBuf>) -> Result<Tls> {
    let over_network =
        config.get_hosts().iter().any(|host| matches!(host, tokio_postgres::config::Host::Tcp(_)));
    if config.get_ssl_mode() == SslMode::Disable || !over_network {
        return Ok(Tls::Off);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| StoreError::Tls(error.to_string()))?;
    Ok(Tls::On(Arc::new(versions.with_root_certificates(roots(file)?).with_no_client_auth())))
}

/// Left alone, a system waits for a quarter of an hour, or for ever. What the URL says goes first.
fn notice_silence(config: &mut Config) {
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    if config.get_keepalives_interval().is_none() && config.get_keepalives_retries().is_none() {
        config.keepalives_idle(config.get_keepalives_idle().min(PROBE_AFTER));
        config.keepalives_interval(PROBE_EVERY);
        config.keepalives_retries(PROBES);
    }
}

impl PgAddress {
    /// Reads a URL. Everything that libpq understands may stand in it, and `schema`, `blobs`, `sslrootcert`.
    pub fn parse(url: &str) -> Result<Self> {
        let (rest, ours) = split(url)?;
        let mut config: Config = rest.parse().map_err(|_| bad("it cannot be read"))?;
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        notice_silence(&mut config);
        let schema = ours.schema.unwrap_or_else(|| SCHEMA.to_owned());
        if !is_plain(&schema) {
            return Err(bad("the schema's name is a-z, 0-9 and _, at most 63 of them"));
        }
        let tls = tls(&config, ours.root_certificate.as_ref())?;
        Ok(Self { config, tls, schema, blobs: ours.blobs })
    }

    /// Connects to hear what others notify; what it also returns ends when the connection does.
    pub(super) async fn listen(
        &self,
        name: &str,
        heard: impl Fn() + Send + 'static,
    ) -> Result<(Client, JoinHandle<()>)> {
        let mut config = self.config.clone();
        config.application_name(format!("holdfast {name}"));
        match &self.tls {
            Tls::Off => {
                let connected = config.connect(NoTls).await;
                let (client, connection) = connected.map_err(|error| connecting(&error))?;
                Ok((client, tokio::spawn(hear(connection, heard))))
            }
            Tls::On(tls) => {
                let connected = config.connect(MakeRustlsConnect::new(ClientConfig::clone(tls))).await;
                let (client, connection) = connected.map_err(|error| connecting(&error))?;
                Ok((client, tokio::spawn(hear(connection, heard))))
            }
        }
    }

    pub(super) async fn connect(&self, name: &str) -> Result<Client> {
        let mut config = self.config.clone();
        config.application_name(format!("holdfast {name}"));
        match &self.tls {
            Tls::Off => {
                let (client, connection) = config.connect(NoTls).await.map_err(|error| connecting(&error))?;
                tokio::spawn(connection);
                Ok(client)
            }
            Tls::On(tls) => {
                let tls = MakeRustlsConnect::new(ClientConfig::clone(tls));
                let (client, connection) = config.connect(tls).await.map_err(|error| connecting(&error))?;
                tokio::spawn(connection);
                Ok(client)
            }
        }
    }
}
