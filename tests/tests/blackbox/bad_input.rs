//! Bad input never panics, never half-applies, and exits with the documented code.

use driftless_tests::{Cluster, command};

use crate::manifests;

/// Refused with that code, saying that.
#[track_caller]
fn refused(cluster: &Cluster, manifest: &str, code: i32, says: &str) {
    let done = cluster.apply(manifest).exits(code).says(says);
    assert_eq!(done.stdout, "", "nothing is applied");
    cluster.run(&["get", "services", "-o", "name"]).ok();
}

#[test]
fn every_bad_manifest_is_refused_with_its_place_and_nothing_is_written() {
    let cluster = Cluster::start();
    let good = manifests::sleeper("good", 1, "v1");
    let spec = "spec: {template: {command: [sleep, '1']}}";
    refused(&cluster, "kind: Servce\nmetadata: {name: a}\n", 1, "did you mean \"Service\"?");
    refused(
        &cluster,
        "kind: Service\nmetadata: {name: a}\nspec: {replicsa: 1}\n",
        1,
        "3:8: spec.replicsa: unknown field",
    );
    refused(&cluster, "kind: Service\nmetadata: {name: a}\nspec: {replicas: many}\n", 1, "expected a whole number");
    refused(&cluster, "kind: Service\nmetadata: {name: a}\nspec: {replicas: 1, replicas: 2}\n", 1, "is there twice");
    let negative = good.replace("replicas: 1", "replicas: -1");
    refused(&cluster, &negative, 1, "spec.replicas: is -1");
    refused(&cluster, &format!("kind: Service\nmetadata: {{name: Bad_Name}}\n{spec}\n"), 1, "metadata.name");
    refused(&cluster, &format!("kind: Service\nmetadata: {{name: {}}}\n{spec}\n", "a".repeat(64)), 1, "metadata.name");
    refused(&cluster, "kind: Instance\nmetadata: {name: a}\nspec: {}\n", 1, "Instance");
    refused(&cluster, &format!("{good}# {}\n", "x".repeat(2 * 1024 * 1024)), 1, "1048576 bytes");
    refused(&cluster, &bomb(), 1, "alias");
    refused(&cluster, &format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), 1, "standard input");
    refused(&cluster, "\u{0}\u{1}garbage", 1, "standard input");
    refused(
        &cluster,
        &format!("{good}---\nkind: Service\nmetadata: {{name: b}}\nspec: {{replicas: x}}\n"),
        1,
        "spec.replicas",
    );
    refused(
        &cluster,
        &format!("{good}---\n{}", negative.replace("name: good", "name: other")),
        1,
        "spec.replicas: is -1",
    );
    refused(&cluster, &format!("{good}---\n{good}"), 1, "declared twice");
    refused(&cluster, "", 1, "no resources");
    let names = cluster.run(&["get", "services", "-o", "name"]).ok().stdout;
    assert_eq!(names, "", "nothing was applied by any of them");
}

fn bomb() -> String {
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..12 {
        let alias = format!("*a{}", i - 1);
        bomb += &format!("a{i}: &a{i} [{}]\n", [alias.as_str(); 10].join(","));
    }
    bomb
}

#[test]
fn codes_are_as_documented() {
    let cluster = Cluster::start();
    cluster.run(&["get", "service", "nobody"]).exits(3).says("service/nobody not found");
    cluster.run(&["get", "nonsense"]).exits(2).says("unknown kind");
    cluster.run(&["get", "servics"]).exits(2).says("did you mean \"services\"?");
    cluster.run(&["apply", "--nonsense"]).exits(2);
    cluster.run(&["get", "services", "-l", "=("]).exits(2).says("label");
    cluster.run(&["wait", "service", "nobody", "--for", "ready"]).exits(3);
    for verb in [["wait", "service", "nobody", "--for", "deleted"].as_slice(), &["delete", "service", "nobody"]] {
        assert_eq!(cluster.run(verb).ok().stdout, "service/nobody does not exist\n");
    }
    cluster.run(&["scale", "service", "nobody", "--replicas", "1"]).exits(3);
    cluster.run(&["scale", "node", "nobody", "--replicas", "-1"]).exits(2);
    cluster.run(&["logs", "nobody"]).exits(3).says("error: instance/nobody not found in namespace default");
    cluster.run(&["why", "service", "nobody"]).exits(3).says("error: service/nobody not found in namespace default");
    cluster.run(&["describe", "node", "nobody"]).exits(3).says("error: node/nobody not found\n");
    cluster.run(&["get", "services", "-n", "Bad!"]).exits(2).says("lower-case");
    let empty = cluster.dir().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    cluster.run(&["apply", "-f", empty.to_str().expect("a text")]).exits(1).says("no resources");
    let mut nameless = cluster.command(&["get", "services"]);
    nameless.env("DRIFTLESS_SERVER", "");
    // Whether or not a cluster of somebody else's is there, by default.
    let nameless = command::run(nameless, b"");
    assert!(nameless.code == 0 || nameless.stderr.contains("server 127.0.0.1:7400: "), "{}", nameless.stderr);
    cluster.run(&["history", "service", "nobody"]).exits(3);
    cluster.run(&["describe", "service", "nobody"]).exits(3);
    cluster.run(&["get", "services", "--server", "127.0.0.1:1"]).exits(6).says("server 127.0.0.1:1: ").says("hint:");
    cluster.run(&["apply", "-f", "/no/such/file"]).exits(1).says("/no/such/file");
}

#[test]
fn an_unchanged_manifest_writes_nothing_and_a_wrong_revision_conflicts() {
    let cluster = Cluster::start();
    let manifest =
        manifests::sleeper("web", 1, "v1").replace("stop_grace", "env: {B: b, A: a, C: c, D: d}, stop_grace");
    cluster.apply_with(manifest.as_bytes(), &["--wait"]).ok();
    let before = cluster.revision("web");
    let again = cluster.apply(&manifest).ok();
    assert_eq!(again.stdout, "service/web unchanged\n");
    let printed = cluster.run(&["get", "service", "web", "-o", "yaml"]).ok().stdout;
    let again = cluster.apply(&printed).ok().says("the status of service/web is left out");
    assert_eq!(again.stdout, "service/web unchanged\n", "what is printed can be declared");
    assert_eq!(cluster.revision("web"), before);

    let dry = cluster.apply_with(manifests::sleeper("web", 2, "v1").as_bytes(), &["--dry-run"]).ok();
    assert_eq!(dry.stdout, "service/web updated (dry run)\n");
    assert_eq!(cluster.revision("web"), before);

    let changed = manifests::sleeper("web", 2, "v1");
    cluster.apply_with(changed.as_bytes(), &["--expected-revision", "1"]).exits(4).says("conflict");
    cluster.apply_with(changed.as_bytes(), &["--expected-revision", "0"]).exits(4);
    assert_eq!(cluster.revision("web"), before);
    cluster.apply_with(changed.as_bytes(), &["--expected-revision", &before]).ok();
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let cluster = Cluster::start();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = cluster.command(&["get", "nodes", "-w"]);
    let output = command.stdout(writer).stderr(std::process::Stdio::piped()).output().expect("it ends by itself");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
