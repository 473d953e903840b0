//! The distributed cluster, as processes: etcd, several servers, controller replicas and agents that are killed, paused,
//! restarted and cut off, while what they write and tell is recorded and then held against etcd's own log.
//!
//! What is waited for is watched; times are measured between events. The bounds that are asserted hold on an idle
//! machine with room to spare; each test prints what it measured.

mod clients;
mod etcd_log;
mod going;
mod herd;
mod killed;
mod lies;
mod other_store;
mod partition;
mod paused;
mod recorder;
mod rolling;
mod shares;
mod skew;
mod stalled;
mod state;
mod tail;
mod watchers;
mod world;
