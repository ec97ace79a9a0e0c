//! The chain in memory: which segments the log has and how far each of them goes.
//!
//! Writer and readers meet here. The writer extends the newest segment and publishes its marks after
//! the call that earned them has returned, in LSN order only; readers look at a segment up to the
//! extent that was published and never beyond.

use std::sync::Arc;

use crate::control::{AncestorRow, ControlState, HistoryRow};
use crate::frame::Salt;
use crate::lsn::{Lsn, SegmentId};
use crate::segment::{PlaneCount, PlaneTable, SegmentHeader, SparseIndex};
use crate::storage::Storage;
use crate::survey::{Piece, Skip, Survey};
use crate::sync::{AtomicU64, Mutex, Ordering, RwLock};
use crate::verdict::Finding;

/// A segment of the chain.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: u64,
    pub(crate) file_id: u64,
    pub(crate) name: String,
    pub(crate) salt: Salt,
    pub(crate) epoch: u64,
    pub(crate) label: String,
    pub(crate) base: u64,
    /// Offset of the first frame behind the link.
    pub(crate) start: u64,
    pub(crate) sieved: bool,
    pub(crate) skips: Vec<Skip>,
    extent: Mutex<Extent>,
}

/// How far a segment goes.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    /// Base - 1 if there is no record.
    pub(crate) last: u64,
    /// Offset behind the last frame, before the seal.
    pub(crate) end: u64,
    pub(crate) file_bytes: u64,
    pub(crate) sealed: bool,
    pub(crate) planes: PlaneTable,
    /// Empty once the segment is sealed: the seal has it.
    pub(crate) index: SparseIndex,
}

impl Segment {
    /// A segment that the writer begins.
    pub(crate) fn begin(header: &SegmentHeader, base: u64, start: u64, file_bytes: u64) -> Segment {
        Segment {
            id: header.segment_id,
            file_id: header.file_id,
            name: SegmentId::new(header.segment_id).map_or_else(String::new, SegmentId::file_name),
            salt: header.salt(),
            epoch: header.epoch,
            label: header.label.clone(),
            base,
            start,
            sieved: false,
            skips: Vec::new(),
            extent: Mutex::new(Extent {
                last: base - 1,
                end: start,
                file_bytes,
                sealed: false,
                planes: PlaneTable::default(),
                index: SparseIndex::default(),
            }),
        }
    }

    /// A segment that a survey found.
    pub(crate) fn found(piece: Piece) -> Segment {
        let index = if piece.sealed { SparseIndex::default() } else { piece.index };
        Segment {
            id: piece.id,
            file_id: piece.file_id,
            name: piece.name,
            salt: piece.salt,
            epoch: piece.header.as_ref().map_or(0, |header| header.epoch),
            label: piece.header.map_or_else(String::new, |header| header.label),
            base: piece.base,
            start: piece.start,
            sieved: piece.sieve.is_some(),
            skips: piece.skips,
            extent: Mutex::new(Extent {
                last: piece.last,
                end: piece.end,
                file_bytes: piece.file_bytes,
                sealed: piece.sealed,
                planes: piece.planes,
                index,
            }),
        }
    }

    /// The same segment, with an extent of its own.
    fn twin(&self) -> Segment {
        Segment {
            id: self.id,
            file_id: self.file_id,
            name: self.name.clone(),
            salt: self.salt,
            epoch: self.epoch,
            label: self.label.clone(),
            base: self.base,
            start: self.start,
            sieved: self.sieved,
            skips: self.skips.clone(),
            extent: Mutex::new(self.extent.lock().clone()),
        }
    }

    /// Last LSN and end offset, as published.
    pub(crate) fn reach(&self) -> (u64, u64) {
        let extent = self.extent.lock();
        (extent.last, extent.end)
    }

    pub(crate) fn with_extent<T>(&self, look: impl FnOnce(&mut Extent) -> T) -> T {
        look(&mut self.extent.lock())
    }

    pub(crate) fn info(&self) -> Option<SegmentInfo> {
        let extent = self.extent.lock();
        Some(SegmentInfo {
            id: SegmentId::new(self.id)?,
            file: self.name.clone(),
            base: Lsn::new(self.base)?,
            last: if extent.last < self.base { None } else { Lsn::new(extent.last) },
            records: extent.planes.records(),
            end: extent.end,
            file_bytes: extent.file_bytes,
            sealed: extent.sealed,
            sieved: self.sieved,
            epoch: self.epoch,
            label: self.label.clone(),
            planes: extent.planes.rows().to_vec(),
        })
    }
}

