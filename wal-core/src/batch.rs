//! Batches: records that are in the log whole, or not at all.
//!
//! A batch encodes its records as they are pushed, into the bytes that will lie in the frame; so
//! committing it costs one copy, under no lock but the writer's, and a batch that is used again
//! allocates nothing.

use crate::error::AppendError;
use crate::frame::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX, put_record, record_bytes};
use crate::lsn::Lsn;
use crate::segment::PlaneTable;
use crate::wire::len64;

/// Records to be appended together. Memory of the caller's, and no part of the log before a commit has
/// taken it; what a commit refuses stays in it. Its limit is
/// [`record_bytes_max`](crate::Options::record_bytes_max), checked by the commit.
///
/// ```
/// use planewal_core::Batch;
/// let mut batch = Batch::new();
/// batch.push(0x80, 0x80, b"first")?;
/// batch.push(0x80, 0x80, b"second")?;
/// assert_eq!(batch.records(), 2);
/// # Ok::<(), planewal_core::AppendError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Batch {
    body: Vec<u8>,
    records: u32,
    payload_bytes: u64,
    /// Where the last record's length field begins.
    last_length_at: usize,
    /// Runs of records of one plane, as positions in the batch.
    runs: Vec<Run>,
}

/// Records of one plane that follow each other.
#[derive(Debug, Clone, Copy)]
struct Run {
    plane: u8,
    records: u32,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a record of a plane. Planes and kinds from `0x80` up belong to applications; zero is
    /// never valid. The payload may be empty and has at most 1 GiB.
    ///
    /// # Errors
    /// [`AppendError::InvalidTag`] and [`AppendError::TooLarge`]; the batch is as before.
    #[inline]
    pub fn push(&mut self, plane: u8, kind: u8, payload: &[u8]) -> Result<(), AppendError> {
        if plane == 0 || kind == 0 {
            return Err(AppendError::InvalidTag { plane, kind });
        }
        let bytes = len64(payload.len());
        let fits = bytes <= PAYLOAD_BYTES_MAX && self.records < u32::MAX;
        let payload_bytes = u32::try_from(bytes)
            .ok()
            .filter(|&bytes| fits && len64(self.body.len()) + record_bytes(bytes) <= BODY_BYTES_MAX);
        let Some(payload_bytes) = payload_bytes else {
            return Err(AppendError::TooLarge {
                bytes: self.payload_bytes + bytes,
                limit: PAYLOAD_BYTES_MAX,
            });
        };
        self.last_length_at = put_record(&mut self.body, plane, kind, payload, payload_bytes);
        self.records += 1;
        self.payload_bytes += bytes;
        match self.runs.last_mut() {
            Some(run) if run.plane == plane => run.records += 1,
            _ => self.runs.push(Run { plane, records: 1 }),
        }
        Ok(())
    }

    /// Number of records.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Whether it holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes of payload, without heads.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Bytes that the batch takes in the log, heads and payloads: what a permit has to be for.
    #[must_use]
    pub fn encoded_bytes(&self) -> u64 {
        len64(self.body.len())
    }

    /// Bytes that a record with a payload of so many bytes takes in a batch: 3 more for up to 63 bytes, 4
    /// more up to 8 KiB, never more than 7 more.
    #[must_use]
    pub fn encoded(payload_bytes: usize) -> u64 {
        record_bytes(u32::try_from(payload_bytes).unwrap_or(u32::MAX)).max(len64(payload_bytes))
    }

    /// Takes all records out and keeps the memory.
    pub fn clear(&mut self) {
        self.body.clear();
        self.runs.clear();
        self.records = 0;
        self.payload_bytes = 0;
    }
}

/// What can be appended whole: a batch, or a single record that needs no batch of its own.
pub(crate) trait Appendable {
    fn body_bytes(&self) -> u64;
    fn records(&self) -> u32;
    fn payload_bytes(&self) -> u64;

