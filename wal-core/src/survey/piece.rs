//! A segment as a survey found it, and walking its frames once more.

use std::io;
use std::sync::Arc;

use crate::error::StorageError;
use crate::frame::{FrameKind, Salt};
use crate::scan::{SCAN_CHUNK_BYTES, Step, Walk, Window};
use crate::segment::{Link, PlaneTable, SegmentHeader, Sieve, SparseIndex};
use crate::storage::{Access, Storage};
use crate::verdict::Finding;

/// A segment of the chain, as far as the log is believed to go.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) id: u64,
    pub(crate) file_id: u64,
    pub(crate) name: String,
    pub(crate) salt: Salt,
    pub(crate) header: Option<SegmentHeader>,
    pub(crate) link: Option<Link>,
    pub(crate) sieve: Option<Sieve>,
    pub(crate) file_bytes: u64,
    /// Offset of the first frame behind the link.
    pub(crate) start: u64,
    pub(crate) base: u64,
    /// Base - 1 if it holds no record.
    pub(crate) last: u64,
    /// Offset behind the last frame, before the seal.
    pub(crate) end: u64,
    pub(crate) sealed: bool,
    pub(crate) planes: PlaneTable,
    pub(crate) index: SparseIndex,
    /// Places that a reader steps over.
    pub(crate) skips: Vec<Skip>,
}

/// A place that does not check and behind which reading goes on.
#[derive(Debug, Clone)]
pub(crate) struct Skip {
    pub(crate) offset: u64,
    /// Where to go on; the end of the piece if nothing more of it checks.
    pub(crate) to: u64,
    pub(crate) finding: Finding,
}

/// A frame with records, shown by [`Piece::frames`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub(crate) offset: u64,
    pub(crate) first: u64,
    pub(crate) records: u32,
    pub(crate) body: &'a [u8],
}

impl Piece {
    /// Shows every frame with records from `offset` to the end, until told to stop.
    pub(crate) fn frames(
        &self,
        storage: &dyn Storage,
        offset: u64,
        mut show: impl FnMut(Shown<'_>) -> Result<bool, StorageError>,
    ) -> Result<(), StorageError> {
        let file = storage
            .open(&self.name, Access::Read)
            .map_err(|error| StorageError::new("open", &self.name, error))?;
        let window = Window::new(Arc::from(file), self.end, SCAN_CHUNK_BYTES);
        let mut walk = Walk::new(window, self.salt, offset);
        walk.sieved = self.sieve.is_some();
        // The LSN that is due; not known at the beginning and behind a place that is stepped over.
        let mut due = None;
        while walk.offset < self.end {
            let offset = walk.offset;
            if let Some(skip) = self.skips.iter().find(|skip| skip.offset == offset && skip.to > offset) {
                walk.offset = skip.to.min(self.end);
                due = None;
                continue;
            }
            let step = match due {
                Some(due) => walk.step(due),
                None => walk.step_anyhow(),
            };
            match step {
                Step::Frame(frame) => {
                    due = Some(frame.header.next_lsn());
                    let (first, records) = (frame.header.first_lsn, frame.header.records);
                    if frame.header.kind == FrameKind::Records
                        && !show(Shown { offset, first, records, body: walk.body() })?
                    {
                        break;
                    }
                }
                Step::Stop(stop) => {
                    let note = format!("offset {offset}: {}; it was whole when surveyed", stop.note);
                    let changed = io::Error::new(io::ErrorKind::InvalidData, note);
                    return Err(StorageError::new("read again", &self.name, changed));
                }
            }
        }
        Ok(())
    }

    /// The piece as it is when everything from offset `end` on is taken off it; `last` is the last LSN before.
    pub(crate) fn cut_at(&self, storage: &dyn Storage, end: u64, last: u64) -> Result<Piece, StorageError> {
        let mut cut = Piece {
            end,
            last,
            sealed: false,
            planes: PlaneTable::default(),
            index: SparseIndex::default(),
            skips: self.skips.iter().filter(|skip| skip.offset < end).cloned().collect(),
            ..self.clone()
        };
        let (mut planes, mut index) = (PlaneTable::default(), SparseIndex::default());
        cut.frames(storage, cut.start, |shown| {
            planes.count(shown.first, shown.body);
            index.add(shown.first, shown.offset);
            Ok(true)
        })?;
        (cut.planes, cut.index) = (planes, index);
        Ok(cut)
    }
}
