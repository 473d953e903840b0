use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use prost::Message;
use prost_reflect::{Kind, MessageDescriptor};

use super::*;
use crate::descriptors;

const NAMES: [&str; 3] = ["Service", "Instance", "Node"];

fn types(kind: &str) -> Option<KindTypes> {
    NAMES
        .contains(&kind)
        .then(|| KindTypes { spec: format!("driftless.v1.{kind}Spec"), status: format!("driftless.v1.{kind}Status") })
}

const RANGES: [Range<'static>; 1] = [("driftless.v1.ServiceSpec.replicas", 0..=10_000)];

const KINDS: Kinds<'static> = Kinds { names: &NAMES, types: &types, ranges: &RANGES };

fn read(text: &str) -> Result<Vec<Document>, Problems> {
    super::read("web.yaml", text, &KINDS)
}

fn service(document: &Document) -> v1::ServiceSpec {
    v1::ServiceSpec::decode(document.resource.spec.as_ref().unwrap().value.as_slice()).unwrap()
}

fn refused(text: &str, expected: Expect) {
    expected.assert_eq(&read(text).unwrap_err().to_string());
}

#[test]
fn a_manifest_is_read() {
    let documents = read(
        "apiVersion: driftless/v1
kind: Service
metadata: { name: web, labels: { app: web } }
spec:
  replicas: 3
  version: v1
  template:
    command: [\"python3\", \"-m\", \"http.server\", \"$(PORT)\"]
    ports: [{ name: http }]
    stop_grace: 1.5s
    health: { readiness: { http: { path: /, port: http } } }
  rollout: { maxSurge: 0, max_unavailable: 1 }
---
kind: Node
metadata: {name: n1}
---
",
    )
    .unwrap();
    assert_eq!(documents.len(), 2);
    let spec = service(&documents[0]);
    assert_eq!(spec.replicas, Some(3));
    let template = spec.template.unwrap();
    assert_eq!(template.command[3], "$(PORT)");
    assert_eq!(template.stop_grace, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
    assert_eq!(spec.rollout.unwrap().max_surge, Some(0));
    assert_eq!(documents[0].resource.metadata.as_ref().unwrap().labels["app"], "web");
    assert_eq!(documents[0].resource.metadata.as_ref().unwrap().kind, "Service");
    assert_eq!(documents[1].place, Place { line: 14, column: 1 });
}

#[test]
fn json_is_read_alone_as_a_list_and_with_items() {
    let one = r#"{"kind": "Service", "metadata": {"name": "a"}, "spec": {"replicas": 1}}"#;
    assert_eq!(read(one).unwrap().len(), 1);
    assert_eq!(read(&format!("[{one}, {one}]")).unwrap().len(), 2);
    assert_eq!(read(&format!("{{\"items\": [{one}, {one}, {one}], \"revision\": \"9\"}}")).unwrap().len(), 3);
    let escaped = "\t{\"kind\": \"Service\",\r\n\t\"metadata\": {\"name\": \"\\ud83d\\ude00\"}}";
    assert_eq!(read(escaped).unwrap()[0].resource.metadata.as_ref().unwrap().name, "\u{1f600}");
}

#[test]
fn what_servers_stamp_is_ignored() {
    let text = "kind: Service
metadata: {name: web, uid: u1, revision: '17', generation: 3, createdTime: '2026-01-01T00:00:00Z', lastWriter: {}}
spec: {replicas: 1}
status: {whatever: true}
";
    let document = read(text).unwrap().remove(0);
    assert!(document.has_status);
    let metadata = document.resource.metadata.unwrap();
    assert_eq!(metadata, v1::Metadata { kind: "Service".into(), name: "web".into(), ..Default::default() });
}

#[test]
fn a_status_that_no_server_said_is_refused() {
    refused(
        "kind: Service\nmetadata: {name: web}\nstatus: {readyReplicas: 3}\n",
        expect!["web.yaml:3:1: status: is reported, never declared; leave it out"],
    );
    let none = read("kind: Service\nmetadata: {name: web}\nspec: {}\nstatus:\n").unwrap();
    assert!(!none[0].has_status);
}

#[test]
fn unknown_fields_name_the_nearest_known_one() {
    refused(
        "kind: Service\nmetadata: {name: web, lables: {}}\nspec:\n  replicsa: 3\n  template:\n    comand: [a]\n    ports: [{zzz: 1}]\n",
        expect![[r#"
            web.yaml:2:23: metadata.lables: unknown field "lables"; did you mean "labels"?
            web.yaml:4:3: spec.replicsa: unknown field "replicsa"; did you mean "replicas"?
            web.yaml:6:5: spec.template.comand: unknown field "comand"; did you mean "command"?
            web.yaml:7:14: spec.template.ports[0].zzz: unknown field "zzz"; there is name, port"#]],
    );
    refused(
        "kind: Servce\nmetadata: {name: a}\nspecs: {}\n",
        expect![[r#"
            web.yaml:3:1: specs: unknown field "specs"; did you mean "spec"?
            web.yaml:1:7: kind: unknown kind "Servce"; did you mean "Service"?"#]],
    );
}

#[test]
fn duplicate_keys_are_refused() {
    refused(
        "kind: Service\nmetadata: {name: web}\nspec:\n  replicas: 3\n  replicas: 4\n  template: {stop_grace: 1s, stopGrace: 2s, env: {A: b, A: c}}\n",
        expect![[r#"
            web.yaml:5:3: spec.replicas: is there twice; first in line 4
            web.yaml:6:30: spec.template.stopGrace: is there twice; first in line 6
            web.yaml:6:57: spec.template.env.A: is there twice; first in line 6"#]],
    );
    refused(
        "kind: Node\nkind: Node\nmetadata: {name: a}\n",
        expect!["web.yaml:2:1: kind: is there twice; first in line 1"],
    );
}

#[test]
fn wrong_types_say_what_was_expected() {
    refused(
        "kind: Service
metadata: {name: web}
spec:
  replicas: three
  version: 1.10
  template:
    command: [sleep, 60]
    env: {A: [x], B: true}
    stop_grace: 5 min
    ports: http
    health: yes
  rollout: {max_surge: 99999999999, max_unavailable: 1.5}
",
        expect![[r#"
            web.yaml:4:13: spec.replicas: expected a whole number from 0 to 10000; found the text "three"
            web.yaml:5:12: spec.version: expected a text (put it in quotes); found the number 1.1
            web.yaml:7:22: spec.template.command[1]: expected a text (put it in quotes); found the number 60
            web.yaml:8:14: spec.template.env.A: expected a text; found a list
            web.yaml:8:22: spec.template.env.B: expected a text (put it in quotes); found the boolean true
            web.yaml:9:17: spec.template.stop_grace: expected a duration, a number with its unit, or several: 500ms, 30s, 1m30s, 2h; found the text "5 min"
            web.yaml:10:12: spec.template.ports: expected a list; found the text "http"
            web.yaml:11:13: spec.template.health: expected a map with startup, readiness, liveness; found the text "yes"
            web.yaml:12:24: spec.rollout.max_surge: expected a whole number from -2147483648 to 2147483647; found the number 99999999999
            web.yaml:12:54: spec.rollout.max_unavailable: expected a whole number; found the number 1.5"#]],
    );
}

#[test]
fn durations_are_read_as_flags_take_them_and_as_they_are_printed() {
    let grace = |text: &str| {
        let source = format!("kind: Service\nmetadata: {{name: web}}\nspec: {{template: {{stop_grace: {text}}}}}\n");
        let documents = read(&source).unwrap_or_else(|problems| panic!("{text}: {problems}"));
        let grace = service(&documents[0]).template.unwrap().stop_grace.unwrap();
        (grace.seconds, grace.nanos)
    };
    assert_eq!(["1m", "90s", "1m30s", "2h"].map(grace), [(60, 0), (90, 0), (90, 0), (7_200, 0)]);
    assert_eq!(["500ms", "1.5s", "\"-1s\""].map(grace), [(0, 500_000_000), (1, 500_000_000), (-1, 0)]);
    let source = |text: &str| format!("kind: Service\nmetadata: {{name: web}}\nspec: {{lost_after: {text}}}\n");
    for wrong in ["10", "90", "1d", "30s1m", "soon"] {
        let told = read(&source(wrong)).unwrap_err().to_string();
        assert!(told.contains("spec.lost_after: expected a duration, a number with its unit"), "{told}");
    }
}

#[test]
fn a_document_that_is_no_resource_is_refused() {
    refused(
        "hello",
        expect![[r#"web.yaml:1:1: expected a resource, a map with kind, metadata and spec; found the text "hello""#]],
    );
    refused("kind: Service\n", expect!["web.yaml:1:1: metadata: missing: write metadata: {name: ...}"]);
    refused(
        "metadata: {}\n",
        expect![[r#"
        web.yaml:1:1: kind: missing; there is Service, Instance, Node
        web.yaml:1:1: metadata.name: missing: every resource has a name"#]],
    );
    refused(
        "apiVersion: v1\nkind: Node\nmetadata: {name: a, kind: Node}\n",
        expect![[r#"
            web.yaml:1:13: apiVersion: expected "driftless/v1"; found the text "v1"
            web.yaml:3:21: metadata.kind: belongs beside metadata, not into it"#]],
    );
    refused(
        "items: 3\nmore: 1\n",
        expect![[r#"
        web.yaml:1:1: items: expected a list; found the number 3
        web.yaml:2:1: more: unknown field beside items"#]],
    );
}

#[test]
fn a_name_that_is_no_text_is_one_fault() {
    refused(
        "kind: Service\nmetadata: {name: 123}\n",
        expect!["web.yaml:2:18: metadata.name: expected a text (put it in quotes); found the number 123"],
    );
    refused(
        "kind: Service\nmetadata: {name: ''}\n",
        expect!["web.yaml:2:1: metadata.name: missing: every resource has a name"],
    );
}

#[test]
fn what_is_long_is_not_repeated_as_a_whole() {
    let long = "x".repeat(1_000);
    let text = format!(
        "kind: {long}\n{long}: 1\nmetadata: {{name: a, labels: {{{long}: [1]}}, annotations: {{a: {long}}}}}\n"
    );
    let told = read(&text).unwrap_err().to_string();
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(told.lines().all(|line| line.len() < 300 && line.contains('…')), "{told}");
}

#[test]
fn syntax_errors_name_the_place() {
    refused(
        "kind: Service\nmetadata: {name: web\n",
        expect!["web.yaml:2:11: not readable as YAML or JSON: unclosed bracket '{'"],
    );
    refused(
        "a: b: c\n",
        expect!["web.yaml:1:5: not readable as YAML or JSON: mapping values are not allowed in this context"],
    );
    refused("{\"kind\": \"Service\",}}", expect!["web.yaml:1:21: not readable as YAML or JSON: misplaced bracket"]);
    refused(
        "\u{0}\u{1}\u{2}garbage",
        expect![[r#"web.yaml:1:1: not readable as YAML or JSON: unexpected character: `\u{0}'"#]],
    );
}

#[test]
fn bombs_are_refused() {
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..10 {
        let alias = format!("*a{}", i - 1);
        bomb += &format!("a{i}: &a{i} [{}]\n", [alias.as_str(); 10].join(","));
    }
    assert!(read(&bomb).unwrap_err().to_string().contains("alias"), "{}", read(&bomb).unwrap_err());
    for depth in [DEPTH_MAX - 2, DEPTH_MAX + 1, 100, 1_000, 100_000] {
        let flow = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&flow).is_err());
        assert!(read(&format!("{{\"a\": {flow}}}")).is_err());
        assert!(read(&format!("\t{{\"\\ud83d\\ude00\": {flow}}}")).is_err());
    }
    let block: String = (0..500).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(read(&block).is_err());
    let big = format!("kind: Service\nmetadata: {{name: a}}\n#{}\n", "x".repeat(2 * FILE_BYTES_MAX));
    assert!(read(&big).unwrap_err().to_string().contains("at most 1048576"));
}

#[test]
fn one_bad_document_spoils_the_file() {
    let text = "kind: Node\nmetadata: {name: a}\n---\nkind: Node\nmetadata: {nam: b}\n";
    assert!(read(text).is_err());
}

#[test]
fn resources_print_in_the_canonical_mapping() {
    let mut document = read("kind: Service\nmetadata: {name: web, labels: {b: '1', a: 'yes'}}\nspec: {replicas: 0, template: {command: [sleep, '60'], stop_grace: 0.25s}}\n").unwrap().remove(0);
    let metadata = document.resource.metadata.as_mut().unwrap();
    metadata.revision = 17;
    metadata.created_time = Some(prost_types::Timestamp { seconds: 1, nanos: 0 });
    let status = v1::ServiceStatus { observed_generation: 2, ready_replicas: 1, ..Default::default() };
    document.resource.status = Some(prost_types::Any { type_url: String::new(), value: status.encode_to_vec() });
    expect![[r#"
        apiVersion: driftless/v1
        kind: Service
        metadata:
          name: web
          labels:
            a: "yes"
            b: "1"
          revision: "17"
          createdTime: "1970-01-01T00:00:01Z"
        spec:
          replicas: 0
          template:
            command:
            - sleep
            - "60"
            stopGrace: 0.250s
        status:
          observedGeneration: "2"
          readyReplicas: 1
    "#]]
    .assert_eq(&one(&document.resource, &KINDS, Format::Yaml));
    expect![[r#"
        {
          "items": [
            {
              "apiVersion": "driftless/v1",
              "kind": "Service",
              "metadata": {
                "name": "web",
                "labels": {
                  "a": "yes",
                  "b": "1"
                },
                "revision": "17",
                "createdTime": "1970-01-01T00:00:01Z"
              },
              "spec": {
                "replicas": 0,
                "template": {
                  "command": [
                    "sleep",
                    "60"
                  ],
                  "stopGrace": "0.250s"
                }
              },
              "status": {
                "observedGeneration": "2",
                "readyReplicas": 1
              }
            }
          ],
          "revision": "18"
        }
    "#]]
    .assert_eq(&list(&[document.resource], 18, &KINDS, Format::Json));
}

/// So that no declared or printed field lacks a form.
#[test]
fn every_spec_and_status_has_a_mapping() {
    fn walk(message: &MessageDescriptor, path: &str) {
        for field in message.fields() {
            let path = format!("{path}.{}", field.name());
            match field.kind() {
                Kind::Bytes => panic!("{path} is bytes"),
                Kind::Message(m) if m.full_name().starts_with("google.protobuf.") => {
                    let known = ["google.protobuf.Duration", "google.protobuf.Timestamp"];
                    assert!(known.contains(&m.full_name()), "{path} is a {}", m.full_name());
                }
                Kind::Message(m) => walk(&m, &path),
                _ => {}
            }
        }
    }
    let messages = descriptors().all_messages().filter(|m| m.name().ends_with("Spec") || m.name().ends_with("Status"));
    messages.for_each(|m| walk(&m, m.name()));
}

/// Texts that YAML could take for something else.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "[ -~]{0,20}",
        any::<String>(),
        prop::sample::select(vec![
            "yes",
            "no",
            "on",
            "null",
            "~",
            "",
            "true",
            "False",
            "0755",
            "1_000",
            "1e3",
            ".5",
            "0x1F",
            "-",
            "?",
            ":",
            "- a",
            "a: b",
            "a #b",
            " lead",
            "trail ",
            "\n",
            "a\nb\n",
            "\t",
            "'",
            "\"",
            "{",
            "[",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "2026-01-01",
            "1:30",
            "---",
            "...",
            "<<",
            "=",
            ".inf",
            ".nan",
            "\u{feff}",
            "\u{85}",
            "\u{2028}",
        ])
        .prop_map(str::to_owned),
    ]
}

prop_compose! {
    fn services()(
        name in texts().prop_filter("a name", |n| !n.is_empty()),
        labels in prop::collection::btree_map(texts(), texts(), 0..4),
        replicas in proptest::option::of(any::<i32>()),
        version in texts(),
        command in prop::collection::vec(texts(), 0..4),
        env in prop::collection::btree_map(texts(), texts(), 0..4),
        grace in proptest::option::of((0..100_000_i64, 0..1_000_000_000_i32)),
        port in any::<i32>(),
    ) -> (BTreeMap<String, String>, String, v1::ServiceSpec) {
        let template = v1::InstanceTemplate {
            command,
            env,
            ports: vec![v1::Port { name: version.clone(), port }],
            stop_grace: grace.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }),
            ..Default::default()
        };
        (labels, name, v1::ServiceSpec { replicas, version, template: Some(template), ..Default::default() })
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same((labels, name, spec) in services()) {
        let metadata = v1::Metadata { kind: "Service".into(), name, labels, ..Default::default() };
        let any = prost_types::Any { type_url: "type.googleapis.com/driftless.v1.ServiceSpec".into(), value: spec.encode_to_vec() };
        let resource = v1::Resource { metadata: Some(metadata.clone()), spec: Some(any), status: None };
        for format in [Format::Json, Format::Yaml] {
            for text in [one(&resource, &KINDS, format), list(std::slice::from_ref(&resource), 3, &KINDS, format)] {
                let back = read(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
                prop_assert_eq!(back.len(), 1);
                prop_assert_eq!(back[0].resource.metadata.as_ref().unwrap(), &metadata, "{}", &text);
                prop_assert_eq!(&service(&back[0]), &spec, "{}", &text);
            }
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>(), tail in "[-{}\\[\\]:,&*!|>'\"%@`#? \n\ta-z0-9]{0,80}") {
        let _ = read(&text);
        let _ = read(&tail);
        let _ = read(&format!("kind: Service\nmetadata: {{name: a}}\nspec: {tail}"));
    }
}

#[test]
fn a_field_is_found_by_the_path_that_a_server_knows_it_by() {
    let text = "kind: Service
metadata:
  name: web
  labels: { example.com/app: web }
spec:
  replicas: -1
  rollout: { maxSurge: 0 }
  template:
    command: [sleep]
    ports:
      - { name: http }
      - name: Admin
    env: { A.B: c }
";
    let document = read(text).unwrap().remove(0);
    let place = |field: &str| {
        let place = document.place_of(field);
        format!("{}:{}", place.line, place.column)
    };
    let found = [
        ("spec.replicas", "6:13"),
        ("metadata.kind", "1:7"),
        ("metadata.labels[\"example.com/app\"]", "4:30"),
        ("spec.rollout.max_surge", "7:24"),
        ("spec.template.command", "9:5"),
        ("spec.template.command[0]", "9:15"),
        ("spec.template.ports[1].name", "12:15"),
        ("spec.template.env[\"A.B\"]", "13:17"),
        // What isn't there is in what is around it; what can't be a path, at the start.
        ("spec.template.health.readiness", "8:3"),
        ("spec.template.ports[7].name", "10:5"),
        ("", "1:1"),
        ("[", "1:1"),
        ("nonsense..", "1:1"),
    ];
    for (field, expected) in found {
        assert_eq!(place(field), expected, "{field}");
    }
    let listed = read("items:\n- kind: Node\n  metadata: {name: n1}\n  spec: {}\n").unwrap().remove(0);
    assert_eq!(listed.place_of("spec.cordon").line, 4);
}
