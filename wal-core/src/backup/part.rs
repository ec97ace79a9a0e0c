//! What a backup takes of one segment: read frame by frame, and checked on the way.

use std::sync::Arc;

use crate::chain::Segment;
use crate::error::{BackupError, StorageError};
use crate::frame::FrameKind;
use crate::io_util::read_full;
use crate::lsn::{Lsn, SegmentId};
use crate::scan::{SCAN_CHUNK_BYTES, Step, Stop, Walk, Window};
use crate::segment::{HEADER_PAGE_BYTES, HeaderPage, SEAL_BYTES_MAX, SegmentHeader};
use crate::storage::{Access, Storage, StorageFile};
use crate::verdict::{Action, Evidence, Finding, Next, Place, judge};
use crate::wire::{len_usize, len64};

/// A segment, up to where its records were durable.
pub(super) struct Part {
    pub(super) segment: Arc<Segment>,
    /// Offset behind the last frame that was published.
    end: u64,
    /// Whether everything up to `end` lies at or below the mark.
    whole: bool,
    sealed: bool,
}

/// Takes the bytes of the copy, in order.
type Put<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), BackupError>;

impl Part {
    pub(super) fn new(segment: Arc<Segment>, durable: u64) -> Part {
        let (last, end, sealed) = segment.with_extent(|extent| (extent.last, extent.end, extent.sealed));
        Part { segment, end, whole: last <= durable, sealed }
    }

    pub(super) fn bytes_at_most(&self) -> u64 {
        self.end + if self.whole && self.sealed { SEAL_BYTES_MAX } else { 0 }
    }

    /// Hands over the header page, the frames up to the one that holds the mark, and the seal of a segment
    /// that is whole. What the log is known not to check at is handed over as it is. Answers whether there was a
    /// seal.
    pub(super) fn read(&self, source: &dyn Storage, durable: u64, put: Put<'_>) -> Result<bool, BackupError> {
        let (file, page) = self.open(source)?;
        put(&page)?;
        let window = Window::new(file, self.end, SCAN_CHUNK_BYTES);
        let mut walk = Walk::new(window, self.segment.salt, HEADER_PAGE_BYTES);
        walk.sieved = self.segment.sieved;
        // The LSN that is due; not known at the link and behind a place that does not check.
        let mut due = None;
        while walk.offset < self.end {
            let offset = walk.offset;
            let skip = self.segment.skips.iter().find(|skip| skip.offset == offset && skip.to > offset);
            if let Some(skip) = skip {
                let to = skip.to.min(self.end);
                self.hand_over(source, &mut walk, to, put)?;
                (walk.offset, due) = (to, None);
                continue;
            }
            let step = match due {
                Some(due) => walk.step(due),
                None => walk.step_anyhow(),
            };
            let frame = match step {
                Step::Frame(frame) => frame,
                Step::Stop(stop) => return Err(self.unsound(source, &stop, offset, due, durable)),
            };
            let records = frame.header.kind == FrameKind::Records;
            if records && frame.header.first_lsn > durable {
                break;
            }
            walk.offset = offset;
            self.hand_over(source, &mut walk, frame.end(), put)?;
            walk.offset = frame.end();
            due = Some(frame.header.next_lsn());
            if records && !self.whole && frame.header.next_lsn() > durable {
                break;
            }
        }
        if self.whole && self.sealed { self.read_seal(&mut walk, put) } else { Ok(false) }
    }

    /// Hands over the bytes from where the walk stands up to `to`; those of a frame that was stepped over are
    /// in memory.
    fn hand_over(
        &self,
        source: &dyn Storage,
        walk: &mut Walk,
        to: u64,
        put: Put<'_>,
    ) -> Result<(), BackupError> {
        let mut offset = walk.offset;
        while offset < to {
            let count = len_usize(to - offset).min(SCAN_CHUNK_BYTES);
            let bytes =
                walk.window.bytes(offset, count).map_err(|error| self.failed(source, "read", error))?;
            if bytes.is_empty() {
                return Err(self.changed(source));
            }
            put(bytes)?;
            offset += len64(bytes.len());
        }
        Ok(())
    }

    /// A seal that does not check misses no record, and is left behind: the segment is then one without.
    fn read_seal(&self, walk: &mut Walk, put: Put<'_>) -> Result<bool, BackupError> {
        walk.window.extend(self.end + SEAL_BYTES_MAX);
        let Ok(frame) = walk.frame_at(self.end) else { return Ok(false) };
        if frame.header.kind != FrameKind::Seal {
            return Ok(false);
        }
        let Ok(bytes) = walk.window.bytes(self.end, len_usize(frame.header.frame_bytes())) else {
            return Ok(false);
        };
        put(bytes)?;
        Ok(true)
    }

    /// Opens the file and reads its header page, which has to be that of the file that was published.
    fn open(&self, source: &dyn Storage) -> Result<(Arc<dyn StorageFile>, Vec<u8>), BackupError> {
        let file = source.open(&self.segment.name, Access::Read).map_err(|error| {
            let gone = error.kind() == std::io::ErrorKind::NotFound;
            if gone { self.changed(source) } else { self.failed(source, "open", error) }
        })?;
        let mut page = vec![0; len_usize(HEADER_PAGE_BYTES)];
        let count = read_full(&*file, 0, &mut page).map_err(|error| self.failed(source, "read", error))?;
        page.truncate(count);
        match SegmentHeader::check(&page) {
            HeaderPage::Valid(header) if header.file_id == self.segment.file_id => {}
            HeaderPage::Valid(_) => return Err(self.changed(source)),
            // An epoch of 0: it did not check when the log was opened either, and that was accepted.
            _ if self.segment.epoch == 0 && len64(count) == HEADER_PAGE_BYTES => {}
            _ => {
                let note = "the header page does not check; it did when the log was opened".to_owned();
                return Err(self.refused(source, Place::Header, 0, Some(self.segment.base), note));
            }
        }
        Ok((Arc::from(file), page))
    }

    /// A frame at or below the mark that does not check, unless the file is not the same any more.
    fn unsound(
        &self,
        source: &dyn Storage,
        stop: &Stop,
        offset: u64,
        due: Option<u64>,
        durable: u64,
    ) -> BackupError {
        if let Err(changed @ BackupError::Changed { .. }) = self.open(source) {
            return changed;
        }
        let note = format!("{}; LSN {durable} was proved durable", stop.note);
        self.refused(source, stop.place, offset, due.or(Some(self.segment.base)), note)
    }

    fn refused(
        &self,
        source: &dyn Storage,
        place: Place,
        offset: u64,
        due: Option<u64>,
        note: String,
    ) -> BackupError {
        let row = judge(&Evidence {
            place,
            next: Next::None,
            mark: true,
            reused: false,
            clean: false,
            accepted: false,
        });
        let finding = Finding {
            label: row.label,
            verdict: row.verdict,
            proof: row.proof,
            file: self.segment.name.clone(),
            segment: SegmentId::new(self.segment.id),
            offset,
            lsn: due.and_then(Lsn::new),
            missing: None,
            harmless: row.action != Action::Refuse,
            evidence: note,
        };
        BackupError::Refused { dir: source.describe(), finding: Box::new(finding) }
    }

    fn changed(&self, source: &dyn Storage) -> BackupError {
        BackupError::Changed { dir: source.describe(), file: self.segment.name.clone() }
    }

    fn failed(&self, source: &dyn Storage, operation: &'static str, error: std::io::Error) -> BackupError {
        let error = StorageError::new(operation, &self.segment.name, error);
        BackupError::Source { dir: source.describe(), source: error }
    }
}
