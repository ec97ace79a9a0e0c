//! Opening for writing: the survey's verdict, acted on in an order that a crash may interrupt anywhere.
//!
//! The steps are those of `docs/recovery.md`: lock; survey and verdict, where a refusal has changed
//! nothing; sync of what is relied on; both slots, with the new epoch and what will be removed; copy of
//! the unproved tail into one new segment; both slots again, for it is durable now; cut and seal of its
//! predecessor; appends.
//!
//! Records above the durable mark may be in the page cache only, even after a sync that once failed.
//! So they are written anew before anybody may rely on them.

use std::sync::Arc;
use std::time::Instant;

use crate::chain::{Chain, Predecessor, Segment};
use crate::control::{ABANDONED_ROWS_MAX, BegunRow, CONTROL_NAME, ControlFile, ControlState, FileRow};
use crate::copy::{CopyError, PendingCopy, open_for_writing, trim};
use crate::error::{OpenError, StorageError};
use crate::events::opened;
use crate::gate::{Gate, Start};
use crate::lsn::{LogId, Lsn};
use crate::options::{Create, Options, Recovery};
use crate::prepare::{discard, draw_header, draw_log_id};
use crate::report::{ExtraFile, RecoveryReport, SurveyReport};
use crate::segment::SegmentHeader;
use crate::spare::is_fit;
use crate::storage::{EntryKind, LockError, Storage, StorageLock};
use crate::survey::{Extra, ExtraKind, Piece, Survey};
use crate::verdict::Verdict;

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
    if options.create == Create::Never && Survey::finds_nothing(&*storage).map_err(read_error)? {
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
    opened(&dir, &report);
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
        self.sync_what_is_relied_on(&survey)?;
        let (mut control, copy_header) = self.new_epoch(&survey, copy_needed)?;
        let surplus = self.surplus_spares(&survey);
        let files = survey.spares.iter().filter(|entry| entry.kind == EntryKind::File).count();
        let spares = u32::try_from(files - surplus.len()).unwrap_or(u32::MAX);
        let mut removed = self.remove(&[&survey.extras[..], &surplus[..]].concat())?;

        let pieces = self.trim_older(&survey)?;
        let base = pieces.first().map_or(survey.next, |piece| piece.base);
        let mark = if copy_needed { survey.durable.max(base - 1) } else { survey.last };
        let durable = mark.min(survey.last);
        let chain = Arc::new(Chain::new(
            Arc::clone(&self.storage),
            pieces.clone(),
            survey.next,
            durable,
            Some(&control.state),
            Vec::new(),
        ));
        let mut start = Start {
            next: survey.next,
            predecessor: pieces.last().map(Predecessor::of),
            kept: self.unclean.then_some(survey.last),
            branch: survey.next > survey.last + 1,
            pending_copy: None,
        };
        let mut copied = None;
        if let Some(header) = copy_header {
            let copy = PendingCopy::new(Arc::clone(&chain), pieces, header, survey.durable, survey.last)?;
            copied = Lsn::new(copy.first).zip(Lsn::new(survey.last));
            removed.extend(self.copy_tail(copy, &mut control, &mut start)?);
        } else if self.unclean
            && let Some(newest) = pieces.last()
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
            spares,
            scan: std::time::Duration::ZERO,
            total: std::time::Duration::ZERO,
        };
        Ok((Arc::new(Gate::new(chain, self.options, control, lock, start)), report))
    }

    /// Steps 5 to 7 of recovery, or as far as there is room for them.
    fn copy_tail(
        &self,
        copy: PendingCopy,
        control: &mut ControlFile,
        start: &mut Start,
    ) -> Result<Vec<ExtraFile>, OpenError> {
        match copy.run(control) {
            Ok(predecessor) => {
                start.predecessor = Some(predecessor);
                let name = |piece: &Piece| piece.name.clone();
                let why = ExtraKind::Abandoned.name();
                Ok(copy.replaced().map(|piece| ExtraFile { name: name(piece), why }).collect())
            }
            Err(CopyError::NoRoom(_)) => {
                start.pending_copy = Some(copy);
                Ok(Vec::new())
            }
            Err(CopyError::Failed(error)) => Err(OpenError::Storage(error)),
        }
    }

    /// A segment before the newest that its run left unsealed gives back its room and gets its seal. So does the
    /// last that is sealed: of the others each later seal says that theirs is durable, but this one and the cut
    /// behind it may be in the page cache only, even after a sync that once failed. So it is written anew.
    fn trim_older(&self, survey: &Survey) -> Result<Vec<Piece>, OpenError> {
        let mut pieces = survey.chain.clone();
        let older = pieces.len().saturating_sub(1);
        let last_sealed = pieces.iter().take(older).rposition(|piece| piece.sealed);
        for (at, piece) in pieces.iter_mut().enumerate().take(older).filter(|_| self.unclean) {
            let whole = piece.header.is_some() && piece.sieve.is_none() && piece.skips.is_empty();
            if Some(at) == last_sealed && whole && piece.last <= survey.durable {
                *piece = piece.cut_at(&*self.storage, piece.end, piece.last)?;
            }
            if !piece.sealed && piece.last <= survey.durable {
                *piece = trim(&*self.storage, piece, piece.last)?;
            }
        }
        Ok(pieces)
    }

    /// Step 4: the epoch of this open into both slots, and what it is going to do.
    fn new_epoch(
        &self,
        survey: &Survey,
        copy_needed: bool,
    ) -> Result<(ControlFile, Option<SegmentHeader>), OpenError> {
        if self.created {
            discard(&*self.storage, &format!("{CONTROL_NAME}.tmp"));
            let mut state = ControlState::new(draw_log_id(&*self.storage)?);
            state.epoch = 1;
            state.next_segment_id = survey.highest_id + 1;
            return Ok((ControlFile::create(&*self.storage, state)?, None));
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
        let mut control = ControlFile::open(&*self.storage, slots, state)?;
        let header =
            copy_needed.then(|| draw_header(&*self.storage, &mut control, &self.options, 0)).transpose()?;
        if let Some(header) = &header {
            control.state.begun.push(BegunRow {
                file: FileRow { segment_id: header.segment_id, file_id: header.file_id },
                must_exist: false,
            });
        }
        control.write_both()?;
        Ok((control, header))
    }

    /// Spares beyond what the options allow, and files that are named so and not fit.
    fn surplus_spares(&self, survey: &Survey) -> Vec<Extra> {
        let files = survey.spares.iter().filter(|entry| entry.kind == EntryKind::File);
        let mut left = self.options.spares;
        files
            .filter(|entry| {
                let kept = left > 0 && is_fit(entry, self.options.segment_bytes);
                left -= u32::from(kept);
                !kept
            })
            .map(|entry| Extra { name: entry.name.clone(), row: None, why: ExtraKind::Spare })
            .collect()
    }

    /// Removes what is no part of the log; a file that cannot be removed stays listed for the next open.
    fn remove(&self, extras: &[Extra]) -> Result<Vec<ExtraFile>, OpenError> {
        let mut removed = Vec::new();
        for extra in extras {
            match self.storage.remove(&extra.name) {
                Ok(()) => removed.push(ExtraFile::new(extra)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                // It stands in nobody's way.
                Err(_) if extra.why == ExtraKind::Spare => {}
                Err(error) => return Err(StorageError::new("remove", &extra.name, error).into()),
            }
        }
        if !removed.is_empty() {
            self.storage
                .sync_dir()
                .map_err(|error| StorageError::new("sync", self.storage.describe(), error))?;
        }
        Ok(removed)
    }

    /// Step 3: a file or a name that is found may still not be durable.
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
