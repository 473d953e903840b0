//! How far somebody has read of what an instance wrote, so that he can go on there after the agent was started anew.

use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub run: u64,
    /// None: there was none yet.
    pub file: Option<FileId>,
    pub offset: u64,
}

/// Which file it is, under whatever name: rotation renames it. Where the file system doesn't tell when a file was made, its
/// number alone must do, though that of one which is gone may be given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    inode: u64,
    /// Nanoseconds since the Unix epoch.
    born: u128,
}

impl FileId {
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let born = metadata.created().unwrap_or(UNIX_EPOCH);
        Ok(Self { inode: metadata.ino(), born: since_epoch(born) })
    }
}

fn since_epoch(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, file, offset } = self;
        match file {
            Some(FileId { inode, born }) => write!(f, "{run}.{offset}.{inode}.{born}"),
            None => write!(f, "{run}"),
        }
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("{text:?} is no position in a log of this node");
        let numbers: Option<Vec<u128>> = text.split('.').map(|number| number.parse().ok()).collect();
        let small = |number: u128| u64::try_from(number).map_err(|_| refuse());
        match numbers.as_deref() {
            Some([run]) => Ok(Self { run: small(*run)?, file: None, offset: 0 }),
            Some([run, offset, inode, born]) => {
                let file = FileId { inode: small(*inode)?, born: *born };
                Ok(Self { run: small(*run)?, file: Some(file), offset: small(*offset)? })
            }
            _ => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_as_it_was_told() {
        for (file, offset) in [(None, 0), (Some(FileId { inode: 17, born: u128::from(u64::MAX) * 3 }), 4_096)] {
            let position = Position { run: 3, file, offset };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        for bad in ["", "1.2", "1.2.3.4.5", "-1", "1.2.x.4", "99999999999999999999.1.1.1"] {
            assert!(bad.parse::<Position>().unwrap_err().contains("is no position"), "{bad}");
        }
    }
}
