//! Where spans are sent: the address as it's written in configurations, and what https takes.

use std::{fmt, str::FromStr};

/// `http://HOST:PORT` or `https://HOST:PORT` of an OTLP receiver over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// What is wrong with an address, and what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("it begins with neither http:// nor https://: write say http://127.0.0.1:4317")]
    Scheme,
    #[error("it names no host: write say http://127.0.0.1:4317")]
    Host,
    #[error("its port is no number from 1 to 65535; receivers of OTLP over gRPC listen on 4317 by convention")]
    Port,
    #[error(
        "it has a path, as OTLP over HTTP does; spans go by OTLP over gRPC: write http://HOST:PORT, usually with port 4317"
    )]
    Path,
    #[error("it holds something else than a host and a port: write say http://127.0.0.1:4317")]
    Rest,
}

impl Endpoint {
    pub fn is_https(&self) -> bool {
        self.0.starts_with("https://")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let text = text.trim();
        let rest =
            text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).ok_or(EndpointError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(EndpointError::Path);
        }
        // An IPv6 address has colons of its own, in brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        if host.is_empty() {
            return Err(EndpointError::Host);
        }
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let is_named = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        let is_address = is_bracketed && host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok();
        if !is_named && !is_address {
            return Err(EndpointError::Rest);
        }
        match port {
            Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => Err(EndpointError::Port),
            _ => Ok(Self(text.trim_end_matches('/').to_owned())),
        }
    }
}

/// For https. PEM, as read from the files. Not for printing: there may be a key in it.
#[derive(Clone)]
pub struct Tls {
    /// The authority that signed the receiver's certificate.
    pub ca: Vec<u8>,
    /// Certificate and key, where the receiver asks for them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port() {
        for text in [
            "http://127.0.0.1:4317",
            "http://collector:4317/",
            "https://otlp.example.com",
            "https://[::1]:4317",
            "http://[::1]",
            " http://a_b.c:1 ",
        ] {
            let endpoint: Endpoint = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(endpoint.as_str(), text.trim().trim_end_matches('/'));
            assert_eq!(endpoint.is_https(), text.contains("https"));
        }
    }

    #[test]
    fn what_is_none_says_what_to_write() {
        use EndpointError::*;
        for (text, wrong) in [
            ("nonsense", Scheme),
            ("127.0.0.1:4317", Scheme),
            ("localhost:4317", Scheme),
            ("grpc://a:4317", Scheme),
            ("unix:///tmp/socket", Scheme),
            ("http://", Host),
            ("http://:4317", Host),
            ("http://a:", Port),
            ("http://a:0", Port),
            ("http://a:65536", Port),
            ("http://a:b", Port),
            ("http://a:4318/v1/traces", Path),
            ("http://user@a:4317", Rest),
            ("http://a b:4317", Rest),
            ("http://a?b", Rest),
            ("http://::1:4317", Rest),
            ("http://[a]:4317", Rest),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(wrong), "{text}");
        }
    }
}
