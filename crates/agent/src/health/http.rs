//! The HTTP check: one plain HTTP/1.1 GET, of which only the status line matters. A client library would bring more code
//! than the whole exchange has.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A status line longer than that isn't one.
const LINE_BYTES_MAX: usize = 1024;
/// What is read of the rest, so that the server isn't cut off while it writes.
const BODY_BYTES_MAX: usize = 64 * 1024;
const BODY_TIME_MAX: Duration = Duration::from_secs(1);

pub async fn get(port: u16, path: &str) -> Result<(), String> {
    let mut stream = super::connect(port).await?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    if path.bytes().any(|b| b.is_ascii_control() || b == b' ') {
        return Err(format!("{path:?} is no path"));
    }
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: driftless-health\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    let failed = |e: std::io::Error| format!("GET {path}: {}", super::plain(&e));
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let line = status_line(&mut stream).await.map_err(failed)?;
    tokio::spawn(read_out(stream));
    match status(&line) {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("GET {path}: status {code}")),
        None => Err(format!("GET {path}: the answer isn't HTTP")),
    }
}

async fn status_line(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut buffer = [0; LINE_BYTES_MAX];
    while !line.contains(&b'\n') && line.len() < LINE_BYTES_MAX {
        match stream.read(&mut buffer).await? {
            0 => break,
            n => line.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(line)
}

/// RFC 9112, section 4: `HTTP/1.1 200 OK`.
fn status(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line.split(|b| *b == b'\r' || *b == b'\n').next()?).ok()?;
    line.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()
}

async fn read_out(mut stream: TcpStream) {
    let read = async {
        let mut left = BODY_BYTES_MAX;
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            left = left.saturating_sub(n);
            if left == 0 {
                return;
            }
        }
    };
    // Out of patience is fine: the answer is known.
    let _ = timeout(BODY_TIME_MAX, read).await;
}
