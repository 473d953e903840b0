//! `AgentService`: one stream for each agent's reports, one for each log that somebody reads.

use std::{sync::Arc, time::Duration};

use api::v1;
use futures::{
    FutureExt, StreamExt,
    stream::{self, Stream},
};
use model::{Fence, Key};
use prost::Message;
use store::{Api, Caller, Error, LogPiece, Result};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};
use v1::{report_request::Request as Ask, report_response::Response as Tell};

use super::{
    Service,
    drain::UntilDrain,
    draining, first,
    hub::{Attachment, Chunk, Chunks},
    refuse,
    relay::{self, Log},
    status,
};
use crate::{error::UNHEARD, identity, rpc::agent_service_server::AgentService};

/// For finding out which server an agent is attached to.
const LOOKUP_MAX: Duration = Duration::from_secs(1);

#[tonic::async_trait]
impl AgentService for Service {
    type ReportStream = UntilDrain<v1::ReportResponse>;
    type LogsStream = UntilDrain<v1::LogsResponse>;

    async fn report(
        &self,
        request: Request<Streaming<v1::ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let caller = identity::caller(request.metadata()).map_err(status)?;
        self.open_report(caller, request.into_inner()).boxed().await.map(Response::new)
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let caller = identity::caller(request.metadata()).map_err(status)?;
        let relayed = relay::is_relayed(request.metadata());
        let log = self.open_log(&caller, relayed, request.into_inner()).boxed().await.map_err(status)?;
        Ok(Response::new(UntilDrain::new(log, &self.drain, Err(draining()))))
    }
}

impl Service {
    async fn open_report(
        &self,
        caller: Caller,
        mut requests: Streaming<v1::ReportRequest>,
    ) -> Result<UntilDrain<v1::ReportResponse>, Status> {
        match first(&mut requests).await?.request {
            Some(Ask::Hello(hello)) => {
                let (accepted, reports) = self.accept(caller, hello, requests).await.map_err(status)?;
                let answers = stream::once(async { Ok(tell(Tell::Accepted(accepted))) }).chain(reports.answers());
                Ok(UntilDrain::new(answers, &self.drain, Err(draining())))
            }
            Some(Ask::Log(chunk)) => {
                let gone = || status(Error::Unavailable("nobody reads that log any more".into()));
                let reader = self.hub.answer(chunk.id).ok_or_else(gone)?;
                // Says nothing; ends when the log does, or when nobody reads it.
                let relayed = stream::once(hand_on(requests, chunk, reader)).filter_map(|()| async { None });
                Ok(UntilDrain::new(relayed, &self.drain, Err(draining())))
            }
            _ => Err(status(Error::invalid("request", "the first message should be a hello, or a log's first chunk"))),
        }
    }

    async fn accept(
        &self,
        caller: Caller,
        hello: v1::NodeHello,
        requests: Streaming<v1::ReportRequest>,
    ) -> Result<(v1::HelloAccepted, Reports)> {
        let fence = Fence::Session { session: hello.session.clone(), attach: hello.attach };
        let node = hello.node.clone();
        let incarnation = self.api.cluster().await?.incarnation;
        let node_uid = self.api.register_node(&caller, hello).await?;
        let (attachment, logs) = self.hub.attach(&node);
        let api = self.api.clone();
        let reports = Reports { api, caller, fence, node, requests, logs, _attachment: attachment, ended: false };
        Ok((v1::HelloAccepted { node_uid, incarnation }, reports))
    }

    /// The instance's node decides which agent to ask, and through which server.
    async fn open_log(&self, caller: &Caller, relayed: bool, request: v1::LogsRequest) -> Result<Log> {
        let key = Key::new("Instance", &request.namespace, &request.instance);
        let object = self.api.get(&key).await?.ok_or_else(|| Error::NotFound(key.clone()))?;
        let corrupt = |error: prost::DecodeError| Error::Corrupt(format!("{key}: {error}"));
        let resource = object.resource().map_err(corrupt)?;
        let (spec, status) = (resource.spec.unwrap_or_default(), resource.status.unwrap_or_default());
        let node = v1::InstanceSpec::decode(spec.value.as_slice()).map_err(corrupt)?.node;
        let restarts = v1::InstanceStatus::decode(status.value.as_slice()).map_err(corrupt)?.restarts;
        if node.is_empty() {
            return Err(Error::Unavailable(format!("{key} is not placed on a node yet")));
        }
        if request.previous && restarts == 0 {
            return Err(Error::invalid(
                "previous",
                format!("{key} was never restarted: there is no run before this one"),
            ));
        }
        let start = v1::LogStart {
            id: 0,
            namespace: request.namespace.clone(),
            instance: request.instance.clone(),
            follow: request.follow,
            tail: request.tail,
            previous: request.previous,
            since: request.since,
            after: request.after.clone(),
        };
        let sessions = self.sessions().await;
        let is_its = |member: &&v1::Member| member.role == "agent" && member.name == node;
        let agent = sessions.as_ref().map(|sessions| sessions.members.iter().find(is_its));
        if let Some(None) = agent {
            // Its stream may still be here, as who is frozen or cut off ends none; or be here already, with a new session.
            let since = self.silent_since(&node).await;
            if since.is_some() || !self.hub.has(&node) {
                return Err(unheard(&node, since));
            }
        }
        if let Some(opened) = self.hub.open(&node, start).await {
            return Ok(responses(opened?).boxed());
        }
        let here = format!("the agent of node {node} isn't attached to this server ({})", self.name);
        match agent.flatten().and_then(|agent| self.elsewhere(agent)) {
            None => Err(Error::Unavailable(here)),
            Some(there) if relayed => Err(Error::Unavailable(format!("{here} but to {}", there.name))),
            Some(there) => relay::open(caller, request, &there)
                .await
                .map_err(|why| Error::Unavailable(format!("{here} but to {}, {why}", there.name))),
        }
    }

