//! A sum over many records that can be kept up to date record by record.

use xxhash_rust::xxh3::xxh3_128;

use crate::{Key, Revision};

/// Sum mod 2^128 of hash(key, uid, revision, bytes), and how many. Equal digests at equal revisions mean equal caches;
/// it guards against faults, not against an attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    pub sum: u128,
    pub count: u64,
}

impl Digest {
    /// What one record contributes.
    pub fn term(key: &Key, uid: &str, revision: Revision, bytes: &[u8]) -> u128 {
        let head = format!("{}\0{uid}\0{revision}\0", key.text());
        xxh3_128(head.as_bytes()) ^ xxh3_128(bytes).rotate_left(64)
    }

    pub fn add(&mut self, term: u128) {
        self.sum = self.sum.wrapping_add(term);
        self.count += 1;
    }

    pub fn remove(&mut self, term: u128) {
        self.sum = self.sum.wrapping_sub(term);
        self.count = self.count.saturating_sub(1);
    }
}
