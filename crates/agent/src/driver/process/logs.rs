//! What an instance wrote: read back while it runs, kept for a while once it's gone.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    ops::RangeInclusive,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use store::{LogPiece, LogStream};

use super::{
    folder::{self, Folder},
    position::{FileId, Position},
    times,
};
use crate::driver::{LogPart, Result, Trouble};

/// Of instances that are gone.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Instances whose logs are kept; the oldest go first.
    pub instances: usize,
    pub bytes: u64,
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { instances: 100, bytes: 256 << 20, age: Duration::from_secs(24 * 3600) }
    }
}

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How soon a follower sees what was written.
const FOLLOW_PAUSE: Duration = Duration::from_millis(100);
/// For files that are rotated time and again; some microseconds each.
const LOOKS_MAX: u32 = 100;

/// One run's log, and with `follow` what comes, also of later runs, until the instance is gone. First it says where it
/// begins, in a piece without data.
pub fn stream(folder: Folder, part: LogPart) -> Result<LogStream> {
    let after = part.after.as_deref().map(str::parse);
    let after: Option<Position> = after.transpose().map_err(Trouble)?;
    let reader = Reader { folder, run: 0, part, after, opened: false, file: None, rest: Vec::new() };
    let pieces = stream::unfold(reader, |reader| async move {
        let (reader, read) = step(reader).await?;
        Some((read, reader))
    });
    Ok(pieces.boxed())
}

/// The next piece; none at the end.
async fn step(mut reader: Reader) -> Option<(Reader, store::Result<LogPiece>)> {
    loop {
        let work = move || {
            // Looked at before what is left is read: nothing is written once it's gone.
            let gone = !reader.folder.0.exists();
            let read = match std::mem::replace(&mut reader.opened, true) {
                false => reader.begin(),
                true => reader.read(),
            };
            let piece = read.and_then(|data| data.map(|data| Ok((data, reader.position()?))).transpose());
            (reader, piece, gone)
        };
        let (back, read, gone) = tokio::task::spawn_blocking(work).await.ok()?;
        reader = back;
        match read {
            Ok(Some((data, position))) => {
                return Some((reader, Ok(LogPiece { data, position: position.to_string() })));
            }
            Ok(None) if reader.part.follow && !gone => tokio::time::sleep(FOLLOW_PAUSE).await,
            Ok(None) => return None,
            Err(e) => return Some((reader, Err(store::Error::Unavailable(format!("reading the log: {e}"))))),
        }
    }
}

struct Reader {
    folder: Folder,
    run: u64,
    part: LogPart,
    after: Option<Position>,
    opened: bool,
    /// The file that is read. It's held, so a rotation takes nothing away.
    file: Option<File>,
    /// Files to read after it, oldest last.
    rest: Vec<File>,
}

impl Reader {
    fn begin(&mut self) -> io::Result<Option<Bytes>> {
        match self.after {
            Some(after) => self.go_on(after)?,
            None => {
                self.run = self.folder.newest_run().saturating_sub(u64::from(self.part.previous));
                self.open(self.part.clone());
            }
        }
        Ok(Some(Bytes::new()))
    }

    /// Where somebody has read up to there. A file that was rotated away meanwhile is gone; all that is left is newer.
    fn go_on(&mut self, after: Position) -> io::Result<()> {
        self.run = after.run;
        self.open(LogPart::default());
        let mut files: Vec<File> = self.file.take().into_iter().chain(self.rest.drain(..).rev()).collect();
        let ids = files.iter().map(FileId::of).collect::<io::Result<Vec<_>>>()?;
        if let Some(at) = ids.iter().position(|id| Some(*id) == after.file) {
            files.drain(..at);
            skip_to(&mut files[0], after.offset)?;
        }
        files.reverse();
        self.file = files.pop();
        self.rest = files;
        Ok(())
    }

