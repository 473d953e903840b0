//! A server that waits for its store.

use std::{net::TcpListener, time::Duration};

use driftless_tests::{part::Part, processes::look_until};

#[test]
fn a_server_that_waits_for_its_store_ends_when_asked_and_says_what_it_waited_for() {
    // One that nobody listens on, and one that never answers.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mute = mute.local_addr().expect("it listens").to_string();
    for address in ["127.0.0.1:1", &mute] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = format!("etcd://{address}");
        let arguments = ["server", "--listen", "127.0.0.1:0", "--store", &store];
        let mut server = Part::start(dir.path(), "server", "", &arguments);
        look_until("it says what it waits for", Duration::from_secs(30), || {
            server.log().contains("etcd").then_some(())
        });
        assert_eq!(server.stop(), 0);
        assert!(server.log().contains("asked to end before the store could be used"), "{}", server.log());
    }
}
