//! A small TCP proxy, which can hold back what goes up to the server while what comes down still passes.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::watch,
    task::JoinHandle,
};

pub struct TcpProxy {
    pub address: SocketAddr,
    hold: watch::Sender<bool>,
    held: Arc<Mutex<Vec<u8>>>,
    task: JoinHandle<()>,
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TcpProxy {
    pub async fn start(at: IpAddr, target: &str) -> Self {
        let listener = TcpListener::bind((at, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (hold, held) = (watch::Sender::new(false), Arc::default());
        let task = tokio::spawn(accept(listener, target.to_owned(), hold.clone(), Arc::clone(&held)));
        Self { address, hold, held, task }
    }

    /// From now on nothing reaches the server.
    pub fn hold(&self) {
        self.hold.send_replace(true);
    }

    /// Everything that was held goes on, in order.
    pub fn release(&self) {
        self.hold.send_replace(false);
    }

    /// Whether these bytes are among what was ever held.
    pub fn has_held(&self, bytes: &[u8]) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.windows(bytes.len()).any(|window| window == bytes)
    }
}

async fn accept(listener: TcpListener, target: String, hold: watch::Sender<bool>, held: Arc<Mutex<Vec<u8>>>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        let (target, hold, held) = (target.clone(), hold.subscribe(), held.clone());
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(&target).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, mut to_client), (mut from_server, to_server)) =
                (client.into_split(), server.into_split());
            // Either side's end ends both, as a broken connection does.
            tokio::select! {
                _ = up(from_client, to_server, hold, held) => {}
                _ = copy(&mut from_server, &mut to_client) => {}
            }
        });
    }
}

async fn up(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut hold: watch::Receiver<bool>,
    held: Arc<Mutex<Vec<u8>>>,
) -> std::io::Result<()> {
    let (mut chunk, mut waiting) = (vec![0; 64 * 1024], Vec::new());
    loop {
        let holds = *hold.borrow_and_update();
        if !holds && !waiting.is_empty() {
            to.write_all(&waiting).await?;
            waiting.clear();
        }
        tokio::select! {
            read = from.read(&mut chunk) => match read? {
                0 => return Ok(()),
                count if holds => {
                    waiting.extend_from_slice(&chunk[..count]);
                    held.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..count]);
                }
                count => to.write_all(&chunk[..count]).await?,
            },
            changed = hold.changed() => if changed.is_err() {
                return Ok(());
            },
        }
    }
}
