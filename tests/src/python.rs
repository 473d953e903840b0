//! The client in another language: `tests/python/client.py`, with stubs made from nothing but `proto/`.

use std::process::Command;

use crate::command::{self, repository};

/// Runs it against that server; it declares, watches and deletes a service of its own.
#[track_caller]
pub fn run_client(address: &str) {
    let python = repository("target/venv/bin/python");
    assert!(python.is_file(), "{} is missing: run 'make setup-test'", python.display());
    let stubs = tempfile::tempdir().expect("a temporary directory");
    let proto = repository("proto");
    let mut generate = Command::new(&python);
    generate.args(["-m", "grpc_tools.protoc"]).arg("-I").arg(&proto);
    for option in ["--python_out", "--grpc_python_out"] {
        generate.arg(format!("{option}={}", stubs.path().display()));
    }
    let files = std::fs::read_dir(proto.join("driftless/v1")).expect("the protos");
    generate.args(files.map(|f| f.expect("a file").path()));
    command::run(generate, b"").ok();

    let mut client = Command::new(&python);
    client.arg(repository("tests/python/client.py")).arg(address).env("PYTHONPATH", stubs.path());
    client.env("PYTHONDONTWRITEBYTECODE", "1");
    let done = command::run(client, b"").ok();
    assert!(done.stdout.ends_with("all is well\n"), "{}", done.stdout);
}
