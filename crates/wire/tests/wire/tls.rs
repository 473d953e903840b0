//! Certificates, of servers and of clients.

use std::sync::Arc;

use model::Actor;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use store::{Error, Store};
use wire::{Config, Options, Remote, remote::Tls};

use crate::{double::Double, setup::Server};

struct Authority {
    pem: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem().into_bytes();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key.
    fn issue(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}

async fn server(authority: &Authority, client_ca: Option<Vec<u8>>) -> Server {
    let (certificate, key) = authority.issue("driftless.test");
    let tls = wire::serve::Tls { certificate, key, client_ca };
    Server::with(Arc::new(Double::default()), Config { tls: Some(tls), ..Config::new("s1") }).await
}

fn client(server: &Server, ca: &Authority, identity: Option<(Vec<u8>, Vec<u8>)>) -> Remote {
    let tls = Tls { ca: ca.pem.clone(), identity, domain: Some("driftless.test".into()) };
    Remote::new(Options { tls: Some(tls), ..Options::new([server.address()], Actor::anonymous()) }).unwrap()
}

#[tokio::test]
async fn a_server_proves_itself() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = server(&authority, None).await;
    client(&server, &authority, None).head().await.unwrap();
    let refused = client(&server, &stranger, None).head().await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(matches!(server.remote().head().await, Err(Error::Unavailable(_))), "plain text");
}

#[tokio::test]
async fn a_client_proves_itself_where_asked() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = server(&authority, Some(authority.pem.clone())).await;
    client(&server, &authority, Some(authority.issue("client"))).head().await.unwrap();
    for identity in [None, Some(stranger.issue("client"))] {
        let refused = client(&server, &authority, identity).head().await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    }
}
