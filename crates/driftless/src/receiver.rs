//! Where traces go, and which: by the command line, and by OpenTelemetry's own variables where that says nothing. What
//! can't be right is refused, with its name and what to write instead.

use std::{env, fs, path::PathBuf};

use telemetry::trace::{Config, Endpoint, QUEUE_DEFAULT, QUEUE_LIMIT, Tls, Tracer};

use crate::exit::Trouble;

/// One in ten, unless it's said.
const RATIO: f64 = 0.1;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const CLIENT_CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
const CLIENT_KEY: &str = "OTEL_EXPORTER_OTLP_CLIENT_KEY";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
const SERVICE: &str = "OTEL_SERVICE_NAME";
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct Tracing {
    /// A receiver of traces (OTLP over gRPC), say http://127.0.0.1:4317, as OTEL_EXPORTER_OTLP_ENDPOINT. Without one no
    /// spans are made.
    #[arg(id = "otlp-endpoint", long = "otlp-endpoint", global = true, value_name = "URL", hide_short_help = true)]
    endpoint: Option<String>,
    /// For https: the certificate of the authority that signed the receiver's (PEM), as OTEL_EXPORTER_OTLP_CERTIFICATE.
    #[arg(id = "otlp-ca", long = "otlp-ca", global = true, value_name = "FILE", hide_short_help = true)]
    ca: Option<PathBuf>,
    /// The certificate to show to a receiver that asks for one, as OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE.
    #[arg(id = "otlp-cert", long = "otlp-cert", global = true, value_name = "FILE", hide_short_help = true)]
    certificate: Option<PathBuf>,
    /// Its key, as OTEL_EXPORTER_OTLP_CLIENT_KEY.
    #[arg(id = "otlp-key", long = "otlp-key", global = true, value_name = "FILE", hide_short_help = true)]
    key: Option<PathBuf>,
    /// How many of the new traces are sampled, from 0 to 1; else as OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say
    /// [default: 0.1].
    #[arg(
        id = "trace-ratio",
        long = "trace-ratio",
        env = "DRIFTLESS_TRACE_RATIO",
        global = true,
        value_parser = ratio,
        hide_short_help = true
    )]
    ratio: Option<f64>,
    /// What is declared by this call is sampled in any case.
    #[arg(id = "trace", long = "trace", global = true, hide_short_help = true)]
    always: bool,
    /// Where people look at traces; {trace} stands for the id: http://127.0.0.1:16686/trace/{trace}.
    #[arg(
        id = "trace-ui",
        long = "trace-ui",
        env = "DRIFTLESS_TRACE_UI",
        global = true,
        value_name = "URL",
        hide_short_help = true
    )]
    ui: Option<String>,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "write a number from 0 to 1".into())
}

fn usage(text: String) -> Trouble {
    Trouble::Usage(text)
}

