//! Streams that end with a last word when the server drains.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt, stream::BoxStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// Passes a stream on until the drain. Pulls only when it is pulled: what isn't read stays where it's made.
pub struct UntilDrain<T> {
    inner: Option<BoxStream<'static, Result<T, Status>>>,
    drain: Pin<Box<WaitForCancellationFutureOwned>>,
    last: Option<Result<T, Status>>,
}

impl<T> UntilDrain<T> {
    pub fn new(
        inner: impl Stream<Item = Result<T, Status>> + Send + 'static,
        drain: &CancellationToken,
        last: Result<T, Status>,
    ) -> Self {
        // A child of its own: a thousand streams don't meet at one lock for every message.
        let drain = Box::pin(drain.child_token().cancelled_owned());
        Self { inner: Some(inner.boxed()), drain, last: Some(last) }
    }
}

impl<T: Unpin> Stream for UntilDrain<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { inner: Some(inner), drain, last } = &mut *self else { return Poll::Ready(None) };
        if drain.as_mut().poll(cx).is_ready() {
            let last = last.take();
            self.inner = None;
            return Poll::Ready(last);
        }
        let polled = inner.poll_next_unpin(cx);
        if let Poll::Ready(None) = polled {
            self.inner = None;
        }
        polled
    }
}
