//! Accepted connections that can be cut all at once: tonic's graceful shutdown waits for as long as a peer likes.
//!
//! Small messages of many streams go out in one write. HTTP/2 hands a payload of 256 bytes and more to a vectored writer
//! one by one, a system call for each; to one that isn't vectored it copies what is below a kilobyte into its own buffer
//! first. What it then still hands over in pieces (the head of a large message, and the rest) is put together here; and
//! before little is written, the streams that are ready to say more have their turn.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, TcpConnectInfo};

pub fn incoming(listener: TcpListener, cut: CancellationToken) -> impl Stream<Item = io::Result<Connection>> {
    TcpListenerStream::new(listener).map(move |accepted| {
        let stream = accepted?;
        // Whatever is ready is flushed as one write; waiting for more would only add latency.
        stream.set_nodelay(true)?;
        let stream = BufWriter::with_capacity(OUT_BYTES, stream);
        Ok(Connection { stream, waited: false, cut: Box::pin(cut.clone().cancelled_owned()) })
    })
}

/// One HTTP/2 frame of the default size with what is buffered before it.
const OUT_BYTES: usize = 34 * 1024;
/// As much is written at once.
const WORTH_A_WRITE_BYTES: usize = 8 * 1024;

pub struct Connection {
    stream: BufWriter<TcpStream>,
    /// Others had their turn since the last write.
    waited: bool,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.get_ref().connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let little = (1..WORTH_A_WRITE_BYTES).contains(&self.stream.buffer().len());
        if little && !self.waited {
            // To the end of the queue of what is ready to run: no time passes where nothing else is.
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.waited = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