/// What is set and empty is as if it weren't set: that is how compose files say "none".
fn of_process(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

impl Tracing {
    /// Within a runtime.
    pub fn start(&self, role: &str, name: &str) -> anyhow::Result<Tracer> {
        let config = self.config(role, name, &of_process)?;
        Ok(config.map_or_else(|| Ok(Tracer::off()), |config| Tracer::start(&config))?)
    }

    /// Whether all of it can be right.
    pub fn check(&self) -> anyhow::Result<()> {
        Ok(self.config("cli", "", &of_process).map(|_| ())?)
    }

    /// What is declared is sampled in any case.
    pub fn is_asked_for(&self) -> bool {
        self.always
    }

    /// The page about that trace.
    pub fn link(&self, trace: &str) -> Option<String> {
        self.ui.as_ref().filter(|ui| !ui.is_empty()).map(|ui| ui.replace("{trace}", trace))
    }

    /// None: no spans are made.
    fn config(&self, role: &str, name: &str, var: &dyn Fn(&str) -> Option<String>) -> Result<Option<Config>, Trouble> {
        let off = var(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || var(EXPORTER).is_some_and(|exporter| exporter == "none");
        let Some((named, address)) = self.address(var).filter(|(_, address)| !off && !address.is_empty()) else {
            return Ok(None);
        };
        let wrong = |error| usage(format!("{named} {address:?} is no receiver of traces: {error}"));
        let endpoint: Endpoint = address.parse().map_err(wrong)?;
        if let Some((named, protocol)) = first(&PROTOCOLS, var).filter(|(_, protocol)| protocol != "grpc") {
            let how = "set it to grpc, and the endpoint to the receiver's port for that, usually 4317";
            return Err(usage(format!("{named} is {protocol:?}, but spans go by OTLP over gRPC alone: {how}")));
        }
        let tls = self.tls(&endpoint, var)?;
        let mut attributes = attributes(&var(ATTRIBUTES).unwrap_or_default());
        let service = var(SERVICE).inspect(|_| attributes.retain(|(key, _)| key != "service.name"));
        let service = service.unwrap_or_else(|| format!("driftless-{role}"));
        let (ratio, queue) = (self.sampled(var)?, queue(var)?);
        Ok(Some(Config { tls, ratio, attributes, queue, ..Config::new(endpoint, service, name) }))
    }

    /// And under which name it was said.
    fn address(&self, var: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
        let said = self.endpoint.clone().map(|address| ("--otlp-endpoint", address));
        said.or_else(|| first(&ENDPOINTS, var))
    }

    fn tls(&self, endpoint: &Endpoint, var: &dyn Fn(&str) -> Option<String>) -> Result<Option<Tls>, Trouble> {
        if !endpoint.is_https() {
            return Ok(None);
        }
        let file = |flag: &'static str, said: &Option<PathBuf>, name: &'static str| match said {
            Some(path) => Some((flag, path.clone())),
            None => Some((name, PathBuf::from(var(name)?))),
        };
        let Some(ca) = file("--otlp-ca", &self.ca, CERTIFICATE) else {
            let how = format!("name it by --otlp-ca FILE or {CERTIFICATE}");
            return Err(usage(format!("{endpoint} takes the certificate of who signed the receiver's: {how}")));
        };
        let certificate = file("--otlp-cert", &self.certificate, CLIENT_CERTIFICATE);
        let identity = match (certificate, file("--otlp-key", &self.key, CLIENT_KEY)) {
            (Some(certificate), Some(key)) => Some((pem(&certificate)?, pem(&key)?)),
            (None, None) => None,
            _ => return Err(usage("--otlp-cert and --otlp-key go together: name both, or neither".into())),
        };
        Ok(Some(Tls { ca: pem(&ca)?, identity }))
    }

    fn sampled(&self, var: &dyn Fn(&str) -> Option<String>) -> Result<f64, Trouble> {
        if let Some(ratio) = self.ratio {
            return Ok(ratio);
        }
        let argument = |default: f64| match var(SAMPLER_ARG) {
            Some(text) => ratio(&text).map_err(|how| usage(format!("{SAMPLER_ARG} is {text:?}: {how}"))),
            None => Ok(default),
        };
        let Some(sampler) = var(SAMPLER) else { return argument(RATIO) };
        match sampler.trim_start_matches("parentbased_") {
            "always_on" => Ok(1.0),
            "always_off" => Ok(0.0),
            "traceidratio" => argument(1.0),
            _ => {
                let known = "always_on, always_off, traceidratio, or one of them after parentbased_";
                Err(usage(format!("{SAMPLER} is {sampler:?}: write {known}")))
            }
        }
    }
}

/// The first of these that is set.
fn first(names: &[&'static str], var: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| Some((*name, var(name)?)))
}

fn queue(var: &dyn Fn(&str) -> Option<String>) -> Result<usize, Trouble> {
    let Some(text) = var(QUEUE) else { return Ok(QUEUE_DEFAULT) };
    let queue = text.trim().parse().ok().filter(|queue| (1..=QUEUE_LIMIT).contains(queue));
    queue.ok_or_else(|| usage(format!("{QUEUE} is {text:?}: write a whole number from 1 to {QUEUE_LIMIT}")))
}

fn pem((named, path): &(&str, PathBuf)) -> Result<Vec<u8>, Trouble> {
    let wrong = |what: String| usage(format!("{named} {}: {what}", path.display()));
    let bytes = fs::read(path).map_err(|error| wrong(format!("cannot read it: {error}")))?;
    match bytes.windows(10).any(|window| window == b"-----BEGIN") {
        true => Ok(bytes),
        false => Err(wrong("it holds nothing in PEM".into())),
    }
}

/// `key=value,key=value`, both percent-encoded, as OpenTelemetry has it. What is no pair is passed over.
fn attributes(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((decoded(key.trim()), decoded(value.trim())))
    };
    text.split(',').filter_map(pair).filter(|(key, _)| !key.is_empty()).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
