//! The per-instance supervisor.
fn main() {}
