//! Repair: accepting a loss that was proved or cannot be ruled out, on a new branch of the log.
//!
//! Only the control file is written: loss rows say where the log does not check and which LSNs are
//! gone, a new log id and an ancestor row begin the branch. Segment files stay where they are, byte
//! for byte; what stands in a segment's way is renamed to `<name>.aside-<n>`. Every later reader is told
//! what was lost.

use std::io;
use std::sync::Arc;

use crate::control::{
    ANCESTOR_ROWS_MAX, AncestorRow, BegunRow, CONTROL_NAME, ControlFile, ControlState, FileRow,
    LOSS_ROWS_MAX, LossRow, lost_ranges,
};
use crate::error::{RepairError, StorageError};
use crate::lsn::{LogId, Lsn};
use crate::open::lock;
use crate::prepare::draw_log_id;
use crate::storage::{Access, LockError, Storage};
use crate::survey::Survey;
use crate::verdict::{Finding, Verdict};

/// Rounds after which a repair gives up: each accepts what the round before uncovered.
const ROUNDS: u32 = 16;

/// What a repair would do, or did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairPlan {
    /// A writing open refuses nothing: there is nothing to repair.
    pub nothing_to_do: bool,
    /// What is accepted.
    pub accepted: Vec<Finding>,
    /// LSN ranges that are given up.
    pub lost: Vec<(Lsn, Lsn)>,
    /// Files that are renamed, from and to.
    pub set_aside: Vec<(String, String)>,
    /// The id of the new branch; `None` in a plan.
    pub new_log_id: Option<LogId>,
    /// The next LSN that will be given out: above everything that was lost.
    pub next: Lsn,
}

/// What [`repair`] would do as far as can be seen now; changes nothing. Accepting a loss may uncover
/// another one.
///
/// # Errors
/// As [`repair`], but for the lock.
pub fn plan_repair(storage: &dyn Storage) -> Result<RepairPlan, RepairError> {
    let survey = found_in(storage, Survey::settled(storage))?;
    let mut plan = RepairPlan::nothing(&survey);
    if survey.refusal.is_some() {
        plan.add(storage, &survey)?;
    }
    Ok(plan)
}

/// Accepts what a writing open refuses. Nothing that can be read is given up, and nothing is deleted.
///
/// # Errors
/// [`RepairError::Newer`] for a log of a later version, [`RepairError::Hopeless`] where nothing says whose log it is,
/// [`RepairError::Locked`] beside a live writer.
pub fn repair(storage: Arc<dyn Storage>) -> Result<RepairPlan, RepairError> {
    let dir = storage.describe();
    survey(&*storage)?;
    let _lock = lock(&*storage).map_err(|error| match error {
        LockError::Held { holder } => RepairError::Locked { dir: dir.clone(), holder },
        LockError::Io(source) => RepairError::Storage(StorageError::new("lock", dir.clone(), source)),
    })?;
    let mut found = survey(&*storage)?;
    let mut plan = RepairPlan::nothing(&found);
    if plan.nothing_to_do {
        return Ok(plan);
    }
    for _ in 0..ROUNDS {
        if found.refusal.is_none() {
            break;
        }
        let aside = plan.add(&*storage, &found)?;
        let branch = accept(&*storage, &found, plan.new_log_id)?;
        plan.new_log_id = LogId::new(branch);
        for (from, to) in aside {
            storage.rename(&from, &to).map_err(|error| StorageError::new("rename", from, error))?;
        }
        storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
        found = match survey(&*storage) {
            Err(RepairError::Newer(finding)) => return Err(RepairError::Unsettled(finding)),
            found => found?,
        };
    }
    if let Some(refusal) = found.refusal {
        return Err(RepairError::Unsettled(Box::new(refusal)));
    }
    declare_durable(&*storage, &found)?;
    plan.next = Lsn::new(found.next).unwrap_or(Lsn::FIRST);
    Ok(plan)
}

fn survey(storage: &dyn Storage) -> Result<Survey, RepairError> {
    found_in(storage, Survey::new(storage))
}

