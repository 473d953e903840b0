//! One log, sent to the server that asked for it, on a stream of its own: as fast as its reader reads, no faster.

use std::sync::Arc;

use ::api::v1;
use futures::{Stream, StreamExt, stream};
use store::{Error, LogPiece, LogSource, LogStream, Result};

use super::pool::{Server, Signature, answer};

/// Bytes of one chunk.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Ends when the log does, or when the server says that nobody reads it any more.
pub async fn send(server: Server, signature: Signature, source: Option<Arc<dyn LogSource>>, start: v1::LogStart) {
    let id = start.id;
    let opened = match source {
        Some(source) => source.open(start).await,
        None => Err(Error::Unavailable("this agent serves no logs".into())),
    };
    let chunks =
        chunks(id, opened).map(|log| v1::ReportRequest { request: Some(v1::report_request::Request::Log(log)) });
    let sent = answer(server.agents().report(signature.on(chunks))).await;
    let ended = match sent {
        Ok(mut answers) => answers.message().await.map(drop),
        Err(status) => Err(status),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "log stream ended");
    }
}

/// An empty one at once, which says that the agent heard; the log; one that ends it.
fn chunks(id: u64, opened: Result<LogStream>) -> impl Stream<Item = v1::LogChunk> + Send + 'static {
    let chunk = move |LogPiece { data, position }: LogPiece| v1::LogChunk {
        id,
        data: data.into(),
        position,
        ..Default::default()
    };
    let end = move |error: String| v1::LogChunk { id, end: true, error, ..Default::default() };
    let log = opened.unwrap_or_else(|error| stream::once(async { Err(error) }).boxed());
    let pieces = log.flat_map(|piece| match piece {
        Ok(piece) => stream::iter(split(piece).into_iter().map(Ok).collect::<Vec<_>>()),
        Err(error) => stream::iter(vec![Err(error)]),
    });
    let closed = pieces.chain(stream::once(async { Err(Error::Unavailable(String::new())) }));
    let messages = closed.scan(false, move |ended, piece| {
        let message = (!*ended).then(|| match piece {
            Ok(piece) => chunk(piece),
            Err(Error::Unavailable(text)) => end(text),
            Err(error) => end(error.to_string()),
        });
        *ended |= message.as_ref().is_some_and(|m| m.end);
        std::future::ready(message)
    });
    stream::once(async move { chunk(LogPiece::default()) }).chain(messages)
}

/// Only with the last of it one has read as far as it says.
fn split(LogPiece { mut data, position }: LogPiece) -> Vec<LogPiece> {
    let mut pieces = Vec::new();
    while data.len() > CHUNK_BYTES_MAX {
        pieces.push(LogPiece { data: data.split_to(CHUNK_BYTES_MAX), position: String::new() });
    }
    pieces.push(LogPiece { data, position });
    pieces
}
