//! Opening for writing: the survey's verdict, acted on in an order that a crash may interrupt anywhere.
//!
//! The steps are those of `docs/recovery.md`: lock; survey and verdict, where a refusal has changed
//! nothing; both slots, with the new epoch and what will be removed; sync of what is relied on; copy of
//! the unproved tail into one new segment; both slots again, for it is durable now; cut and seal of its
//! predecessor, removal of what was abandoned; appends.
//!
//! Records above the durable mark may be in the page cache only, even after a sync that once failed.
//! So they are written anew before anybody may rely on them.

use std::sync::Arc;
use std::time::Instant;

use crate::chain::{Chain, Segment};
use crate::control::{ABANDONED_ROWS_MAX, BegunRow, CONTROL_NAME, ControlFile, ControlState, FileRow};
use crate::error::{OpenError, StorageError};
use crate::frame::{FrameDraft, FrameKind};
use crate::gate::{Gate, Predecessor, Start};
use crate::io_util::write_full;
use crate::lsn::{LogId, Lsn};
use crate::options::{Create, Options, Recovery};
use crate::prepare::{create_temporary, discard, draw_header, draw_log_id, give_name};
use crate::report::{ExtraFile, RecoveryReport, SurveyReport};
use crate::scan::SCAN_CHUNK_BYTES;
use crate::segment::{
    HEADER_PAGE_BYTES, LINK_FRAME_BYTES, Link, PlaneTable, SEAL_BYTES_MAX, Seal, SegmentHeader, SparseIndex,
};
use crate::storage::{Access, LockError, Storage, StorageFile, StorageLock};
use crate::survey::{Extra, ExtraKind, Piece, Shown, Survey};
use crate::verdict::Verdict;
use crate::wire::{crc, len64};

/// Name of the lock file.
pub(crate) const LOCK_NAME: &str = "planewal.lock";

/// Takes the writer's lock.
pub(crate) fn lock(storage: &dyn Storage) -> Result<Box<dyn StorageLock>, LockError> {
    storage.lock(LOCK_NAME)
}

/// Opens a log for writing.
pub(crate) fn open(
    storage: Arc<dyn Storage>,
    options: Options,
) -> Result<(Arc<Gate>, RecoveryReport), OpenError> {
    options.check()?;
    let begun = Instant::now();
    let dir = storage.describe();
    let read_error = |error| StorageError::new("read", dir.clone(), error);
    if options.create == Create::Never && Survey::new(&*storage).map_err(read_error)?.is_blank() {
        return Err(OpenError::Missing { dir });
    }
    let lock = lock(&*storage).map_err(|error| match error {
        LockError::Held { holder } => OpenError::Locked { dir: dir.clone(), holder },
        LockError::Io(source) => OpenError::from(StorageError::new("lock", dir.clone(), source)),
    })?;
    let survey = Survey::new(&*storage).map_err(read_error)?;
    let scan = begun.elapsed();
    check_survey(&survey, &options, &dir)?;
    let report = SurveyReport::new(&survey);
    let opening = Opening {
        storage,
        options,
        report,
        created: survey.is_blank(),
        unclean: !survey.closed_cleanly && !survey.is_blank(),
    };
    let (gate, mut report) = opening.run(survey, lock)?;
    report.scan = scan;
    report.total = begun.elapsed();
    Ok((gate, report))
}

/// Every reason not to open; nothing was changed.
fn check_survey(survey: &Survey, options: &Options, dir: &str) -> Result<(), OpenError> {
    let dir = dir.to_owned();
    if survey.is_blank() {
        return if options.create == Create::Never { Err(OpenError::Missing { dir }) } else { Ok(()) };
    }
    if options.create == Create::MustBeNew {
        return Err(OpenError::Exists { dir });
    }
    if let Some((expected, found)) = options
        .expect_log_id
        .zip(survey.log_id.and_then(LogId::new))
        .filter(|(expected, found)| expected != found)
    {
        return Err(OpenError::WrongLog { dir, expected, found });
    }
    if let Some(finding) = &survey.refusal {
        return Err(OpenError::Refused { dir, finding: Box::new(finding.clone()) });
    }
    if survey.control.as_ref().is_some_and(|control| control.backup) {
        return Err(OpenError::Backup { dir });
    }
    let torn = survey.findings.iter().find(|finding| finding.verdict == Verdict::TornTail);
    if let Some(finding) = torn.filter(|_| options.recovery == Recovery::Refuse) {
        return Err(OpenError::TornTail { dir, finding: Box::new(finding.clone()) });
    }
    Ok(())
}

struct Opening {
    storage: Arc<dyn Storage>,
    options: Options,
    report: SurveyReport,
    created: bool,
    unclean: bool,
}

