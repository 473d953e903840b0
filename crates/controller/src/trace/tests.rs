//! Looks that write, and the spans that a real receiver gets of them.

use std::{sync::Arc, time::Duration};

use kinds::{any, service};
use model::{Epoch, Object, Why};
use store::Note;
use telemetry::{
    testing::{self, Receiver},
    trace::Config,
};

use super::*;
use crate::{cache::Changed, causes::Came};

const DECLARED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn work() -> Work {
    let reconciler = RECONCILERS.iter().position(|reconciler| reconciler.kind() == service::KIND).unwrap();
    Work { reconciler, key: Key::new(service::KIND, "default", "web") }
}

fn service(revision: i64, ready: bool, written: &str) -> Arc<Item> {
    let metadata = v1::Metadata {
        kind: service::KIND.into(),
        namespace: "default".into(),
        name: "web".into(),
        generation: 1,
        traceparent: DECLARED.into(),
        last_writer: Some(v1::Writer { traceparent: written.into(), ..Default::default() }),
        ..Default::default()
    };
    let status = v1::ServiceStatus {
        observed_generation: 1,
        conditions: vec![model::condition("Ready", Some(ready), "Test", "as the test wants it")],
        ..Default::default()
    };
    let resource = v1::Resource {
        metadata: Some(metadata),
        spec: Some(any(service::SPEC, &v1::ServiceSpec::default())),
        status: Some(any(service::STATUS, &status)),
    };
    let object = Object { key: work().key, revision: Revision(revision), bytes: Object::encode(resource) };
    Arc::new(Item::read(&object).unwrap())
}

struct Traced {
    receiver: Receiver,
    tracer: Tracer,
}

/// A look of a controller that has no receiver. Returns the context that its write carries.
async fn off(item: &Item, cause: Option<Cause>) -> Context {
    let traced = Traced { tracer: Tracer::off(), ..Traced::start() };
    let (written, span) = traced.look(item, cause).await;
    assert_eq!(span, None, "nobody is told");
    written
}

impl Traced {
    fn start() -> Self {
        let receiver = Receiver::start();
        let config = Config::new(receiver.endpoint().parse().unwrap(), "test", "c1");
        Self { receiver, tracer: Tracer::start(&config).unwrap() }
    }

    /// A look at `item` that writes. Returns the context that its write carries, and the reconcile's span if there is one.
    async fn look(&self, item: &Item, cause: Option<Cause>) -> (Context, Option<testing::Span>) {
        let note = Note { verb: "create".into(), traceparent: DECLARED.into(), ..Note::default() };
        let mut transaction = Transaction { note: Some(note), ..Transaction::default() };
        let fence = Fence::Claim { claim: "shard-1".into(), epoch: Epoch(3), session: "s".into() };
        let next = Next::Settled(Why::new("Test", "as the test wants it"));
        let work = work();
        let look = Look {
            tracer: &self.tracer,
            work: &work,
            own: Own::of(item),
            claim: "shard-1",
            fence: &fence,
            next: &next,
            began: SystemTime::now(),
        };
        let traced = look.begin(cause, &mut transaction);
        traced.end(&Waiting::default(), &work, &Ok(Revision(9)), &next);
        self.tracer.flush(Duration::from_secs(30)).await;
        let written = Context::parse(&transaction.note.unwrap().traceparent).unwrap();
        (written, self.receiver.take().into_iter().find(|span| span.name == "reconcile"))
    }
}

fn cause(writes: &[(i64, Context)]) -> Option<Cause> {
    let waiting = Waiting::default();
    let changed: Vec<Changed> =
        writes.iter().map(|(revision, of)| (None, Some(service(*revision, true, &of.to_string())))).collect();
    waiting.note(&changed, &vec![vec![work()]; changed.len()], Came::Live);
    waiting.take(&work())
}

fn hex(context: Context) -> String {
    format!("{:016x}", context.span)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_several_causes_meet_it_is_a_child_of_the_newest_with_links_to_all() {
    let traced = Traced::start();
    let (first, newest) = (Context::random(true), Context::random(true));
    let met = cause(&[(7, newest), (5, first)]);
    let (written, span) = traced.look(&service(7, true, &newest.to_string()), met).await;
    let span = span.expect("it's sampled");
    assert_eq!((span.trace, span.parent), (newest.trace_id(), hex(newest)));
    assert_eq!(span.links, [hex(first), hex(newest)]);
    assert_eq!(span.attributes["driftless.causes"], "2");
    assert_eq!((written.trace, hex(written)), (newest.trace, span.id), "what follows is under it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_unsampled_write_caused_is_written_unsampled_and_what_nobody_caused_begins_a_trace() {
    let traced = Traced::start();
    let unsampled = Context::random(false);
    let settled = service(5, true, &unsampled.to_string());
    let (written, span) = traced.look(&settled, cause(&[(5, unsampled)])).await;
    assert!(!written.sampled && span.is_none());
    let (written, span) = traced.look(&settled, None).await;
    let span = span.expect("all are sampled");
    assert_eq!((span.parent.as_str(), span.trace), ("", written.trace_id()));
    let declared = Context::parse(DECLARED).unwrap();
    assert_eq!(span.links, [hex(declared)], "with a link to what was declared");
    // Of what isn't so yet the declaration's own word holds.
    let (written, span) = traced.look(&service(5, false, &unsampled.to_string()), None).await;
    assert!(!written.sampled && span.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sampled_declaration_is_followed_until_it_is_true_whatever_else_wakes_its_key() {
    let traced = Traced::start();
    let own = Context::random(true);
    for cause in [None, Some(Cause::Unsampled)] {
        let (written, span) = traced.look(&service(5, false, &own.to_string()), cause).await;
        assert_eq!(span.expect("it's sampled").parent, hex(own));
        assert_eq!(written.trace, own.trace);
    }
    let (written, span) = traced.look(&service(5, true, &own.to_string()), Some(Cause::Unsampled)).await;
    assert!(!written.sampled && span.is_none(), "once it's true it's over");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_receiver_the_contexts_of_others_are_handed_on() {
    let declared = Context::parse(DECLARED).unwrap();
    let (first, newest) = (Context::random(true), Context::random(true));
    let met = cause(&[(7, newest), (5, first)]);
    assert_eq!(off(&service(7, true, &newest.to_string()), met).await, newest);
    for cause in [None, Some(Cause::Unsampled)] {
        assert_eq!(off(&service(5, false, &first.to_string()), cause).await, first, "until it's true");
    }
    let unsampled = Context::random(false);
    let settled = service(5, true, &unsampled.to_string());
    assert_eq!(off(&settled, cause(&[(5, unsampled)])).await, declared);
    assert_eq!(off(&settled, None).await, declared, "whoever can't tell of a trace begins none");
}
