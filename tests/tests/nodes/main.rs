//! What must be seen of a cluster of several nodes, each role a process of its own, through the built binary alone.

mod disruption;
mod full_disk;
mod hollow;
mod hostile;
mod killed;
mod logs;
mod lost;
mod machine;
mod offer;
mod other_store;
mod outage;
mod partition;
mod steps;
mod strangers;
mod together;
mod unwell;
mod watched;
