//! What people ask to go, goes within the service's disruption budget.

use driftless_tests::{Cluster, cluster::condition};

use crate::watched::{LONG, Watched, sleeper};

fn until_drain_is_asked_for(cluster: &Cluster, node: &str) {
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("the drain is asked for", LONG, |e| {
        (e["resource"]["metadata"]["name"] == node && e["resource"]["spec"]["drain"] == true).then_some(())
    });
}

#[track_caller]
fn wait_drained(cluster: &Cluster, node: &str) {
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("the node is drained", LONG, |e| {
        let drained = condition(&e["resource"], "Drained").is_some_and(|c| c["status"] == "True");
        (e["resource"]["metadata"]["name"] == node && drained).then_some(())
    });
}

#[test]
fn nothing_new_goes_to_a_cordoned_node_and_what_runs_there_stays() {
    let cluster = Cluster::of_nodes(&["n1", "n2"]);
    cluster.apply_with(sleeper("web", 2, 1).as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    assert_eq!(before.iter().filter(|i| i.node == "n1").count(), 1, "they are spread: {before:?}");
    cluster.run(&["cordon", "n2", "nobody"]).exits(3).says("node/nobody not found");
    let told = cluster.run(&["uncordon", "n1", "n2"]).ok().stdout;
    assert_eq!(told, "node/n1 was not cordoned\nnode/n2 was not cordoned\n");
    cluster.run(&["cordon", "n1"]).ok();
    cluster.run(&["scale", "service", "web", "--replicas", "5"]).ok();
    cluster.wait_ready("web", "60s");
    let cordoned = cluster.instances("web");
    assert!(before.iter().all(|i| cordoned.contains(i)));
    assert_eq!(cordoned.iter().filter(|i| i.node == "n1").count(), 1, "{cordoned:?}");
    let told = cluster.run(&["uncordon", "n1", "n2"]).ok().stdout;
    assert_eq!(told, "node/n2 was not cordoned\nnode/n1 uncordoned\n");
    let told = cluster.run(&["node", "confirm", "n1"]).ok().stdout;
    assert_eq!(told, "node/n1 doubts nothing: there is nothing to confirm\n");
    cluster.run(&["scale", "service", "web", "--replicas", "6"]).ok();
    cluster.wait_ready("web", "60s");
    assert_eq!(cluster.instances("web").iter().filter(|i| i.node == "n1").count(), 2);
}

#[test]
fn a_drain_goes_on_without_the_command_that_asked_for_it() {
    let cluster = Cluster::of_nodes(&["n1", "n2"]);
    cluster.apply_with(sleeper("web", 4, 3).as_bytes(), &["--wait"]).ok();
    let mut watched = Watched::start(&cluster, 4);
    let command = cluster.stream(&["drain", "n1"]);
    until_drain_is_asked_for(&cluster, "n1");
    drop(command);
    watched.until("nothing is left on n1", |r| r.on("n1") == 0 && r.ready() == 4);
    assert!(watched.fewest_ready >= 3, "once only {} of 4 were ready", watched.fewest_ready);
    wait_drained(&cluster, "n1");
    cluster.wait_ready("web", "60s");
    assert!(cluster.instances("web").iter().all(|i| i.node == "n2"));
}

#[test]
fn two_drains_at_once_go_one_after_the_other() {
    let cluster = Cluster::of_nodes(&["n1", "n2", "n3"]);
    cluster.run(&["cordon", "n3"]).ok();
    cluster.apply_with(sleeper("web", 2, 1).as_bytes(), &["--wait"]).ok();
    let mut from = ["n1", "n2"];
    for round in 0..3 {
        let here: Vec<String> = cluster.instances("web").into_iter().map(|i| i.node).collect();
        assert!(here.iter().all(|node| from.contains(&node.as_str())), "round {round}: {here:?}");
        let mut watched = Watched::start(&cluster, 2);
        let to = ["n1", "n2", "n3"].into_iter().find(|n| !from.contains(n)).expect("three nodes");
        cluster.run(&["uncordon", to]).ok();
        let drains = from.map(|node| cluster.stream(&["drain", node]));
        watched.until("both are drained", |r| from.iter().all(|n| r.on(n) == 0) && r.ready() == 2);
        assert!(watched.fewest_ready >= 1, "round {round}: once none was ready");
        from.iter().for_each(|node| wait_drained(&cluster, node));
        drop(drains);
        // Spread over two nodes again for the next round, one of them the one that both went to.
        cluster.wait_ready("web", "60s");
        cluster.run(&["uncordon", from[0]]).ok();
        cluster.run(&["scale", "service", "web", "--replicas", "4"]).ok();
        cluster.wait_ready("web", "60s");
        cluster.run(&["scale", "service", "web", "--replicas", "2"]).ok();
        watched.until("two are left", |r| r.0.len() == 2);
        cluster.wait_ready("web", "60s");
        from = [to, from[0]];
    }
}

#[test]
fn a_drain_that_would_break_the_budget_waits_and_goes_on_once_it_may() {
    let cluster = Cluster::of_nodes(&["n1", "n2"]);
    let manifest = sleeper("web", 2, 2) + "  rollout: { max_surge: 0, max_unavailable: 1 }\n";
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let mut watched = Watched::start(&cluster, 2);
    cluster.run(&["drain", "n1", "--no-wait"]).ok();
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("the node says that the drain can't go on", LONG, |e| {
        condition(&e["resource"], "Drained").is_some_and(|c| c["reason"] == "BudgetSpent").then_some(())
    });
    let held = cluster.instances("web").into_iter().find(|i| i.node == "n1").expect("it can't go").name;
    let told = format!("Service/default/web: {held}, asked to go by drain of node n1, can't go: 2 must stay ready");
    cluster
        .run(&["drain", "n1", "--timeout", "3s"])
        .exits(5)
        .says(&told)
        .says("raise max_surge")
        .says("the drain goes on in the cluster");
    let why = cluster.run(&["why", "node", "n1"]).ok().stdout;
    assert!(why.contains(&told) && why.contains("service/web: blocked (BudgetSpent)"), "{why}");
    assert_eq!(cluster.instances("web").iter().filter(|i| i.node == "n1" && !i.deleting).count(), 1);

    cluster.apply(&manifest.replace("max_surge: 0", "max_surge: 1")).ok();
    watched.until("nothing is left on n1", |r| r.on("n1") == 0 && r.ready() == 2);
    wait_drained(&cluster, "n1");
    assert_eq!(watched.fewest_ready, 2);
}

#[test]
fn a_drain_that_is_taken_back_is_told_to_who_waits_and_moves_nothing_any_more() {
    let cluster = Cluster::of_nodes(&["n1", "n2"]);
    let manifest = sleeper("web", 2, 2) + "  rollout: { max_surge: 0, max_unavailable: 1 }\n";
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| cluster.run(&["drain", "n1", "--timeout", "60s"]));
        let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
        nodes.until_json("the node says that the drain can't go on", LONG, |e| {
            condition(&e["resource"], "Drained").is_some_and(|c| c["reason"] == "BudgetSpent").then_some(())
        });
        cluster.run(&["uncordon", "n1"]).ok();
        drain.join().expect("it ends").exits(4).says("the drain of node/n1 was taken back");
    });
    let nodes = cluster.stream(&["get", "nodes", "-w", "-o", "json"]);
    nodes.until_json("nothing is said of the drain any more", LONG, |e| {
        (e["resource"]["metadata"]["name"] == "n1" && condition(&e["resource"], "Drained").is_none()).then_some(())
    });
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    services.until_json("nothing is held any more", LONG, |e| {
        condition(&e["resource"], "EvictionsHeld").is_none().then_some(())
    });
    // There is room now for what was asked to go; nothing is.
    cluster.apply_with(manifest.replace("max_surge: 0", "max_surge: 1").as_bytes(), &["--wait"]).ok();
    cluster.run(&["scale", "service", "web", "--replicas", "3"]).ok();
    cluster.wait_ready("web", "30s");
    let after = cluster.instances("web");
    assert!(before.iter().all(|one| after.contains(one)), "{before:?} {after:?}");
}

