//! A node's report stream that is kept: one task sends batches in order, answers log requests, and opens the stream anew,
//! with a hello, when it breaks or when the node's session moves.

use std::sync::{Arc, RwLock};

use ::api::v1;
use model::{Fence, Key, Revision};
use store::{Class, Error, LogSource, Result};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use v1::{report_request::Request as Ask, report_response::Response as Tell};

use super::{
    logs,
    pool::{Pool, Server, Signature, answer},
    session::Session,
};
use crate::error::{Call, from_status};

/// Batches that wait for their turn.
const BATCHES_MAX: usize = 4;

pub type Logs = Arc<RwLock<Option<Arc<dyn LogSource>>>>;

pub struct Link {
    session: String,
    pool: Arc<Pool>,
    commands: mpsc::Sender<Batch>,
    /// Why it's over: the node must be registered anew.
    over: watch::Receiver<Option<Error>>,
}

type Reported = Result<(Revision, Vec<Key>)>;

struct Batch {
    batch: v1::ReportBatch,
    done: oneshot::Sender<Reported>,
}

impl Link {
    /// Returns the node's uid too.
    pub async fn open(
        pool: Arc<Pool>,
        signature: Signature,
        session: Option<Session>,
        logs: Logs,
        hello: v1::NodeHello,
    ) -> Result<(Self, String)> {
        let (commands, inbox) = mpsc::channel(BATCHES_MAX);
        let (sender, over) = watch::channel(None);
        let link = Self { session: hello.session.clone(), pool: pool.clone(), commands, over };
        let mut dial = Dial { pool, signature, session, hello };
        let (stream, uid) = dial.connect().await?;
        tokio::spawn(Keeper { dial, logs, inbox, over: sender }.run(stream));
        Ok((link, uid))
    }

    /// One batch; those that were asked for earlier go first.
    pub async fn report(&self, fence: Fence, batch: v1::ReportBatch) -> Reported {
        if !matches!(&fence, Fence::Session { session, .. } if *session == self.session) {
            return Err(Error::Fenced(format!("the node is registered under session {}, not {fence}", self.session)));
        }
        let (done, answered) = oneshot::channel();
        let asked = async {
            self.commands.send(Batch { batch, done }).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(self.pool.deadline, asked).await {
            Ok(Some(reported)) => reported,
            Ok(None) => Err(self.over.borrow().clone().unwrap_or_else(|| unknown("the report stream broke"))),
            Err(_) => Err(unknown("the report wasn't acknowledged in time")),
        }
    }
}

fn unknown(what: &str) -> Error {
    Error::OutcomeUnknown(what.into())
}

struct Stream {
    server: Server,
    attach: u64,
    requests: mpsc::Sender<v1::ReportRequest>,
    answers: Streaming<v1::ReportResponse>,
}

/// What a stream is opened with.
struct Dial {
    pool: Arc<Pool>,
    signature: Signature,
    session: Option<Session>,
    hello: v1::NodeHello,
}

impl Dial {
    /// To the server that the session is attached to, so that whoever looks for the node's logs finds them there.
    async fn connect(&mut self) -> Result<(Stream, String)> {
        let (server, attach) = match &mut self.session {
            Some(session) => session.attached().await?,
            None => (self.pool.current(), self.hello.attach),
        };
        self.hello.attach = attach;
        let (requests, outbox) = mpsc::channel(BATCHES_MAX);
        let hello = v1::ReportRequest { request: Some(Ask::Hello(self.hello.clone())) };
        let opening = async {
            requests.send(hello).await.map_err(|_| Status::internal("the stream ended before it began"))?;
            let mut answers = answer(server.agents().report(self.signature.on(ReceiverStream::new(outbox)))).await?;
            match answers.message().await?.and_then(|answer| answer.response) {
                Some(Tell::Accepted(accepted)) => Ok((answers, accepted.node_uid)),
                _ => Err(Status::internal("the server didn't accept the node")),
            }
        };
        match tokio::time::timeout(self.pool.deadline, opening).await {
            Ok(Ok((answers, uid))) => Ok((Stream { server: server.clone(), attach, requests, answers }, uid)),
            Ok(Err(status)) => Err(from_status(&status, Call::Write)),
            Err(_) => Err(unknown("the node wasn't accepted in time")),
        }
    }
}

struct Keeper {
    dial: Dial,
    logs: Logs,
    inbox: mpsc::Receiver<Batch>,
    over: watch::Sender<Option<Error>>,
}

enum Served {
    Broken,
    /// Nobody holds the link any more.
    Dropped,
}

impl Keeper {
    async fn run(mut self, mut stream: Stream) {
        loop {
            match self.serve(&mut stream).await {
                Served::Dropped => return,
                Served::Broken => {}
            }
            match self.reconnect().await {
                Some(again) => stream = again,
                None => return,
            }
        }
    }

    async fn reconnect(&mut self) -> Option<Stream> {
        let mut backoff = self.dial.pool.backoff();
        loop {
            let connected = tokio::select! {
                connected = self.dial.connect() => connected,
                () = self.over.closed() => return None,
            };
            match connected {
                Ok((stream, _)) => return Some(stream),
                Err(error) if matches!(error.class(), Class::Retry | Class::Unknown) => {
                    tracing::debug!(node = %self.dial.hello.node, %error, "report stream can't be opened yet");
                }
                Err(error) => {
                    self.over.send_replace(Some(error));
                    return None;
                }
            }
            tokio::select! {
                () = backoff.pause() => {}
                () = self.over.closed() => return None,
            }
        }
    }

    async fn serve(&mut self, stream: &mut Stream) -> Served {
        let mut waiting: Option<oneshot::Sender<Reported>> = None;
        let moved = moved(self.dial.session.clone(), stream.attach);
        tokio::pin!(moved);
        loop {
            tokio::select! {
                next = self.inbox.recv(), if waiting.is_none() => match next {
                    None => return Served::Dropped,
                    // Whoever asked gave up; what is true then comes in a later batch.
                    Some(batch) if batch.done.is_closed() => {}
                    Some(Batch { batch, done }) => {
                        // A hello on a later stream must not take an older status back.
                        let hello = &mut self.dial.hello;
                        hello.status = batch.node.clone().or(hello.status.take());
                        let sent = stream.requests.send(v1::ReportRequest { request: Some(Ask::Batch(batch)) }).await;
                        if sent.is_err() {
                            let _ = done.send(Err(unknown("the report stream broke")));
                            return Served::Broken;
                        }
                        waiting = Some(done);
                    }
                },
                answer = stream.answers.message() => match answer.map(|a| a.and_then(|a| a.response)) {
                    Ok(Some(Tell::Ack(ack))) => {
                        let refused = ack.refused.iter().map(Key::from).collect();
                        waiting.take().map(|done| done.send(Ok((Revision(ack.revision), refused))));
                    }
                    Ok(Some(Tell::LogStart(start))) => {
                        let source = self.logs.read().unwrap_or_else(|e| e.into_inner()).clone();
                        tokio::spawn(logs::send(stream.server.clone(), self.dial.signature.clone(), source, start));
                    }
                    Ok(Some(Tell::Accepted(_))) => {}
                    Ok(None) => return Served::Broken,
                    Err(status) => {
                        waiting.take().map(|done| done.send(Err(from_status(&status, Call::Write))));
                        return Served::Broken;
                    }
                },
                () = &mut moved => return Served::Broken,
            }
        }
    }
}

/// Where no session is kept here, it never moves.
async fn moved(session: Option<Session>, from: u64) {
    match session {
        Some(mut session) => session.moved(from).await,
        None => std::future::pending().await,
    }
}
