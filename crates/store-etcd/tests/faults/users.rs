//! User and password, where etcd asks for them.

use driftless_store_etcd::{Options, User, testing::Etcd};
use model::Revision;
use store::{Error, Store, conformance::Reader};

use crate::support::{open, write};

fn with_password(mut options: Options, password: &str) -> Options {
    options.user = Some(User { name: "root".into(), password: password.into() });
    options
}

#[tokio::test]
async fn a_password_lets_in_and_a_wrong_one_does_not() {
    let etcd = Etcd::start().await;
    let mut client = etcd.client(0).await.expect("it's there");
    client.user_add("root", "secret", None).await.expect("it's added");
    client.role_add("root").await.expect("it's added");
    client.user_grant_role("root", "root").await.expect("it's granted");
    client.auth_enable().await.expect("it's enabled");

    let store = open(with_password(etcd.options(), "secret"));
    let mut reader = Reader::with_snapshot(&*store).await;
    let written = write(&store, "a", Revision::ZERO).await.expect("it's free");
    reader.until(written).await;
    let strangers = [with_password(etcd.options(), "wrong"), etcd.options()];
    for options in strangers {
        let refused = open(options).cluster().await;
        assert!(matches!(&refused, Err(Error::Denied(why)) if why.contains("etcd refuses it")), "{refused:?}");
    }
}
