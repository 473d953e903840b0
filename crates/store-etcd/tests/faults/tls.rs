//! TLS with client certificates, made here.

use std::{fs, path::PathBuf, time::Duration};

use driftless_store_etcd::{
    EtcdStore, Options,
    testing::{Etcd, Setup, TlsFiles},
};
use model::Revision;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use store::{Error, Store, conformance::Reader};
use tempfile::TempDir;

use crate::support::{open, status, write};

/// Writes an authority's certificate, and a server's and a client's that it signed.
fn certificates(dir: &TempDir) -> TlsFiles {
    let mut authority = CertificateParams::new(Vec::new()).expect("no names are right");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key is made");
    let authority = CertifiedIssuer::self_signed(authority, key).expect("it signs itself");
    let write = |name: &str, pem: String| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, pem).expect("a file can be written");
        path
    };
    let signed = |name: &str, usage| {
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("names");
        // etcd's own gateway is a client of its server, with the server's certificate.
        params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key is made");
        let certificate = params.signed_by(&key, &authority).expect("the authority signs");
        (write(&format!("{name}.pem"), certificate.pem()), write(&format!("{name}.key"), key.serialize_pem()))
    };
    TlsFiles {
        ca: write("ca.pem", authority.pem()),
        server: signed("server", ExtendedKeyUsagePurpose::ServerAuth),
        client: signed("client", ExtendedKeyUsagePurpose::ClientAuth),
    }
}

#[tokio::test]
async fn with_a_client_certificate_it_works() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let tls = Some(certificates(&dir));
    let etcd = Etcd::start_with(1, Setup { tls, ..Setup::default() }).await;
    let store = open(etcd.options());
    let mut reader = Reader::with_snapshot(&*store).await;
    let written = write(&store, "a", Revision::ZERO).await.expect("it's free");
    reader.until(written).await;
    status(&store, 1).await;
}

#[tokio::test]
async fn without_one_it_is_refused_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let tls = Some(certificates(&dir));
    let etcd = Etcd::start_with(1, Setup { tls, ..Setup::default() }).await;
    let others = tempfile::tempdir().expect("a directory can be made");
    let plain = refused(&etcd, |options| options.tls = None).await;
    let anonymous = refused(&etcd, |options| options.tls.as_mut().expect("it's TLS").identity = None).await;
    let strange = refused(&etcd, |options| options.tls.as_mut().expect("it's TLS").ca = certificates(&others).ca).await;
    assert!(plain.contains(&etcd.endpoints()[0]), "{plain}");
    assert!(anonymous.to_lowercase().contains("certificate"), "{anonymous}");
    assert!(strange.contains("invalid peer certificate"), "{strange}");
}

/// What it says to those options.
async fn refused(etcd: &Etcd, change: impl FnOnce(&mut Options)) -> String {
    let mut options = etcd.options();
    options.deadline = Duration::from_secs(2);
    change(&mut options);
    let store = EtcdStore::new(options).expect("the files are there");
    match store.cluster().await {
        Err(Error::Unavailable(why)) => why,
        other => panic!("it should be refused, not {other:?}"),
    }
}
