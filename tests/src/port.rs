//! A port that is a test's own, whoever listens on it at the moment: a server that is killed and started again on the port
//! it had would sometimes find another test's process there.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// Bound as long as this lives, so the kernel gives it to nobody who asks for any free port, nor to a connection. Nothing
/// listens: a connection to it is refused, and who asks for this very port, and to use it again, may listen on it. Rust's
/// listeners and Go's do.
pub struct Port {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl Port {
    /// On loopback.
    pub fn reserve() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket can be made");
        socket.set_reuseaddr(true).expect("a socket can be told so");
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
        let address = socket.local_addr().expect("a bound socket has an address");
        Self { address, _socket: socket }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

#[cfg(test)]
mod tests;
