//! One process for each directory: a lock that the kernel gives back when its holder dies.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use super::OpenError;

const FILE: &str = "lock";

/// Held as long as the file is open. It tells the next one whose it is.
pub(super) fn acquire(dir: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io { dir: dir.into(), source };
    let path = dir.join(FILE);
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { dir: dir.into(), pid: holder(&mut file) }),
        Err(TryLockError::Error(source)) => return Err(io(source)),
    }
    file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id())).map_err(io)?;
    Ok(file)
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