/// Every reason not to repair what was found.
fn found_in(storage: &dyn Storage, found: io::Result<Survey>) -> Result<Survey, RepairError> {
    let survey = match found {
        Ok(survey) => survey,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(RepairError::Missing { dir: storage.describe() });
        }
        Err(error) => return Err(StorageError::new("read", storage.describe(), error).into()),
    };
    if survey.is_blank() {
        return Err(RepairError::Missing { dir: storage.describe() });
    }
    if let Some(newer) = survey.findings.iter().find(|finding| finding.verdict == Verdict::UnknownVersion) {
        return Err(RepairError::Newer(Box::new(newer.clone())));
    }
    if survey.is_of_two_logs() {
        return Err(RepairError::TwoLogs { dir: storage.describe() });
    }
    if survey.log_id.is_none() {
        return Err(RepairError::Hopeless { dir: storage.describe() });
    }
    Ok(survey)
}

impl RepairPlan {
    fn nothing(survey: &Survey) -> RepairPlan {
        RepairPlan {
            nothing_to_do: survey.refusal.is_none(),
            accepted: Vec::new(),
            lost: Vec::new(),
            set_aside: Vec::new(),
            new_log_id: None,
            next: Lsn::new(survey.next.max(survey.durable + 1)).unwrap_or(Lsn::FIRST),
        }
    }

    /// Adds what this survey refuses; answers the files to set aside in this round.
    fn add(&mut self, storage: &dyn Storage, survey: &Survey) -> Result<Vec<(String, String)>, RepairError> {
        let count =
            survey.losses.len() + 1 + survey.control.as_ref().map_or(0, |control| control.losses.len());
        if count > LOSS_ROWS_MAX || survey.unlisted > 0 {
            return Err(RepairError::TooMany {
                count: u64::try_from(count).unwrap_or(u64::MAX) + survey.unlisted,
                limit: LOSS_ROWS_MAX as u64,
            });
        }
        let mut aside = Vec::new();
        for name in &survey.in_the_way {
            aside.push((name.clone(), free_name(storage, name)?));
        }
        if survey.control.is_none() && survey.slots.is_some() {
            self.set_aside.push((CONTROL_NAME.to_owned(), free_name(storage, CONTROL_NAME)?));
        }
        self.accepted.extend(survey.findings.iter().filter(|finding| !finding.harmless).cloned());
        let rows: Vec<LossRow> = survey.losses.iter().copied().chain(strange_loss(survey)).collect();
        self.lost = lost_ranges(rows.iter(), std::mem::take(&mut self.lost));
        self.set_aside.extend(aside.iter().cloned());
        Ok(aside)
    }
}

/// The first `<name>.aside-<n>` that is not taken.
fn free_name(storage: &dyn Storage, name: &str) -> Result<String, StorageError> {
    let entries = storage.list().map_err(|error| StorageError::new("list", storage.describe(), error))?;
    let taken = |candidate: &str| entries.iter().any(|entry| entry.name == candidate);
    Ok((1_u64..)
        .map(|number| format!("{name}.aside-{number}"))
        .find(|candidate| !taken(candidate))
        .unwrap_or_default())
}

/// Writes the branch into both slots; answers its log id.
fn accept(storage: &dyn Storage, survey: &Survey, branch: Option<LogId>) -> Result<[u8; 16], RepairError> {
    let Some(log_id) = survey.log_id else { return Err(RepairError::Hopeless { dir: storage.describe() }) };
    let mut state = survey.control.clone().unwrap_or_else(|| rebuilt(survey, log_id));
    if let Some(branch) = branch {
        state.log_id = branch.bytes();
    } else {
        if !has_room_for_a_branch(&state) {
            return Err(RepairError::TooMany {
                count: ANCESTOR_ROWS_MAX as u64 + 1,
                limit: ANCESTOR_ROWS_MAX as u64,
            });
        }
        branch_off(storage, survey, log_id, &mut state)?;
    }
    state.losses.extend(survey.losses.iter().map(clamp));
    state.losses.extend(strange_loss(survey));
    let lost_to = survey.losses.iter().map(|row| row.last).max().unwrap_or(0);
    state.least_next = state
        .least_next
        .max(survey.next)
        .max(survey.durable + 1)
        .max(lost_to + 1)
        .max(survey.strange_mark + 1);
    name_newest(survey, &mut state);
    write(storage, survey, state.clone())?;
    Ok(state.log_id)
}

pub(crate) fn has_room_for_a_branch(state: &ControlState) -> bool {
    state.ancestors.len() < ANCESTOR_ROWS_MAX
}

