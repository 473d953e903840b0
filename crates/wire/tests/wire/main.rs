//! The wire over real loopback sockets, in front of a store in memory.

extern crate driftless_wire as wire;

mod abuse;
mod agents;
mod conformance;
mod double;
mod drain;
mod failover;
mod round_trips;
mod sessions;
mod setup;
mod standard;
mod tls;
mod watching;
