//! Which instances are lost: their node has been silent for too long, or is gone. Derived at each look, never stored.
//!
//! Silence counts from when the leader noted that no session of the node's agent was left. A node counts the time to the
//! end of what must not run without a server (`on_disconnect.stop_after`) from when it asked for the last renewal of its
//! session that a server granted, which is always earlier. So what was silent for `GoneWithin` has ended, and only then may
//! it be called lost: nothing here may ever shorten that.

use std::{fmt, time::Duration};

use api::v1;
use model::{Key, Time};

use crate::{
    Item, Lookup, View,
    instance::{GONE_MARGIN, GoneWithin, Instance},
    node::{self, Node, UNKNOWN_AFTER},
    placement,
};

/// How it stands with an instance, by its node.
pub enum Standing {
    /// Its node has a session, or it has no node yet.
    Heard,
    /// Lost from then on; while the brake holds, never.
    Silent {
        unknown: bool,
        lost_at: Option<Time>,
    },
    /// Its Node was deleted, though it ends by itself there: to be asked to go.
    Orphaned,
    Lost,
}

/// For how long a node must be silent until what runs there is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Declared(Duration),
    /// More was declared for its end than for its loss.
    Ends(GoneWithin),
    /// Less was declared than it takes to call the node Unknown.
    Unknown,
}

impl Patience {
    pub fn of(lost_after: Duration, gone_within: Option<GoneWithin>) -> Self {
        let least = lost_after.max(UNKNOWN_AFTER);
        match gone_within {
            Some(gone) if gone.time() > least => Self::Ends(gone),
            _ if lost_after < UNKNOWN_AFTER => Self::Unknown,
            _ => Self::Declared(lost_after),
        }
    }

    pub fn time(self) -> Duration {
        match self {
            Self::Declared(time) => time,
            Self::Ends(gone) => gone.time(),
            Self::Unknown => UNKNOWN_AFTER,
        }
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of silence", self.time())?;
        match self {
            Self::Declared(_) => write!(f, " (lost_after)"),
            Self::Ends(GoneWithin { stop_after, stop_grace }) => write!(
                f,
                " (until it has surely ended there: stop_after {stop_after:?}, stop_grace {stop_grace:?}, and \
                 {GONE_MARGIN:?} to be sure)"
            ),
            Self::Unknown => write!(f, " (a node is called Unknown then, and nothing is lost before)"),
        }
    }
}

/// More than half of the nodes are silent at once: that is more likely our own blindness than their death, so nothing is
/// given up. `Placement` raises the alarm.
pub fn brake(view: &View<'_>) -> bool {
    let (mut silent, mut all) = (0, 0);
    for (_, node) in view.all::<Node>(node::KIND) {
        all += 1;
        silent += usize::from(node.silent_since.is_some());
    }
    silent * 2 > all
}

pub struct Judge<'a> {
    view: &'a View<'a>,
    /// Since when nodes are judged by their silence; not at all while the brake holds.
    since: Option<Time>,
}

impl<'a> Judge<'a> {
    /// The brake holds until the leader has said that it's over, and silence counts from then on: those that aren't back yet
    /// get as long as a node that falls silent now.
    pub fn of(view: &'a View<'a>) -> Self {
        let record = view.world.get(&Key::new(placement::KIND, "", placement::NAME));
        let said = record.and_then(|item| item.body::<v1::PlacementStatus>());
        let reachable = said.and_then(|status| status.conditions.iter().find(|c| c.r#type == placement::REACHABLE));
        let since = match reachable {
            _ if brake(view) => None,
            Some(condition) if condition.status == "False" => None,
            Some(condition) => Some(condition.last_transition_time.as_ref().map(Time::from).unwrap_or_default()),
            None => Some(Time::default()),
        };
        Self { view, since }
    }

    pub fn brakes(&self) -> bool {
        self.since.is_none()
    }

    pub fn standing(&self, item: &Item, instance: &Instance, lost_after: Duration) -> Standing {
        // What is finished and known can't be lost with its node: it would run once more.
        if instance.node.is_empty() || (instance.is_finished() && !item.deleting()) {
            return Standing::Heard;
        }
        let node = self.view.world.get(&Key::new(node::KIND, "", &instance.node));
        let node = node.and_then(|item| Some((item.uid(), item.body::<Node>()?)));
        match node {
            Some((uid, node)) if [uid, ""].contains(&&*instance.node_uid) => {
                let patience = Patience::of(lost_after, instance.gone_within);
                node.silent_since.map_or(Standing::Heard, |since| self.silent(!node.ready, since, patience.time()))
            }
            other => self.on_none(item, instance, other.map(|(_, node)| node)),
        }
    }

    /// Its Node was deleted; another may have its name. What ends by itself is asked to go first: an agent that runs does
    /// it and says so, and of one that doesn't its end counts from then.
    fn on_none(&self, item: &Item, instance: &Instance, other: Option<&Node>) -> Standing {
        let asked = item.metadata().deletion_time.as_ref().map(Time::from);
        match (instance.gone_within, asked, other.map(|node| node.silent_since)) {
            (None, ..) => self.silent(true, Time::default(), Duration::ZERO),
            (Some(_), None, _) if self.brakes() => Standing::Silent { unknown: true, lost_at: None },
            (Some(_), None, _) => Standing::Orphaned,
            (Some(_), Some(_), Some(None)) => Standing::Heard,
            (Some(gone), Some(asked), since) => {
                self.silent(true, since.flatten().unwrap_or_default().max(asked), gone.time())
            }
        }
    }

    fn silent(&self, unknown: bool, since: Time, patience: Duration) -> Standing {
        let lost_at = self.since.map(|judged| since.max(self.view.live_since).max(judged).plus(patience));
        match lost_at {
            Some(at) if self.view.now >= at => Standing::Lost,
            lost_at => Standing::Silent { unknown, lost_at },
        }
    }
}
