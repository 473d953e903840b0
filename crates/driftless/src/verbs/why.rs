//! `driftless why`: what the controllers decide about a resource right now, down the chain of what it waits for.

use std::fmt::Write as _;

use api::{manifest, v1};
use model::Time;
use prost::Message;

use crate::{
    client::Client,
    output::{self, Output},
    words::{self, DEFAULT_NAMESPACE},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  driftless why service web
  driftless why instance/web-5f3a9c1b20-0 -o json

A controller looks at a resource whenever something of it changes, and at everything once in each sweep. Its looks leave a \
trace where they lead to a step: the last one is told, and when a sweep over everything last ended. What the controllers \
decide at this moment is worked out by the server that is asked, by the same functions.")]
pub struct Args {
    /// KIND NAME, or KIND/NAME.
    #[arg(required = true, value_name = "KIND NAME")]
    words: Vec<String>,
    /// The namespace of what is named.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_parser = words::name)]
    namespace: String,
    /// Text is for eyes, YAML and JSON for programs.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

pub async fn run(client: &Client, args: Args) -> anyhow::Result<()> {
    let key = words::single(&args.words, &args.namespace)?;
    let explained = client.api.explain(v1::ExplainRequest { key: Some((&key).into()) }).await?;
    output::print(&match args.output.format() {
        None => text(&explained),
        Some(format) => manifest::message("driftless.v1.ExplainResponse", &explained.encode_to_vec(), format),
    })
}

fn text(explained: &v1::ExplainResponse) -> String {
    let mut text = String::new();
    let now = explained.time.as_ref().map_or_else(words::now, Time::from);
    for (depth, one) in explained.chain.iter().enumerate() {
        let indent = if depth == 0 { "" } else { "  " };
        let name = one.key.as_ref().map(|key| words::short(&key.into())).unwrap_or_default();
        let why = one.why.clone().unwrap_or_default();
        let _ = writeln!(text, "{indent}{name}: {} ({}): {}", state(&one.state), why.reason, why.message);
        if depth == 0 && !explained.server.is_empty() {
            let (server, revision) = (&explained.server, explained.revision);
            let _ =
                writeln!(text, "    so decided now by server {server} on revision {revision}, as a controller decides");
        }
        for line in [until(one), looked_after(one, now), last_step(one, now)].into_iter().flatten() {
            let _ = writeln!(text, "{indent}    {line}");
        }
    }
    text
}

fn until(one: &v1::Explained) -> Option<String> {
    let until = one.until.as_ref()?;
    Some(format!("until {until}, unless something changes first"))
}

/// Who looks at it, and when for sure.
fn looked_after(one: &v1::Explained, now: Time) -> Option<String> {
    if one.claim.is_empty() {
        return None;
    }
    let owner = if one.owner.is_empty() { "nobody, which is an alarm" } else { one.owner.as_str() };
    let who = format!("looked after by {owner} ({}@{})", one.claim, one.epoch);
    let Some(last) = &one.last_sweep else { return Some(format!("{who}, which hasn't swept it yet")) };
    let next = one.next_sweep.as_ref().map(|next| match Time::from(next) {
        due if due < now => format!("; the next was due at {next}, {} ago", words::age(Some(next), now)),
        due => format!("; the next ends by {next}, in {}", words::age(Some(&now.into()), due)),
    });
    let last = format!("its last sweep ended at {last}, {} ago", words::age(Some(last), now));
    Some(format!("{who}: at once when something changes; {last}{}", next.unwrap_or_default()))
}

fn last_step(one: &v1::Explained, now: Time) -> Option<String> {
    let step = one.last_step.as_ref()?;
    let why = step.why.clone().unwrap_or_default();
    let (ago, actor, verb) = (words::age(step.time.as_ref(), now), &step.actor, &step.verb);
    let by = format!("{actor} ({}@{})", step.claim, step.epoch);
    Some(format!("last step {ago} ago at revision {} by {by}: {verb}: {}", step.revision, why.message))
}

fn state(state: &str) -> &str {
    match state {
        "do" => "about to act",
        "wait" => "waiting",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn what_is_known_of_looks_is_told_and_no_more() {
        let key = v1::ResourceKey { kind: "Service".into(), namespace: "default".into(), name: "web".into() };
        let why = |message: &str| Some(v1::Why { reason: "AllReady".into(), message: message.into() });
        let step = v1::HistoryEntry {
            time: at(40),
            actor: "controller/c1".into(),
            claim: "shard-5".into(),
            epoch: 3,
            verb: "create".into(),
            revision: 7,
            why: why("make 3"),
            ..Default::default()
        };
        let one = v1::Explained {
            key: Some(key),
            state: "settled".into(),
            why: why("3 of 3 ready"),
            claim: "shard-5".into(),
            epoch: 3,
            owner: "c1".into(),
            last_sweep: at(90),
            next_sweep: at(120),
            last_step: Some(step),
            ..Default::default()
        };
        let explained =
            |one| v1::ExplainResponse { chain: vec![one], server: "s1".into(), revision: 142, time: at(100) };
        let told = text(&explained(one.clone()));
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[0], "service/web: settled (AllReady): 3 of 3 ready");
        assert_eq!(lines[1], "    so decided now by server s1 on revision 142, as a controller decides");
        assert_eq!(
            lines[2],
            "    looked after by c1 (shard-5@3): at once when something changes; its last sweep ended at \
             1970-01-01T00:01:30Z, 10s ago; the next ends by 1970-01-01T00:02:00Z, in 20s"
        );
        assert_eq!(lines[3], "    last step 60s ago at revision 7 by controller/c1 (shard-5@3): create: make 3");
        let late = text(&explained(v1::Explained { next_sweep: at(95), ..one.clone() }));
        assert!(late.contains("the next was due at 1970-01-01T00:01:35Z, 5s ago"), "{late}");
        let unswept = text(&explained(v1::Explained { last_sweep: None, next_sweep: None, last_step: None, ..one }));
        assert!(unswept.contains("(shard-5@3), which hasn't swept it yet"), "{unswept}");
    }
}
