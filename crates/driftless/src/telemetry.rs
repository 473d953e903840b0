//! What the roles write about their work: on stderr, for people or as JSON.

use tracing_subscriber::EnvFilter;

/// Where RUST_LOG says nothing.
const LEVEL: &str = "info";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// How to log on stderr; what is logged, RUST_LOG says.
    #[arg(long, value_enum, default_value = "human")]
    log_format: LogFormat,
}

pub fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().with_default_directive(LEVEL.parse()?).from_env()?;
    // A stderr that is gone must not end the process by a panic.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let builder = builder.log_internal_errors(false);
    match args.log_format {
        LogFormat::Human => {
            use std::io::IsTerminal;
            builder.with_ansi(std::io::stderr().is_terminal()).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
