//! Just enough HTTP to ask an instance for a page.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

/// A busy machine may take long to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The status code of `GET /`, or why there is none.
pub fn get(port: u16) -> std::io::Result<u16> {
    let text = page(&format!("127.0.0.1:{port}"), "/")?;
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {text:.80}")))
}

/// What is answered to `GET` that path, headers and all.
pub fn page(address: &str, path: &str) -> std::io::Result<String> {
    ask(address, path, "*/*")
}

fn ask(address: &str, path: &str, accept: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(4 * 1024 * 1024).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// An answer, read.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    pub body: String,
}

/// `GET path` of the server at that address, for who accepts that.
pub fn fetch(address: &str, path: &str, accept: &str) -> std::io::Result<Answer> {
    let answer = ask(address, path, accept)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {head:.80}")))?;
    Ok(Answer { code, head: head.to_lowercase(), body: body.to_owned() })
}
