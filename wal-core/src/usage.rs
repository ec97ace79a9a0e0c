//! What lies in a log's directory.

use crate::chain::Chain;
use crate::control::CONTROL_NAME;
use crate::error::StorageError;
use crate::lsn::SegmentId;
use crate::spare::spare_id;

/// Bytes in a log's directory, by what they are: lengths of files as they are listed, not as they were meant
/// to be. Where a file system shares or compresses blocks, the disk says something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DiskUsage {
    /// Frames, links, headers and seals of the segments.
    pub segments: u64,
    /// Room ahead: behind the end of the segment that is written, and in the one that is ready.
    pub ahead: u64,
    /// Spares, to be written again.
    pub spares: u64,
    /// The control file.
    pub control: u64,
    /// Everything else: files under construction, retired ones that could not be removed, what `repair` set
    /// aside, and what is not the log's.
    pub others: u64,
    /// Number of files.
    pub files: u64,
}

impl DiskUsage {
    pub(crate) fn of(chain: &Chain) -> Result<DiskUsage, StorageError> {
        let storage = &chain.storage;
        let segments = chain.segments();
        let entries = storage.list().map_err(|error| StorageError::new("list", storage.describe(), error))?;
        let newest = segments.last().map_or(0, |segment| segment.id);
        let mut usage = DiskUsage::default();
        for entry in entries {
            usage.files += 1;
            if entry.name == CONTROL_NAME {
                usage.control += entry.len;
            } else if spare_id(&entry.name).is_some() {
                usage.spares += entry.len;
            } else if let Some(segment) = segments.iter().find(|segment| segment.name == entry.name) {
                let (end, sealed) = segment.with_extent(|extent| (extent.end, extent.sealed));
                let used = if sealed { entry.len } else { entry.len.min(end) };
                usage.segments += used;
                usage.ahead += entry.len - used;
            } else if SegmentId::from_file_name(&entry.name).is_some_and(|id| id.number() > newest) {
                usage.ahead += entry.len;
            } else {
                usage.others += entry.len;
            }
        }
        Ok(usage)
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.segments + self.ahead + self.spares + self.control + self.others
    }
}
