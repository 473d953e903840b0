//! The documentation's table says exactly what the code shows.

use std::fs;

use driftless_tests::command::repository;
use telemetry::metrics::{Family, PROCESS_FAMILIES};

/// Who shows what, in the order of the documentation.
pub const SOURCES: [(&str, &[Family]); 6] = [
    ("Every role", PROCESS_FAMILIES),
    ("Every role, of its traces", telemetry::trace::FAMILIES),
    ("Server", server::FAMILIES),
    ("Server, on etcd", store_etcd::FAMILIES),
    ("Controller", controller::FAMILIES),
    ("Agent", agent::FAMILIES),
];

fn row(family: &Family) -> String {
    let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{}` | {} | {} | {} |", family.name, family.metric_type.word(), labels.join(", "), family.help)
}

fn tables() -> String {
    let table = |(who, families): &(&str, &[Family])| {
        let rows: String = families.iter().map(|family| row(family) + "\n").collect();
        format!("### {who}\n\n| metric | type | labels | what it says |\n|---|---|---|---|\n{rows}")
    };
    SOURCES.iter().map(table).collect::<Vec<String>>().join("\n")
}

#[test]
fn the_table_of_metrics_is_what_the_code_shows() {
    let document = fs::read_to_string(repository("docs/TELEMETRY.md")).expect("it can be read");
    let wanted = tables();
    assert!(document.contains(&wanted), "docs/TELEMETRY.md should have, in its section Metrics:\n\n{wanted}");
}

#[test]
fn names_follow_the_conventions() {
    for family in SOURCES.iter().flat_map(|(_, families)| families.iter()) {
        let counter = family.metric_type == telemetry::metrics::Type::Counter;
        assert_eq!(family.name.ends_with("_total"), counter, "{}", family.name);
        assert!(family.name.starts_with("driftless_") || family.name.starts_with("process_"), "{}", family.name);
        // What would grow with what is declared.
        for label in family.labels {
            assert!(!["name", "namespace", "uid", "key", "node", "service", "instance", "shard"].contains(label));
        }
    }
}
