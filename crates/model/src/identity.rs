//! Who acts, on behalf of which claim, and on which fields.

use std::fmt;

use api::v1;
use xxhash_rust::xxh3::xxh3_64;

use crate::Epoch;

/// The claim that leader election is.
pub const LEADER: &str = "leader";

/// The claim of one shard.
pub fn shard_claim(shard: u32) -> String {
    format!("shard-{shard}")
}

/// The shard a claim stands for; none for `leader`.
pub fn shard_of_claim(claim: &str) -> Option<u32> {
    claim.strip_prefix("shard-")?.parse().ok()
}

/// Which shard looks after everything below a root owner.
pub fn shard_of(root_uid: &str, shards: u32) -> u32 {
    u32::try_from(xxh3_64(root_uid.as_bytes()) % u64::from(shards.max(1))).expect("less than a u32")
}

/// Whose fields a write may touch. Each field group belongs to exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// A declaration, or a request by hand.
    User,
    /// The owner of the resource's shard.
    Shard,
    /// The owner of the claim `leader`.
    Leader,
    /// The agent of the node that the resource is bound to.
    Agent,
}

/// The caller, as commits record it: `user/root@host`, `controller/a`, `agent/n1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor(String);

impl Actor {
    pub const ROLES: [&str; 4] = ["user", "controller", "agent", "server"];

    pub fn new(role: &str, name: &str) -> Self {
        Self(format!("{role}/{name}"))
    }

    pub fn anonymous() -> Self {
        Self::new("user", "anonymous")
    }

    /// Reads `<role>/<name>`; none where the role is not one of ours, or the name is not printable ASCII.
    pub fn parse(text: &str) -> Option<Self> {
        let (role, name) = text.split_once('/')?;
        let printable = name.bytes().all(|b| b.is_ascii_graphic());
        (Self::ROLES.contains(&role) && printable && (1..=253).contains(&name.len())).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn role(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a write acts under, compared inside the store's transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// A controller's: the claim is still owned by this session at this epoch.
    Claim { claim: String, epoch: Epoch, session: String },
    /// An agent's: the session exists, and its stream is still the one with this attach number.
    Session { session: String, attach: u64 },
}

impl From<&v1::Fence> for Fence {
    fn from(fence: &v1::Fence) -> Self {
        if fence.claim.is_empty() {
            return Self::Session { session: fence.session.clone(), attach: fence.attach };
        }
        Self::Claim { claim: fence.claim.clone(), epoch: Epoch(fence.epoch), session: fence.session.clone() }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { claim, epoch, .. } => write!(f, "{claim}@{epoch}"),
            Self::Session { session, attach } => write!(f, "session {session}#{attach}"),
        }
    }
}
