//! The store, at the level of resources: one trait, behind which everything that keeps state looks the same.
//!
//! Backends implement it (`Memory` is the reference, `Embedded` is durable, `store-etcd` is shared); the server is a
//! store that admits; the gRPC client in `wire` is a remote store; `Faulty` is a store that misbehaves. So controllers
//! and agents run the same code in `dev`, in production and in the simulator.
//!
//! `conformance` is what a backend must pass to be one, as tests that other crates run too (feature `conformance`).

mod api_trait;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod embedded;
mod error;
pub mod faulty;
mod local;
mod memory;
mod prepared;
mod state;
mod types;

pub use api_trait::{Api, Caller, LogPiece, LogSource, LogStream};
pub use embedded::{Embedded, OpenError};
pub use error::{Class, Error, Result};
pub use faulty::{Faults, Faulty};
pub use memory::Memory;
pub use prepared::{Known, Prepared, PreparedWrite};
pub use types::*;
