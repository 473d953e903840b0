//! What traces cost: three `driftless dev` at once, without traces, with a tenth of them and with all of them, which do the
//! same work in turns. Only CPU time of the clusters' own processes counts; who receives the spans is this process.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{Request, Response, Status, transport::Server};

use super::{
    figures::{Figure, Report},
    load::{Watching, sleeper},
    local::dev_with,
    process::Process,
};
use crate::client::Client;

/// Operations of one cluster before it's the next one's turn.
const OPERATIONS: usize = 100;
/// Added to each turn: longer than spans wait for their export.
const SETTLE: Duration = Duration::from_secs(1);
/// Turns that come first and don't count.
const WARM_UP: usize = 2;

pub async fn run(dir: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut sides = [
        Side::start(&dir.join("off"), None).await?,
        Side::start(&dir.join("tenth"), Some("0.1")).await?,
        Side::start(&dir.join("all"), Some("1")).await?,
    ];
    for round in 0..WARM_UP + rounds {
        // Who comes first changes, so that nobody always follows the same one.
        for turn in 0..sides.len() {
            let side = (round + turn) % sides.len();
            sides[side].turn(round, round >= WARM_UP).await?;
        }
    }
    let operations = rounds * OPERATIONS;
    let [off, tenth, all] = &sides;
    anyhow::ensure!(
        off.spans() == 0 && tenth.spans() > 0 && all.spans() > tenth.spans(),
        "spans didn't come as sampled"
    );
    let figure = |name, what: &str, value, unit| Figure::new(name, what, value, unit, operations);
    report.add(figure("tracing_off_cpu", "CPU per operation, no traces", off.millis(operations), "ms"));
    report.add(figure("tracing_10_cpu", "CPU per operation, 10 % sampled", tenth.millis(operations), "ms"));
    report.add(figure("tracing_100_cpu", "CPU per operation, all sampled", all.millis(operations), "ms"));
    report.add(figure("tracing_10_ratio", "10 % sampled, as a multiple of none", tenth.to(off), "").below(1.05));
    report.add(figure("tracing_100_ratio", "all sampled, as a multiple of none", all.to(off), "").below(1.15));
    let each = |side: &Side| side.spans() as f64 / operations as f64;
    report.add(figure("tracing_10_spans", "spans received per operation, 10 % sampled", each(tenth), ""));
    report.add(figure("tracing_100_spans", "spans received per operation, all sampled", each(all), ""));
    for side in sides {
        side.cluster.end().await?;
    }
    Ok(())
}

/// One of the clusters.
struct Side {
    cluster: Process,
    client: Client,
    receiver: Option<Receiver>,
    /// Of the turns that count.
    cpu: Duration,
    received: usize,
}

impl Side {
    /// `ratio`: how many traces are sampled; none are made without.
    async fn start(dir: &Path, ratio: Option<&str>) -> anyhow::Result<Self> {
        let receiver = match ratio {
            Some(_) => Some(Receiver::start().await?),
            None => None,
        };
        // An empty one is none, whatever the environment says.
        let endpoint = receiver.as_ref().map_or("", |receiver| &receiver.endpoint);
        let options = ["--otlp-endpoint", endpoint, "--trace-ratio", ratio.unwrap_or("0")];
        std::fs::create_dir_all(dir)?;
        let (cluster, client) = dev_with(dir, "sim", &options).await?;
        Ok(Self { cluster, client, receiver, cpu: Duration::ZERO, received: 0 })
    }

    async fn turn(&mut self, round: usize, counts: bool) -> anyhow::Result<()> {
        let (cpu, spans) = (self.cluster.cpu()?, self.so_far());
        let mut watching = Watching::new(&self.client).await?;
        for n in 0..OPERATIONS {
            let service = [sleeper(&format!("traced-{round}-{n}"), 1)];
            watching.run_up(&service).await?;
            watching.run_down(&service).await?;
        }
        tokio::time::sleep(SETTLE).await;
        if counts {
            self.cpu += self.cluster.cpu()? - cpu;
            self.received += self.so_far() - spans;
        }
        Ok(())
    }

    fn so_far(&self) -> usize {
        self.receiver.as_ref().map_or(0, |receiver| receiver.spans.load(Relaxed))
    }

    fn spans(&self) -> usize {
        self.received
    }

    fn millis(&self, operations: usize) -> f64 {
        super::figures::millis(self.cpu) / operations as f64
    }

    fn to(&self, other: &Self) -> f64 {
        self.cpu.as_secs_f64() / other.cpu.as_secs_f64()
    }
}

/// Takes spans by OTLP over gRPC and counts them; ends when it's dropped.
struct Receiver {
    endpoint: String,
    spans: Arc<AtomicUsize>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Receiver {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen for spans")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let spans = Arc::<AtomicUsize>::default();
        let service = TraceServiceServer::new(Counting(spans.clone()));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        Ok(Self { endpoint, spans, serving })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Counting(Arc<AtomicUsize>);

#[tonic::async_trait]
impl TraceService for Counting {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.into_inner().resource_spans.into_iter().flat_map(|part| part.scope_spans);
        self.0.fetch_add(scopes.map(|scope| scope.spans.len()).sum(), Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
