//! The store is another one than before: empty, or an older copy. Nothing that runs is stopped for it.

use std::{collections::BTreeMap, fs, path::Path};

use driftless_tests::{
    Cluster, Lines,
    cluster::{Instance, condition},
    processes::{Process, look_until},
};

use crate::watched::{LONG, at_most_once, sleeper, sleeps};

/// Of a cluster, where nobody says otherwise.
const SHARDS: usize = 128;

fn end_control_plane(cluster: &mut Cluster) {
    cluster.kill_part("c1");
    cluster.kill_part("server");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory in the temporary one");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("there is room");
    }
}

/// Six of them on two nodes.
fn running(cluster: &Cluster) -> (Vec<Instance>, Vec<Process>) {
    cluster.apply_with(sleeper("web", 6, 4).as_bytes(), &["--wait"]).ok();
    let instances = cluster.instances("web");
    let processes = instances.iter().map(|i| cluster.process_of(i)).collect();
    (instances, processes)
}

/// Until each node says that of the store; none: nothing any more.
#[track_caller]
fn until_nodes(nodes: &Lines, reason: Option<&str>) {
    until_said(nodes, &["n1", "n2"], reason);
}

#[track_caller]
fn until_said(nodes: &Lines, of: &[&str], reason: Option<&str>) {
    let mut missing = of.to_vec();
    nodes.until_json("the nodes say what they think of the store", LONG, |e| {
        let said = condition(&e["resource"], "Confirmed").map(|c| c["reason"].as_str().unwrap_or_default());
        missing.retain(|node| said != reason || e["resource"]["metadata"]["name"] != *node);
        missing.is_empty().then_some(())
    });
}

fn nodes(cluster: &Cluster) -> Lines {
    cluster.stream(&["get", "nodes", "-w", "-o", "json"])
}

#[test]
fn an_empty_store_stops_nothing_and_the_old_one_finds_all_as_it_was() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2"]);
    let (before, processes) = running(&cluster);
    let (store, kept) = (cluster.dir().join("store"), cluster.dir().join("kept"));
    end_control_plane(&mut cluster);
    fs::rename(&store, &kept).expect("nobody uses it");
    cluster.start_control_plane();
    until_nodes(&nodes(&cluster), Some("OtherIncarnation"));
    let shown = cluster.run(&["describe", "node", "n1"]).ok().stdout;
    assert!(shown.contains("OtherIncarnation") && shown.contains("driftless node confirm n1"), "{shown}");
    let listed = cluster.run(&["get", "nodes"]).ok().stdout;
    assert_eq!(listed.matches("OtherIncarnation").count(), 2, "{listed}");
    let told = cluster.run(&["history", "node", "n1"]).ok().stdout;
    assert!(told.contains("agent/n1"), "{told}");

    // What is declared there runs beside what that store doesn't know.
    cluster.apply_with(sleeper("other", 2, 0).as_bytes(), &["--wait"]).ok();
    assert!(processes.iter().all(|p| p.is_alive()));
    assert_eq!(sleeps(&cluster).len(), 6 + 2);

    end_control_plane(&mut cluster);
    fs::rename(&store, cluster.dir().join("empty")).expect("nobody uses it");
    fs::rename(&kept, &store).expect("nobody uses it");
    cluster.start_control_plane();
    // The old store doesn't know what the empty one had begun: two of eight are what may be stopped without asking.
    look_until("exactly what the old store declares runs", LONG, || {
        let pids = cluster.instances("web").iter().map(|i| i.pid).collect();
        (sleeps(&cluster) == pids).then_some(())
    });
    assert_eq!(cluster.instances("web"), before);
    assert!(processes.iter().all(|p| p.is_alive()));
    until_nodes(&nodes(&cluster), None);
}

/// Nothing that runs is stopped for an emptied store, but for what may run only as long as a store names it.
#[test]
fn what_must_run_at_most_once_ends_at_its_time_where_the_store_does_not_name_it() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(at_most_once().as_bytes(), &["--wait"]).ok();
    cluster.apply_with(sleeper("web", 1, 0).as_bytes(), &["--wait"]).ok();
    let once = cluster.process_of(&cluster.instances("once")[0]);
    let web = cluster.process_of(&cluster.instances("web")[0]);
    end_control_plane(&mut cluster);
    fs::rename(cluster.dir().join("store"), cluster.dir().join("kept")).expect("nobody uses it");
    cluster.start_control_plane();
    until_said(&nodes(&cluster), &["n1"], Some("OtherIncarnation"));
    let shown = cluster.run(&["describe", "node", "n1"]).ok().stdout;
    assert!(shown.contains("but for 1 with on_disconnect.stop_after"), "{shown}");
    once.wait_gone(LONG);
    assert!(web.is_alive());
}

