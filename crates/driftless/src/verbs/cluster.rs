//! `driftless get shards|members|leader`: who looks after what.

use api::{manifest, v1};
use model::{LEADER, Time, shard_of_claim};
use serde_json::{Value, json};

use super::get::{self, Output};
use crate::{
    client::Client,
    output,
    vouched::{coordination, time_of},
    words,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Shards,
    Members,
    Leader,
}

/// What they are called, the usual name first.
pub const PARTS: [(Part, &[&str]); 3] = [
    (Part::Shards, &["shards", "shard"]),
    (Part::Members, &["members", "member"]),
    (Part::Leader, &["leader", "leaders"]),
];

impl Part {
    /// None where the words speak of resources.
    pub fn of(words: &[String]) -> Option<Self> {
        match words {
            [one] => Self::named(one).map(|(part, _)| part),
            _ => None,
        }
    }

    /// By any of its names, with the usual one.
    pub fn named(word: &str) -> Option<(Self, &'static str)> {
        let word = word.to_ascii_lowercase();
        PARTS.iter().find(|(_, names)| names.contains(&word.as_str())).map(|(part, names)| (*part, names[0]))
    }
}

pub async fn run(client: &Client, part: Part, output: Output) -> anyhow::Result<()> {
    let state = coordination(client).await?;
    let rows = match part {
        Part::Shards => shards(&state),
        Part::Members => members(&state),
        Part::Leader => leader(&state),
    };
    output::print(&rows.text(part, output))
}

/// The same facts for eyes and for programs.
struct Rows {
    titles: &'static [&'static str],
    cells: Vec<Vec<String>>,
    items: Vec<Value>,
}

impl Rows {
    fn text(&self, part: Part, output: Output) -> String {
        match output {
            Output::Table | Output::Wide => {
                let titles: Vec<String> = self.titles.iter().map(|title| (*title).to_owned()).collect();
                output::table(&titles, &self.cells)
            }
            Output::Json | Output::Yaml if part == Part::Leader => manifest::print(&self.items[0], get::format(output)),
            Output::Json | Output::Yaml => manifest::print(&json!({ "items": self.items }), get::format(output)),
            Output::Name => self.cells.iter().map(|row| format!("{}\n", row[0])).collect(),
        }
    }
}

fn shards(state: &v1::Coordination) -> Rows {
    let now = time_of(state);
    let claim = |shard: u32| {
        let found = state.claims.iter().find(|claim| shard_of_claim(&claim.name) == Some(shard));
        (shard, found.cloned().unwrap_or_default())
    };
    let claims: Vec<(u32, v1::Claim)> = (0..state.shards).map(claim).collect();
    let row = |(shard, claim): &(u32, v1::Claim)| {
        vec![
            shard.to_string(),
            owner(state, claim),
            claim.epoch.to_string(),
            words::age(claim.owned_since.as_ref(), now),
            claim.queue_depth.to_string(),
            ago(claim.last_sweep.as_ref(), now),
            ago(claim.unowned_since.as_ref(), now),
        ]
    };
    let item = |(shard, claim): &(u32, v1::Claim)| {
        json!({
            "shard": shard,
            "owner": owner(state, claim),
            "session": claim.owner,
            "epoch": claim.epoch,
            "age": seconds(claim.owned_since.as_ref(), now),
            "queueDepth": claim.queue_depth,
            "lastSweep": claim.last_sweep.as_ref().map(ToString::to_string),
            "unownedSince": claim.unowned_since.as_ref().map(ToString::to_string),
        })
    };
    Rows {
        titles: &["SHARD", "OWNER", "EPOCH", "AGE", "QUEUE", "LAST-SWEEP", "UNOWNED-SINCE"],
        cells: claims.iter().map(row).collect(),
        items: claims.iter().map(item).collect(),
    }
}

