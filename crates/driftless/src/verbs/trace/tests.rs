use super::*;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn entry(actor: &str, verb: &str, millis: i64) -> v1::HistoryEntry {
    let time = Some(Time::from_millis(millis).into());
    v1::HistoryEntry { actor: actor.into(), verb: verb.into(), time, traceparent: TRACE.into(), ..Default::default() }
}

fn web() -> Key {
    Key::new("Service", "default", "web")
}

/// It touched these, and left the service so.
fn touching(mut entry: v1::HistoryEntry, service: Option<v1::Resource>, instances: usize) -> v1::HistoryEntry {
    let touched = |key: Key, after| v1::Touched { key: Some((&key).into()), after, ..Default::default() };
    entry.touched.push(touched(web(), service));
    let instance = |n| touched(Key::new("Instance", "default", &format!("web-{n}")), Some(v1::Resource::default()));
    entry.touched.extend((0..instances).map(instance));
    entry
}

fn service(observed: i64, ready: bool) -> Option<v1::Resource> {
    let condition = model::condition("Ready", Some(ready), "Test", "1 of 2 ready");
    let status = v1::ServiceStatus { observed_generation: observed, conditions: vec![condition], ..Default::default() };
    let metadata = Some(v1::Metadata { generation: 2, ..Default::default() });
    let status = Some(kinds::any(kinds::service::STATUS, &status));
    Some(v1::Resource { metadata, status, ..Default::default() })
}

fn change<'a>(key: &'a Key, steps: &'a [v1::HistoryEntry]) -> Change<'a> {
    let context = Context::parse(&steps[0].traceparent);
    Change { key, first: &steps[0], steps, context, link: Some("http://ui/1".into()) }
}

#[test]
fn a_timeline_begins_with_the_last_that_a_user_did() {
    let entries = [
        entry("user/a@b", "apply", 1_000),
        entry("controller/c1", "create", 1_003),
        entry("user/a@b", "scale", 5_000),
        entry("controller/c1", "create", 5_002),
        entry("agent/n1", "report", 7_500),
    ];
    let steps = last_change(&entries);
    assert_eq!(steps.iter().map(|entry| entry.verb.as_str()).collect::<Vec<_>>(), ["scale", "create", "report"]);
    let shown = change(&web(), steps).timeline();
    let after: Vec<&str> = shown.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(after, ["+0.0ms", "+2.0ms", "+2.50s"]);
    assert!(last_change(&[]).is_empty());
}

#[test]
fn it_says_what_became_of_it() {
    let declared = touching(entry("user/a@b", "apply", 1_000), service(1, true), 0);
    let making = touching(entry("controller/c1", "create", 1_100), service(2, false), 2);
    let made = touching(entry("controller/c1", "status", 2_000), service(2, true), 0);
    let again = touching(entry("controller/c1", "status", 3_000), service(2, true), 0);
    let disturbed = touching(entry("controller/c1", "stop", 3_100), service(2, false), 0);
    let mended = touching(entry("controller/c1", "status", 3_500), service(2, true), 0);
    let gone = touching(entry("controller/c1", "remove", 4_000), None, 0);
    let steps = [declared, making, made, again, disturbed, mended, gone];
    let ends: Vec<End> = (1..=steps.len()).map(|to| change(&web(), &steps[..to]).end()).collect();
    let second = Duration::from_secs(1);
    assert_eq!(ends[0], End::NotYet("nobody has looked at it yet".into()));
    assert_eq!(ends[1], End::NotYet("1 of 2 ready".into()));
    assert_eq!(ends[2..4], [End::Ready(second, None), End::Ready(second, None)]);
    // What comes later is no part of how long it took.
    assert_eq!(ends[4..6], [End::Ready(second, Some("1 of 2 ready".into())), End::Ready(second, None)]);
    assert_eq!(ends[6], End::Gone(3 * second));
    assert_eq!(change(&web(), &[entry("user/a@b", "apply", 1)]).end(), End::Unsaid);
}

#[test]
fn it_fits_a_terminal_and_reads_as_json_too() {
    let declared = touching(entry("user/a@b", "apply", 1_000), service(1, true), 0);
    let making = touching(entry("controller/c1", "create", 1_100), service(2, false), 10);
    let steps = [declared, making];
    let key = web();
    let change = change(&key, &steps);
    let text = change.text();
    for part in [
        "apply of service/web at",
        "trace 0af7651916cd43dd8448eb211c80319c (sampled)\nhttp://ui/1\nnot Ready yet: 1 of 2",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
    assert!(text.lines().any(|line| line.contains("instance/web-0 and 9 more")), "{text}");
    let value = change.json();
    assert_eq!(value["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&value["sampled"], &value["link"]), (&json!(true), &json!("http://ui/1")));
    assert_eq!(value["readyAfterSeconds"], Value::Null);
    assert_eq!(value["steps"][1]["touched"].as_array().map(Vec::len), Some(11));
    assert_eq!(value["steps"][1]["afterSeconds"], 0.1);
}