impl Opening {
    fn run(
        self,
        survey: Survey,
        lock: Box<dyn StorageLock>,
    ) -> Result<(Arc<Gate>, RecoveryReport), OpenError> {
        let torn_tail = survey.findings.iter().find(|finding| finding.verdict == Verdict::TornTail).cloned();
        let copy_needed = self.unclean && survey.last > survey.durable && !survey.chain.is_empty();
        let (mut control, copy_header) = self.new_epoch(&survey, copy_needed)?;
        let mut removed = self.remove(&survey.extras)?;
        self.sync_what_is_relied_on(&survey)?;

        let base = survey.chain.first().map_or(survey.next, |piece| piece.base);
        let mark = if copy_needed { survey.durable.max(base - 1) } else { survey.last.max(survey.durable) };
        let durable = mark.min(survey.last);
        let chain = Arc::new(Chain::new(
            Arc::clone(&self.storage),
            survey.chain.clone(),
            survey.next,
            durable,
            Some(&control.state),
            Vec::new(),
        ));
        let mut start = Start {
            next: survey.next,
            predecessor: survey.chain.last().map(|piece| Predecessor {
                id: piece.id,
                file_id: piece.file_id,
                last: piece.last,
                end: piece.end,
            }),
            kept: self.unclean.then_some(survey.last),
            branch: survey.next > survey.last + 1,
            pending_copy: None,
        };
        let mut copied = None;
        if let Some(header) = copy_header {
            let copy = PendingCopy::new(
                Arc::clone(&chain),
                survey.chain.clone(),
                header,
                survey.durable,
                survey.last,
            )?;
            copied = Lsn::new(copy.first).zip(Lsn::new(survey.last));
            match copy.run(&mut control) {
                Ok(predecessor) => {
                    start.predecessor = Some(predecessor);
                    chain.publish_durable(predecessor.last);
                    removed.extend(copy.replaced().map(|piece| ExtraFile {
                        name: piece.name.clone(),
                        why: ExtraKind::Abandoned.name(),
                    }));
                }
                Err(error) if error.is_full() => start.pending_copy = Some(copy),
                Err(error) => return Err(error.into()),
            }
        } else if self.unclean
            && let Some(newest) = survey.chain.last()
        {
            let trimmed = trim(&*self.storage, newest, survey.last)?;
            chain.replace_from(newest.id, [Segment::found(trimmed)]);
        }
        let copy_pending = start.pending_copy.is_some();
        let report = RecoveryReport {
            survey: self.report,
            created: self.created,
            unclean: self.unclean,
            torn_tail,
            copied: copied.filter(|_| !copy_pending),
            copy_pending,
            removed,
            scan: std::time::Duration::ZERO,
            total: std::time::Duration::ZERO,
        };
        Ok((Arc::new(Gate::new(chain, self.options, control, lock, start)), report))
    }

    /// Step 3: the epoch of this open into both slots, and what it is going to do.
    fn new_epoch(
        &self,
        survey: &Survey,
        copy_needed: bool,
    ) -> Result<(ControlFile, Option<SegmentHeader>), OpenError> {
        let failed = |error| OpenError::from(StorageError::new("write", CONTROL_NAME, error));
        if self.created {
            discard(&*self.storage, &format!("{CONTROL_NAME}.tmp"));
            let mut state = ControlState::new(draw_log_id(&*self.storage)?);
            state.epoch = 1;
            state.next_segment_id = survey.highest_id + 1;
            return Ok((ControlFile::create(&*self.storage, state).map_err(failed)?, None));
        }
        let (Some(slots), Some(state)) = (&survey.slots, &survey.control) else {
            unreachable!("a log without a control file is refused")
        };
        let mut state = state.clone();
        state.epoch = survey.epoch + 1;
        state.next_segment_id = survey.highest_id + 1;
        state.clean = None;
        state.durable = survey.durable.max(state.durable);
        state.least_next = state.least_next.max(survey.durable + 1);
        if self.unclean {
            state.note_unclean_open(state.epoch, survey.last);
        }
        state.begun = survey
            .chain
            .last()
            .map(|piece| BegunRow {
                file: FileRow { segment_id: piece.id, file_id: piece.file_id },
                must_exist: true,
            })
            .into_iter()
            .collect();
        state.abandoned =
            survey.extras.iter().filter_map(|extra| extra.row).take(ABANDONED_ROWS_MAX).collect();
        let mut control = ControlFile::open(&*self.storage, slots, state).map_err(failed)?;
        let header =
            copy_needed.then(|| draw_header(&*self.storage, &mut control, &self.options, 0)).transpose()?;
        if let Some(header) = &header {
            control.state.begun.push(BegunRow {
                file: FileRow { segment_id: header.segment_id, file_id: header.file_id },
                must_exist: false,
            });
        }
        control.write_both().map_err(failed)?;
        Ok((control, header))
    }