/// What the next segment's link has to name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Predecessor {
    pub(crate) id: u64,
    pub(crate) file_id: u64,
    pub(crate) last: u64,
    pub(crate) end: u64,
}

impl Predecessor {
    /// A stand-in is named as the last segment that it stands for.
    pub(crate) fn of(piece: &Piece) -> Predecessor {
        let original = piece
            .sieve
            .as_ref()
            .and_then(|sieve| Some((sieve.run.last()?.file_id, sieve.original_last, sieve.original_end)));
        let (file_id, last, end) = original.unwrap_or((piece.file_id, piece.last, piece.end));
        Predecessor { id: piece.id, file_id, last, end }
    }
}

/// What is known of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its id.
    pub id: SegmentId,
    /// Its file's name.
    pub file: String,
    /// The LSN of its first record, or of the first to come.
    pub base: Lsn,
    /// The LSN of its last record; `None` while it has none.
    pub last: Option<Lsn>,
    /// Number of its records.
    pub records: u64,
    /// Offset behind its last frame, before the seal, in bytes.
    pub end: u64,
    /// Length of the file in bytes, room prepared ahead included.
    pub file_bytes: u64,
    /// Whether it is finished and has its seal.
    pub sealed: bool,
    /// Whether it was rewritten to what is needed of it.
    pub sieved: bool,
    /// The open epoch in which it was begun.
    pub epoch: u64,
    /// The host's label.
    pub label: String,
    /// What it holds of each plane.
    pub planes: Vec<PlaneCount>,
}

/// The chain of a log that is open, for writing or for reading only.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) storage: Arc<dyn Storage>,
    segments: RwLock<Vec<Arc<Segment>>>,
    written: AtomicU64,
    durable: AtomicU64,
    /// The next LSN to be given out, as far as readers care.
    next: AtomicU64,
    /// The epoch of this open, or of the last one.
    pub(crate) epoch: u64,
    log_id: [u8; 16],
    /// The logs that this one branched from.
    ancestors: Vec<AncestorRow>,
    history: Vec<HistoryRow>,
    /// LSN ranges that `repair` gave up.
    lost: Vec<(u64, u64)>,
    /// Findings that a writing open refuses; only a read-only view has any.
    refusals: Vec<Finding>,
}

