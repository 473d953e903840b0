use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
};

use super::{connect, grpc, http};

/// Answers one connection with these bytes, and tells what was asked.
async fn serve(answer: &'static [u8]) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let n = stream.read(&mut request).await.unwrap();
        stream.write_all(answer).await.unwrap();
        String::from_utf8_lossy(&request[..n]).into_owned()
    });
    (port, asked)
}

#[tokio::test]
async fn only_the_status_line_counts() {
    for (answer, expected) in [
        (&b"HTTP/1.1 200 OK\r\n\r\nbody"[..], Ok(())),
        (b"HTTP/1.0 204 No Content\r\n\r\n", Ok(())),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", Ok(())),
        (b"HTTP/1.1 200\r\n\r\n", Ok(())),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", Err("GET /up: status 404")),
        (b"HTTP/1.1 503 Busy\r\n\r\n", Err("GET /up: status 503")),
        (b"HTTP/1.1 99999999999 No\r\n\r\n", Err("GET /up: the answer isn't HTTP")),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Err("GET /up: the answer isn't HTTP")),
        (b"\xff\xfe\r\n", Err("GET /up: the answer isn't HTTP")),
        (b"", Err("GET /up: the answer isn't HTTP")),
    ] {
        let (port, asked) = serve(answer).await;
        assert_eq!(http::get(port, "up").await, expected.map_err(str::to_owned));
        let asked = asked.await.unwrap();
        assert!(asked.starts_with("GET /up HTTP/1.1\r\nHost: 127.0.0.1:"), "{asked}");
    }
}

#[tokio::test]
async fn a_path_cannot_smuggle_a_request() {
    let (port, _asked) = serve(b"HTTP/1.1 200 OK\r\n\r\n").await;
    assert!(http::get(port, "/a HTTP/1.1\r\nX: y").await.is_err());
}

#[tokio::test]
async fn an_endless_answer_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endless = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        while stream.write_all(&[b'x'; 512]).await.is_ok() {}
    });
    assert_eq!(http::get(port, "/").await, Err("GET /: the answer isn't HTTP".into()));
    endless.await.unwrap();
}

#[tokio::test]
async fn a_closed_port_is_named() {
    // It's held, so that it's nobody else's meanwhile.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    assert_eq!(connect(port).await.err(), Some(format!("port {port}: Connection refused")));
    let _listener = socket.listen(1).unwrap();
    assert!(connect(port).await.is_ok());
}

#[tokio::test]
async fn the_health_protocol_is_asked() {
    let (health, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
    let server = tokio::spawn(server);
    health.set_service_status("web", tonic_health::ServingStatus::NotServing).await;
    assert_eq!(grpc::check(port, "").await, Ok(()));
    assert_eq!(grpc::check(port, "web").await, Err("the health service says NOT_SERVING".into()));
    let unknown = grpc::check(port, "nobody").await;
    assert!(unknown.is_err_and(|e| e.starts_with("the health service fails: NotFound")));
    server.abort();
    assert!(tokio::time::timeout(Duration::from_secs(20), grpc::check(1, "")).await.unwrap().is_err());
}
