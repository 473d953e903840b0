//! What a server stamps resources with: its clock's time and fresh uids. Simulations bring their own.

use std::time::{SystemTime, UNIX_EPOCH};

use model::Time;

pub trait Stamps: Send + Sync + 'static {
    fn now(&self) -> Time;

    /// Never the same twice, in any server.
    fn uid(&self) -> String;
}

/// The machine's clock, and uuids of version 7.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemStamps;

impl Stamps for SystemStamps {
    fn now(&self) -> Time {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::default().plus(elapsed)
    }

    fn uid(&self) -> String {
        uuid::Uuid::now_v7().to_string()
    }
}