    /// Copies the records behind a group's others, with the last one marked as the end of the batch.
    fn copy_to(&self, group: &mut Vec<u8>);

    /// Counts the records, which got the LSNs from `first` on.
    fn count_in(&self, planes: &mut PlaneTable, first: u64);

    /// The records have their LSNs and are the log's now.
    fn taken(&mut self);
}

impl Appendable for Batch {
    fn taken(&mut self) {
        self.clear();
    }

    fn body_bytes(&self) -> u64 {
        len64(self.body.len())
    }

    fn records(&self) -> u32 {
        self.records
    }

    fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    #[inline]
    fn copy_to(&self, group: &mut Vec<u8>) {
        let at = group.len() + self.last_length_at;
        group.extend_from_slice(&self.body);
        if let Some(length) = group.get_mut(at) {
            *length |= 1;
        }
    }

    #[inline]
    fn count_in(&self, planes: &mut PlaneTable, first: u64) {
        let mut next = first;
        for run in &self.runs {
            let last = next + u64::from(run.records) - 1;
            if let Some((first, last)) = Lsn::new(next).zip(Lsn::new(last)) {
                planes.add(run.plane, u64::from(run.records), first, last);
            }
            next = last + 1;
        }
    }
}

/// A record that is a batch by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Single<'a> {
    plane: u8,
    kind: u8,
    payload: &'a [u8],
    payload_bytes: u32,
}

impl<'a> Single<'a> {
    pub(crate) fn new(plane: u8, kind: u8, payload: &'a [u8]) -> Result<Single<'a>, AppendError> {
        if plane == 0 || kind == 0 {
            return Err(AppendError::InvalidTag { plane, kind });
        }
        let bytes = len64(payload.len());
        match u32::try_from(bytes) {
            Ok(payload_bytes) if bytes <= PAYLOAD_BYTES_MAX => {
                Ok(Single { plane, kind, payload, payload_bytes })
            }
            _ => Err(AppendError::TooLarge { bytes, limit: PAYLOAD_BYTES_MAX }),
        }
    }
}

impl Appendable for Single<'_> {
    fn taken(&mut self) {}

    fn body_bytes(&self) -> u64 {
        record_bytes(self.payload_bytes)
    }

    fn records(&self) -> u32 {
        1
    }

    fn payload_bytes(&self) -> u64 {
        u64::from(self.payload_bytes)
    }

    #[inline]
    fn copy_to(&self, group: &mut Vec<u8>) {
        let at = put_record(group, self.plane, self.kind, self.payload, self.payload_bytes);
        if let Some(length) = group.get_mut(at) {
            *length |= 1;
        }
    }

    #[inline]
    fn count_in(&self, planes: &mut PlaneTable, first: u64) {
        if let Some(lsn) = Lsn::new(first) {
            planes.add(self.plane, 1, lsn, lsn);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::frame::records_check;

    #[test]
    fn a_batch_is_a_body_once_its_end_is_marked() {
        let mut batch = Batch::new();
        batch.push(0x80, 1, b"a").unwrap();
        batch.push(0x81, 2, &[7; 300]).unwrap();
        batch.push(0x81, 2, b"").unwrap();
        let mut group = Vec::new();
        batch.copy_to(&mut group);
        batch.copy_to(&mut group);
        assert!(records_check(&group, 6, false));
        let mut planes = PlaneTable::default();
        batch.count_in(&mut planes, 10);
        let rows: Vec<_> = planes
            .rows()
            .iter()
            .map(|row| (row.plane, row.records, row.first.number(), row.last.number()))
            .collect();
        assert_eq!(rows, [(0x80, 1, 10, 10), (0x81, 2, 11, 12)]);
    }

    #[test]
    fn zero_is_no_plane_and_no_kind() {
        let mut batch = Batch::new();
        assert!(batch.push(0, 1, b"").is_err());
        assert!(batch.push(1, 0, b"").is_err());
        assert!(batch.is_empty());
    }
}
