//! A session that is kept: one task serves its stream, and attaches it anew when that breaks.

use std::{collections::VecDeque, sync::Arc};

use ::api::v1;
use store::{Class, Error, Result, SessionOpen};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use v1::{session_request::Request as Ask, session_response::Response as Tell};

use super::pool::{Pool, Server, Signature, answer};
use crate::{
    convert,
    error::{Call, from_status},
};

/// Beats that wait for the stream, or for their answer.
const BEATS_MAX: usize = 16;

/// Clones are the same session; the task ends with the last of them.
#[derive(Clone)]
pub struct Session {
    id: String,
    pool: Arc<Pool>,
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
    task: AbortHandle,
}

#[derive(Clone)]
enum State {
    Attached(Server, u64),
    /// Being attached anew.
    Detached,
    Ended(Error),
}

enum Command {
    Beat(Option<v1::MemberReport>, oneshot::Sender<Result<()>>),
    Close(oneshot::Sender<Result<()>>),
}

impl Session {
    pub async fn open(pool: Arc<Pool>, me: Signature, open: SessionOpen) -> Result<(Self, u64)> {
        let id = open.session.clone();
        let stream = attach(&pool, &me, &open).await?;
        let number = stream.attach;
        let (commands, inbox) = mpsc::channel(BEATS_MAX);
        let (sender, state) = watch::channel(stream.state());
        let keeper = Keeper { pool: pool.clone(), me, open, inbox, state: sender };
        let task = tokio::spawn(keeper.run(stream)).abort_handle();
        Ok((Self { id, pool, commands, state, task }, number))
    }

    /// Lets its stream go: a newer one of the same session took its place, and must not be outrun by this one's coming
    /// back.
    pub fn abandon(&self) {
        self.task.abort();
    }

    /// It ended, in order or not, and nothing brings it back.
    pub fn is_over(&self) -> bool {
        self.task.is_finished() || matches!(*self.state.borrow(), State::Ended(_))
    }

    /// The server that its stream is on, and its attach number.
    pub fn attachment(&self) -> Option<(Server, u64)> {
        match &*self.state.borrow() {
            State::Attached(server, attach) => Some((server.clone(), *attach)),
            _ => None,
        }
    }

    /// The same, once there is one.
    pub async fn attached(&mut self) -> Result<(Server, u64)> {
        let state = self.state.wait_for(|state| !matches!(state, State::Detached)).await;
        match state.map(|state| state.clone()) {
            Ok(State::Attached(server, attach)) => Ok((server, attach)),
            Ok(State::Ended(error)) => Err(error),
            _ => Err(Error::SessionEnded(self.id.clone())),
        }
    }

    /// Waits until the attach number is another one, or the session ends.
    pub async fn moved(&mut self, from: u64) {
        // An error means that its task is gone, which is an end too.
        let _ = self.state.wait_for(|state| !matches!(state, State::Attached(_, attach) if *attach == from)).await;
    }

    pub async fn beat(&self, report: Option<v1::MemberReport>) -> Result<()> {
        self.ask(|done| Command::Beat(report, done)).await
    }

