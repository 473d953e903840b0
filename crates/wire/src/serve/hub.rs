//! Which agent's stream is here, and which log requests wait for an answer.
//!
//! A request for a log goes down the stream of the node's agent; the chunks come up on a stream of their own and are
//! handed straight to whoever asked. So each log has the flow control of its own HTTP/2 stream, and nothing is kept here
//! but `CHUNKS_MAX` chunks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::v1;
use store::{Error, LogPiece, Result};
use tokio::sync::{mpsc, oneshot};

use crate::error::UNHEARD;

/// Chunks on their way from an agent to a reader.
const CHUNKS_MAX: usize = 8;
/// Log requests that an agent's stream hasn't taken yet.
const REQUESTS_MAX: usize = 64;
/// An agent answers a request for a log this soon. Leaves time to say so, within a client's usual 5 s.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Of one log. It's whole only where its end was told, or an error: who relays it may be gone any time.
pub enum Chunk {
    Piece(LogPiece),
    End,
}

pub type Chunks = mpsc::Receiver<Result<Chunk>>;

#[derive(Default)]
pub struct Hub {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Counts streams, so that each takes only its own place away.
    streams: u64,
    /// The streams of each node that live, in the order in which they came. While an agent attaches anew it may have two for
    /// a moment, and it's not always the one that came last which stays.
    nodes: HashMap<String, Vec<(u64, mpsc::Sender<v1::LogStart>)>>,
    waiting: HashMap<u64, oneshot::Sender<Chunks>>,
}

impl Hub {
    /// The agent of this node is here, until the guard is dropped.
    pub fn attach(self: &Arc<Self>, node: &str) -> (Attachment, mpsc::Receiver<v1::LogStart>) {
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let mut state = self.state();
        state.streams += 1;
        let stream = state.streams;
        state.nodes.entry(node.to_owned()).or_default().push((stream, sender));
        (Attachment { hub: self.clone(), node: node.to_owned(), stream }, requests)
    }

    /// Whether a stream of the node's agent is here.
    pub fn has(&self, node: &str) -> bool {
        self.state().nodes.contains_key(node)
    }

    /// Asks the node's agent for a log. None: its agent isn't here.
    pub async fn open(self: &Arc<Self>, node: &str, mut start: v1::LogStart) -> Option<Result<Chunks>> {
        start.id = rand::random();
        let id = start.id;
        let (answer, answered) = oneshot::channel();
        let sender = {
            let mut state = self.state();
            let sender = state.nodes.get(node)?.last()?.1.clone();
            state.waiting.insert(id, answer);
            sender
        };
        let _waiting = Waiting { hub: self, id };
        if sender.try_send(start).is_err() {
            return Some(Err(Error::Unavailable(format!("the agent of node {node} takes no log requests now"))));
        }
        Some(match tokio::time::timeout(ANSWER_MAX, answered).await {
            Ok(Ok(chunks)) => Ok(chunks),
            _ => Err(Error::Unavailable(format!("{UNHEARD}: the agent of node {node} didn't answer in time"))),
        })
    }

    /// The log of that request comes now. None: nobody waits for it any more.
    pub fn answer(&self, id: u64) -> Option<mpsc::Sender<Result<Chunk>>> {
        let waiting = self.state().waiting.remove(&id)?;
        let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
        waiting.send(chunks).ok()?;
        Some(sender)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An agent's stream, while it lives.
pub struct Attachment {
    hub: Arc<Hub>,
    node: String,
    stream: u64,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        let Some(streams) = state.nodes.get_mut(&self.node) else { return };
        streams.retain(|(stream, _)| *stream != self.stream);
        if streams.is_empty() {
            state.nodes.remove(&self.node);
        }
    }
}

struct Waiting<'a> {
    hub: &'a Hub,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.hub.state().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
