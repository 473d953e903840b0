//! The history tells; nothing depends on it. It stays within its bounds, whatever is written.

use std::{sync::Arc, time::Duration};

use driftless_sim::{Cluster, service};
use model::Revision;
use store::{Cluster as ClusterRecord, HistoryQuery, Memory, Store};

fn backend() -> Arc<Memory> {
    Arc::new(Memory::new(ClusterRecord { incarnation: "i".into(), shards: 4 }))
}

/// The life of a service; what is left of it, how many commits that took, and how many entries were forgotten meanwhile.
async fn live(backend: Arc<Memory>, forget: bool) -> (Vec<String>, u64, usize) {
    let cluster = Cluster::new(backend.clone(), 2).await;
    let _agents = [cluster.agent(0), cluster.agent(1)];
    let _controller = cluster.controller(controller::Config::default(), cluster.server.clone());
    let mut forgotten = 0;
    for (replicas, version) in [(3, "v1"), (5, "v1"), (5, "v2"), (2, "v3")] {
        cluster.apply(vec![service("web", replicas, version)]).await;
        let forgetting = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(1));
            loop {
                ticks.tick().await;
                if forget {
                    forgotten += backend.trim_history(Revision(i64::MAX - 1)).await.unwrap();
                }
            }
        };
        tokio::select! {
            () = cluster.settled() => {}
            () = forgetting => unreachable!("it never ends"),
        }
    }
    let names = cluster.all("Instance").await.into_iter().map(|i| i.metadata.unwrap().name);
    (names.collect(), backend.head().await.unwrap().commits, forgotten)
}

#[tokio::test(start_paused = true)]
async fn without_any_history_a_rollout_goes_the_same_way() {
    let as_ever = live(backend(), false).await;
    let without = live(backend(), true).await;
    assert_eq!(without.0, as_ever.0);
    assert!(without.1.abs_diff(as_ever.1) < as_ever.1 / 4, "{} commits, {} as ever", without.1, as_ever.1);
    assert!(without.2 > 20, "only {} entries were deleted while it went on", without.2);
}

#[tokio::test(start_paused = true)]
async fn under_load_the_history_stays_within_its_bound() {
    const BYTES_MAX: usize = 50_000;
    let backend = backend();
    let retention = server::Retention { bytes_max: BYTES_MAX, every: Duration::from_millis(100), ..Default::default() };
    let cluster = Cluster::with_retention(backend.clone(), 1, retention).await;
    let _agent = cluster.agent(0);
    let _controller = cluster.controller(controller::Config::default(), cluster.server.clone());
    let mut written = 0;
    let mut last = Revision::ZERO;
    let size = async |after: Revision| {
        let records = backend.history(HistoryQuery { after, ..Default::default() }).await.unwrap();
        let bytes: usize = records.iter().map(|record| record.entry.bytes.len()).sum();
        (bytes, records.last().map_or(after, |record| record.revision))
    };
    for round in 0..40 {
        cluster.apply(vec![service("web", 10, &format!("v{}", round % 7))]).await;
        cluster.settled().await;
        let (bytes, newest) = size(last).await;
        (written, last) = (written + bytes, newest);
    }
    // One more pass.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (kept, _) = size(Revision::ZERO).await;
    assert!(written > 4 * BYTES_MAX, "only {written} bytes were written");
    assert!(kept <= BYTES_MAX, "{kept} bytes are kept");
    assert!(kept > BYTES_MAX / 10, "the newest is kept: {kept} bytes");
}
