//! What only root may do.

use rustix::process::geteuid;

use crate::skip::skipped;

/// Whether this test can be made here; where not, that is noted.
pub fn may(what: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        skipped(&format!("only root may {what}"));
    }
    root
}
