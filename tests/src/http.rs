//! Just enough HTTP to ask an instance for a page.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_secs(5);

/// The status code of `GET /`, or why there is none.
pub fn get(port: u16) -> std::io::Result<u16> {
    let text = page(&format!("127.0.0.1:{port}"), "/")?;
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {text:.80}")))
}

/// What is answered to `GET` that path, headers and all.
pub fn page(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(4 * 1024 * 1024).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
