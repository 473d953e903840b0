//! What must be seen of a cluster of several nodes, each role a process of its own, through the built binary alone.

mod disruption;
mod hostile;
mod killed;
mod full_disk;
mod lost;
mod machine;
mod outage;
mod partition;
mod strangers;
mod together;
mod watched;
