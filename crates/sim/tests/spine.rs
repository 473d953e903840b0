//! The whole path in one process: declared, placed, run, reported, ready; scaled, replaced, deleted.

use std::{sync::Arc, time::Duration};

use driftless_sim::{Cluster, service};
use model::Key;
use store::Memory;

fn config(name: &str) -> controller::Config {
    controller::Config { name: name.into(), ..controller::Config::default() }
}

fn logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

#[tokio::test(start_paused = true)]
async fn declared_services_run_and_follow_their_declarations() {
    logs();
    let cluster = Cluster::new(Arc::new(Memory::default()), 2).await;
    let _agents = [cluster.agent(0), cluster.agent(1)];
    let _controller = cluster.controller(config("c1"), cluster.server.clone());
    cluster.apply(vec![service("web", 3, "v1")]).await;
    cluster.settled().await;
    let running = |cluster: &Cluster| cluster.machines.iter().map(|m| m.running().len()).collect::<Vec<_>>();
    let mut spread = running(&cluster);
    spread.sort_unstable();
    assert_eq!(spread, [1, 2]);
    for (replicas, version) in [(10, "v1"), (2, "v1"), (2, "v2"), (0, "v2")] {
        cluster.apply(vec![service("web", replicas, version)]).await;
        cluster.settled().await;
        assert_eq!(running(&cluster).iter().sum::<usize>(), usize::try_from(replicas).unwrap());
    }
    cluster.apply(vec![service("web", 2, "v2")]).await;
    cluster.settled().await;
    cluster.delete(&Key::new("Service", "default", "web")).await;
    cluster.settled().await;
    assert_eq!(running(&cluster), [0, 0]);
    assert!(cluster.all("Service").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_settled_cluster_is_quiet() {
    let backend = Arc::new(Memory::default());
    let cluster = Cluster::new(backend.clone(), 1).await;
    let _agent = cluster.agent(0);
    let _controller = cluster.controller(config("c1"), cluster.server.clone());
    cluster.apply(vec![service("web", 3, "v1")]).await;
    cluster.settled().await;
    // The last report may still be on its way.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = store::Store::head(backend.as_ref()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1_200)).await;
    let after = store::Store::head(backend.as_ref()).await.unwrap();
    assert_eq!(before, after, "forty sweeps wrote something");
}