    fn position(&mut self) -> io::Result<Position> {
        let (file, offset) = match &mut self.file {
            Some(file) => (Some(FileId::of(file)?), file.stream_position()?),
            None => (None, 0),
        };
        Ok(Position { run: self.run, file, offset })
    }

    /// Starts where that part of the run begins.
    fn open(&mut self, part: LogPart) {
        let dir = self.folder.run(self.run);
        // Newest first: log, log.1, ..
        let mut files: Vec<File> = Vec::new();
        let mut wanted = part.tail;
        for (n, mut file) in opened(&dir).unwrap_or_default() {
            let mut more = true;
            if let Some(lines) = wanted {
                let found = seek_lines(&mut file, lines).unwrap_or(0);
                wanted = Some(lines - found);
                more = found < lines;
            }
            if let Some(since) = part.since {
                let from = times::offset_since(&name(&dir, "times", n), since).unwrap_or(0);
                more &= from == 0;
                // Where that fails more is shown than was asked for.
                let _ = skip_to(&mut file, from);
            }
            files.push(file);
            if !more {
                break;
            }
        }
        self.file = files.pop();
        self.rest = files;
    }

    /// None: nothing for now.
    fn read(&mut self) -> io::Result<Option<Bytes>> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            if let Some(file) = &mut self.file {
                let n = file.read(&mut buffer)?;
                if n > 0 {
                    buffer.truncate(n);
                    return Ok(Some(buffer.into()));
                }
            }
            if !self.next_file()? {
                return Ok(None);
            }
        }
    }

    /// After the end of one file: the next newer one, be it rotated in or of a newer run.
    fn next_file(&mut self) -> io::Result<bool> {
        if let Some(next) = self.rest.pop() {
            self.file = Some(next);
            return Ok(true);
        }
        if let Some(current) = &self.file {
            let newer = newer_than(current, &self.folder.run(self.run))?;
            if !newer.is_empty() {
                self.rest = newer;
                return self.next_file();
            }
        }
        let next = self.folder.runs().into_iter().filter(|run| *run > self.run).min();
        if let Some(next) = next.filter(|_| !self.part.previous) {
            self.run = next;
            self.open(LogPart::default());
            return Ok(self.file.is_some());
        }
        // The run's first file may not be there yet.
        if self.file.is_none() {
            self.file = File::open(self.folder.run(self.run).join("log")).ok();
            return Ok(self.file.is_some());
        }
        Ok(false)
    }
}

/// Goes no further back, and not past the end.
fn skip_to(file: &mut File, offset: u64) -> io::Result<u64> {
    let (at, end) = (file.stream_position()?, file.metadata()?.len());
    file.seek(SeekFrom::Start(at.max(offset).min(end)))
}

/// Of the log files that a run may have, newest first. There need not be one of each: who rotates them, or puts them away, may
/// be at it just now, or was killed meanwhile. None goes to a lower number.
fn numbers(dir: &Path) -> RangeInclusive<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let rotated = entries.filter_map(|e| e.file_name().to_str()?.strip_prefix("log.")?.parse::<u32>().ok());
    0..=rotated.max().unwrap_or(0).saturating_add(1)
}

fn name(dir: &Path, kind: &str, n: u32) -> PathBuf {
    dir.join(if n == 0 { kind.into() } else { format!("{kind}.{n}") })
}

/// The files of a run that are newer than this one, newest first.
fn newer_than(file: &File, dir: &Path) -> io::Result<Vec<File>> {
    let inode = file.metadata()?.ino();
    let mut newer = Vec::new();
    for (_, file) in opened(dir)? {
        if file.metadata()?.ino() == inode {
            return Ok(newer);
        }
        newer.push(file);
    }
    // It was rotated away altogether: everything that is left is newer.
    Ok(newer)
}

