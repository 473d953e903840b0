//! The alert rules are right by promtool's word, and go off when, and only when, they should.

use std::{path::Path, process::Command};

use driftless_tests::command::repository;

/// Runs promtool where the rules are; fails with what it says.
#[track_caller]
pub fn promtool(dir: &Path, arguments: &[&str]) {
    let mut command = Command::new("promtool");
    let output = command.args(arguments).current_dir(dir).output().expect("promtool is installed: make setup-test");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}");
}

#[test]
fn alerts_go_off_when_they_should() {
    let dir = repository("deploy/observability/prometheus");
    promtool(&dir, &["check", "rules", "alerts.yml"]);
    promtool(&dir, &["test", "rules", "alerts_test.yml"]);
    promtool(&dir, &["check", "config", "--syntax-only", "prometheus.yml"]);
}
