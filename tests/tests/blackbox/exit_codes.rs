//! Each exit code that `driftless --help` documents is met by a command that ends with it, and no other is used.

use driftless_tests::{Cluster, command};

use crate::manifests;

/// By the table in the help.
fn documented(cluster: &Cluster) -> Vec<i32> {
    let help = cluster.run(&["--help"]).ok().stdout;
    let table = help.split("Exit codes:\n").nth(1).expect("they are documented");
    let lines = table.lines().take_while(|line| !line.trim().is_empty());
    // A long meaning goes on in a line that begins with no number.
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

#[test]
fn every_documented_exit_code_is_met_by_a_command_that_ends_with_it() {
    let cluster = Cluster::start();
    let broken = manifests::sleeper("broken", 1, "v1")
        .replace("sleep", "/no/such/program")
        .replace("  replicas:", "  rollout: { progress_deadline: 1s }\n  replicas:");
    let web = manifests::sleeper("web", 1, "v1");
    cluster.apply_with(web.as_bytes(), &["--wait"]).ok();
    let met: [(i32, &str, &[&str]); 9] = [
        (0, "", &["get", "services"]),
        (1, "kind: Nonsense", &["apply", "-f", "-"]),
        (2, "", &["get", "nonsense"]),
        (3, "", &["get", "service", "nobody"]),
        (4, &web, &["apply", "-f", "-", "--expected-revision", "1"]),
        (5, "", &["wait", "service", "web", "--for", "deleted", "--timeout", "1s"]),
        (6, "", &["get", "services", "--server", "127.0.0.1:1"]),
        (7, &broken, &["apply", "-f", "-", "--wait"]),
        (10, &web.replace("v1", "v2"), &["plan", "-f", "-"]),
    ];
    assert_eq!(documented(&cluster), met.map(|(code, ..)| code));
    for (code, input, words) in met {
        let done = command::run(cluster.command(words), input.as_bytes()).exits(code);
        let said = done.stderr.starts_with("error: ") || done.stderr.contains("\nerror: ");
        assert_eq!(said, ![0, 10].contains(&code), "{words:?}: {}", done.stderr);
    }
    // The same judgement wherever it's asked for, and in what programs read.
    cluster.run(&["rollout", "status", "broken"]).exits(7).says("no progress within 1s");
    cluster.run(&["rollout", "status", "broken", "--wait"]).exits(7);
    let told = cluster.run(&["rollout", "status", "broken", "-o", "json"]).exits(7).json();
    assert!(told["failed"].as_str().is_some_and(|words| words.starts_with("no progress within 1s")), "{told}");
    // Who only waits is patient: somebody may be about to help.
    cluster.run(&["wait", "service", "broken", "--timeout", "1s"]).exits(5).says("command not found");
}

#[test]
fn what_is_still_to_come_can_be_neither_replayed_nor_compared_nor_gone_back_to() {
    let cluster = Cluster::start();
    cluster.apply(&manifests::sleeper("web", 1, "v1")).ok();
    let newest = "there is no revision 999999 yet: the newest is ";
    cluster.run(&["replay", "service", "web", "--at", "999999"]).exits(3).says(newest);
    cluster.run(&["diff", "service", "web", "--from", "1", "--to", "999999"]).exits(3).says(newest);
    cluster.run(&["rollout", "undo", "web", "--to", "999999"]).exits(3).says(newest);
    let at = ["replay", "service", "web", "--at", "2999-01-01T00:00:00Z"];
    cluster.run(&at).exits(3).says("is yet to come").says("by the server's clock");
}

#[test]
fn a_template_that_was_declared_again_is_found_by_each_of_its_revisions() {
    let cluster = Cluster::start();
    let declare = |version: &str| {
        cluster.apply(&manifests::sleeper("web", 1, version)).ok();
        cluster.revision("web").to_string()
    };
    let (first, second) = (declare("v1"), declare("v2"));
    let third = declare("v1");
    let undo = |to: &str| cluster.run(&["rollout", "undo", "web", "--to", to]).ok().stdout;
    assert!(undo(&first).starts_with("service/web is declared as v1 already"), "nothing is to be done");
    assert!(undo(&third).starts_with("service/web is declared as v1 already"));
    assert!(undo(&second).starts_with("service/web goes back to v2"));
    assert!(undo(&first).starts_with("service/web goes back to v1"), "though it's listed where it was last declared");
    assert_eq!(cluster.service("web")["spec"]["version"], "v1");
}
