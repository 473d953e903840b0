//! A small disk of a test's own, that can be filled.
//!
//! Only root may make one.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use crate::skip::skipped;

/// Enough for the records of some instances.
const BYTES: &str = "1m";
const PAGE: [u8; 4096] = [b'x'; 4096];

pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Puts one at that directory in a test's own, with which it goes. None, and said aloud, where this user can't.
    pub fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).expect("a directory in the temporary one");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={BYTES}"), "driftless-test"]).arg(&at);
        let done = mount.output().expect("mount is installed");
        if !done.status.success() {
            skipped(&format!("a small disk can't be mounted: {}", String::from_utf8_lossy(&done.stderr)));
            return None;
        }
        Some(Self { at })
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    /// To the last page.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.ballast()).expect("there is room for a name");
        let error = loop {
            if let Err(error) = file.write_all(&PAGE) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    }

    pub fn free(&self) {
        fs::remove_file(self.ballast()).expect("it was filled");
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}
