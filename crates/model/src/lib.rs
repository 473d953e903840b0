//! The nouns of Driftless: what every other crate names things by.
//!
//! Values only. Nothing here awaits, reads a clock, or draws a random number, and nothing depends on a kind.

mod condition;
mod digest;
pub mod fields;
mod filter;
mod identity;
mod key;
mod numbers;
mod object;
mod step;
mod time;
mod violation;

pub use condition::{Conditions, condition, with_conditions};
pub use digest::Digest;
pub use filter::{Facts, Filter, FilterError, Labels, Requirements};
pub use identity::{Actor, Domain, Fence, LEADER, shard_claim, shard_of, shard_of_claim};
pub use key::Key;
pub use numbers::{Epoch, Generation, Revision};
pub use object::Object;
pub use step::{Decision, Draft, Move, Next, Step, Until, Why};
pub use time::Time;
pub use violation::Violation;

#[cfg(test)]
mod tests;