    /// Who has a session. None: that can't be found out.
    async fn sessions(&self) -> Option<Arc<v1::Coordination>> {
        let members = async { self.api.coordination().await.ok()?.next().await?.ok() };
        tokio::time::timeout(LOOKUP_MAX, members).await.ok().flatten()
    }

    /// As the leader noted it.
    async fn silent_since(&self, node: &str) -> Option<prost_types::Timestamp> {
        let record = self.api.get(&Key::new("Node", "", node)).await.ok().flatten();
        let status = record.and_then(|object| object.resource().ok()?.status)?;
        v1::NodeStatus::decode(status.value.as_slice()).ok()?.silent_since
    }

    /// The other server that the agent is attached to.
    fn elsewhere(&self, agent: &v1::Member) -> Option<relay::Server> {
        let there = relay::Server { name: agent.server.clone(), address: agent.server_address.clone() };
        (there.name != self.name).then_some(there)
    }
}

/// Its agent has no session.
fn unheard(node: &str, since: Option<prost_types::Timestamp>) -> Error {
    let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
    Error::Unavailable(format!(
        "{UNHEARD}: the agent of node {node} has had no session{since}; what its instances wrote is kept there, and can be \
         read once it's back"
    ))
}

fn tell(response: Tell) -> v1::ReportResponse {
    v1::ReportResponse { response: Some(response) }
}

/// One agent's stream after its hello.
struct Reports {
    api: Arc<dyn Api>,
    caller: Caller,
    fence: Fence,
    node: String,
    requests: Streaming<v1::ReportRequest>,
    logs: mpsc::Receiver<v1::LogStart>,
    _attachment: Attachment,
    ended: bool,
}

impl Reports {
    fn answers(self) -> impl Stream<Item = Result<v1::ReportResponse, Status>> {
        stream::unfold(self, |mut reports| async move { reports.answer().await.map(|answer| (answer, reports)) })
    }

    /// Commits one batch before it looks at the next: that is the order of reports. Any failure ends the stream, and the
    /// agent begins anew with what is true then.
    async fn answer(&mut self) -> Option<Result<v1::ReportResponse, Status>> {
        if self.ended {
            return None;
        }
        let message = tokio::select! {
            message = self.requests.message() => message,
            Some(start) = self.logs.recv() => return Some(Ok(tell(Tell::LogStart(start)))),
        };
        let answer = match message {
            Ok(Some(v1::ReportRequest { request: Some(Ask::Batch(batch)) })) => self.commit(batch).await,
            Ok(Some(_)) => Err(status(Error::invalid("request", "should be a batch"))),
            Ok(None) => return None,
            Err(broken) => Err(refuse::inbound(broken)),
        };
        self.ended = answer.is_err();
        Some(answer)
    }

    async fn commit(&self, batch: v1::ReportBatch) -> Result<v1::ReportResponse, Status> {
        let sequence = batch.sequence;
        let (revision, refused) =
            self.api.report(&self.caller, self.fence.clone(), &self.node, batch).await.map_err(status)?;
        let refused = refused.iter().map(Into::into).collect();
        Ok(tell(Tell::Ack(v1::ReportAck { sequence, revision: revision.0, refused })))
    }
}

/// Ends well only where the log does.
fn responses(chunks: Chunks) -> impl Stream<Item = Result<v1::LogsResponse, Status>> {
    stream::unfold(Some(chunks), |chunks| async {
        let mut chunks = chunks?;
        match chunks.recv().await.unwrap_or_else(|| Err(broken())) {
            Ok(Chunk::Piece(LogPiece { data, position })) => {
                Some((Ok(v1::LogsResponse { data: data.into(), position }), Some(chunks)))
            }
            Ok(Chunk::End) => None,
            Err(error) => Some((Err(status(error)), None)),
        }
    })
}

fn broken() -> Error {
    Error::Unavailable("the agent's stream broke; the log goes on where it can be read".into())
}

/// Hands a log's chunks to its reader, no faster than they are read. It is dropped where the agent's connection breaks.
async fn hand_on(mut requests: Streaming<v1::ReportRequest>, first: v1::LogChunk, reader: mpsc::Sender<Result<Chunk>>) {
    let mut chunk = first;
    loop {
        let piece = LogPiece { data: chunk.data.into(), position: chunk.position };
        if piece != LogPiece::default() && reader.send(Ok(Chunk::Piece(piece))).await.is_err() {
            return;
        }
        if chunk.end {
            let ended = match chunk.error {
                error if error.is_empty() => Ok(Chunk::End),
                error => Err(Error::Unavailable(error)),
            };
            // The reader may be gone, and then needs no reason.
            let _ = reader.send(ended).await;
            return;
        }
        let next = tokio::select! {
            message = requests.message() => message,
            () = reader.closed() => return,
        };
        chunk = match next {
            Ok(Some(v1::ReportRequest { request: Some(Ask::Log(chunk)) })) => chunk,
            // The reader notices that the end is missing.
            _ => return,
        };
    }
}