/// The files of a run by number, newest first, each once. Where they are rotated meanwhile, it's looked again.
fn opened(dir: &Path) -> io::Result<Vec<(u32, File)>> {
    let mut files = Vec::new();
    for _ in 0..LOOKS_MAX {
        files = opened_once(dir)?;
        // It's held, so no other file has its number.
        let newest = files.first().filter(|(n, ..)| *n == 0).map(|(_, inode, _)| *inode);
        if newest == fs::metadata(name(dir, "log", 0)).ok().map(|m| m.ino()) {
            break;
        }
    }
    Ok(files.into_iter().map(|(n, _, file)| (n, file)).collect())
}

/// With their inodes. One that was given the next number is come to again.
fn opened_once(dir: &Path) -> io::Result<Vec<(u32, u64, File)>> {
    let mut files: Vec<(u32, u64, File)> = Vec::new();
    for n in numbers(dir) {
        let Ok(file) = File::open(name(dir, "log", n)) else { continue };
        let inode = file.metadata()?.ino();
        files.retain(|(_, seen, _)| *seen != inode);
        files.push((n, inode, file));
    }
    Ok(files)
}

/// Goes to where the last `lines` lines begin; returns how many there are, at most that many.
fn seek_lines(file: &mut File, lines: usize) -> io::Result<usize> {
    let mut end = file.metadata()?.len();
    if lines == 0 {
        file.seek(SeekFrom::Start(end))?;
        return Ok(0);
    }
    let mut found = 0;
    let mut last = true;
    let mut buffer = vec![0; CHUNK_BYTES];
    while end > 0 {
        let start = end.saturating_sub(CHUNK_BYTES as u64);
        let length = usize::try_from(end - start).unwrap_or(CHUNK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut buffer[..length])?;
        for at in (0..length).rev() {
            // The newest byte ends the last line; it begins none.
            if buffer[at] == b'\n' && !std::mem::take(&mut last) {
                found += 1;
                if found == lines {
                    file.seek(SeekFrom::Start(start + at as u64 + 1))?;
                    return Ok(found);
                }
            }
            last = false;
        }
        end = start;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok((found + usize::from(!last)).min(lines))
}

/// Logs of instances that are gone.
pub struct Kept {
    dir: PathBuf,
    retention: Retention,
    /// One at a time: what one of them lets go another one may be about to count or to remove.
    turn: Mutex<()>,
}

impl Kept {
    pub fn new(data: &Path, retention: Retention) -> Self {
        Self { dir: data.join("logs"), retention, turn: Mutex::default() }
    }

    /// Moves an instance's logs here, and lets the oldest go.
    pub fn put_away(&self, folder: &Folder) -> io::Result<()> {
        let _turn = self.turn.lock().expect("no holder panics");
        let target = self.dir.join(folder.0.file_name().unwrap_or_default());
        let newest = folder.newest_run();
        if newest > 0 && self.retention.instances > 0 {
            folder::private(&target)?;
        }
        for run in newest.saturating_sub(1)..=newest {
            let dir = folder.run(run);
            for (n, file) in numbers(&dir).map(|n| (n, name(&dir, "log", n))).filter(|(_, file)| file.exists()) {
                if target.exists() && file.metadata()?.len() > 0 {
                    fs::rename(&file, target.join(format!("{run}.log.{n}")))?;
                }
            }
        }
        // Nothing was written, nothing is kept; fails where there is something.
        let _ = fs::remove_dir(&target);
        self.trim()
    }

    fn trim(&self) -> io::Result<()> {
        let mut logs: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten() {
            let path = entry?.path();
            // What somebody has removed meanwhile need not be let go any more.
            let found = fs::read_dir(&path).and_then(|files| Ok((files, path.metadata()?.modified()?)));
            let Ok((files, modified)) = found else { continue };
            let bytes = files.flatten().filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum();
            logs.push((modified, bytes, path));
        }
        logs.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
        let mut total = 0;
        for (n, (time, bytes, path)) in logs.into_iter().enumerate() {
            total += bytes;
            let old = time.elapsed().is_ok_and(|age| age > self.retention.age);
            if n >= self.retention.instances || total > self.retention.bytes || old {
                folder::remove(&path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
