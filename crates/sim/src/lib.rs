//! A whole cluster in one process: any backend below a real server, real controllers, real agents with the `sim` driver.
//! No gRPC, no processes; with a paused clock time costs nothing, so hours of sweeps and backoffs run in milliseconds.
//!
//! What is killed here is dropped in the middle of whatever it did, which is what SIGKILL is to the others. Faults go
//! between the parts: a `store::Faulty` around what a controller is given.

mod cluster;
mod stamps;

pub use cluster::{Cluster, Role, service, until_settled};
pub use stamps::TurnedStamps;
