//! The agent: the loop against the kernel. It observes what really runs on its node, compares that with the instances
//! assigned there, takes one step at a time for each, and reports.
//!
//! ```text
//! watch (feed) --> assigned --+
//!                             +--> plan (pure) --> one action --> driver --> supervisor --> process
//! driver, health ---> slot ---+                                     |
//!        ^                    +--> status (pure) --> outbox --> Api::report
//!        +----------------------------------------------------------+
//! ```
//!
//! It talks to nothing but a `store::Api`. Everything that it must not forget is kept by its driver, so it may be killed
//! at any point: what runs keeps running, and the next agent finds it. It must never stop an instance for another reason
//! than those in `plan::Want`.
//!
//! Read `plan.rs` first, then `worker.rs`.

mod agent;
pub mod assigned;
mod clock;
mod config;
mod crowd;
pub mod driver;
mod feed;
mod health;
mod limits;
mod metrics;
mod node;
mod outbox;
mod plan;
mod redial;
mod session;
mod slot;
mod status;
pub mod template;
mod trace;
mod worker;

#[cfg(test)]
mod tests;

pub use agent::Agent;
pub use clock::{Clock, Moment};
pub use config::{Config, Together};
pub use crowd::Crowd;
pub use metrics::{FAMILIES, Metrics};
pub use plan::Backoff;
