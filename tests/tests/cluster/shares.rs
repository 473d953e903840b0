//! Who owns what: shares within the cap, and a newcomer that gets its share without a shard ever being free.

use std::time::{Duration, Instant};

use model::LEADER;

use crate::{
    going::Going,
    recorder::wish,
    state::{claims, converged, owner, settled},
    world::{Shape, World, percentile, report},
};

const SERVICES: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_gets_its_share_and_no_shard_is_free_meanwhile() {
    let mut world = World::start(Shape::default()).await;
    let (tail, coordination) = (world.tail(1), world.coordination());
    let before = coordination.until("three have their shares", PATIENCE, |s| settled(s, 3)).await;
    println!("shares of three: {before:?}");
    let (client, recorder) = (world.client(), world.recorder.clone());
    let wishes: Vec<_> = (0..SERVICES).map(|n| wish(format!("s{n}"), 1, "v1")).collect();
    recorder.apply_at_last("first", &client, &wishes).await;
    tail.until("all run", PATIENCE, converged).await;

    // While the fourth joins, every service is changed again and again; each change asks its shard's owner to act.
    let changing = Going::start(move |n| {
        let (recorder, client) = (recorder.clone(), client.clone());
        let replicas = if (n / SERVICES).is_multiple_of(2) { 1 } else { 2 };
        let wish = wish(format!("s{}", n % SERVICES), replicas, "v1");
        async move {
            recorder.apply_at_last("changer", &client, &[wish]).await;
        }
    });
    let old = coordination.now();
    let joined = Instant::now();
    world.add_controller("d");
    let after = coordination.until("four have their shares", PATIENCE, |s| settled(s, 4)).await;
    report("until the fourth has its share", joined.elapsed());
    println!("shares of four: {after:?}");
    let new = coordination.now();
    let moved: Vec<String> = claims(&new).filter(|name| owner(&new, name) != owner(&old, name)).collect();
    assert!(
        moved.iter().all(|name| owner(&new, name).as_deref() == Some("d")),
        "only the newcomer gets any: {moved:?}"
    );
    assert!(!moved.contains(&LEADER.to_owned()), "the leader stays");
    assert_eq!(moved.len(), controller::ring::floor(128, 4), "no more than its share moves");
    for name in &moved {
        let epochs = [&old, &new].map(|state| crate::state::claim(state, name).epoch);
        assert_eq!(epochs[1], epochs[0] + 1, "{name} moved once, straight");
    }
    let gaps = coordination.unowned_since(joined);
    let all: Vec<Duration> = moved.iter().map(|name| gaps.get(name).copied().unwrap_or_default()).collect();
    let p99 = percentile(&all, 0.99);
    report("a moved shard without an owner (p99)", p99);
    assert!(p99 <= Duration::from_millis(100), "{gaps:?}");
    changing.stop().await;
    tail.until("all is as declared", PATIENCE, converged).await;
    let checked = world.check(vec![tail]).await;
    assert!(checked.fenced > SERVICES && checked.claim_changes >= 129 + moved.len(), "{checked:?}");
}