#[test]
fn an_instance_that_is_not_ready_holds_no_drain_up() {
    let cluster = Cluster::of_nodes(&["n1", "n2"]);
    cluster.run(&["cordon", "n2"]).ok();
    let never = "health: { readiness: { exec: { command: ['false'] }, interval: 0.1s } }, stop_grace: 1s";
    let manifest = sleeper("web", 2, 2).replace("stop_grace: 1s", never);
    cluster.apply(&manifest).ok();
    let instances = cluster.stream(&["get", "instances", "-w", "-o", "json"]);
    instances.until_json("one runs, though it isn't ready", LONG, |e| {
        (e["resource"]["status"]["phase"] == "Running").then_some(())
    });
    cluster.run(&["uncordon", "n2"]).ok();
    cluster.run(&["drain", "n1", "--timeout", "60s"]).ok();
    assert!(cluster.instances("web").iter().all(|i| i.node != "n1" && !i.ready));
}

#[test]
fn deleting_an_instance_waits_for_the_budget_unless_told_not_to() {
    let cluster = Cluster::of_nodes(&["n1", "n2"]);
    // Nothing may go before something else is ready, and there is no room for it.
    let manifest = sleeper("web", 2, 2) + "  rollout: { max_surge: 0, max_unavailable: 1 }\n";
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let before = cluster.instances("web");
    let mut watched = Watched::start(&cluster, 2);

    cluster.run(&["delete", "instance", &before[0].name, "--no-wait"]).ok();
    let services = cluster.stream(&["get", "services", "-w", "-o", "json"]);
    services.until("the service says that it can't", LONG, |line| line.contains("BudgetSpent").then_some(()));
    cluster
        .run(&["delete", "instance", &before[0].name, "--timeout", "3s"])
        .exits(5)
        .says("asked to go by")
        .says("2 must stay ready")
        .says("the request stays in force");
    assert!(cluster.process_of(&before[0]).is_alive());
    assert_eq!(watched.fewest_ready, 2);

    cluster.run(&["delete", "instance", &before[1].name, "--now", "--timeout", "60s"]).ok();
    let victim = before[1].uid.clone();
    watched.until("another is ready in its place", |r| r.ready() == 2 && r.0.values().all(|i| i.uid != victim));
    assert_eq!(watched.fewest_ready, 1);

    // Once there is room the first one is replaced before it goes.
    let mut watched = Watched::start(&cluster, 2);
    cluster.apply(&manifest.replace("max_surge: 0, max_unavailable: 1", "max_surge: 1")).ok();
    let victim = before[0].uid.clone();
    watched.until("the first is replaced too", |r| r.ready() == 2 && r.0.values().all(|i| i.uid != victim));
    assert_eq!(watched.fewest_ready, 2);
}
