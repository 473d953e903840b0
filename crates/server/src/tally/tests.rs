//! What wakes somebody is counted while it lasts. That all counts are right, whatever comes and goes, `tests/replay.rs`
//! tries.

use api::v1;
use kinds::{any, instance, node, placement};
use model::{Key, Object, Revision, condition};

use super::Tally;
use crate::record::Record;

struct Counted {
    tally: Tally,
    records: std::collections::BTreeMap<Key, Record>,
}

impl Counted {
    fn put(&mut self, kind: &str, name: &str, spec: Option<prost_types::Any>, status: prost_types::Any) {
        let metadata = v1::Metadata { kind: kind.into(), name: name.into(), ..Default::default() };
        let key = Key::of(&metadata);
        let resource = v1::Resource { metadata: Some(metadata), spec, status: Some(status) };
        let object = Object { key: key.clone(), revision: Revision(1), bytes: Object::encode(resource) };
        let record = Record::new(&object);
        if let Some(before) = self.records.remove(&key) {
            self.tally.leave(&key, &before);
        }
        self.tally.enter(&key, &record);
        self.records.insert(key, record);
    }

    fn node(&mut self, conditions: Vec<v1::Condition>) {
        self.put(node::KIND, "n1", None, any(node::STATUS, &v1::NodeStatus { conditions, ..Default::default() }));
    }

    fn said(&self) -> String {
        let totals = self.tally.totals();
        let ready = totals.by_ready().filter(|([kind, _], _)| *kind == instance::KIND);
        let ready: Vec<String> = ready.map(|([_, ready], count)| format!("{count} {ready}")).collect();
        let phases = totals.by_phase().filter(|(_, count)| *count > 0);
        let phases: Vec<String> = phases.map(|([phase], count)| format!("{count} {phase}")).collect();
        let troubles = totals.troubles().filter(|(_, count)| *count > 0);
        let troubles: Vec<&str> = troubles.map(|([trouble], _)| trouble).collect();
        format!("{} / {} / {} / {}", ready.join(" "), phases.join(" "), troubles.join(" "), totals.braked())
    }
}

#[test]
fn the_brake_a_node_in_doubt_and_what_nobody_hears_of_are_told_apart() {
    let mut counted = Counted { tally: Tally::default(), records: Default::default() };
    let heard = condition("Ready", Some(true), "", "");
    counted.node(vec![heard.clone()]);
    for (name, phase) in [("web-0", "Running"), ("job-0", instance::FINISHED)] {
        let spec = any(instance::SPEC, &v1::InstanceSpec { node: "n1".into(), ..Default::default() });
        let status = v1::InstanceStatus { phase: phase.into(), conditions: vec![heard.clone()], ..Default::default() };
        counted.put(instance::KIND, name, Some(spec), any(instance::STATUS, &status));
    }
    assert_eq!(counted.said(), "2 true / 1 Running 1 Finished /  / false");
    counted.node(vec![condition(node::CONFIRMED, Some(false), "", ""), heard.clone()]);
    assert_eq!(counted.said(), "2 true / 1 Running 1 Finished / Confirmed / false");
    counted.node(vec![condition("Ready", None, "", "")]);
    assert_eq!(counted.said(), "1 true 1 unknown / 1 Finished 1 Unknown /  / false");
    let mut placement = |reachable| {
        let conditions = vec![condition(placement::REACHABLE, Some(reachable), "", "")];
        let status = v1::PlacementStatus { conditions, ..Default::default() };
        counted.put(placement::KIND, placement::NAME, None, any(placement::STATUS, &status));
        counted.tally.totals().braked()
    };
    assert_eq!([placement(false), placement(true)], [true, false]);
}
