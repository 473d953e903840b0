//! A client in another language, from nothing but `proto/`.

use driftless_tests::{Cluster, python};

#[test]
fn a_python_client_declares_watches_and_deletes_with_its_own_types() {
    let cluster = Cluster::start();
    python::run_client(cluster.address());
}
