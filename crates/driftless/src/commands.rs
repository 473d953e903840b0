//! The command line: every role and verb, with its help; and the runtime that each gets.

use std::ffi::OsStr;

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use wire::error::UNHEARD;

use crate::{
    bench,
    client::{self, Client, Servers},
    exit, output,
    receiver::Tracing,
    roles,
    telemetry::Declaring,
    verbs,
};

/// A control plane for what can be declared and observed: you declare, it keeps reality true.
#[derive(Debug, Parser)]
#[command(name = "driftless", version, after_help = exit::help(), max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    tracing: Tracing,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster in one process: server, controller and agent.
    Dev(roles::dev::Args),
    /// Run a server: the API, in front of a store.
    Server(Box<roles::server::Args>),
    /// Run a controller, which makes true what is declared.
    Controller(roles::controller::Args),
    /// Run a node's agent, which runs instances.
    Agent(roles::agent::Args),
    /// Say that a store was set back to a backup.
    Restore(roles::restore::Args),
    #[command(flatten)]
    Verb(Verb),
    /// Measure how fast it is on this machine.
    Bench(bench::Args),
    /// Show this program's version.
    #[command(after_help = "Example:\n  driftless version")]
    Version,
    /// Print completions for a shell.
    #[command(after_help = "Examples:
  driftless completion bash > /etc/bash_completion.d/driftless
  source <(driftless completion zsh)")]
    Completion {
        /// Which one.
        shell: clap_complete::Shell,
    },
}

/// What talks to servers.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Declare resources from files, all or nothing.
    Apply(verbs::apply::Args),
    /// Show resources: tables for eyes, JSON and YAML for programs.
    Get(verbs::get::Args),
    /// Show everything about one resource.
    Describe(verbs::describe::Args),
    /// Delete resources, and wait until they are gone.
    Delete(verbs::delete::Args),
    /// Wait until resources are ready, deleted, or in some condition.
    Wait(verbs::wait::Args),
    /// Change the number of instances.
    Scale(verbs::scale::Args),
    /// Show what an instance wrote.
    Logs(verbs::logs::Args),
    /// Show what happened to a resource and everything below it.
    History(verbs::history::Args),
    /// Show how the last change of a resource became so, and its trace.
    Trace(verbs::trace::Args),
    /// Show what an apply would change, and every step that would follow.
    Plan(verbs::plan::Args),
    /// Say why a resource is as it is, and who can help.
    Why(verbs::why::Args),
    /// Show a resource as it was.
    Replay(verbs::replay::Args),
    /// Show what changed in a resource between two revisions.
    Diff(verbs::diff::Args),
    /// Watch and steer the replacement of a service's instances.
    Rollout(verbs::rollout::Args),
    /// Let no new instances onto a node.
    Cordon(verbs::node::Args),
    /// Take back cordon and drain.
    Uncordon(verbs::node::Args),
    /// Move away what runs on a node, within every service's disruption budget.
    Drain(verbs::node::DrainArgs),
    /// Vouch for what a node doubts.
    #[command(subcommand)]
    Node(verbs::node::NodeVerb),
}

impl Verb {
    /// Its name, where it declares something: that begins a trace.
    fn declares(&self) -> Option<&'static str> {
        match self {
            Self::Apply(_) => Some("apply"),
            Self::Delete(_) => Some("delete"),
            Self::Scale(_) => Some("scale"),
            Self::Rollout(_) => Some("rollout"),
            Self::Cordon(_) => Some("cordon"),
            Self::Uncordon(_) => Some("uncordon"),
            Self::Drain(_) => Some("drain"),
            _ => None,
        }
    }
}

/// They have a server of their own, or need none.
const SERVERLESS: [&str; 6] = ["dev", "server", "restore", "bench", "version", "completion"];

/// The command line as it is read and shown. An empty `DRIFTLESS_SERVER` is as if it weren't set.
fn command(environment: Option<&OsStr>) -> clap::Command {
    let mut command = Cli::command();
    if environment.is_none_or(|value| !value.is_empty()) {
        command = command.mut_arg(client::ADDRESSES, |arg| arg.env(client::ENVIRONMENT));
    }
    // One of the same name keeps the global one away.
    let refused = |_: &str| Err::<String, _>("this command talks to no server of yours");
    let none = Arg::new(client::ADDRESSES).long("server").hide(true).value_parser(refused);
    SERVERLESS.iter().fold(command, |all, name| all.mut_subcommand(name, |sub| sub.arg(none.clone())))
}

