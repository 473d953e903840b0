//! A receiver's address that can't be right is told at once, to whoever named it, by whichever name.

use driftless_tests::{command, driftless};

/// Nobody is asked: it ends before.
const NOBODY: &str = "127.0.0.1:1";
const NAMES: [&str; 2] = ["--otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"];

#[test]
fn every_role_and_verb_refuses_what_is_no_receiver() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    let data = data.to_str().expect("a temporary path is text");
    for arguments in [
        vec!["get", "services"],
        vec!["scale", "service", "web", "--replicas", "1"],
        vec!["trace", "service", "web"],
        vec!["server", "--listen", "127.0.0.1:0", "--store", "memory"],
        vec!["controller"],
        vec!["agent", "--node", "n1", "--data-dir", data],
        vec!["dev", "--listen", "127.0.0.1:0", "--data-dir", data],
    ] {
        for (address, how) in
            [("nonsense", "http://127.0.0.1:4317"), ("https://a:4317", "OTEL_EXPORTER_OTLP_CERTIFICATE")]
        {
            for name in NAMES {
                let mut command = driftless(NOBODY);
                match name.starts_with("--") {
                    true => command.args([name, address]),
                    false => command.env(name, address),
                };
                command.args(&arguments).current_dir(dir.path());
                let said = command::run(command, b"").exits(2).stderr;
                assert!(said.contains(address) && said.contains(how), "{arguments:?} by {name}: {said}");
                assert!(address != "nonsense" || said.contains(name), "{arguments:?} by {name}: {said}");
            }
        }
    }
}

#[test]
fn what_needs_no_receiver_does_not_ask_for_one() {
    let mut command = driftless(NOBODY);
    command.env(NAMES[1], "nonsense").arg("version");
    command::run(command, b"").ok();
}
