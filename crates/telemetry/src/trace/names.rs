//! Every span and every attribute that there is. An interface: docs/TELEMETRY.md has the same table, and a test compares.

use opentelemetry::trace::SpanKind;

/// A span that somebody makes.
#[derive(Debug)]
pub struct Name {
    pub name: &'static str,
    pub kind: SpanKind,
    /// Which parts make it.
    pub by: &'static str,
    /// The span that it's under.
    pub under: &'static str,
    pub attributes: &'static [Attribute],
}

/// Its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute(pub &'static str);

// OpenTelemetry's own conventions, for RPC, messaging and databases.
pub const RPC_SYSTEM: Attribute = Attribute("rpc.system.name");
pub const RPC_METHOD: Attribute = Attribute("rpc.method");
pub const RPC_STATUS: Attribute = Attribute("rpc.response.status_code");
pub const MESSAGING_SYSTEM: Attribute = Attribute("messaging.system");
pub const MESSAGING_OPERATION: Attribute = Attribute("messaging.operation.name");
pub const MESSAGING_TYPE: Attribute = Attribute("messaging.operation.type");
pub const MESSAGING_DESTINATION: Attribute = Attribute("messaging.destination.name");
pub const MESSAGING_COUNT: Attribute = Attribute("messaging.batch.message_count");
pub const DB_SYSTEM: Attribute = Attribute("db.system.name");
pub const DB_OPERATION: Attribute = Attribute("db.operation.name");
pub const ERROR_TYPE: Attribute = Attribute("error.type");

// Ours.
pub const KIND: Attribute = Attribute("driftless.kind");
pub const KEY: Attribute = Attribute("driftless.key");
pub const SHARD: Attribute = Attribute("driftless.shard");
pub const CLAIM: Attribute = Attribute("driftless.claim");
pub const EPOCH: Attribute = Attribute("driftless.epoch");
pub const WHY: Attribute = Attribute("driftless.why");
pub const OUTCOME: Attribute = Attribute("driftless.outcome");
pub const VERB: Attribute = Attribute("driftless.verb");
pub const WRITES: Attribute = Attribute("driftless.writes");
pub const CAUSES: Attribute = Attribute("driftless.causes");
pub const REVISION: Attribute = Attribute("driftless.revision");
pub const ACTOR: Attribute = Attribute("driftless.actor");
pub const NODE: Attribute = Attribute("driftless.node");
pub const UID: Attribute = Attribute("driftless.uid");
pub const PID: Attribute = Attribute("process.pid");

pub static CLI: Name = Name {
    name: "driftless <verb>",
    kind: SpanKind::Internal,
    by: "CLI",
    under: "TRACEPARENT of the environment, or nothing",
    attributes: &[ACTOR],
};
pub static RPC_CLIENT: Name = Name {
    name: "driftless.v1.ResourceService/<method>",
    kind: SpanKind::Client,
    by: "CLI, controller, agent",
    under: "`driftless <verb>`; `reconcile`",
    attributes: &[RPC_SYSTEM, RPC_METHOD, RPC_STATUS, ERROR_TYPE, ACTOR],
};
pub static RPC_SERVER: Name = Name {
    name: "driftless.v1.ResourceService/<method>",
    kind: SpanKind::Server,
    by: "server",
    under: "the client's span of the same name, or nothing",
    attributes: &[RPC_SYSTEM, RPC_METHOD, RPC_STATUS, ERROR_TYPE, ACTOR],
};
pub static ADMISSION: Name = Name {
    name: "admission",
    kind: SpanKind::Internal,
    by: "server",
    under: "the server's span of the call; `status.report`",
    attributes: &[WRITES],
};
pub static STORE_COMMIT: Name = Name {
    name: "store.commit",
    kind: SpanKind::Internal,
    by: "server",
    under: "the server's span of the call; `placement`; `status.report`",
    attributes: &[DB_SYSTEM, DB_OPERATION, VERB, WRITES, REVISION, OUTCOME, ERROR_TYPE],
};
pub static WATCH_DELIVER: Name = Name {
    name: "watch.deliver",
    kind: SpanKind::Consumer,
    by: "controller, agent",
    under: "the `store.commit` that it tells of",
    attributes: &[
        MESSAGING_SYSTEM,
        MESSAGING_OPERATION,
        MESSAGING_TYPE,
        MESSAGING_DESTINATION,
        MESSAGING_COUNT,
        REVISION,
        NODE,
    ],
};
pub static QUEUE_WAIT: Name = Name {
    name: "queue.wait",
    kind: SpanKind::Internal,
    by: "controller",
    under: "the `store.commit` that woke the key",
    attributes: &[KIND, KEY],
};
pub static RECONCILE: Name = Name {
    name: "reconcile",
    kind: SpanKind::Consumer,
    by: "controller",
    under: "the newest `store.commit` that woke the key (links to all); nothing where a sweep found it",
    attributes: &[
        MESSAGING_SYSTEM,
        MESSAGING_OPERATION,
        MESSAGING_TYPE,
        KIND,
        KEY,
        SHARD,
        CLAIM,
        EPOCH,
        VERB,
        WHY,
        OUTCOME,
        WRITES,
        CAUSES,
        REVISION,
    ],
};
pub static PLACEMENT: Name = Name {
    name: "placement",
    kind: SpanKind::Internal,
    by: "controller",
    under: "`reconcile`; for instances of another trace their last `store.commit` (with a link to `reconcile`)",
    attributes: &[WRITES, CLAIM, EPOCH, WHY],
};
pub static PROCESS_START: Name = Name {
    name: "process.start",
    kind: SpanKind::Internal,
    by: "agent",
    under: "the `store.commit` that assigned the instance",
    attributes: &[KEY, UID, NODE, PID],
};
pub static FIRST_HEALTHY: Name = Name {
    name: "health.first",
    kind: SpanKind::Internal,
    by: "agent",
    under: "`process.start`",
    attributes: &[KEY, UID, NODE],
};
pub static STATUS_REPORT: Name = Name {
    name: "status.report",
    kind: SpanKind::Producer,
    by: "agent",
    under: "`health.first` or `process.start` of the newest instance told of (links to the others)",
    attributes: &[MESSAGING_SYSTEM, MESSAGING_OPERATION, MESSAGING_TYPE, MESSAGING_DESTINATION, MESSAGING_COUNT, NODE],
};

pub static ALL: &[&Name] = &[
    &CLI,
    &RPC_CLIENT,
    &RPC_SERVER,
    &ADMISSION,
    &STORE_COMMIT,
    &WATCH_DELIVER,
    &QUEUE_WAIT,
    &RECONCILE,
    &PLACEMENT,
    &PROCESS_START,
    &FIRST_HEALTHY,
    &STATUS_REPORT,
];
