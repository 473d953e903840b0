//! The messages of `proto/driftless/v1`, their descriptors, and the JSON and YAML that people write.
//!
//! Nothing here knows gRPC: services and clients are generated in `wire`.

use std::sync::OnceLock;

use prost_reflect::DescriptorPool;

mod brief;
mod duration;
pub mod manifest;

pub use brief::brief;
pub use duration::{DURATION, duration};

/// Generated from `proto/driftless/v1`.
#[allow(clippy::all, reason = "generated code")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/driftless.v1.rs"));
}

/// Every proto of this package and of what it imports, encoded as a `FileDescriptorSet`.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor_set.bin"));

/// The descriptors of everything in `v1`, decoded once.
pub fn descriptors() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTOR_SET).expect("the build script made the set"))
}