pub fn run() -> anyhow::Result<()> {
    let read = command(std::env::var_os(client::ENVIRONMENT).as_deref()).get_matches();
    let Cli { servers, tracing, command } = Cli::from_arg_matches(&read).unwrap_or_else(|error| error.exit());
    match command {
        Command::Dev(args) => roles::run(&args.logs.clone(), |end| roles::dev::run(args, &tracing, end)),
        Command::Server(args) => roles::run(&args.logs.clone(), |end| roles::server::run(*args, &tracing, end)),
        Command::Controller(args) => {
            roles::run(&args.logs.clone(), |end| roles::controller::run(&servers, args, &tracing, end))
        }
        Command::Agent(args) => roles::run(&args.logs.clone(), |end| roles::agent::run(&servers, args, &tracing, end)),
        Command::Restore(args) => roles::restore::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Version => output::print(&format!("driftless {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completion { shell } => completion(shell),
        Command::Verb(verb) => talk(&servers, &tracing, verb),
    }
}

fn completion(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(None), "driftless", &mut script);
    output::print(&String::from_utf8(script)?)
}

/// One thread is plenty for a verb, and quicker to start.
fn talk(servers: &Servers, tracing: &Tracing, verb: Verb) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Also where it isn't needed: who declares next should not be the first to hear of it.
        tracing.check()?;
        let declaring = verb.declares().map(|verb| Declaring::begin(tracing, verb)).transpose()?;
        let client = match &declaring {
            Some(declaring) => Client::traced(servers, declaring.tracer(), declaring.traceparent.clone())?,
            None => Client::new(servers)?,
        };
        let done = match verb {
            Verb::Apply(args) => verbs::apply::run(&client, args).await,
            Verb::Get(args) => verbs::get::run(&client, args).await,
            Verb::Describe(args) => verbs::describe::run(&client, args).await,
            Verb::Delete(args) => verbs::delete::run(&client, args).await,
            Verb::Wait(args) => verbs::wait::run(&client, args).await,
            Verb::Scale(args) => verbs::scale::run(&client, args).await,
            Verb::Logs(args) => verbs::logs::run(&client, args).await,
            Verb::History(args) => verbs::history::run(&client, args).await,
            Verb::Trace(args) => verbs::trace::run(&client, args, tracing).await,
            Verb::Plan(args) => verbs::plan::run(&client, args).await,
            Verb::Why(args) => verbs::why::run(&client, args).await,
            Verb::Replay(args) => verbs::replay::run(&client, args).await,
            Verb::Diff(args) => verbs::diff::run(&client, args).await,
            Verb::Rollout(args) => verbs::rollout::run(&client, args).await,
            Verb::Cordon(args) => verbs::node::cordon(&client, args).await,
            Verb::Uncordon(args) => verbs::node::uncordon(&client, args).await,
            Verb::Drain(args) => verbs::node::drain(&client, args).await,
            Verb::Node(verb) => verbs::node::run(&client, verb).await,
        };
        if let Some(declaring) = declaring {
            declaring.end(&done).await;
        }
        // Which server it was is half of what is wrong.
        let away = |error: &anyhow::Error| match error.downcast_ref() {
            Some(store::Error::Unavailable(why)) => !why.starts_with(UNHEARD),
            _ => false,
        };
        done.map_err(|error| match away(&error) {
            true => error.context(format!("server {}", servers.addresses.join(", "))),
            false => error,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Cli, String> {
        let matches = command(None).try_get_matches_from(words).map_err(|error| error.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    fn help(name: &str) -> String {
        read(&["driftless", name, "--help"]).expect_err("help is shown instead")
    }

    #[test]
    fn the_command_line_is_consistent() {
        command(None).debug_assert();
        command(Some(OsStr::new("a:1"))).debug_assert();
    }

    /// One of a command's own that had the id of one of those would stand for it, in help and in what was said.
    #[test]
    fn every_option_that_all_commands_have_is_one_of_its_own() {
        let mut all = command(None);
        all.build();
        let flags: Vec<clap::Arg> = all.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
        assert!(flags.len() > 5, "{flags:?}");
        let mut found = Vec::new();
        leaves(&all, "", &mut found);
        for (leaf, _) in &found {
            for flag in &flags {
                let own = leaf.get_arguments().find(|arg| arg.get_id() == flag.get_id());
                let name = leaf.get_bin_name().unwrap_or_default();
                assert!(own.is_none_or(|own| own.get_long() == flag.get_long()), "{} of {name}", flag.get_id());
            }
        }
    }

    #[test]
    fn what_nobody_can_be_called_is_refused_at_the_start() {
        for (role, flag, name) in [
            ("agent", "--node", "web01.example.com"),
            ("agent", "--node", "Web01"),
            ("agent", "--node", ""),
            ("dev", "--node", "a b"),
            ("controller", "--name", ""),
            ("controller", "--name", "Ünï"),
            ("server", "--name", "a b"),
        ] {
            let said =
                read(&["driftless", role, flag, name, "--store", "memory"][..if role == "server" { 6 } else { 4 }]);
            let said = said.expect_err("it's refused");
            assert!(said.contains(&format!("invalid value '{name}' for '{flag}")), "{said}");
        }
        read(&["driftless", "controller", "--name", "c.example.com"]).expect("it's right");
    }

    #[test]
    fn a_servers_options_stand_under_the_heading_that_they_belong_to() {
        let mut all = command(None);
        all.build();
        let server = all.find_subcommand("server").expect("there is one");
        for arg in server.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let etcds = arg.get_long().is_some_and(|long| long.starts_with("etcd-"));
            assert_eq!(arg.get_help_heading() == Some("For etcd"), etcds, "{}", arg.get_id());
        }
    }

    /// Every command that does something, with what its help says at the end, or that of the one above it.
    fn leaves(command: &clap::Command, above: &str, found: &mut Vec<(clap::Command, String)>) {
        let own = command.get_after_help().map(ToString::to_string).unwrap_or_else(|| above.to_owned());
        match command.has_subcommands() {
            true => command.get_subcommands().for_each(|sub| leaves(sub, &own, found)),
            false => found.push((command.clone(), own)),
        }
    }

    #[test]
    fn every_command_and_argument_is_explained_and_every_verb_has_an_example() {
        let mut all = command(None);
        all.build();
        let mut found = Vec::new();
        leaves(&all, "", &mut found);
        let others = ["dev", "server", "controller", "agent", "bench", "help"];
        for (leaf, after) in &found {
            let name = leaf.get_bin_name().unwrap_or_default().to_owned();
            if name.split(' ').any(|word| others.contains(&word)) {
                continue;
            }
            assert!(leaf.get_about().is_some(), "{name} says nothing of itself");
            for arg in leaf.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{name} says nothing of {}", arg.get_id());
            }
            let mut examples = after.lines().filter(|line| line.starts_with("  "));
            assert!(
                examples.clone().any(|line| format!("{line} ").contains(&format!("{name} "))),
                "{name}: no example"
            );
            assert!(examples.all(|line| line.len() <= 100), "an example of {name} is broken into two lines");
        }
    }

    /// A line break within one would be there beside those that the terminal's width makes.
    #[test]
    fn paragraphs_after_a_help_are_broken_by_the_terminal_alone() {
        let mut all = command(None);
        all.build();
        let mut found = Vec::new();
        leaves(&all, "", &mut found);
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        for (leaf, after) in &found {
            let lines: Vec<&str> = after.lines().collect();
            let broken = lines.windows(2).find(|two| two.iter().all(|line| is_prose(line)));
            assert_eq!(broken, None, "{}", leaf.get_bin_name().unwrap_or_default());
        }
    }

    #[test]
    fn servers_are_offered_to_those_who_talk_to_them() {
        assert!(["get", "apply", "agent", "controller"].iter().all(|name| help(name).contains("--server")));
        for name in SERVERLESS {
            assert!(!help(name).contains("--server"), "{name}");
        }
        let refused = read(&["driftless", "dev", "--server", "a:1"]).expect_err("it would be ignored");
        assert!(refused.contains("talks to no server of yours"), "{refused}");
    }

    #[test]
    fn servers_are_named_before_or_after_the_verb() {
        for words in
            [["driftless", "--server", "a:1,b:2", "get", "nodes"], ["driftless", "get", "nodes", "--server", "a:1,b:2"]]
        {
            assert_eq!(read(&words).expect("it's right").servers.addresses, ["a:1", "b:2"]);
        }
        assert_eq!(read(&["driftless", "get", "nodes"]).expect("it's right").servers.addresses, ["127.0.0.1:7400"]);
        let nameless = read(&["driftless", "get", "nodes", "--server", ""]).expect_err("it names none");
        assert!(nameless.contains("HOST:PORT"), "{nameless}");
    }

    #[test]
    fn an_empty_environment_names_no_server() {
        let named = |environment| {
            let command = command(Some(OsStr::new(environment)));
            let arg = command.get_arguments().find(|arg| arg.get_id() == client::ADDRESSES).cloned();
            arg.expect("there is one").get_env().is_some()
        };
        assert!(named("a:1"), "it does where it isn't empty");
        assert!(!named(""));
    }

    #[test]
    fn numbers_out_of_bounds_are_told_with_the_bounds() {
        let said = |words: &[&str]| read(words).expect_err("out of bounds");
        let scale = said(&["driftless", "scale", "service", "web", "--replicas", "-1"]);
        assert!(scale.contains("'-1' for '--replicas") && scale.contains("a whole number from 0 to 10000"), "{scale}");
        let tail = said(&["driftless", "logs", "web-0", "--tail", "-1"]);
        assert!(tail.contains("write a whole number from 0\n"), "{tail}");
        let limit = said(&["driftless", "history", "--limit", "0"]);
        assert!(limit.contains("a whole number from 1 to 10000"), "{limit}");
    }

    #[test]
    fn a_namespace_that_could_not_exist_is_wrong_usage() {
        let said = read(&["driftless", "get", "services", "-n", "Bad!"]).expect_err("it can't exist");
        assert!(said.contains("lower-case letters"), "{said}");
    }
}
