//! What is set aside on a node, and how much of it there is.

use api::v1;

use crate::instance::Instance;

/// Where an agent doesn't say how many it takes.
const INSTANCES_DEFAULT: i32 = 1_000;

/// What a node's instances asked for, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    pub instances: i32,
}

impl Reserved {
    pub fn of<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> Self {
        let mut reserved = Self::default();
        instances.into_iter().for_each(|instance| reserved.add(instance));
        reserved
    }

    /// What is finished needs nothing any more.
    pub fn add(&mut self, instance: &Instance) {
        if instance.is_finished() {
            return;
        }
        self.cpu_millis = self.cpu_millis.saturating_add(signed(instance.cpu_millis));
        self.memory_bytes = self.memory_bytes.saturating_add(signed(instance.memory_bytes));
        self.instances = self.instances.saturating_add(1);
    }
}

/// How many instances a node takes at most.
pub fn most(capacity: &v1::Capacity) -> i32 {
    if capacity.instances > 0 { capacity.instances } else { INSTANCES_DEFAULT }
}

pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