/// Begins a branch: draws a new log id, and lists the old one among the ancestors.
pub(crate) fn branch_off(
    storage: &dyn Storage,
    survey: &Survey,
    log_id: [u8; 16],
    state: &mut ControlState,
) -> Result<(), StorageError> {
    state.log_id = draw_log_id(storage)?;
    state.ancestors.push(AncestorRow {
        log_id,
        last_segment_id: survey.highest_id,
        last_file_id: survey.chain.last().map_or(0, |piece| piece.file_id),
        last_lsn: survey.last,
    });
    Ok(())
}

/// Ids above all that were seen are the branch's; the newest segment is named, as it has to be.
pub(crate) fn name_newest(survey: &Survey, state: &mut ControlState) {
    state.next_segment_id = survey.highest_id + 1;
    let row = |id, file_id| BegunRow { file: FileRow { segment_id: id, file_id }, must_exist: true };
    state.begun = survey.chain.last().map(|piece| row(piece.id, piece.file_id)).into_iter().collect();
}

/// Records in a file of this log that the control file does not know, and that is set aside: they are
/// given up, and their LSNs are not given out again.
fn strange_loss(survey: &Survey) -> Option<LossRow> {
    if survey.strange_mark <= survey.last {
        return None;
    }
    let first_kept = survey.control.as_ref().map_or(1, |control| control.first_kept);
    let newest = survey.chain.last().map(|newest| (newest.id, newest.file_id, newest.end));
    let (segment_id, file_id, offset) = newest.unwrap_or((first_kept, 0, 0));
    Some(LossRow { segment_id, file_id, offset, first: survey.last + 1, last: survey.strange_mark })
}

/// A row for a whole file has no LSN that is due.
fn clamp(row: &LossRow) -> LossRow {
    if row.first == 0 { LossRow { first: 1, last: 0, ..*row } } else { *row }
}

/// The control state of a log whose control file is gone.
fn rebuilt(survey: &Survey, log_id: [u8; 16]) -> ControlState {
    let mut state = ControlState::new(log_id);
    state.epoch = survey.epoch.max(1);
    state.durable = survey.durable;
    if let Some(head) = survey.chain.first() {
        state.first_kept = head.id;
        state.base = head.base;
    }
    // What the log had branched from before, as far as its files tell.
    let mut older: Vec<AncestorRow> = Vec::new();
    for piece in &survey.chain {
        let Some(header) = piece.header.as_ref().filter(|header| header.log_id != log_id) else { continue };
        let row = AncestorRow {
            log_id: header.log_id,
            last_segment_id: piece.id,
            last_file_id: piece.file_id,
            last_lsn: piece.last,
        };
        match older.last_mut() {
            Some(same) if same.log_id == row.log_id => *same = row,
            _ => older.push(row),
        }
    }
    state.ancestors = older;
    state
}

/// Writes the state into both slots, or into a new control file where neither slot checks.
pub(crate) fn write(storage: &dyn Storage, survey: &Survey, state: ControlState) -> Result<(), StorageError> {
    state.check()?;
    match survey.slots.as_ref().filter(|slots| slots.newest().is_some()) {
        Some(slots) => ControlFile::open(storage, slots, state).and_then(|mut control| control.write_both()),
        None => {
            if survey.slots.is_some() {
                let aside = free_name(storage, CONTROL_NAME)?;
                storage
                    .rename(CONTROL_NAME, &aside)
                    .map_err(|error| StorageError::new("rename", CONTROL_NAME, error))?;
            }
            crate::prepare::discard(storage, &format!("{CONTROL_NAME}.tmp"));
            ControlFile::create(storage, state).map(|_| ())
        }
    }
}

/// Syncs everything that is kept and writes down that it is durable: the next open has no tail to
/// copy across what was lost. Nobody was promised more than what a mark had proved before, so should a
/// sync that failed in an earlier life have left pages behind that never reach the disk, the next survey
/// finds them missing and says so.
fn declare_durable(storage: &dyn Storage, survey: &Survey) -> Result<(), StorageError> {
    sync_chain(storage, survey)?;
    let Some(mut state) = survey.control.clone() else { return Ok(()) };
    state.durable = state.durable.max(survey.last);
    write(storage, survey, state)
}

/// Syncs every segment: whoever brought the files here may not have.
pub(crate) fn sync_chain(storage: &dyn Storage, survey: &Survey) -> Result<(), StorageError> {
    for piece in &survey.chain {
        let file = storage
            .open(&piece.name, Access::ReadWrite)
            .map_err(|error| StorageError::new("open", &piece.name, error))?;
        file.sync().map_err(|error| StorageError::new("sync", &piece.name, error))?;
    }
    Ok(())
}