fn members(state: &v1::Coordination) -> Rows {
    let mut members: Vec<&v1::Member> = state.members.iter().collect();
    members.sort_by_key(|m| (&m.role, &m.name, &m.session));
    let owned = |member: &v1::Member| state.claims.iter().filter(|claim| claim.owner == member.session).count();
    let row = |member: &&v1::Member| {
        let state = if member.role == "controller" { standing(member).to_owned() } else { String::new() };
        let claims = if member.role == "controller" { owned(member).to_string() } else { String::new() };
        let (name, role, server) = (member.name.clone(), member.role.clone(), member.server.clone());
        vec![name, role, server, member.attach.to_string(), state, claims, member.session.clone()]
    };
    let item = |member: &&v1::Member| {
        let report = member.report.clone().unwrap_or_default();
        json!({
            "name": member.name,
            "role": member.role,
            "session": member.session,
            "server": member.server,
            "attach": member.attach,
            "ready": report.ready,
            "leaving": report.leaving,
            "claims": owned(member),
        })
    };
    Rows {
        titles: &["NAME", "ROLE", "SERVER", "ATTACH", "STATE", "CLAIMS", "SESSION"],
        cells: members.iter().map(row).collect(),
        items: members.iter().map(item).collect(),
    }
}

/// Of a controller.
fn standing(member: &v1::Member) -> &'static str {
    match &member.report {
        Some(report) if report.leaving => "Leaving",
        Some(report) if report.ready => "Ready",
        _ => "Joining",
    }
}

fn leader(state: &v1::Coordination) -> Rows {
    let now = time_of(state);
    let claim = state.claims.iter().find(|claim| claim.name == LEADER).cloned().unwrap_or_default();
    let owner = owner(state, &claim);
    let item = json!({
        "owner": owner,
        "session": claim.owner,
        "epoch": claim.epoch,
        "age": seconds(claim.owned_since.as_ref(), now),
        "unownedSince": claim.unowned_since.as_ref().map(ToString::to_string),
    });
    let cells = vec![
        owner,
        claim.epoch.to_string(),
        words::age(claim.owned_since.as_ref(), now),
        ago(claim.unowned_since.as_ref(), now),
        claim.owner,
    ];
    Rows { titles: &["OWNER", "EPOCH", "AGE", "UNOWNED-SINCE", "SESSION"], cells: vec![cells], items: vec![item] }
}

/// The name of the living owner; empty where nobody is.
fn owner(state: &v1::Coordination, claim: &v1::Claim) -> String {
    let member = state.members.iter().find(|member| member.session == claim.owner);
    member.map(|member| member.name.clone()).unwrap_or_default()
}

fn ago(time: Option<&prost_types::Timestamp>, now: Time) -> String {
    time.map(|t| format!("{} ago", words::age(Some(t), now))).unwrap_or_default()
}

fn seconds(time: Option<&prost_types::Timestamp>, now: Time) -> Option<f64> {
    time.map(|t| now.since(Time::from(t)).as_millis() as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> v1::Coordination {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let member =
            v1::Member { session: "s-a".into(), role: "controller".into(), name: "a".into(), ..Default::default() };
        let owned = v1::Claim {
            name: "shard-1".into(),
            owner: "s-a".into(),
            epoch: 3,
            owned_since: at(90),
            last_sweep: at(95),
            queue_depth: 2,
            ..Default::default()
        };
        let orphan = v1::Claim {
            name: "leader".into(),
            owner: "s-b".into(),
            epoch: 2,
            unowned_since: at(99),
            ..Default::default()
        };
        v1::Coordination { members: vec![member], claims: vec![owned, orphan], shards: 2, time: at(100), revision: 1 }
    }

    #[test]
    fn every_shard_is_shown_by_the_documented_names() {
        let rows = shards(&state());
        assert_eq!(rows.cells[1], ["1", "a", "3", "10s", "2", "5s ago", ""]);
        assert_eq!(rows.items.len(), 2);
        let expected = json!({
            "shard": 1, "owner": "a", "session": "s-a", "epoch": 3, "age": 10.0, "queueDepth": 2,
            "lastSweep": "1970-01-01T00:01:35Z", "unownedSince": null,
        });
        assert_eq!(rows.items[1], expected);
    }

    #[test]
    fn a_claim_whose_owner_is_dead_has_none() {
        let rows = leader(&state());
        assert_eq!(rows.cells[0], ["", "2", "", "1s ago", "s-b"]);
        assert_eq!((&rows.items[0]["owner"], &rows.items[0]["age"]), (&json!(""), &Value::Null));
    }

    #[test]
    fn members_tell_how_many_claims_they_own() {
        assert_eq!(members(&state()).cells[0][4..6], ["Joining", "1"]);
    }

    #[test]
    fn other_words_speak_of_resources() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(Part::of(&words("shards")), Some(Part::Shards));
        assert_eq!(Part::of(&words("services")), None);
        assert_eq!(Part::of(&words("service leader")), None);
    }
}
