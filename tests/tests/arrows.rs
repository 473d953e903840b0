//! Which crate may use which. A missing arrow is a design decision: change it here and in ARCHITECTURE.md, or nowhere.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// Each of our crates, and ours that it may use (tests of a crate may use any).
const ARROWS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("model", &["api"]),
    ("kinds", &["api", "model"]),
    ("store", &["api", "model"]),
    ("telemetry", &[]),
    ("store-etcd", &["api", "model", "store", "telemetry"]),
    ("wire", &["api", "model", "store", "telemetry"]),
    ("server", &["api", "model", "kinds", "store", "telemetry"]),
    ("controller", &["api", "model", "kinds", "store", "telemetry"]),
    ("agent", &["api", "model", "kinds", "store", "telemetry"]),
    ("supervisor", &[]),
    ("sim", &["api", "model", "kinds", "store", "server", "controller", "agent", "telemetry"]),
    (
        "driftless",
        &["api", "model", "kinds", "store", "store-etcd", "wire", "server", "controller", "agent", "telemetry"],
    ),
    (
        "tests",
        &[
            "api",
            "model",
            "kinds",
            "store",
            "store-etcd",
            "wire",
            "server",
            "controller",
            "agent",
            "supervisor",
            "sim",
            "telemetry",
        ],
    ),
];

/// What makes a decision impure, and what only those named may use.
const ONLY: &[(&str, &[&str])] = &[
    // The agent asks instances for their health by gRPC; our own gRPC is in wire alone. Telemetry: its tests' receiver.
    ("tonic", &["wire", "store-etcd", "agent", "telemetry"]),
    ("redb", &["store"]),
    ("etcd-client", &["store-etcd"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry-otlp", &["telemetry"]),
    ("opentelemetry-proto", &["telemetry"]),
    ("clap", &["driftless"]),
    ("tracing-subscriber", &["driftless"]),
    ("anyhow", &["driftless", "tests"]),
];
const IMPURE: &[&str] =
    &["tokio", "futures", "async-trait", "rand", "uuid", "tracing", "chrono", "time", "rustix", "tempfile"];
const PURE: &[&str] = &["api", "model", "kinds"];

/// Dependencies of each of our crates, but for those of its tests.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages.iter().map(|p| (short(&p["name"]), uses(p))).collect()
}

fn uses(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
    dependencies.filter(|d| d["kind"] != "dev").map(|d| short(&d["name"])).collect()
}

fn short(name: &Value) -> String {
    let name = name.as_str().expect("a name");
    name.strip_prefix("driftless-").unwrap_or(name).to_owned()
}

#[test]
fn crates_use_only_what_is_below_them() {
    let dependencies = dependencies();
    let named: Vec<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    for (name, uses) in &dependencies {
        let allowed = ARROWS.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} has no arrows yet")).1;
        for used in uses.iter().filter(|u| named.contains(&u.as_str())) {
            assert!(allowed.contains(&used.as_str()), "{name} must not use {used}");
        }
    }
    assert_eq!(dependencies.len(), ARROWS.len(), "a crate in ARROWS is gone");
}

#[test]
fn decisions_can_not_wait_or_draw_lots_or_log() {
    let dependencies = dependencies();
    for name in PURE {
        for used in &dependencies[*name] {
            assert!(!IMPURE.contains(&used.as_str()), "{name} must not use {used}");
        }
    }
}

#[test]
fn heavy_dependencies_stay_where_they_are() {
    for (name, uses) in dependencies() {
        for (used, by) in ONLY {
            assert!(!uses.iter().any(|u| u == used) || by.contains(&name.as_str()), "{name} must not use {used}");
        }
    }
}
