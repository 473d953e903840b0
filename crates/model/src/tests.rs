use api::v1;
use bytes::Bytes;
use prost::Message;

use crate::{fields::Fields, *};

#[test]
fn a_key_reads_what_it_writes() {
    let key = Key::new("Service", "default", "web");
    assert_eq!((key.kind(), key.namespace(), key.name()), ("Service", "default", "web"));
    assert_eq!(Key::parse(key.text()), Some(key));
    assert_eq!(Key::parse("Service/web"), None);
    assert_eq!(Key::new("Node", "", "n1").to_string(), "Node/n1");
}

#[test]
fn the_revision_suffix_merges_into_the_resource() {
    let metadata = v1::Metadata { name: "web".into(), uid: "u".into(), ..Default::default() };
    let bytes = Object::encode(v1::Resource { metadata: Some(metadata), ..Default::default() });
    let mut sent = bytes.to_vec();
    sent.extend(Object::revision_suffix(Revision(70_000)));
    let got = v1::Resource::decode(sent.as_slice()).unwrap().metadata.unwrap();
    assert_eq!((got.name.as_str(), got.revision), ("web", 70_000));
    assert_eq!(Object::without_suffix(sent.into(), Revision(70_000)), bytes);
}

#[test]
fn replacing_fields_keeps_what_this_build_does_not_know() {
    let status = v1::ServiceStatus { observed_generation: 3, replicas: 2, ..Default::default() };
    let mut bytes = status.encode_to_vec();
    let unknown = [0x82, 0x7d, 0x02, b'h', b'i']; // field 2000, length-delimited
    bytes.extend(unknown);
    let next = v1::ServiceStatus { observed_generation: 4, replicas: 9, ..Default::default() }.encode_to_vec();
    let merged = fields::replace(&bytes.into(), &next.into(), Fields::Only(&[1])).unwrap();
    assert!(merged.ends_with(&unknown));
    let read = v1::ServiceStatus::decode(merged).unwrap();
    assert_eq!((read.observed_generation, read.replicas), (4, 2));
}

#[test]
fn a_condition_moves_its_time_only_with_its_status() {
    let old = Time::from_millis(1_000);
    let now = Time::from_millis(9_000);
    let status = |conditions| Bytes::from(v1::ServiceStatus { conditions, ..Default::default() }.encode_to_vec());
    let mut ready = condition("Ready", Some(true), "AllReady", "3 of 3");
    ready.last_transition_time = Some(old.into());
    let current = status(vec![ready, condition("Foreign", None, "X", "")]);
    let merge = |next| {
        let merged = fields::merge_status(&current, &status(next), Fields::NONE, Conditions::Only(&["Ready"]), now);
        fields::conditions_of(&merged.unwrap()).unwrap()
    };
    let same = merge(vec![condition("Ready", Some(true), "AllReady", "2 of 2")]);
    assert_eq!(same[1].last_transition_time, Some(old.into()));
    assert_eq!(same[1].message, "2 of 2");
    let moved = merge(vec![condition("Ready", Some(false), "Progressing", "")]);
    assert_eq!(moved[1].last_transition_time, Some(now.into()));
    assert_eq!(moved[0].r#type, "Foreign");
}

#[test]
fn label_selectors() {
    let labels = [("app", "web"), ("zone", "a")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let labels: std::collections::BTreeMap<String, String> = labels;
    let key = Key::new("Service", "default", "web");
    let matches = |selector: &str| {
        let filter = Filter::default().with_labels(selector).unwrap();
        let wire = v1::Filter::from(&filter);
        assert_eq!(Filter::parse(&wire).unwrap(), filter, "{selector} survives the wire");
        filter.matches(&Facts { key: &key, labels: &labels, owner_uid: "", shard: 0, global: false, node: None })
    };
    for yes in ["", "app=web", "app==web,zone in (a, b)", "app", "!old", "app!=db", "zone notin (c,d)"] {
        assert!(matches(yes), "{yes}");
    }
    for no in ["app=db", "old", "!app", "zone in (c)", "app=web,zone!=a"] {
        assert!(!matches(no), "{no}");
    }
    for bad in ["=x", "a in b", ",", "a b"] {
        assert!(Filter::default().with_labels(bad).is_err(), "{bad}");
    }
}

#[test]
fn digests_do_not_depend_on_order_and_see_every_part() {
    let key = Key::new("Service", "default", "web");
    let term = |uid: &str, revision, bytes: &[u8]| Digest::term(&key, uid, Revision(revision), bytes);
    let (a, b) = (term("u", 1, b"x"), term("v", 2, b"y"));
    let mut left = Digest::default();
    left.add(a);
    left.add(b);
    let mut right = Digest::default();
    right.add(b);
    right.add(a);
    assert_eq!(left, right);
    right.remove(a);
    right.remove(b);
    assert_eq!(right, Digest::default());
    for other in [term("w", 1, b"x"), term("u", 2, b"x"), term("u", 1, b"z")] {
        assert_ne!(a, other);
    }
}