impl Chain {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        pieces: Vec<Piece>,
        next: u64,
        durable: u64,
        control: Option<&ControlState>,
        refusals: Vec<Finding>,
    ) -> Chain {
        let last = pieces.last().map_or(next - 1, |piece| piece.last);
        Chain {
            storage,
            segments: RwLock::new(pieces.into_iter().map(|piece| Arc::new(Segment::found(piece))).collect()),
            written: AtomicU64::new(last),
            durable: AtomicU64::new(durable),
            next: AtomicU64::new(next),
            epoch: control.map_or(0, |control| control.epoch),
            log_id: control.map_or([0; 16], |control| control.log_id),
            ancestors: control.map_or_else(Vec::new, |control| control.ancestors.clone()),
            history: control.map_or_else(Vec::new, |control| control.history.clone()),
            lost: control.map_or_else(Vec::new, |control| {
                control
                    .losses
                    .iter()
                    .filter(|row| row.first <= row.last)
                    .map(|row| (row.first, row.last))
                    .collect()
            }),
            refusals,
        }
    }

    /// The chain as a survey found it, with what a writing open would refuse.
    pub(crate) fn surveyed(storage: Arc<dyn Storage>, survey: Survey) -> Chain {
        let refusals = survey.findings.iter().filter(|finding| !finding.harmless).cloned().collect();
        let durable = survey.durable.min(survey.last);
        Chain::new(storage, survey.chain, survey.next, durable, survey.control.as_ref(), refusals)
    }

    /// The same chain, to be extended by somebody who watches the files, and by nobody else.
    pub(crate) fn twin(&self) -> Chain {
        Chain {
            storage: Arc::clone(&self.storage),
            segments: RwLock::new(
                self.segments.read().iter().map(|segment| Arc::new(segment.twin())).collect(),
            ),
            written: AtomicU64::new(self.written()),
            durable: AtomicU64::new(self.durable()),
            next: AtomicU64::new(self.next()),
            epoch: self.epoch,
            log_id: self.log_id,
            ancestors: self.ancestors.clone(),
            history: self.history.clone(),
            lost: self.lost.clone(),
            refusals: self.refusals.clone(),
        }
    }

    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    pub(crate) fn push(&self, segment: Arc<Segment>) {
        self.segments.write().push(segment);
    }

    pub(crate) fn newest(&self) -> Option<Arc<Segment>> {
        self.segments.read().last().cloned()
    }

    /// Replaces the segments from `id` on: recovery copied what of them is kept.
    pub(crate) fn replace_from(&self, id: u64, segments: impl IntoIterator<Item = Segment>) {
        let mut all = self.segments.write();
        all.retain(|segment| segment.id < id);
        all.extend(segments.into_iter().map(Arc::new));
    }

    /// Takes the segments before `id` off the chain: they are retired, or nobody reads them here. Readers in them keep what they have open.
    pub(crate) fn retire_before(&self, id: u64) -> Vec<Arc<Segment>> {
        let mut segments = self.segments.write();
        let retired = segments.partition_point(|segment| segment.id < id);
        segments.drain(..retired).collect()
    }

    /// Whether a segment is not on the chain any more.
    pub(crate) fn is_retired(&self, segment: &Segment) -> bool {
        self.segments.read().first().is_some_and(|first| segment.id < first.id)
    }

    /// The segment behind `id` in the chain's order.
    pub(crate) fn after(&self, id: u64) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let behind = segments.partition_point(|segment| segment.id <= id);
        segments.get(behind).cloned()
    }

    /// The segment in which `lsn` lies or would lie.
    pub(crate) fn holding(&self, lsn: u64) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let behind = segments.partition_point(|segment| segment.base <= lsn);
        segments.get(behind.checked_sub(1)?).cloned()
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.segments.read().first().map(|segment| segment.base)
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Publishes marks; they never go back.
    pub(crate) fn publish_written(&self, lsn: u64) {
        debug_assert!(lsn >= self.written());
        self.written.store(lsn, Ordering::Release);
    }

    pub(crate) fn publish_durable(&self, lsn: u64) {
        debug_assert!(lsn <= self.written());
        self.durable.fetch_max(lsn, Ordering::AcqRel);
    }

    pub(crate) fn publish_next(&self, lsn: u64) {
        self.next.store(lsn, Ordering::Release);
    }

    /// What a writing open would refuse where this LSN is due.
    pub(crate) fn refusal_at(&self, due: u64) -> Option<Finding> {
        let covers = |finding: &&Finding| match (finding.missing, finding.lsn) {
            (Some((first, last)), _) => (first.number()..=last.number()).contains(&due),
            (None, lsn) => lsn.is_some_and(|lsn| lsn.number() == due),
        };
        self.refusals.iter().find(covers).cloned()
    }

    /// Whether a writing open would refuse anything.
    pub(crate) fn is_refused(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// The first of what a writing open would refuse.
    pub(crate) fn refusal(&self) -> Option<&Finding> {
        self.refusals.first()
    }

    pub(crate) fn log_id(&self) -> [u8; 16] {
        self.log_id
    }

    /// Whether this is the log with that id, or a branch of it.
    pub(crate) fn is_of(&self, log_id: [u8; 16]) -> bool {
        self.log_id == log_id || self.ancestors.iter().any(|row| row.log_id == log_id)
    }

    /// The open, or the branch, that kept less than a reader of the log `log_id` had read in `epoch`.
    pub(crate) fn diverged(&self, log_id: [u8; 16], epoch: u64, read: u64) -> Option<HistoryRow> {
        let open = self.history.iter().find(|row| row.epoch > epoch && row.kept < read).copied();
        open.or_else(|| self.branched_below(log_id, read))
    }

    /// The branch from the log `log_id`, if that log's records up to `read` are not all below it. The log may
    /// have gone on elsewhere since, so epochs say nothing. What was given up right there is nobody's
    /// since, and misleads nobody.
    fn branched_below(&self, log_id: [u8; 16], read: u64) -> Option<HistoryRow> {
        let branch = self.ancestors.iter().find(|row| row.log_id == log_id)?;
        let mut shared = branch.last_lsn;
        while let Some((_, last)) = self.lost(shared + 1) {
            shared = last;
        }
        (read > shared).then_some(HistoryRow { epoch: self.epoch, kept: branch.last_lsn })
    }

    /// The lost range that `lsn` lies in.
    pub(crate) fn lost(&self, lsn: u64) -> Option<(u64, u64)> {
        self.lost.iter().find(|(first, last)| (*first..=*last).contains(&lsn)).copied()
    }
}