#[test]
fn a_data_dir_with_work_of_one_node_is_refused_to_another() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.apply_with(at_most_once().as_bytes(), &["--wait"]).ok();
    let once = cluster.process_of(&cluster.instances("once")[0]);
    cluster.kill_part("n1");
    let data = cluster.node_dir("n1").to_str().expect("a temporary path is text").to_owned();
    let refused = cluster.run(&["agent", "--node", "n33", "--data-dir", &data]);
    assert_ne!(refused.code, 0, "{refused:?}");
    for said in ["holds 1 instance of node n1", "start it with --node n1", "driftless drain n1"] {
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    once.wait_gone(LONG);

    cluster.start_agent("n1");
    cluster.run(&["delete", "service", "once", "--timeout", "60s"]).ok();
    look_until("nothing is left in it", LONG, || {
        fs::read_dir(cluster.node_dir("n1").join("instances")).is_ok_and(|mut left| left.next().is_none()).then_some(())
    });
    cluster.kill_part("n1");
    cluster.start_part("n33", &["agent", "--node", "n33", "--data-dir", &data]);
    nodes(&cluster).until_json("an empty one takes another name", LONG, |e| {
        let ready = condition(&e["resource"], "Ready").is_some_and(|c| c["status"] == "True");
        (ready && e["resource"]["metadata"]["name"] == "n33").then_some(())
    });
}

/// On one node also where its agent is killed in the midst of it. A sleeper that ignores SIGTERM takes a second to end, so
/// there is a midst.
#[test]
fn one_confirmation_ends_all_that_an_empty_store_does_not_know() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2"]);
    let stubborn = sleeper("web", 12, 4).replace("[sleep, '86400']", "[sh, -c, \"trap '' TERM; sleep 86400; :\"]");
    cluster.apply_with(stubborn.as_bytes(), &["--wait"]).ok();
    let instances = cluster.instances("web");
    let of = |node: &str| -> Vec<Process> {
        instances.iter().filter(|i| i.node == node).map(|i| cluster.process_of(i)).collect()
    };
    let (first, second) = (of("n1"), of("n2"));
    assert_eq!((first.len(), second.len()), (6, 6));
    let left = |processes: &[Process]| processes.iter().filter(|p| p.is_alive()).count();
    end_control_plane(&mut cluster);
    fs::rename(cluster.dir().join("store"), cluster.dir().join("kept")).expect("nobody uses it");
    cluster.start_control_plane();
    until_nodes(&nodes(&cluster), Some("OtherIncarnation"));

    // From before it: what is said for a while only is told by a watch that was there.
    let told = nodes(&cluster);
    until_said(&told, &["n1"], Some("OtherIncarnation"));
    cluster.run(&["node", "confirm", "n1"]).ok();
    until_said(&told, &["n1"], Some("StoppingStrays"));
    until_said(&told, &["n1"], None);
    assert_eq!(left(&first), 0, "nothing is said any more, though strays are left");
    assert_eq!(left(&second), 6, "nobody vouched for the store there");

    cluster.run(&["node", "confirm", "n2"]).ok();
    look_until("some of it has ended", LONG, || (left(&second) < 6).then_some(()));
    cluster.kill_part("n2");
    assert!(left(&second) > 0, "it was killed in the midst of it");
    cluster.start_agent("n2");
    until_nodes(&nodes(&cluster), None);
    assert_eq!(left(&second), 0, "nothing is said any more, though strays are left");
    look_until("nothing of them is left", LONG, || sleeps(&cluster).is_empty().then_some(()));
}

/// How many claims each controller has that is alive.
fn shares(cluster: &Cluster) -> BTreeMap<String, usize> {
    let shards = cluster.run(&["get", "shards", "-o", "json"]).ok().json();
    let leader = cluster.run(&["get", "leader", "-o", "json"]).ok().json();
    let mut shares = BTreeMap::new();
    for claim in shards["items"].as_array().into_iter().flatten().chain([&leader]) {
        let owner = claim["owner"].as_str().filter(|owner| !owner.is_empty());
        owner.into_iter().for_each(|owner| *shares.entry(owner.to_owned()).or_default() += 1);
    }
    shares
}

#[track_caller]
fn until_every_claim_is_taken(cluster: &Cluster, controllers: usize) {
    look_until("every claim is taken", LONG, || {
        let shares = shares(cluster);
        (shares.len() == controllers && shares.values().sum::<usize>() == SHARDS + 1).then_some(())
    });
}

#[test]
fn controllers_that_outlive_an_empty_store_after_the_other_go_on_in_each() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    cluster.start_controller("c2");
    until_every_claim_is_taken(&cluster, 2);
    // The node's agent and both controllers.
    let mut processes: Vec<Process> = cluster.processes().into_iter().skip(1).collect();
    for round in 0..4 {
        if round > 0 {
            cluster.kill_part("server");
            let (store, before) = (cluster.dir().join("store"), cluster.dir().join(format!("before-{round}")));
            fs::rename(store, before).expect("nobody uses it");
            cluster.start_server();
            until_every_claim_is_taken(&cluster, 2);
        }
        let name = format!("web{round}");
        cluster.apply_with(sleeper(&name, 2, 0).as_bytes(), &["--wait", "--timeout", "60s"]).ok();
        processes.extend(cluster.instances(&name).iter().map(|i| cluster.process_of(i)));
        assert_eq!(processes.len(), 3 + 2 * (round + 1));
        assert!(processes.iter().all(|p| p.is_alive()), "in the store no. {round}");
    }
}

