//! Whether etcd shows another history than the one that was told of. Values only.

use model::Revision;

/// How often in a row etcd may show an older state than before: a paused member's stale reads pass, a restored backup
/// stays. The probe asks twice a second.
const OLDER_MAX: u32 = 4;

/// Compares what etcd shows with what was told before it was asked: what is told while an answer is on its way is newer
/// than the answer, and proves nothing.
#[derive(Debug, Default)]
pub struct Age {
    told: Revision,
    older: u32,
}

impl Age {
    /// An answer to the probe, and what is told by now. The next answer's question is asked after this.
    pub fn probed(&mut self, shown: Revision, told: Revision) -> bool {
        let before = std::mem::replace(&mut self.told, told);
        self.shown(shown, before)
    }

    /// An answer to what was asked when that was told already. Whether it was older too often.
    pub fn shown(&mut self, shown: Revision, told: Revision) -> bool {
        self.older = if shown < told { self.older + 1 } else { 0 };
        self.older > OLDER_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_a_busy_watch_overtook_are_not_old() {
        let mut age = Age::default();
        assert!((0..100).all(|n| !age.probed(Revision(10 * n), Revision(10 * n + 2))));
    }

    #[test]
    fn a_restored_backup_stays_old_and_a_stale_read_passes() {
        let mut age = Age::default();
        assert!(!age.probed(Revision(20), Revision(20)));
        assert!((0..OLDER_MAX).all(|_| !age.probed(Revision(10), Revision(20))));
        assert!(!age.probed(Revision(20), Revision(20)), "it was a stale member");
        assert!((0..OLDER_MAX).all(|_| !age.probed(Revision(10), Revision(20))));
        assert!(age.probed(Revision(10), Revision(20)), "it is another history");
    }
}
