//! What the tree writes, kept within a bound: `log` is the newest file, `log.1` the one before it.
//!
//! Beside each stands `times`, `times.1`, ..: when which part of it was written, in records of two numbers of 8 bytes,
//! little-endian: milliseconds since the Unix epoch, and the offset from which on. A record covers what was written within
//! `TIMES_STEP` from its time; the last of `TIMES_MAX` covers all that follows.
//!
//! The tree is never made to wait for the disk, nor ended by it: what can't be written is dropped and counted. A line of its
//! own says so where it's missing: before what is written next, or as soon as there is room, or at the end.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Bytes moved at once. Small, since every supervisor has one.
const BUFFER_BYTES: usize = 16 * 1024;
/// Reads from a busy pipe before signals are looked at again.
const READS_MAX: usize = 64;

/// What was written within that time is of one time.
const TIMES_STEP: Duration = Duration::from_secs(1);
const TIMES_RECORD: usize = 16;
/// Records of one file. 1 MiB; a log of 10 MiB that gets 160 bytes a second is rotated before.
const TIMES_MAX: u64 = 65_536;

pub struct Log {
    dir: PathBuf,
    file: Option<File>,
    times: Option<Times>,
    written: u64,
    rotate_at: u64,
    files: u32,
    /// Bytes since the last that were written, of which the log doesn't tell yet.
    dropped: u64,
    /// The last byte that was written ends no line.
    in_line: bool,
    buffer: Box<[u8; BUFFER_BYTES]>,
}

impl Log {
    pub fn open(dir: &Path, rotate_at: u64, files: u32) -> Self {
        let mut log = Self {
            dir: dir.into(),
            file: None,
            times: None,
            written: 0,
            rotate_at: rotate_at.max(1),
            files: files.max(1),
            dropped: 0,
            in_line: false,
            buffer: Box::new([0; BUFFER_BYTES]),
        };
        log.reopen();
        log
    }

    /// Moves what the pipe holds. False: every writer has closed it.
    pub fn drain(&mut self, pipe: &File) -> bool {
        for _ in 0..READS_MAX {
            let read = (&mut &*pipe).read(&mut self.buffer[..]);
            match read {
                Ok(0) => return false,
                Ok(n) => self.keep(n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
        true
    }

    fn keep(&mut self, length: usize) {
        self.fill_hole();
        let split = self.split(length);
        self.write(0, split);
        if self.written >= self.rotate_at {
            self.rotate();
            self.write(split, length);
        }
    }

    /// Where the current file ends: after the first line that reaches the bound. Without a line's end in the buffer the
    /// whole of it still goes in, so a file exceeds its bound by at most one buffer.
    fn split(&self, length: usize) -> usize {
        let room = usize::try_from(self.rotate_at.saturating_sub(self.written)).unwrap_or(usize::MAX);
        if room >= length {
            return length;
        }
        let line_end = self.buffer[room..length].iter().position(|b| *b == b'\n');
        line_end.map_or(length, |at| room + at + 1)
    }

    fn write(&mut self, from: usize, to: usize) {
        // After a hole nothing is written before the note on it.
        let rest = if self.has_hole() { &[] } else { &self.buffer[from..to] };
        let mut taken = 0;
        if let Some(file) = self.file.as_mut().filter(|_| !rest.is_empty()) {
            if let Some(times) = &mut self.times {
                times.note(self.written);
            }
            taken = write_some(file, rest);
        }
        if let Some(last) = rest[..taken].last() {
            self.in_line = *last != b'\n';
        }
        self.written += taken as u64;
        self.dropped += (to - from - taken) as u64;
    }

    pub fn has_hole(&self) -> bool {
        self.dropped > 0
    }

    /// Notes what was dropped, where there is room for that by now.
    pub fn fill_hole(&mut self) {
        if self.file.is_none() {
            self.reopen();
        }
        let Some(file) = self.file.as_mut().filter(|_| self.dropped > 0) else { return };
        let note = note(self.dropped, self.in_line);
        if write_some(file, &note) == note.len() {
            if let Some(times) = &mut self.times {
                times.note(self.written);
            }
            self.written += note.len() as u64;
            (self.dropped, self.in_line) = (0, false);
        } else {
            // Half a note is none. Should that fail, it's a line that the next one follows.
            let _ = file.set_len(self.written);
        }
    }

    /// Nothing comes any more: where there is no room for the note, it takes that of the last that was written.
    pub fn finish(&mut self) {
        self.fill_hole();
        let Some(file) = self.file.as_mut().filter(|_| self.dropped > 0) else { return };
        let kept = self.written.saturating_sub(note(u64::MAX, true).len() as u64);
        if file.set_len(kept).is_ok() {
            write_some(file, &note(self.dropped + (self.written - kept), true));
        }
    }

    fn rotate(&mut self) {
        (self.file, self.times) = (None, None);
        for kind in ["times", "log"] {
            let name = |n: u32| self.dir.join(if n == 0 { kind.into() } else { format!("{kind}.{n}") });
            for n in (0..self.files.saturating_sub(1)).rev() {
                // A file that isn't there yet has nothing to be moved.
                let _ = fs::rename(name(n), name(n + 1));
            }
            if self.files == 1 {
                let _ = fs::remove_file(name(0));
            }
        }
        self.reopen();
    }

    fn reopen(&mut self) {
        let append = |name: &str| OpenOptions::new().create(true).append(true).open(self.dir.join(name)).ok();
        self.file = append("log");
        self.times = append("times").map(Times::new);
        self.written = self.file.as_ref().and_then(|f| f.metadata().ok()).map_or(0, |m| m.len());
        self.in_line &= self.written > 0;
    }
}

fn note(dropped: u64, in_line: bool) -> Vec<u8> {
    let begin = if in_line { "\n" } else { "" };
    format!("{begin}driftless: {dropped} bytes could not be written and are lost\n").into_bytes()
}

/// How much of it could be written.
fn write_some(file: &mut File, bytes: &[u8]) -> usize {
    let mut taken = 0;
    while taken < bytes.len() {
        match file.write(&bytes[taken..]) {
            Ok(0) => break,
            Ok(n) => taken += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    taken
}

struct Times {
    file: File,
    records: u64,
    /// Of the last record, since the Unix epoch.
    last: Duration,
}

impl Times {
    fn new(file: File) -> Self {
        let records = file.metadata().map_or(TIMES_MAX, |m| m.len() / TIMES_RECORD as u64);
        Self { file, records, last: Duration::ZERO }
    }

    /// From that offset on something is written now. A clock that was set back makes a record, too.
    fn note(&mut self, offset: u64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let known = now >= self.last && now - self.last < TIMES_STEP;
        if known || self.records >= TIMES_MAX {
            return;
        }
        let mut record = [0; TIMES_RECORD];
        record[..8].copy_from_slice(&(now.as_millis() as u64).to_le_bytes());
        record[8..].copy_from_slice(&offset.to_le_bytes());
        if self.file.write_all(&record).is_ok() {
            (self.records, self.last) = (self.records + 1, now);
        }
    }
}