#[test]
fn a_backup_is_another_store_once_that_is_said() {
    let mut cluster = Cluster::of_nodes(&["n1"]);
    let (store, backup) = (cluster.dir().join("store"), cluster.dir().join("backup"));
    cluster.apply_with(sleeper("kept", 1, 0).as_bytes(), &["--wait"]).ok();
    let kept = cluster.process_of(&cluster.instances("kept")[0]);
    cluster.kill_part("server");
    copy(&store, &backup);
    cluster.start_server();
    cluster.apply_with(sleeper("later", 2, 0).as_bytes(), &["--wait"]).ok();
    let later: Vec<Process> = cluster.instances("later").iter().map(|i| cluster.process_of(i)).collect();

    // Controller and agent know more than the backup, and go on.
    let url = format!("embedded:{}", store.display());
    let refused = cluster.run(&["restore", "--store", &url]);
    assert!(refused.code == 1 && refused.stderr.contains("in use"), "{}", refused.stderr);
    cluster.kill_part("server");
    fs::remove_dir_all(&store).expect("nobody uses it");
    fs::rename(&backup, &store).expect("nobody uses it");
    let said = cluster.run(&["restore", "--store", &url]).ok().stdout;
    assert!(said.contains("incarnation") && said.contains("driftless node confirm"), "{said}");
    cluster.start_server();
    until_every_claim_is_taken(&cluster, 1);
    cluster.run(&["scale", "service", "kept", "--replicas", "2"]).ok();
    cluster.wait_ready("kept", "60s");
    assert!(later.iter().chain([&kept]).all(|p| p.is_alive()));

    // What the backup doesn't know ends when a user says so.
    cluster.run(&["node", "confirm", "n1"]).ok();
    look_until("what nobody declares is gone", LONG, || (!later.iter().any(|p| p.is_alive())).then_some(()));
    assert!(kept.is_alive());
    assert_eq!(cluster.instances("kept").len(), 2);
}

#[test]
fn an_older_copy_of_the_store_is_found_out_and_stops_nothing() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2"]);
    let (store, copied) = (cluster.dir().join("store"), cluster.dir().join("copied"));
    end_control_plane(&mut cluster);
    copy(&store, &copied);
    cluster.start_control_plane();
    let (before, processes) = running(&cluster);

    end_control_plane(&mut cluster);
    let newer = cluster.dir().join("newer");
    fs::rename(&store, &newer).expect("nobody uses it");
    copy(&copied, &store);
    cluster.begin_control_plane();
    // The agents have seen more of this store than it has.
    look_until("the server knows that it was set back", LONG, || {
        let said = cluster.run(&["get", "services"]);
        (said.code == 6 && said.stderr.contains("STORE_ROLLED_BACK")).then_some(())
    });
    look_until("its log says so", LONG, || {
        cluster.log().contains("restored without `driftless restore`").then_some(())
    });
    assert!(processes.iter().all(|p| p.is_alive()));

    end_control_plane(&mut cluster);
    fs::rename(&store, cluster.dir().join("older")).expect("nobody uses it");
    fs::rename(&newer, &store).expect("nobody uses it");
    cluster.start_control_plane();
    for replicas in ["7", "6"] {
        cluster.run(&["scale", "service", "web", "--replicas", replicas]).ok();
        cluster.wait_ready("web", "60s");
    }
    let after = cluster.instances("web");
    assert!(before.iter().all(|i| after.contains(i)), "{before:#?}\n{after:#?}");
    assert!(processes.iter().all(|p| p.is_alive()));
}

#[test]
fn agents_that_start_on_an_older_copy_of_the_store_stop_nothing_either() {
    let mut cluster = Cluster::of_nodes(&["n1", "n2"]);
    let (store, copied) = (cluster.dir().join("store"), cluster.dir().join("copied"));
    end_control_plane(&mut cluster);
    copy(&store, &copied);
    cluster.start_control_plane();
    let (_, processes) = running(&cluster);

    // Nobody remembers how far the store had come.
    ["n1", "n2"].iter().for_each(|node| cluster.kill_part(node));
    end_control_plane(&mut cluster);
    fs::remove_dir_all(&store).expect("nobody uses it");
    fs::rename(&copied, &store).expect("nobody uses it");
    cluster.start_control_plane();
    ["n1", "n2"].iter().for_each(|node| cluster.start_agent(node));
    until_nodes(&nodes(&cluster), Some("MostMissing"));
    assert!(processes.iter().all(|p| p.is_alive()));
    let shown = cluster.run(&["describe", "node", "n2"]).ok().stdout;
    assert!(shown.contains("doesn't know 3 instances that are here"), "{shown}");
}