    /// Removes what is no part of the log; a file that cannot be removed stays listed for the next open.
    fn remove(&self, extras: &[Extra]) -> Result<Vec<ExtraFile>, OpenError> {
        let mut removed = Vec::new();
        for extra in extras {
            match self.storage.remove(&extra.name) {
                Ok(()) => removed.push(ExtraFile::new(extra)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StorageError::new("remove", &extra.name, error).into()),
            }
        }
        Ok(removed)
    }

    /// Step 4: a file or a name that is found may still not be durable.
    fn sync_what_is_relied_on(&self, survey: &Survey) -> Result<(), OpenError> {
        if self.unclean {
            let newest = survey.chain.len().saturating_sub(1);
            for (at, piece) in survey.chain.iter().enumerate() {
                if at == newest || piece.last > survey.durable {
                    open_for_writing(&*self.storage, &piece.name)?
                        .sync()
                        .map_err(|error| StorageError::new("sync", &piece.name, error))?;
                }
            }
        }
        self.storage.sync_dir().map_err(|error| StorageError::new("sync", self.storage.describe(), error))?;
        Ok(())
    }
}

fn open_for_writing(storage: &dyn Storage, name: &str) -> Result<Box<dyn StorageFile>, StorageError> {
    storage.open(name, Access::ReadWrite).map_err(|error| StorageError::new("open", name, error))
}

/// Cuts a finished segment at its end and seals it there, durably. A file with accepted losses, or one that
/// stands in for others, stays as it is.
fn trim(storage: &dyn Storage, piece: &Piece, durable: u64) -> Result<Piece, StorageError> {
    if !piece.skips.is_empty() || piece.sieve.is_some() || piece.header.is_none() {
        return Ok(piece.clone());
    }
    let file = open_for_writing(storage, &piece.name)?;
    let seal =
        Seal { base: piece.base, last: piece.last, planes: piece.planes.clone(), index: piece.index.clone() };
    let frame = seal.frame(piece.salt, piece.end, durable.min(piece.last));
    let behind = piece.end + len64(frame.len());
    if piece.sealed && piece.file_bytes == behind {
        return Ok(piece.clone());
    }
    let failed = |operation| move |error| StorageError::new(operation, piece.name.clone(), error);
    file.set_len(piece.end).map_err(failed("cut"))?;
    file.sync().map_err(failed("sync"))?;
    let mut trimmed = Piece { sealed: false, file_bytes: piece.end, ..piece.clone() };
    match write_full(&*file, piece.end, &frame) {
        Ok(()) => {
            trimmed.sealed = true;
            trimmed.file_bytes = behind;
        }
        Err(error) if crate::io_util::is_full(&error) => file.set_len(piece.end).map_err(failed("cut"))?,
        Err(error) => return Err(failed("write")(error)),
    }
    file.sync().map_err(failed("sync"))?;
    Ok(trimmed)
}

/// The copy of an unproved tail, made at opening or, where there was no room, before the first append.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    chain: Arc<Chain>,
    /// From the predecessor of the copy on.
    pieces: Vec<Piece>,
    header: SegmentHeader,
    /// Where the copied part begins in the first piece.
    from: u64,
    /// The first LSN that is copied.
    first: u64,
    durable: u64,
    last: u64,
}

/// A running check over frames, to compare what was read with what was written.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    frames: u64,
    records: u64,
    check: u32,
}

impl Tally {
    fn add(&mut self, first: u64, records: u32, body: &[u8]) {
        self.frames += 1;
        self.records += u64::from(records);
        self.check = crc(crc(self.check, &first.to_le_bytes()), body);
    }
}

impl PendingCopy {
    fn new(
        chain: Arc<Chain>,
        pieces: Vec<Piece>,
        header: SegmentHeader,
        durable: u64,
        last: u64,
    ) -> Result<PendingCopy, StorageError> {
        let at = pieces.iter().rposition(|piece| piece.base <= durable).unwrap_or(0);
        let pieces: Vec<Piece> = pieces.into_iter().skip(at).collect();
        let mut copy = PendingCopy { chain, pieces, header, from: 0, first: 0, durable, last };
        if let Some(piece) = copy.pieces.first().cloned() {
            // The first frame that holds anything above the mark.
            let mut begin = (piece.end, piece.last + 1);
            piece.frames(&*copy.chain.storage, piece.start, |shown| {
                let unproved = shown.first + u64::from(shown.records) > durable + 1;
                if unproved {
                    begin = (shown.offset, shown.first);
                }
                Ok(!unproved)
            })?;
            (copy.from, copy.first) = begin;
        }
        Ok(copy)
    }

    /// The segments whose records are all in the copy.
    fn replaced(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().skip(1)
    }

