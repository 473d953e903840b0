//! Whatever comes in on the gRPC port, the server goes on.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use driftless_tests::Cluster;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Empty SETTINGS.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Sends it, reads until the server closes or has nothing to say, and hangs up.
fn send(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    // The server may hang up in the middle, as it should.
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 4096]);
}

/// A HEADERS frame that announces more than comes, a DATA frame of a gRPC message whose length is a lie, and so on.
fn frames() -> Vec<Vec<u8>> {
    let frame = |length: u32, kind: u8, flags: u8, body: &[u8]| {
        let mut bytes = [PREFACE, SETTINGS].concat();
        bytes.extend_from_slice(&length.to_be_bytes()[1..]);
        bytes.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
        bytes.extend_from_slice(body);
        bytes
    };
    vec![
        PREFACE[..10].to_vec(),
        PREFACE.to_vec(),
        frame(100, 1, 4, b"short"),
        frame(5, 0, 1, &[0, 255, 255, 255, 255]),
        frame(0xff_ff_ff, 0, 0, b""),
        frame(4, 99, 255, b"what"),
        frame(4, 3, 0, &[0, 0, 0, 8]),
    ]
}

#[test]
fn garbage_and_truncated_frames_do_no_harm() {
    let cluster = Cluster::start();
    let garbage: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    send(cluster.address(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    send(cluster.address(), b"");
    send(cluster.address(), &garbage);
    send(cluster.address(), &[PREFACE, &garbage].concat());
    for bytes in frames() {
        send(cluster.address(), &bytes);
    }
    cluster.run(&["get", "nodes"]).ok();
    assert!(!cluster.log().contains("panicked"), "{}", cluster.log());
}
