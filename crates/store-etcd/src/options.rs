//! Where etcd is and how to reach it: the URL, and the files that TLS needs.
//!
//! Parsing says what is wrong and where; nothing here touches the network.

use std::{fs, path::PathBuf, time::Duration};

use store::Cluster;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// What every key starts with where the URL names nothing else.
pub const PREFIX_DEFAULT: &str = "driftless";
/// etcd's own default of `--quota-backend-bytes`. Older versions don't tell theirs.
pub const QUOTA_DEFAULT: u64 = 2 * 1024 * 1024 * 1024;
/// A leader's election takes 1 to 2 s by etcd's defaults; a call may wait for one.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(3);

/// How to reach etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `HOST:PORT` of each member. One that is down is passed over.
    pub endpoints: Vec<String>,
    /// All keys are below it: several clusters can share one etcd.
    pub prefix: String,
    /// None: plain text.
    pub tls: Option<Tls>,
    /// Prefer client certificates: with passwords, etcd's tokens expire in the middle of watches.
    pub user: Option<User>,
    /// Proposed number of shards, should the cluster not exist yet.
    pub shards: u32,
    /// What etcd was started with, for versions that don't tell (before 3.6).
    pub quota_bytes: u64,
    /// Of each call, waiting for another endpoint or a new leader included.
    pub deadline: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM of the authority that signed etcd's certificates.
    pub ca: PathBuf,
    /// PEM of our certificate and its key, where etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in etcd's certificates, where it isn't the endpoint's host.
    pub domain: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password: String,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What can't be used of what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error("etcd URL {url:?}: {message}; write it like etcd://10.0.0.1:2379,10.0.0.2:2379/driftless")]
    Url { url: String, message: String },
    #[error("can't read {what} {path:?}")]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("etcd endpoint {endpoint:?} can't be used")]
    Endpoint { endpoint: String, source: tonic::transport::Error },
}

impl Options {
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            prefix: PREFIX_DEFAULT.into(),
            tls: None,
            user: None,
            shards: Cluster::SHARDS_DEFAULT,
            quota_bytes: QUOTA_DEFAULT,
            deadline: DEADLINE_DEFAULT,
        }
    }

    /// Reads `etcd://HOST:PORT[,HOST:PORT...][/prefix]`.
    pub fn parse(url: &str) -> Result<Self, OptionsError> {
        let fail = |message: String| OptionsError::Url { url: url.into(), message };
        let rest = url.strip_prefix("etcd://").ok_or_else(|| fail("it doesn't start with etcd://".into()))?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints = hosts
            .split(',')
            .enumerate()
            .map(|(i, host)| check_endpoint(host).map_err(|why| fail(format!("endpoint {} ({host:?}) {why}", i + 1))));
        let mut options = Self::new(endpoints.collect::<Result<_, _>>()?);
        if !prefix.is_empty() {
            options.prefix = check_prefix(prefix).map_err(|why| fail(format!("prefix {prefix:?} {why}")))?;
        }
        Ok(options)
    }
}

fn check_endpoint(endpoint: &str) -> Result<String, &'static str> {
    let (host, port) = endpoint.rsplit_once(':').ok_or("has no port")?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bare {
        Some(address) if address.parse::<std::net::Ipv6Addr>().is_err() => {
            return Err("is no IPv6 address in brackets");
        }
        None if host.contains(':') => return Err("has an IPv6 address without brackets, or no port"),
        None if host.is_empty() => return Err("has no host"),
        None if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) => {
            return Err("has a host with characters that no host name has");
        }
        _ => {}
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(endpoint.into()),
        _ => Err("has a port that isn't a number from 1 to 65535"),
    }
}

fn check_prefix(prefix: &str) -> Result<String, &'static str> {
    let prefix = prefix.trim_end_matches('/');
    match prefix.split('/').all(|part| !part.is_empty()) && prefix.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(prefix.into()),
        false => Err("must be printable ASCII without empty parts"),
    }
}

impl Tls {
    /// Reads the files.
    pub(crate) fn config(&self) -> Result<ClientTlsConfig, OptionsError> {
        let read = |what, path: &PathBuf| {
            fs::read(path).map_err(|source| OptionsError::File { what, path: path.clone(), source })
        };
        let ca = Certificate::from_pem(read("the CA certificate of etcd", &self.ca)?);
        let mut config = ClientTlsConfig::new().ca_certificate(ca);
        if let Some((certificate, key)) = &self.identity {
            let certificate = read("the client certificate for etcd", certificate)?;
            config = config.identity(Identity::from_pem(certificate, read("the client key for etcd", key)?));
        }
        if let Some(domain) = &self.domain {
            config = config.domain_name(domain);
        }
        Ok(config)
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
