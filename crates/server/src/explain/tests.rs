use bytes::Bytes;

use super::*;

#[test]
fn a_sweep_is_due_no_sooner_than_one_can_be_that_follows_a_takeover() {
    let shard = v1::ShardReport { shard: 0, last_sweep_millis: 100_000, queue_depth: 0 };
    let interval = prost_types::Duration { seconds: 30, nanos: 0 };
    let report = v1::MemberReport { shards: vec![shard], sweep_interval: Some(interval), ..Default::default() };
    let member = v1::Member { session: "s".into(), name: "c1".into(), report: Some(report), ..Default::default() };
    let claim = v1::Claim { name: shard_claim(0), epoch: 3, owner: "s".into(), ..Default::default() };
    let state = v1::Coordination { members: vec![member], claims: vec![claim], ..Default::default() };
    let metadata = v1::Metadata { kind: "Service".into(), name: "web".into(), ..Default::default() };
    let spec = Some(kinds::any(kinds::service::SPEC, &v1::ServiceSpec::default()));
    let resource = v1::Resource { metadata: Some(metadata), spec, status: None };
    let item = Item::of(resource, Bytes::new()).unwrap();
    let mut explained = v1::Explained::default();
    looked_after(&mut explained, Scope::Shard, &item, &state);
    assert_eq!((explained.owner.as_str(), explained.epoch), ("c1", 3));
    // Taken over right after a round began, it's swept by the one that follows.
    assert_eq!(explained.next_sweep.map(|next| next.seconds), Some(160));
}