    /// True: it existed, and doesn't any more.
    pub async fn close(&self) -> Result<bool> {
        match self.ask(Command::Close).await {
            Ok(()) => Ok(true),
            Err(Error::SessionEnded(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Beats and closes can be repeated, so whatever goes wrong is `Unavailable`.
    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Result<()>>) -> Command) -> Result<()> {
        let (done, answered) = oneshot::channel();
        let asked = async {
            self.commands.send(command(done)).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(self.pool.deadline, asked).await {
            Ok(Some(answer)) => answer,
            Ok(None) => Err(match &*self.state.borrow() {
                State::Ended(error) => error.clone(),
                _ => Error::Unavailable(format!("the stream of session {} broke", self.id)),
            }),
            Err(_) => Err(Error::Unavailable(format!("no server answered session {} in time", self.id))),
        }
    }
}

/// One attached stream.
struct Stream {
    server: Server,
    attach: u64,
    requests: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
}

impl Stream {
    fn state(&self) -> State {
        State::Attached(self.server.clone(), self.attach)
    }

    /// The answer tells whether it was sent.
    async fn send(&self, request: Ask) {
        let _ = self.requests.send(v1::SessionRequest { request: Some(request) }).await;
    }
}

/// Can be repeated: opening a session that is open attaches it anew.
async fn attach(pool: &Pool, me: &Signature, open: &SessionOpen) -> Result<Stream> {
    let opening = v1::SessionOpen {
        session: open.session.clone(),
        role: open.role.clone(),
        name: open.name.clone(),
        ttl: convert::duration(open.ttl),
        machine_id: open.machine_id.clone(),
    };
    let attached = pool.call(Call::Read, |server| {
        let (requests, outbox) = mpsc::channel(BEATS_MAX);
        let opening = v1::SessionRequest { request: Some(Ask::Open(opening.clone())) };
        let request = me.on(ReceiverStream::new(outbox));
        async move {
            requests.send(opening).await.map_err(|_| Status::internal("the stream ended before it began"))?;
            let mut answers = answer(server.coordination().session(request)).await?;
            match answers.message().await?.and_then(|answer| answer.response) {
                Some(Tell::Opened(opened)) => Ok(Stream { server, attach: opened.attach, requests, answers }),
                _ => Err(Status::internal("the server didn't say that the session is open")),
            }
        }
    });
    attached.await
}

struct Keeper {
    pool: Arc<Pool>,
    me: Signature,
    open: SessionOpen,
    inbox: mpsc::Receiver<Command>,
    state: watch::Sender<State>,
}

/// How the serving of one stream ended.
enum Served {
    /// The session is over, or nobody holds it any more.
    Over(Option<Error>),
    Broken,
}

impl Keeper {
    async fn run(mut self, mut stream: Stream) {
        let over = loop {
            match self.serve(&mut stream).await {
                Served::Over(why) => break why,
                Served::Broken => {}
            }
            self.state.send_replace(State::Detached);
            self.pool.leave(&stream.server);
            match self.reattach().await {
                Ok(again) => stream = again,
                Err(why) => break why,
            }
            self.state.send_replace(stream.state());
        };
        if let Some(error) = over {
            self.state.send_replace(State::Ended(error));
        }
    }

    async fn serve(&mut self, stream: &mut Stream) -> Served {
        let mut waiting: VecDeque<oneshot::Sender<Result<()>>> = VecDeque::new();
        let mut closing = None;
        loop {
            tokio::select! {
                command = self.inbox.recv(), if closing.is_none() && waiting.len() < BEATS_MAX => match command {
                    None => return Served::Over(None),
                    // Whoever asked gave up meanwhile.
                    Some(Command::Beat(_, done)) if done.is_closed() => {}
                    Some(Command::Beat(report, done)) => {
                        stream.send(Ask::Beat(v1::SessionBeat { report })).await;
                        waiting.push_back(done);
                    }
                    Some(Command::Close(done)) => {
                        stream.send(Ask::Close(v1::SessionClose {})).await;
                        closing = Some(done);
                    }
                },
                answer = stream.answers.message() => match answer.map(|a| a.and_then(|a| a.response)) {
                    Ok(Some(Tell::Renewed(_))) => {
                        waiting.pop_front().map(|done| done.send(Ok(())));
                    }
                    Ok(Some(Tell::Opened(_))) => {}
                    Ok(Some(Tell::Ended(_))) => {
                        closing.map(|done| done.send(Ok(())));
                        let ended = Error::SessionEnded(self.open.session.clone());
                        for done in waiting {
                            // Whoever asked may have given up.
                            let _ = done.send(Err(ended.clone()));
                        }
                        return Served::Over(Some(ended));
                    }
                    Ok(None) => return Served::Broken,
                    Err(status) => {
                        let error = from_status(&status, Call::Read);
                        waiting.pop_front().map(|done| done.send(Err(error)));
                        return Served::Broken;
                    }
                },
            }
        }
    }

    /// At once, then again and again, until the session is attached, over, or nobody holds it.
    async fn reattach(&mut self) -> Result<Stream, Option<Error>> {
        let mut backoff = self.pool.backoff();
        loop {
            match attach(&self.pool, &self.me, &self.open).await {
                Ok(stream) => return Ok(stream),
                Err(error) if error.class() == Class::Retry => {
                    tracing::debug!(session = %self.open.session, %error, "session can't be attached yet");
                }
                Err(error) => return Err(Some(error)),
            }
            tokio::select! {
                () = backoff.pause() => {}
                () = self.state.closed() => return Err(None),
            }
        }
    }
}
