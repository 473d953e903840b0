//! Tests that can't be made here, as on a machine where they aren't root. The runner shows no output of a test that passes,
//! so `scripts/unit.sh` shows afterwards what was noted here.

use std::{fs::File, io::Write};

use crate::command::binary;

/// Beside the binary that is tested.
const FILE: &str = "skipped-tests";

/// Says that the test that calls this didn't run. Root has no excuse.
#[track_caller]
pub fn skipped(why: &str) {
    assert!(!rustix::process::geteuid().is_root(), "{why}");
    let thread = std::thread::current();
    let line = format!("SKIPPED: {}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("{line}");
    let noted = File::options().create(true).append(true).open(binary().with_file_name(FILE));
    noted.and_then(|mut file| file.write_all(line.as_bytes())).expect("what was skipped can be noted");
}
