//! Helpers for the black-box tests: a real cluster of real processes, driven through the built binary.
//!
//! Nothing here sleeps to let something happen: what is waited for is watched, with a deadline.

pub mod cluster;
pub mod command;
pub mod disk;
pub mod history;
pub mod http;
pub mod network;
pub mod part;
pub mod port;
pub mod processes;
pub mod python;
pub mod root;
pub mod scratch;
pub mod skip;
pub mod stranger;
pub mod stream;
pub mod tree;
pub mod watched;

pub use cluster::Cluster;
pub use command::{Done, driftless};
pub use stream::Lines;
