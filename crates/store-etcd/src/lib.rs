//! The store on a real etcd, 3.4 or newer: shared by any number of servers.
//!
//! Safety rests on one thing: every write is an etcd transaction that compares all that the writer relied on. What etcd
//! is known to get wrong (watches that lose, repeat or reorder, keep-alives and reads that lie) costs time here, never
//! more. Nothing in this crate may trust a watch, a keep-alive or a read with anything but "look again".
//!
//! Open first: `layout` (what is where), `commit` (the transaction), `watch` (how events become commits again).

mod admin;
mod backend;
mod claim;
mod commit;
mod coordination;
mod counters;
mod failure;
mod history;
mod layout;
mod lease;
mod metrics;
mod options;
mod parts;
mod pause;
mod pool;
mod probe;
mod read;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
mod trim;
mod uids;
mod upkeep;
mod watch;

pub use admin::{MemberStatus, Status, VERSION_MIN, warnings};
pub use backend::EtcdStore;
pub use counters::Counts;
pub use failure::NO_SPACE;
pub use metrics::FAMILIES;
pub use options::{DEADLINE_DEFAULT, Options, OptionsError, PREFIX_DEFAULT, QUOTA_DEFAULT, Tls, User};
pub use upkeep::{FULL_PERCENT, TIGHT_PERCENT, Upkeep};

use counters::Counters;
use failure::Failure;
