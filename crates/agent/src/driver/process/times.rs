//! When which part of a log was written, as its supervisor noted it (`supervisor/src/log.rs` says in which form).

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What a record covers, and how many of them there are at most, as supervisors have it.
const STEP: Duration = Duration::from_secs(1);
const RECORD: usize = 16;
const RECORDS_MAX: usize = 65_536;

/// Where what was written since then begins; past everything where nothing was.
pub fn offset_since(file: &Path, since: SystemTime) -> io::Result<u64> {
    Ok(offset_in(&fs::read(file)?, since))
}

fn offset_in(bytes: &[u8], since: SystemTime) -> u64 {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let records = bytes.chunks_exact(RECORD);
    // Nothing tells how long the last of so many goes on.
    let open = records.len() >= RECORDS_MAX;
    let last = records.len().saturating_sub(1);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("chunks of 16 have two halves of 8"));
    let covers = |(n, record): &(usize, &[u8])| {
        Duration::from_millis(number(&record[..8])) + STEP > since || (open && *n == last)
    };
    records.enumerate().find(covers).map_or(u64::MAX, |(_, record)| number(&record[8..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u64, offset: u64) -> Vec<u8> {
        [(second * 1_000).to_le_bytes(), offset.to_le_bytes()].concat()
    }

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn a_record_covers_a_second() {
        let times = [record(100, 0), record(101, 40), record(200, 80)].concat();
        let offsets = [0, 100, 101, 102, 200, 201].map(|second| offset_in(&times, at(second)));
        assert_eq!(offsets, [0, 0, 40, 80, 80, u64::MAX]);
        assert_eq!(offset_in(&[], at(1)), u64::MAX, "nothing was written");
        assert_eq!(offset_in(&[&times[..], &[1, 2]].concat(), at(150)), 80, "the last is being written");
    }

    #[test]
    fn the_last_record_that_there_is_room_for_covers_all_that_follows() {
        let times: Vec<u8> = (0..RECORDS_MAX as u64).flat_map(|n| record(n, n * 10)).collect();
        assert_eq!(offset_in(&times, at(1 << 40)), (RECORDS_MAX as u64 - 1) * 10);
    }
}
