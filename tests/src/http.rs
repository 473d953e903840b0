//! Just enough HTTP to ask an instance for a page.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_secs(5);

/// The status code of `GET /`, or why there is none.
pub fn get(port: u16) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(64 * 1024).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {text:.80}")))
}
