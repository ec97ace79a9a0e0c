//! Restore: a backup becomes a log of its own, on a new branch.
//!
//! As in `repair`, only the control file is written: a new log id, the old one among the ancestors, and
//! the mark *backup* taken off. So the log that the backup is of may go on elsewhere, and no file of one
//! is ever taken for a file of the other. Either slot alone tells a backup or a restored log.

use std::io;
use std::sync::Arc;

use crate::control::ANCESTOR_ROWS_MAX;
use crate::error::{RestoreError, StorageError};
use crate::hold::{HoldInfo, durable_holds};
use crate::lsn::{LogId, Lsn};
use crate::open::lock;
use crate::repair::{branch_off, has_room_for_a_branch, name_newest, sync_chain, write};
use crate::storage::{LockError, Storage};
use crate::survey::Survey;
use crate::verdict::Verdict;

/// What [`restore`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The id of the new branch.
    pub log_id: LogId,
    /// The log that the backup was made of; now an ancestor.
    pub ancestor: LogId,
    /// The first LSN in it; `None` without records.
    pub first: Option<Lsn>,
    /// The last LSN in it; `None` without records.
    pub last: Option<Lsn>,
    /// The LSN that the branch goes on with.
    pub next: Lsn,
    /// Number of segments, which stay as they are.
    pub segments: u64,
    /// The durable holds of the log that was copied. They hold in the branch as well, until they are released;
    /// who was meant by them does not follow the branch.
    pub holds: Vec<HoldInfo>,
}

/// Turns a backup into a log that can be opened for writing, in place and on a new branch.
///
/// Everything is read and checked first, and synced: whoever brought the files here may not have. Then the
/// control file is written, first one slot and then the other; no other file changes. A crash
/// leaves a backup or a restored log. Appends go on behind the last LSN, and a cursor of the old log is
/// good for the branch unless it has read further than that: then it is told
/// [`Diverged`](crate::ReadError::Diverged).
///
/// # Errors
/// [`RestoreError::NotABackup`], the second time too; [`RestoreError::Refused`] for a backup that is not whole,
/// such as one that was interrupted; [`RestoreError::Locked`] while it is being written.
pub fn restore(storage: Arc<dyn Storage>) -> Result<RestoreReport, RestoreError> {
    let storage = &*storage;
    let dir = storage.describe();
    // Once before the lock, whose file is not left in a directory that is no backup.
    survey(storage)?;
    let _lock = lock(storage).map_err(|error| match error {
        LockError::Held { holder } => RestoreError::Locked { dir: dir.clone(), holder },
        LockError::Io(source) => RestoreError::Storage(StorageError::new("lock", dir.clone(), source)),
    })?;
    let found = survey(storage)?;
    let Some(mut state) = found.control.clone() else { return Err(RestoreError::NotABackup { dir }) };
    if !has_room_for_a_branch(&state) {
        return Err(RestoreError::TooManyBranches { dir, limit: ANCESTOR_ROWS_MAX as u64 });
    }
    let ancestor = state.log_id;
    branch_off(storage, &found, ancestor, &mut state)?;
    name_newest(&found, &mut state);
    state.backup = false;
    state.clean = None;
    state.durable = state.durable.max(found.last);
    state.least_next = state.least_next.max(found.next);
    sync_chain(storage, &found)?;
    storage.sync_dir().map_err(|error| StorageError::new("sync", dir.clone(), error))?;
    let (log_id, base) = (state.log_id, found.chain.first().map_or(found.next, |piece| piece.base));
    let holds = durable_holds(&state, Lsn::new(base).unwrap_or(Lsn::FIRST));
    write(storage, &found, state)?;
    let (Some(log_id), Some(ancestor)) = (LogId::new(log_id), LogId::new(ancestor)) else {
        unreachable!("the id of a slot that checks is not zero, nor is one that was drawn")
    };
    Ok(RestoreReport {
        log_id,
        ancestor,
        first: Lsn::new(base).filter(|_| found.last >= base),
        last: Lsn::new(found.last).filter(|_| found.last >= base),
        next: Lsn::new(found.next).unwrap_or(Lsn::FIRST),
        segments: u64::try_from(found.chain.len()).unwrap_or(u64::MAX),
        holds,
    })
}

/// Every reason not to restore what was found.
fn survey(storage: &dyn Storage) -> Result<Survey, RestoreError> {
    let dir = storage.describe();
    let survey = match Survey::new(storage) {
        Ok(survey) => survey,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(RestoreError::Missing { dir }),
        Err(error) => return Err(StorageError::new("read", dir, error).into()),
    };
    if survey.is_blank() {
        return Err(RestoreError::Missing { dir });
    }
    if let Some(newer) = survey.findings.iter().find(|finding| finding.verdict == Verdict::UnknownVersion) {
        return Err(RestoreError::Newer(Box::new(newer.clone())));
    }
    if survey.control.as_ref().is_some_and(|control| !control.backup) {
        return Err(RestoreError::NotABackup { dir });
    }
    // A backup ends where it was proved to: a torn tail was not made by a crash of a writer.
    let torn = || survey.findings.iter().find(|finding| finding.verdict == Verdict::TornTail);
    if let Some(finding) = survey.refusal.as_ref().or_else(torn) {
        return Err(RestoreError::Refused { dir, finding: Box::new(finding.clone()) });
    }
    Ok(survey)
}
