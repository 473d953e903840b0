//! Faults of a real etcd and of the way to it: members that die or stop, watches that lie, disks that fill up.

mod compaction;
mod leases;
mod lies;
mod members;
mod promises;
mod proxy;
mod restored;
mod space;
mod support;
mod tls;
mod upkeep;
mod users;
