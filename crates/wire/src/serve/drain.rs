//! Streams that end with a last word when the server drains.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt, stream::BoxStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// Messages in a row after which a stream that never has to wait looks whether the server drains. (The look costs about
/// as much as the encoding of a small message, and each message of a quiet stream is followed by a wait anyway.)
const IN_A_ROW_MAX: u8 = 64;

/// Passes a stream on until the drain. Pulls only when it is pulled: what isn't read stays where it's made.
pub struct UntilDrain<T> {
    inner: Option<BoxStream<'static, Result<T, Status>>>,
    drain: Pin<Box<WaitForCancellationFutureOwned>>,
    last: Option<Result<T, Status>>,
    in_a_row: u8,
}

impl<T> UntilDrain<T> {
    pub fn new(
        inner: impl Stream<Item = Result<T, Status>> + Send + 'static,
        drain: &CancellationToken,
        last: Result<T, Status>,
    ) -> Self {
        // A child of its own: a thousand streams don't meet at one lock for every message.
        let drain = Box::pin(drain.child_token().cancelled_owned());
        Self { inner: Some(inner.boxed()), drain, last: Some(last), in_a_row: 0 }
    }
}

impl<T: Unpin> UntilDrain<T> {
    fn drained(&mut self, cx: &mut Context<'_>) -> bool {
        self.in_a_row = 0;
        self.drain.as_mut().poll(cx).is_ready()
    }

    fn last_word(&mut self) -> Poll<Option<Result<T, Status>>> {
        self.inner = None;
        Poll::Ready(self.last.take())
    }
}

impl<T: Unpin> Stream for UntilDrain<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.in_a_row == IN_A_ROW_MAX && self.drained(cx) {
            return self.last_word();
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        match inner.poll_next_unpin(cx) {
            Poll::Ready(Some(item)) => {
                self.in_a_row += 1;
                Poll::Ready(Some(item))
            }
            Poll::Ready(None) => {
                self.inner = None;
                Poll::Ready(None)
            }
            Poll::Pending if self.drained(cx) => self.last_word(),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests;
