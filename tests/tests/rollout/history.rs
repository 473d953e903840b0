//! Everything that happened can be read, followed and replayed.

use std::collections::BTreeMap;

use driftless_tests::Cluster;
use serde_json::Value;

use crate::manifests::{SLEEPS, SOON, web};

/// Declarations of the replayed service; the controller says something of each.
const DECLARATIONS: usize = 101;
const CHANGES_LEAST: usize = 200;

fn revision(resource: &Value) -> i64 {
    resource["metadata"]["revision"].as_str().and_then(|r| r.parse().ok()).expect("a revision")
}

#[test]
fn every_revision_of_two_hundred_changes_replays_as_it_was_shown() {
    let cluster = Cluster::start();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    let mut shown = BTreeMap::new();
    for n in 0..DECLARATIONS {
        let version = format!("v{n}");
        cluster.apply(&web(0, &version, SLEEPS, "")).ok();
        services.until_json("the declaration has been looked at", SOON, |event| {
            let resource = event["resource"].clone();
            shown.insert(revision(&resource), resource.clone());
            let current = resource["metadata"]["generation"] == resource["status"]["observedGeneration"];
            (resource["spec"]["version"] == *version && current).then_some(())
        });
    }
    assert!(shown.len() >= CHANGES_LEAST, "only {} revisions were shown", shown.len());
    let kept = cluster.run(&["history", "service", "web", "--limit", "10000", "-o", "json"]).ok().json();
    let kept: Vec<i64> = kept["entries"].as_array().into_iter().flatten().map(revision_of).collect();
    assert!(kept.len() >= CHANGES_LEAST, "only {} revisions are kept", kept.len());
    assert!(kept.iter().all(|revision| shown.contains_key(revision)), "one that is kept was never shown");
    for (revision, was) in &shown {
        let replayed = cluster.run(&["replay", "service", "web", "--at", &revision.to_string(), "-o", "json"]);
        assert_eq!(&replayed.ok().json(), was, "at revision {revision}");
    }
    let (first, last) = (shown.keys().next().expect("one"), shown.keys().last().expect("one"));
    let (first, last) = (first.to_string(), last.to_string());
    let diff = cluster.run(&["diff", "service", "web", "--from", &first, "--to", &last]).ok().stdout;
    assert!(diff.contains(&format!("spec.version: v0 -> v{}", DECLARATIONS - 1)), "{diff}");
}

#[test]
fn an_entry_says_who_under_which_claim_why_and_what_changed() {
    let cluster = Cluster::start();
    let followed = cluster.stream(&["history", "-f", "-o", "json"]);
    cluster.apply_with(web(1, "v1", SLEEPS, "").as_bytes(), &["--wait"]).ok();
    let created = followed.until_json("the create is told", SOON, |e| {
        (e["verb"] == "create" && e["why"]["reason"] == "TooFew").then(|| e.clone())
    });
    assert!(created["claim"].as_str().is_some_and(|claim| claim.starts_with("shard-")), "{created}");
    assert!(created["epoch"].is_string() && created["why"]["reason"] == "TooFew", "{created}");
    assert!(created["actor"].as_str().is_some_and(|actor| actor.starts_with("controller/")), "{created}");
    followed.until_json("the agent's report is told, with what happened", SOON, |e| {
        let of_agent = e["verb"] == "report" && e["actor"].as_str()?.starts_with("agent/");
        (of_agent && e["why"]["reason"] == "Ready" && e["why"]["message"] == "ready").then_some(())
    });

    let before = cluster.revision("web");
    cluster.run(&["scale", "service", "web", "--replicas", "2"]).ok();
    let scaled = followed.until_json("the declaration is told", SOON, |e| {
        let scaled = e["verb"] == "apply" && revision_of(e) > before.parse::<i64>().expect("a number");
        scaled.then(|| e.clone())
    });
    let fields = &scaled["touched"][0]["fields"];
    assert_eq!(fields[0]["path"], "spec.replicas", "{scaled}");
    assert_eq!((&fields[0]["before"], &fields[0]["after"]), (&"1".into(), &"2".into()), "{scaled}");

    cluster.wait_ready("web", "60s");
    let all = cluster.run(&["history", "-o", "json"]).ok().json();
    let all = all["entries"].as_array().cloned().expect("entries");
    assert!(all.iter().any(|e| e["verb"] == "bind"), "the placement's steps are told, too");
    assert!(all.is_sorted_by_key(revision_of), "oldest first");
    let hour = cluster.run(&["history", "--since", "1h"]).ok().stdout;
    assert!(hour.contains("service/web"), "{hour}");
    cluster.run(&["history", "service", "nobody"]).exits(3);
}

fn revision_of(entry: &Value) -> i64 {
    entry["revision"].as_str().and_then(|r| r.parse().ok()).unwrap_or_default()
}

#[test]
fn a_crash_loop_folds_into_few_entries() {
    let cluster = Cluster::start();
    let crashes = web(1, "v1", "[sh, -c, 'exit 3']", "").replace("stop_grace: 5s", "restart: Always");
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    cluster.apply(&crashes).ok();
    let mut changes = 0;
    instances.until_json("it crashes again and again", SOON, |event| {
        changes += 1;
        (event["resource"]["status"]["restarts"].as_i64()? >= 5).then_some(())
    });
    let name = cluster.instances("web")[0].name.clone();
    let replay = |at: i64| cluster.run(&["replay", "instance", &name, "--at", &at.to_string()]);
    // A crash between the two looks folds what was just read; the next one is many seconds away.
    let looks = (0..5).map(|_| {
        let history = cluster.run(&["history", "instance", &name, "-o", "json"]).ok().json();
        let entries = history["entries"].as_array().cloned().expect("entries");
        let folded = entries.iter().find(|e| e["folded"].as_i64().unwrap_or(0) > 1).cloned();
        let folded = folded.unwrap_or_else(|| panic!("nothing was folded of {changes} changes: {entries:#?}"));
        assert!(entries.len() < changes, "{} entries of {changes} changes", entries.len());
        let replayed = replay(revision_of(&folded));
        (folded, replayed)
    });
    let same = looks.into_iter().find(|(_, replayed)| !replayed.stderr.contains("folded"));
    // A folded entry answers for its newest revision, and says that those before it are gone.
    let (folded, replayed) = same.expect("it doesn't crash five times in a moment");
    replayed.ok();
    let newest = revision_of(&folded);
    let first: i64 = folded["foldedSince"].as_str().and_then(|r| r.parse().ok()).expect("a range");
    assert!(first < newest);
    let between = (first + 1..newest).map(replay);
    assert!(between.into_iter().any(|done| done.code == 3 && done.stderr.contains("folded")));
}