    /// Steps 5 to 7. Can be tried again after it found no room.
    pub(crate) fn run(&self, control: &mut ControlFile) -> Result<Predecessor, StorageError> {
        let storage = &*self.chain.storage;
        let Some(predecessor) = self.pieces.first() else { unreachable!("there is something to copy") };
        let copy = match self.write_copy(predecessor) {
            Ok(copy) => copy,
            Err(error) => {
                discard(
                    storage,
                    &format!(
                        "{}.tmp",
                        crate::lsn::SegmentId::new(self.header.segment_id)
                            .map_or_else(String::new, crate::lsn::SegmentId::file_name)
                    ),
                );
                return Err(error);
            }
        };
        let row = FileRow { segment_id: self.header.segment_id, file_id: self.header.file_id };
        control.state.durable = control.state.durable.max(self.last);
        control.state.begun = vec![BegunRow { file: row, must_exist: true }];
        control
            .state
            .abandoned
            .extend(self.replaced().map(|piece| FileRow { segment_id: piece.id, file_id: piece.file_id }));
        control.state.abandoned.truncate(ABANDONED_ROWS_MAX);
        control.write_both().map_err(|error| StorageError::new("write", CONTROL_NAME, error))?;

        let cut = predecessor.cut_at(storage, self.from, self.first - 1)?;
        let cut = trim(storage, &cut, self.first - 1)?;
        for piece in self.replaced() {
            storage.remove(&piece.name).map_err(|error| StorageError::new("remove", &piece.name, error))?;
        }
        storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
        let result = Predecessor { id: copy.id, file_id: copy.file_id, last: copy.last, end: copy.end };
        self.chain.replace_from(predecessor.id, [Segment::found(cut), Segment::found(copy)]);
        Ok(result)
    }

    /// Writes the copy under a temporary name, syncs it, reads it again, and gives it its name.
    fn write_copy(&self, predecessor: &Piece) -> Result<Piece, StorageError> {
        let storage = &*self.chain.storage;
        let bytes: u64 = self.pieces.iter().map(|piece| piece.end).sum::<u64>() - self.from;
        let header = SegmentHeader {
            capacity: HEADER_PAGE_BYTES + LINK_FRAME_BYTES + bytes + SEAL_BYTES_MAX,
            ..self.header.clone()
        };
        let (file, name, temporary) = create_temporary(storage, &header)?;
        let link = Link {
            predecessor_id: predecessor.id,
            predecessor_file_id: predecessor.file_id,
            predecessor_last: self.first - 1,
            predecessor_end: self.from,
            base: self.first,
            kept: Some(self.last),
            branch: false,
        };
        let salt = header.salt();
        let start = HEADER_PAGE_BYTES + LINK_FRAME_BYTES;
        let mut copy = Piece {
            id: header.segment_id,
            file_id: header.file_id,
            name: temporary.clone(),
            salt,
            link: Some(link),
            sieve: None,
            file_bytes: 0,
            start,
            base: self.first,
            last: self.last,
            end: start,
            sealed: true,
            planes: PlaneTable::default(),
            index: SparseIndex::default(),
            skips: Vec::new(),
            header: Some(header),
        };
        let failed = |operation| {
            let temporary = temporary.clone();
            move |error| StorageError::new(operation, temporary, error)
        };
        let mut pending = link.frame(salt, HEADER_PAGE_BYTES, self.durable);
        let mut written_to = HEADER_PAGE_BYTES;
        let mut read = Tally::default();
        for (at, piece) in self.pieces.iter().enumerate() {
            let from = if at == 0 { self.from } else { piece.start };
            piece.frames(storage, from, |Shown { first, records, body, .. }| {
                read.add(first, records, body);
                copy.planes.count(first, body);
                copy.index.add(first, copy.end);
                let draft =
                    FrameDraft { kind: FrameKind::Records, first_lsn: first, records, durable: self.durable };
                pending.extend_from_slice(&draft.frame(salt, copy.end, body));
                copy.end = written_to + len64(pending.len());
                if pending.len() >= SCAN_CHUNK_BYTES {
                    write_full(&*file, written_to, &pending).map_err(failed("write"))?;
                    written_to = copy.end;
                    pending.clear();
                }
                Ok(true)
            })?;
        }
        let seal =
            Seal { base: copy.base, last: copy.last, planes: copy.planes.clone(), index: copy.index.clone() };
        // Nobody sees this file before all of it is synced, so its seal may say so.
        pending.extend_from_slice(&seal.frame(salt, copy.end, self.last));
        copy.file_bytes = written_to + len64(pending.len());
        write_full(&*file, written_to, &pending).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        let mut again = Tally::default();
        copy.frames(storage, start, |Shown { first, records, body, .. }| {
            again.add(first, records, body);
            Ok(true)
        })?;
        if again != read {
            return Err(failed("read again")(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "the copy is not what was copied",
            )));
        }
        give_name(storage, &temporary, &name)?;
        copy.name = name;
        Ok(copy)
    }
}
