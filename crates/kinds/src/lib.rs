//! The brain: what each kind is, and what should be done next about it. Pure: no await, clock, randomness or log.
//!
//! The loop that runs all this (`controller/src/worker.rs`) is four lines long in principle:
//!
//! ```text
//! let view = cache.view(now);                      // observe
//! match reconciler.plan(&view, &key).next {        // decide: this crate
//!     Do(step, why) => execute(step, why).await,   // one fenced transaction, then look again
//!     Settled(_) | Wait(..) | Blocked(_) => ...    // nothing until a change, a time, or the next sweep
//! }
//! ```
//!
//! An event never says what changed, only where to look (`Reconciler::wakes`). A plan sees the whole view and takes one
//! step towards what should exist; it is asked again after each step, after each change, and at every sweep.
//!
//! A kind is one folder here and one line in `KINDS`; server, runtime and CLI iterate the list and never match on
//! kinds. Read `service/plan.rs` first.

pub mod config;
pub mod instance;
pub mod moves;
pub mod node;
pub mod placement;
mod registry;
pub mod release;
pub mod service;
pub mod simulation;
#[cfg(test)]
mod testing;
mod text;
mod view;

pub use registry::{Column, Info, Kind, Reconciler, Rights, Scope, Shared, Template, any, typed};
pub use text::{count, cpu_millis, held_by, memory_bytes, some_of};
pub use view::{Item, Lookup, View, World};

/// Encoded bytes of one spec; also of the template that instances are made from, with the values of its Configs. A step
/// writes at least a service (its spec, and in its status the template to go back to) and one instance: three such texts,
/// annotations of 64 KiB and some words, each a second time in the history, in a transaction of 1 MiB.
pub const SPEC_BYTES_MAX: usize = 120 * 1024;

/// Every kind there is.
pub static KINDS: &[&dyn Kind] = &[
    &service::ServiceKind,
    &instance::InstanceKind,
    &node::NodeKind,
    &config::ConfigKind,
    &placement::PlacementKind,
    &release::ReleaseKind,
];

/// Everything that reconciles.
pub static RECONCILERS: &[&dyn Reconciler] =
    &[&service::Services, &node::Nodes, &placement::Placements, &release::Releases];

/// The kind of exactly that name ("Service").
pub fn kind(name: &str) -> Option<&'static dyn Kind> {
    KINDS.iter().copied().find(|k| k.info().kind == name)
}

/// The kind that a person means: "service", "services", "svc", "Service".
pub fn kind_for(word: &str) -> Option<&'static dyn Kind> {
    let word = word.to_ascii_lowercase();
    KINDS.iter().copied().find(|k| {
        let info = k.info();
        info.kind.to_ascii_lowercase() == word || info.plural == word || info.short.contains(&word.as_str())
    })
}
