//! The only crate that speaks gRPC: any `store::Api` as a service, and the client that is such an Api again.
//!
//! ```text
//! controller, agent, CLI -> Remote (an Api) == HTTP/2 ==> serve (over any Api) -> server -> store
//! ```
//!
//! - `serve` answers on a listener: the three services, health, reflection; drains in bounded time.
//! - `Remote` is the client, over one or several servers: fails over, and retries only what is safe.
//! - `error` maps `store::Error` to a rich status and back, without loss.
//! - `payload` and `codec`: stored resources travel as the bytes that the store keeps. Nothing here decodes a resource
//!   only to encode it again, so fields that this version doesn't know survive.
//!
//! Nothing here decides: no admission, no cache, no retry of anything that may have been done. The one decision, when a
//! broken session stream means a dead process, is `serve::early_end`.

mod codec;
mod convert;
pub mod error;
mod identity;
pub mod payload;
pub mod remote;

pub mod serve;
mod trace;

pub use remote::{Options, Remote};
pub use serve::{Config, serve};

/// Generated from `proto/driftless/v1`: what `serve` implements and `Remote` calls.
#[allow(clippy::all, reason = "generated code")]
pub mod rpc {
    include!(concat!(env!("OUT_DIR"), "/driftless.v1.ResourceService.rs"));
    include!(concat!(env!("OUT_DIR"), "/driftless.v1.CoordinationService.rs"));
    include!(concat!(env!("OUT_DIR"), "/driftless.v1.AgentService.rs"));
}

/// Bytes of one request that a server accepts: four times what fits into a transaction.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of one answer that a client accepts. A slow watcher's backlog comes as one message, so this bounds how many
/// changed resources (at 500 bytes, some 130,000) a watch can catch up with.
pub const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of resources in one page of a list, or in one part of a snapshot: clients in other languages accept 4 MiB.
pub const PART_BYTES_MAX: usize = 2 * 1024 * 1024;
