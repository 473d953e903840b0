//! The store, at the level of resources: one trait, behind which everything that keeps state looks the same.
//!
//! Backends implement it (`memory` is the reference, `embedded` is durable, `store-etcd` is shared); the server is a
//! store that admits; the gRPC client in `wire` is a remote store; `faulty` is a store that misbehaves. So controllers
//! and agents run the same code in `dev`, in production and in the simulator.
//!
//! `conformance` is what a backend must pass to be one.

mod api_trait;
mod error;
mod types;

pub use api_trait::{Api, Caller, LogSource, LogStream};
pub use error::{Class, Error, Result};
pub use types::*;
