//! What the tests of traces share: a traced cluster, and traces as they came.

use std::{collections::HashMap, fs, time::Duration};

use driftless_tests::{Cluster, processes::look_until};
use telemetry::testing::{Receiver, Span};

/// Spans are exported twice a second; a busy machine takes its time.
pub const EXPORTED_MAX: Duration = Duration::from_secs(60);

pub const MANIFEST: &str = "kind: Service
metadata: { name: web }
spec:
  replicas: 2
  template:
    command: [sleep, '86400']
    health: { readiness: { exec: { command: [test, -e, READY] }, interval: 0.1s } }
";

pub fn traced(receiver: &Receiver, ratio: &str, nodes: &[&str]) -> Cluster {
    let environment =
        vec![("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()), ("DRIFTLESS_TRACE_RATIO", ratio.to_owned())];
    Cluster::of_nodes_with(nodes, environment)
}

/// What a call said on stderr: "trace <id>".
pub fn trace_id(said: &str) -> String {
    let id = said.lines().find_map(|line| line.strip_prefix("trace ")).unwrap_or_else(|| panic!("no trace in {said}"));
    assert_eq!(id.len(), 32, "{id}");
    id.to_owned()
}

/// The trace, once that span is in it.
pub fn trace_with(receiver: &Receiver, id: &str, what: &str, last: impl Fn(&Span) -> bool) -> Trace {
    look_until(what, EXPORTED_MAX, || {
        let spans = receiver.trace(id);
        let trace = Trace { spans };
        // Every part exports by itself: whole once nobody's parent is missing.
        (trace.spans.iter().any(&last) && trace.orphans().is_empty()).then_some(trace)
    })
}

pub fn is_the_end(span: &Span) -> bool {
    span.name == "reconcile"
        && span.attribute("driftless.kind") == "Service"
        && span.attribute("driftless.outcome") == "settled"
}

pub struct Trace {
    pub spans: Vec<Span>,
}

impl Trace {
    pub fn named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name == name).collect()
    }

    fn by_id(&self) -> HashMap<&str, &Span> {
        self.spans.iter().map(|span| (span.id.as_str(), span)).collect()
    }

    pub fn orphans(&self) -> Vec<&Span> {
        let known = self.by_id();
        self.spans.iter().filter(|span| !span.parent.is_empty() && !known.contains_key(span.parent.as_str())).collect()
    }

    /// Names from the span up to the first.
    pub fn lineage(&self, span: &Span) -> Vec<String> {
        let known = self.by_id();
        let mut at = Some(span);
        std::iter::from_fn(|| {
            let span = at?;
            at = known.get(span.parent.as_str()).copied();
            Some(format!("{} {}", span.scope.trim_start_matches("driftless."), span.name))
        })
        .collect()
    }

    /// Of every span of that name: what it's under, up to the next `reconcile` or to the end.
    #[track_caller]
    pub fn is_under(&self, name: &str, chains: &[&str]) {
        let found = self.named(name);
        assert!(!found.is_empty(), "no {name} in {:#?}", self.outline());
        for span in found {
            let chain = self.lineage(span)[1..].join(" < ");
            assert!(chains.iter().any(|allowed| chain.starts_with(allowed)), "{name} is under {chain}");
        }
    }

    /// For whoever must find out what they are of.
    pub fn told(&self) -> Vec<String> {
        let said = |span: &Span, what: &str| span.attribute(&format!("driftless.{what}")).to_owned();
        let line = |span: &Span| {
            let [key, verb, why] = ["key", "verb", "why"].map(|what| said(span, what));
            format!("{} {} {} under {:?}: {key} {verb} {why}", &span.trace[..8], span.instance, span.name, span.parent)
        };
        self.spans.iter().map(line).collect()
    }

    pub fn outline(&self) -> Vec<String> {
        let mut spans: Vec<&Span> = self.spans.iter().collect();
        spans.sort_by_key(|span| span.start);
        spans.iter().map(|span| self.lineage(span).join(" < ")).collect()
    }
}

/// What was declared for nothing but to know that all before it has come.
#[derive(Default)]
pub struct Marks(Vec<String>);

impl Marks {
    /// Declares something in a trace of its own and waits until that goes from the call to the end and back: every process
    /// that had a part in it has exported all that it had to tell before. What it has to tell of this one may come later.
    pub fn set(&mut self, receiver: &Receiver, cluster: &Cluster, name: &str) {
        let ready = cluster.dir().join(name);
        fs::write(&ready, "").expect("the directory can be written");
        let manifest = MANIFEST.replace("web", name).replace("READY", ready.to_str().expect("text"));
        let id = trace_id(&cluster.apply_with(manifest.as_bytes(), &["--trace", "--wait"]).ok().stderr);
        trace_with(receiver, &id, "the last trace", is_the_end);
        self.0.push(id);
    }

    /// What came up to now since this was last asked, but for the marks themselves.
    pub fn all_up_to_now(&mut self, receiver: &Receiver, cluster: &Cluster, name: &str) -> Vec<Span> {
        self.set(receiver, cluster, name);
        receiver.take().into_iter().filter(|span| !self.0.contains(&span.trace)).collect()
    }
}
