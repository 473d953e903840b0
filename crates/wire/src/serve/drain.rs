//! Streams that end with a last word when the server drains.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use futures::{Stream, StreamExt, stream::BoxStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// Messages in a row after which a stream that never has to wait looks whether the server drains. (Each message of a
/// quiet stream is followed by a wait, and a look, anyway.)
const IN_A_ROW_MAX: u8 = 64;

/// Begins once, for everybody.
#[derive(Clone, Default)]
pub struct Drain {
    token: CancellationToken,
    /// As the token says, without its lock.
    begun: Arc<AtomicBool>,
}

impl Drain {
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    pub async fn begun(&self) {
        self.token.cancelled().await;
    }
}

/// Passes a stream on until the drain. Pulls only when it is pulled: what isn't read stays where it's made.
pub struct UntilDrain<T> {
    inner: Option<BoxStream<'static, Result<T, Status>>>,
    drain: Drain,
    wait: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whom the drain wakes: it is told again only when that's another.
    wakes: Option<Waker>,
    last: Option<Result<T, Status>>,
    in_a_row: u8,
}

impl<T> UntilDrain<T> {
    pub fn new(
        inner: impl Stream<Item = Result<T, Status>> + Send + 'static,
        drain: &Drain,
        last: Result<T, Status>,
    ) -> Self {
        // A child of its own: a thousand streams don't meet at one lock.
        let wait = Box::pin(drain.token.child_token().cancelled_owned());
        Self { inner: Some(inner.boxed()), drain: drain.clone(), wait, wakes: None, last: Some(last), in_a_row: 0 }
    }
}

impl<T: Unpin> UntilDrain<T> {
    fn drained(&mut self, cx: &mut Context<'_>) -> bool {
        self.in_a_row = 0;
        if self.drain.has_begun() {
            return true;
        }
        if self.wakes.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return false;
        }
        self.wakes = Some(cx.waker().clone());
        self.wait.as_mut().poll(cx).is_ready()
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
