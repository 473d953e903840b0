//! Whatever its receiver does, whoever makes spans goes on at once, memory is bounded, and each span is counted once.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use driftless_telemetry::{
    metrics::Exporter,
    testing::{Mood, Receiver},
    trace::{Config, Context, Counts, Tls, Tracer, names},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::net::TcpSocket;

/// More than the queue and a batch under way hold.
const MANY: u64 = 20_000;
/// What may wait at most: the queue, and a batch on its way.
const WAITING_MAX: u64 = 8_192 + 512;

fn tracer(endpoint: String) -> Tracer {
    Tracer::start(&config(&endpoint)).unwrap()
}

fn config(endpoint: &str) -> Config {
    Config::new(endpoint.parse().unwrap(), "test", "t1")
}

fn make(tracer: &Tracer, count: u64) {
    let root = Context::random(true).to_string();
    (0..count).for_each(|_| drop(tracer.child(&root, &names::ADMISSION).expect("it's sampled")));
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_span_arrives_as_it_was_made() {
    let receiver = Receiver::start();
    let tracer = tracer(receiver.endpoint()).part("driftless.server");
    let (root, other) = (Context::random(true), Context::random(true));
    let mut span = tracer.child(&root.to_string(), &names::STORE_COMMIT).unwrap();
    span.set(names::VERB, "apply");
    span.set(names::WRITES, 3_i64);
    span.link(other);
    span.fail("as the test wants it");
    let own = span.context();
    drop(span);
    tracer.flush(Duration::from_secs(30)).await;
    let spans = receiver.trace(&root.trace_id());
    let [span] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!(
        (span.service.as_str(), span.instance.as_str(), span.scope.as_str()),
        ("test", "t1", "driftless.server")
    );
    assert_eq!((span.name.as_str(), span.kind.as_str()), ("store.commit", "internal"));
    assert_eq!((span.id.clone(), span.parent.clone()), (format!("{:016x}", own.span), format!("{:016x}", root.span)));
    assert_eq!(span.links, [format!("{:016x}", other.span)]);
    assert_eq!((span.attribute("driftless.verb"), span.attribute("driftless.writes")), ("apply", "3"));
    assert!(span.failed && span.start <= span.end);
    assert_eq!(tracer.counts(), Counts { exported: 1, dropped: 0, failed: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_hangs_costs_a_bounded_queue_and_a_counter() {
    let receiver = Receiver::start();
    receiver.set(Mood::Hangs);
    let tracer = tracer(receiver.endpoint());
    make(&tracer, MANY);
    let dropped = tracer.counts().dropped;
    assert!(dropped >= MANY - WAITING_MAX, "{dropped} of {MANY} dropped: more than {WAITING_MAX} wait");
    assert!(dropped < MANY, "the queue has room for some");
    // It takes them again: nothing is lost but what was counted.
    receiver.set(Mood::Takes);
    until("what waited is exported or given up", || {
        let counts = tracer.counts();
        counts.exported + counts.failed + counts.dropped == MANY
    })
    .await;
    assert_eq!(receiver.spans().len() as u64, tracer.counts().exported);
    assert!(tracer.counts().exported > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_fails_costs_a_counter() {
    let receiver = Receiver::start();
    receiver.set(Mood::Fails);
    let tracer = tracer(receiver.endpoint());
    make(&tracer, 1_000);
    until("all are given up", || tracer.counts().failed == 1_000).await;
    receiver.set(Mood::Takes);
    make(&tracer, 10);
    tracer.flush(Duration::from_secs(30)).await;
    assert_eq!(tracer.counts(), Counts { exported: 10, dropped: 0, failed: 1_000 });
}

/// Where nobody listens until a receiver is started there. As long as the socket is held, nobody else is given the port.
fn away() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    // As the receiver's own: two of them may have the port where one at most listens.
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_gone_costs_a_counter_until_it_is_back() {
    let (_held, address) = away();
    let tracer = tracer(format!("http://{address}"));
    make(&tracer, 100);
    until("all are given up", || tracer.counts().failed == 100).await;
    let receiver = Receiver::start_at(address);
    make(&tracer, 10);
    tracer.flush(Duration::from_secs(30)).await;
    assert_eq!(tracer.counts().exported, 10);
    assert_eq!(receiver.spans().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_ends_in_time_whatever_the_receiver_does() {
    let receiver = Receiver::start();
    receiver.set(Mood::Hangs);
    let tracer = tracer(receiver.endpoint());
    make(&tracer, 1);
    let began = Instant::now();
    tracer.flush(Duration::from_millis(50)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "it waits for its own limit, not for the receiver's");
    receiver.set(Mood::Takes);
}

/// The page's lines about spans.
fn shown(tracer: &Tracer) -> Vec<String> {
    let exporter = Exporter::new("test", "0", &[]);
    exporter.add(Arc::new(tracer.clone()));
    let page = exporter.page(false).unwrap();
    page.lines().filter(|line| line.starts_with("driftless_trace_")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_spans_is_on_the_page_of_metrics() {
    let row = |outcome: &str, count: u64| format!("driftless_trace_spans_total{{outcome=\"{outcome}\"}} {count}.0");
    let rows = |exported, dropped, failed| [row("exported", exported), row("dropped", dropped), row("failed", failed)];
    assert_eq!(shown(&Tracer::off()), rows(0, 0, 0), "whoever makes none says so");
    let receiver = Receiver::start();
    let tracer = tracer(receiver.endpoint());
    make(&tracer.part("driftless.server"), 2);
    tracer.flush(Duration::from_secs(30)).await;
    assert_eq!(shown(&tracer), rows(2, 0, 0), "of all parts together");
    receiver.set(Mood::Fails);
    make(&tracer, 3);
    tracer.flush(Duration::from_secs(30)).await;
    assert_eq!(shown(&tracer), rows(2, 0, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_wait_as_it_was_told_and_the_page_says_what_was_dropped() {
    let receiver = Receiver::start();
    receiver.set(Mood::Hangs);
    let tracer = Tracer::start(&Config { queue: 10, ..config(&receiver.endpoint()) }).unwrap();
    make(&tracer, 2_000);
    let dropped = tracer.counts().dropped;
    // Some may have been taken out of the queue meanwhile, one batch at most.
    assert!((2_000 - 10 - 512..=2_000 - 10).contains(&dropped), "{dropped}");
    let row = format!("driftless_trace_spans_total{{outcome=\"dropped\"}} {dropped}.0");
    assert!(shown(&tracer).contains(&row), "{:?}", shown(&tracer));
    receiver.set(Mood::Takes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_is_called_what_it_was_told() {
    let receiver = Receiver::start();
    let attributes = [("deployment.environment.name", "test"), ("service.instance.id", "another")];
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let tracer = Tracer::start(&Config { attributes, ..config(&receiver.endpoint()) }).unwrap();
    make(&tracer, 1);
    tracer.flush(Duration::from_secs(30)).await;
    let span = receiver.spans().remove(0);
    assert_eq!((span.service.as_str(), span.instance.as_str()), ("test", "another"));
    assert_eq!(span.resource["deployment.environment.name"], "test");
    assert_eq!(span.resource["service.namespace"], "driftless");
}

/// A certificate authority, and certificate and key that it gave 127.0.0.1.
fn authority() -> (Vec<u8>, String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem().into_bytes();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    (ca, certificate.pem(), key.serialize_pem())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_by_https_proves_itself_or_gets_nothing() {
    let (ca, certificate, key) = authority();
    let receiver = Receiver::start_tls(&certificate, &key);
    let to = |ca: Vec<u8>| {
        let endpoint = format!("https://{}", receiver.address());
        Tracer::start(&Config { tls: Some(Tls { ca, identity: None }), ..config(&endpoint) }).unwrap()
    };
    let (trusting, doubting) = (to(ca), to(authority().0));
    make(&trusting, 3);
    make(&doubting, 5);
    trusting.flush(Duration::from_secs(30)).await;
    assert_eq!(trusting.counts(), Counts { exported: 3, dropped: 0, failed: 0 });
    until("the others are given up", || doubting.counts() == Counts { exported: 0, dropped: 0, failed: 5 }).await;
    assert_eq!(receiver.spans().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_who_sends_is_shown_a_certificate() {
    let (ca, certificate, key) = authority();
    let (_, strange_certificate, strange_key) = authority();
    let receiver = Receiver::start_tls_for(&certificate, &key, &ca);
    let with = |identity: Option<(&str, &str)>| {
        let endpoint = format!("https://{}", receiver.address());
        let identity = identity.map(|(certificate, key)| (certificate.into(), key.into()));
        Tracer::start(&Config { tls: Some(Tls { ca: ca.clone(), identity }), ..config(&endpoint) }).unwrap()
    };
    let known = with(Some((&certificate, &key)));
    let (silent, stranger) = (with(None), with(Some((&strange_certificate, &strange_key))));
    make(&known, 3);
    make(&silent, 5);
    make(&stranger, 7);
    known.flush(Duration::from_secs(30)).await;
    assert_eq!(known.counts(), Counts { exported: 3, dropped: 0, failed: 0 });
    until("the others are given up", || (silent.counts().failed, stranger.counts().failed) == (5, 7)).await;
    assert_eq!(receiver.spans().len(), 3);
}
