use std::net::{TcpListener, TcpStream};

use tokio::net::TcpSocket;

use super::Port;

/// As the kernel looks for a free one.
fn is_free(port: &Port) -> bool {
    TcpSocket::new_v4().expect("a socket can be made").bind(port.address).is_ok()
}

#[test]
fn a_reserved_port_is_nobody_elses_whether_or_not_somebody_listens() {
    let port = Port::reserve();
    for _ in 0..2 {
        assert!(TcpStream::connect(port.address()).is_err(), "nobody listens");
        assert!(!is_free(&port));
        let listener = TcpListener::bind(port.address()).expect("whoever names it may listen");
        TcpStream::connect(port.address()).expect("somebody listens");
        assert!(!is_free(&port));
        drop(listener);
    }
}
