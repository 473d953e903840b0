//! A store that admits: it wraps a backend, decides what may be written and by whom, and serves reads and watches from a
//! cache that it keeps by one watch of the backend. Stateless but for that cache: run as many as you like.
//!
//! ```text
//!            feed ──> cache + ring ──> watch (one for each reader), reads
//! backend ──┤                ^
//!            heads: is the cache as new as the store?   ──> readiness
//!            members: who is alive, who owns what
//!
//! commit, apply, byhand, nodes, report: read the cache, ask `admit` (pure), and commit; the backend compares.
//! ```
//!
//! It never decides what should happen: that is `kinds`, which controllers run. It never answers from a cache that it
//! can't confirm, and never writes what the writer's domain has no right to.

mod admit;
mod apply;
mod audit;
mod byhand;
mod cache;
mod commit;
mod confirm;
mod convergence;
mod counters;
mod explain;
mod feed;
mod folds;
mod founding;
mod heads;
mod history;
mod members;
mod metrics;
mod nodes;
mod pins;
mod plan;
mod reads;
mod record;
mod refused;
mod report;
mod retention;
mod ring;
mod scan;
mod seen;
mod server;
mod shared;
mod stamps;
mod tally;
mod timed;
mod trace;
mod unfenced;
mod watch;
mod witness;
mod world;

pub use admit::name_violation;
pub use counters::{Counter, Counters};
pub use metrics::FAMILIES;
pub use retention::Retention;
pub use server::{Config, Server};
pub use shared::Readiness;
pub use stamps::{Stamps, SystemStamps};

#[cfg(test)]
mod tests;
