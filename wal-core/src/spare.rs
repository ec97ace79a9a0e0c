//! Spares: files of retired segments that are kept to be written again.
//!
//! A spare has real room on the disk, so a log that retires and appends needs no new room and writes no
//! zeros. Its name says that it is no part of the log, whatever it holds. How many there are is
//! never remembered but counted in the directory, so none can be forgotten.

use crate::lsn::SegmentId;
use crate::stats::Counter;
use crate::storage::{Entry, EntryKind};

/// Most spares that the options allow.
pub(crate) const SPARES_MAX: u32 = 8;

/// How often a segment was made from a spare, and how often one was wanted and none was fit.
#[derive(Debug, Default)]
pub(crate) struct SpareUse {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
}

impl SpareUse {
    pub(crate) fn note(&self, hit: bool) {
        let count = if hit { &self.hits } else { &self.misses };
        count.add(1);
    }
}

/// The name that the file of a retired segment gets.
pub(crate) fn spare_name(segment_id: u64) -> String {
    format!("{segment_id:020}.spare")
}

/// The segment that a spare once was, if the name is that of a spare.
pub(crate) fn spare_id(name: &str) -> Option<SegmentId> {
    let digits = name.strip_suffix(".spare")?;
    SegmentId::from_file_name(&format!("{digits}.wal"))
}

/// Whether a file may be kept for reuse: one that nobody else has a name for, neither larger than a segment
/// nor so small that keeping it is not worth a name.
pub(crate) fn is_fit(entry: &Entry, segment_bytes: u64) -> bool {
    entry.kind == EntryKind::File
        && entry.links == 1
        && (segment_bytes / 2..=segment_bytes).contains(&entry.len)
}

/// The spares among some entries, oldest first.
pub(crate) fn spares(entries: &[Entry]) -> Vec<&Entry> {
    let mut found: Vec<&Entry> = entries.iter().filter(|entry| spare_id(&entry.name).is_some()).collect();
    found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_spares_are_those_and_no_others() {
        assert_eq!(spare_name(42), "00000000000000000042.spare");
        assert_eq!(spare_id(&spare_name(42)), SegmentId::new(42));
        for name in ["42.spare", "00000000000000000042.wal", "00000000000000000000.spare", ".spare"] {
            assert_eq!(spare_id(name), None, "{name}");
        }
    }

    #[test]
    fn a_file_with_two_names_or_of_another_size_is_not_fit() {
        let entry = |kind, len, links| Entry { name: spare_name(1), kind, len, links };
        assert!(is_fit(&entry(EntryKind::File, 1000, 1), 1000));
        assert!(is_fit(&entry(EntryKind::File, 500, 1), 1000));
        assert!(!is_fit(&entry(EntryKind::File, 499, 1), 1000));
        assert!(!is_fit(&entry(EntryKind::File, 1001, 1), 1000));
        assert!(!is_fit(&entry(EntryKind::File, 1000, 2), 1000));
        assert!(!is_fit(&entry(EntryKind::Link, 1000, 1), 1000));
    }
}
