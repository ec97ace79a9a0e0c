//! Errors, by operation.
//!
//! Each says what was tried, on which file, and what that means for the caller's records. Bytes that
//! are no record are never an error but an `Option` in a decoder; a log that contradicts itself or a
//! disk that fails is an error; a bug of ours is an assert.

use std::io;
use std::sync::Arc;

use crate::lsn::{LogId, Lsn};
use crate::verdict::Finding;

/// A storage call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {file}: {source}")]
pub struct StorageError {
    /// What was tried, as a verb.
    pub operation: &'static str,
    /// The file, or the directory.
    pub file: String,
    /// What the storage answered.
    #[source]
    pub source: io::Error,
}

impl StorageError {
    pub(crate) fn new(operation: &'static str, file: impl Into<String>, source: io::Error) -> Self {
        StorageError { operation, file: file.into(), source }
    }

    /// Whether it says that there is no room, and that this is all there is to it. A sync that finds no
    /// room has lost something.
    pub(crate) fn is_full(&self) -> bool {
        self.operation != "sync" && crate::io_util::is_full(&self.source)
    }
}

/// An option outside its range, or two that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("option {option} is {value}, but has to be {range}")]
pub struct OptionError {
    /// The option's name.
    pub option: &'static str,
    /// The value given.
    pub value: String,
    /// What is allowed.
    pub range: String,
}

/// Why a log was not opened. No byte of it was changed, unless the error is [`OpenError::Storage`] or
/// [`OpenError::Full`] in the middle of recovery, which the next open begins again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option is out of range.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// There is no log, and the options do not allow making one.
    #[error("{dir}: there is no log here")]
    Missing {
        /// The directory.
        dir: String,
    },
    /// There is a log, and the options ask for a new one.
    #[error("{dir}: there is a log here already")]
    Exists {
        /// The directory.
        dir: String,
    },
    /// Another writer has the log open.
    #[error("{dir}: the log is open for writing{}", holder.map_or_else(String::new, |pid| format!(", by process {pid}")))]
    Locked {
        /// The directory.
        dir: String,
        /// The process that holds the lock, if it left its id.
        holder: Option<u32>,
    },
    /// It is another log than the options expect.
    #[error("{dir}: this is log {found}, and {expected} was expected")]
    WrongLog {
        /// The directory.
        dir: String,
        /// The id that the options name.
        expected: LogId,
        /// The id that was found.
        found: LogId,
    },
    /// Something cannot be proved harmless, so nothing was opened for writing. A read-only view opens, and
    /// `repair` can accept the loss.
    #[error(
        "{dir}: refused, and nothing was changed: {finding} (`planewal verify` says more, `planewal repair --dry-run` what accepting it would cost)"
    )]
    Refused {
        /// The directory.
        dir: String,
        /// What it is.
        finding: Box<Finding>,
    },
    /// The log ends in a torn tail, and the options say not to cut one.
    #[error("{dir}: a torn tail, which `Recovery::CutTornTail` would cut: {finding}")]
    TornTail {
        /// The directory.
        dir: String,
        /// What it is.
        finding: Box<Finding>,
    },
    /// The directory is marked as a backup, which is not to be written. `restore` makes it a log of its own.
    #[error("{dir}: this is a backup, and not to be written; `planewal restore` makes it a log of its own")]
    Backup {
        /// The directory.
        dir: String,
    },
    /// There is no room for what a new log or a new epoch needs.
    #[error("no room: {0}")]
    Full(#[source] StorageError),
    /// The storage failed.
    #[error(transparent)]
    Storage(StorageError),
}

impl From<StorageError> for OpenError {
    fn from(error: StorageError) -> Self {
        if error.is_full() { OpenError::Full(error) } else { OpenError::Storage(error) }
    }
}

/// What stopped a writer for good: a write or a sync that failed. The outcome of everything after
/// `durable` is unknown until the log is opened again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poison {
    /// What was tried.
    pub operation: &'static str,
    /// On which file.
    pub file: String,
    /// What the storage answered.
    pub error: String,
    /// The durable mark at that moment; what is at or below it is safe.
    pub durable: Option<Lsn>,
}

impl std::fmt::Display for Poison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {} {}: {}; ", self.operation, self.file, self.error)?;
        match self.durable {
            Some(lsn) => write!(
                f,
                "the outcome of everything after LSN {lsn} is unknown until the log is opened again"
            ),
            None => write!(f, "the outcome of everything is unknown until the log is opened again"),
        }
    }
}

/// What there was no room in.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoom {
    /// The disk, or the quota. It is tried again with every append.
    #[error("{0}")]
    Disk(Arc<StorageError>),
    /// Staging, `staging_bytes` of the options; only appends that refuse to wait are told.
    #[error("{staged} bytes wait for their write or are reserved, and the limit is {limit}")]
    Staging {
        /// Bytes that are staged or reserved.
        staged: u64,
        /// The limit.
        limit: u64,
    },
}

/// Why records were not appended, or not as durable as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// No room, and no LSN was given: the batch is still the caller's. Try again when there is room; the
    /// log needs no reopening.
    #[error("the log is full: {0}")]
    Full(NoRoom),
    /// The storage could not prepare room; no LSN was given, nothing is lost, and the same batch may be
    /// tried again.
    #[error(transparent)]
    Storage(#[from] Arc<StorageError>),
    /// A write or sync failed, now or before. Records that this call appended may be there or not. Drop every
    /// clone of the handle, open the log again, and read what is there; until then reading still works.
    #[error("the log is poisoned: {0}")]
    Poisoned(Arc<Poison>),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// Every handle was dropped before the batch was as durable as asked: opening the log again tells
    /// whether it is there.
    #[error("every handle of the log was dropped; the outcome is unknown until it is opened again")]
    Abandoned,
    /// The batch holds no record.
    #[error("a batch without records cannot be appended")]
    EmptyBatch,
    /// The batch is larger than the options allow; no LSN was given.
    #[error("a batch of {bytes} bytes, and the limit is {limit}")]
    TooLarge {
        /// Bytes of payload in the batch, or to be reserved.
        bytes: u64,
        /// The limit, `record_bytes_max` of the options.
        limit: u64,
    },
    /// The batch takes more than its permit is for; no LSN was given, and the batch is still the caller's.
    #[error("a batch that takes {needed} encoded bytes, on a permit for {reserved}")]
    PermitTooSmall {
        /// Encoded bytes of the batch.
        needed: u64,
        /// What the permit is for.
        reserved: u64,
    },
    /// A record has plane 0 or kind 0, which are never valid; no LSN was given.
    #[error("plane {plane} and kind {kind}: zero is never valid")]
    InvalidTag {
        /// The plane given.
        plane: u8,
        /// The kind given.
        kind: u8,
    },
    /// The LSN was not given out yet, so it cannot be waited for.
    #[error("LSN {lsn} was not given out yet")]
    NotYetAppended {
        /// The LSN asked for.
        lsn: Lsn,
    },
}

/// Why reading stopped. After [`ReadError::Lost`] and [`ReadError::NotKept`] the next call goes on behind the
/// gap; [`ReadError::Storage`] may pass; the others stay. `Retired`, `Ahead`, `OtherLog` and `Diverged` come
/// from where a reader starts, `Diverged` also from a view's reader that had to look again. A reader that
/// retirement overtakes on its way is told the gap as `NotKept`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The log does not check here.
    #[error("{0}")]
    Broken(Box<Finding>),
    /// Records that `repair` gave up, or, for a view that reads past damage, that are missing. Told once;
    /// the next call goes on behind them.
    #[error("LSN {first} to {last} were lost and given up by repair")]
    Lost {
        /// The first LSN lost.
        first: Lsn,
        /// The last LSN lost.
        last: Lsn,
    },
    /// Records that a sieve dropped, or that were retired while the reader was on its way to them. Told
    /// once; the next call goes on behind them.
    #[error("LSN {first} to {last} are not kept any more")]
    NotKept {
        /// The first LSN not kept.
        first: Lsn,
        /// The last LSN not kept.
        last: Lsn,
    },
    /// The start lies before the first record that is kept.
    #[error("LSN {wanted} is not kept any more; the log begins with LSN {first}")]
    Retired {
        /// The LSN asked for.
        wanted: Lsn,
        /// The first one that can be had.
        first: Lsn,
    },
    /// The start lies behind the next record to come.
    #[error("LSN {wanted} is ahead of the log, whose next is {next}")]
    Ahead {
        /// The LSN asked for.
        wanted: Lsn,
        /// The next LSN that will be given out.
        next: Lsn,
    },
    /// The cursor belongs to a log that this one is not, and is no branch of.
    #[error("the cursor belongs to log {}, and this is log {}", name(*cursor), name(*log))]
    OtherLog {
        /// The cursor's log.
        cursor: Option<LogId>,
        /// This log, if anything says which it is.
        log: Option<LogId>,
    },
    /// The cursor has seen records that a power loss took: the log went on differently.
    #[error("the cursor has read up to LSN {read} in epoch {epoch}, and the open of epoch {later} kept {}", kept.map_or_else(|| "nothing".to_owned(), |kept| format!("only up to LSN {kept}")))]
    Diverged {
        /// The last LSN that the cursor has read.
        read: Lsn,
        /// The epoch in which it was read.
        epoch: u64,
        /// The epoch whose open kept less.
        later: u64,
        /// What it kept.
        kept: Option<Lsn>,
    },
    /// A write or sync failed; a tail that has shown everything that is safe says so. The outcome of what
    /// follows is unknown until the log is opened again.
    #[error("the log is poisoned: {0}")]
    Poisoned(Arc<Poison>),
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

fn name(log: Option<LogId>) -> String {
    log.map_or_else(|| "unknown".to_owned(), |log| log.to_string())
}

/// Why a log was not closed cleanly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Records are still staged because there is no room. The handle stays open; make room and close
    /// again.
    #[error("LSN {first} to {last} are not written: {source}")]
    Full {
        /// The first LSN that is not written.
        first: Lsn,
        /// The last LSN that is not written.
        last: Lsn,
        /// What the storage answered.
        source: Arc<StorageError>,
    },
    /// A write or sync failed, now or before; no clean close was written.
    #[error("the log is poisoned: {0}")]
    Poisoned(Arc<Poison>),
    /// The clean-close proof could not be written. The records are durable; the next open will scan.
    #[error("the records are durable, but the clean close was not written: {0}")]
    Storage(#[from] StorageError),
}

/// Why a hold was not taken, moved or released. Nothing has changed, unless it is [`HoldError::Poisoned`]:
/// then the next open tells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// A hold names the first LSN kept, so it may be one above the durable mark and no more: what lies
    /// beyond may still go with a loss of power.
    #[error("a hold at LSN {lsn}, and it may be at most {most}, which is one above what is durable")]
    Ahead {
        /// The LSN asked for.
        lsn: Lsn,
        /// The highest that may be held now.
        most: Lsn,
    },
    /// What was to be kept is gone, or going.
    #[error("LSN {lsn} is not kept any more; the log begins with LSN {first}")]
    Retired {
        /// The LSN asked for.
        lsn: Lsn,
        /// The first that can be held.
        first: Lsn,
    },
    /// Holds move forwards only.
    #[error("the hold is at LSN {at} and does not go back to {lsn}")]
    Backwards {
        /// The LSN asked for.
        lsn: Lsn,
        /// Where the hold is.
        at: Lsn,
    },
    /// The name is empty or too long.
    #[error("a hold's name of {bytes} bytes, and it has to be 1 to {limit}")]
    Name {
        /// Bytes of the name given.
        bytes: u64,
        /// The most that a name may have.
        limit: u64,
    },
    /// There is a durable hold of that name already; it may be advanced or released.
    #[error("there is a durable hold {name:?} already, at LSN {at}")]
    Exists {
        /// The name.
        name: String,
        /// Where it is.
        at: Lsn,
    },
    /// There is no durable hold of that name.
    #[error("there is no durable hold {name:?}")]
    Unknown {
        /// The name.
        name: String,
    },
    /// No more durable holds fit into the control file.
    #[error("{limit} durable holds are there, and there are no more")]
    TooMany {
        /// The most that there may be.
        limit: u64,
    },
    /// The durable holds on disk cannot be read, so none is changed. Everything is held.
    #[error("the durable holds of this log cannot be read, so everything is held")]
    Unreadable,
    /// No room to write it down.
    #[error("no room: {0}")]
    Full(#[source] StorageError),
    /// A write or sync failed, now or before.
    #[error("the log is poisoned: {0}")]
    Poisoned(Arc<Poison>),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Why nothing, or not all that was decided, was retired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetireError {
    /// No room to write down where the log begins. Nothing has gone; the same call may be tried again.
    #[error("no room: {0}")]
    Full(#[source] StorageError),
    /// A write or sync failed, now or before. If it was now, opening the log again tells where it begins, and
    /// removes what was retired and is still there. No record at or above `before` is touched.
    #[error("the log is poisoned: {0}")]
    Poisoned(Arc<Poison>),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Why a log was not repaired. Nothing was changed, unless it is [`RepairError::Storage`] or
/// [`RepairError::Unsettled`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// There is no log.
    #[error("{dir}: there is no log here")]
    Missing {
        /// The directory.
        dir: String,
    },
    /// A writer has the log open.
    #[error("{dir}: the log is open for writing{}", holder.map_or_else(String::new, |pid| format!(", by process {pid}")))]
    Locked {
        /// The directory.
        dir: String,
        /// The process that holds the lock, if it left its id.
        holder: Option<u32>,
    },
    /// A later version wrote this; repairing it would destroy what this version cannot see.
    #[error("{0}")]
    Newer(Box<Finding>),
    /// The control file is that of another log than all the segments: one of the two does not belong here,
    /// and only you know which.
    #[error(
        "{dir}: the control file belongs to another log than every segment; put the right one back, or take it away"
    )]
    TwoLogs {
        /// The directory.
        dir: String,
    },
    /// No segment header checks, so nothing says whose log this is.
    #[error("{dir}: no control slot and no segment header checks: there is nothing to repair from")]
    Hopeless {
        /// The directory.
        dir: String,
    },
    /// What was accepted uncovered something else, again and again; this is still refused. What was
    /// accepted so far is written down; trying again goes on from there.
    #[error("still refused: {0}")]
    Unsettled(Box<Finding>),
    /// More losses than the control file can hold.
    #[error("{count} losses, and the control file holds {limit}")]
    TooMany {
        /// Losses found.
        count: u64,
        /// Losses that can be written down.
        limit: u64,
    },
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why there is no backup. Whatever the error, the destination holds nothing that passes for one: what was
/// copied is removed, the control file first. What could not be removed either, because the destination
/// fails or the process died, is without a control file, or does not check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The destination is the log itself.
    #[error("{dir}: this is the log itself")]
    SameLog {
        /// The directory.
        dir: String,
    },
    /// Something is in the destination. Nothing was changed.
    #[error("{dir}: there is {file} in it; a backup goes into an empty or a new directory")]
    NotEmpty {
        /// The directory.
        dir: String,
        /// One of its files.
        file: String,
    },
    /// Another backup is being written there, or a writer has it open.
    #[error("{dir}: in use{}", holder.map_or_else(String::new, |pid| format!(" by process {pid}")))]
    Locked {
        /// The directory.
        dir: String,
        /// The process that holds the lock, if it left its id.
        holder: Option<u32>,
    },
    /// The log does not check below its durable mark. `repair` accepts a loss; then there is something that a
    /// backup can be made of.
    #[error("{dir}: the log is not sound, so there is no backup of it: {finding}")]
    Refused {
        /// The directory of the log.
        dir: String,
        /// What it is.
        finding: Box<Finding>,
    },
    /// A file of the log was taken away or replaced before it was copied: retired, or rewritten. Begin again.
    #[error("{dir}: {file} was taken away or replaced while the backup was made; begin again")]
    Changed {
        /// The directory of the log.
        dir: String,
        /// The file.
        file: String,
    },
    /// The log could not be read.
    #[error("{dir}: {source}")]
    Source {
        /// The directory of the log.
        dir: String,
        /// What failed.
        source: StorageError,
    },
    /// The destination has no room.
    #[error("{dir}: no room for the backup: {source}")]
    Full {
        /// The directory of the backup.
        dir: String,
        /// What failed, and on which file.
        source: StorageError,
    },
    /// The destination could not be written, or not be read again.
    #[error("{dir}: {source}")]
    Destination {
        /// The directory of the backup.
        dir: String,
        /// What failed.
        source: StorageError,
    },
    /// The copy was read again and does not check, although what was copied did.
    #[error("{dir}: the copy does not check: {finding}")]
    CopyDamaged {
        /// The directory of the backup.
        dir: String,
        /// What it is.
        finding: Box<Finding>,
    },
    /// The copy was read again and is not the prefix that was copied.
    #[error("{dir}: {file} is not what was copied: {difference}")]
    CopyDiffers {
        /// The directory of the backup.
        dir: String,
        /// The file.
        file: String,
        /// What is not the same, in words.
        difference: String,
    },
}

/// Why a backup was not restored. Nothing was changed, unless it is [`RestoreError::Storage`] while the
/// control file was written: then the directory is a backup still, or restored, and trying again tells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// There is no log.
    #[error("{dir}: there is no log here")]
    Missing {
        /// The directory.
        dir: String,
    },
    /// The log is not marked as a backup: it never was one, or it was restored already.
    #[error("{dir}: this is no backup, or no backup any more; a writing open takes it as it is")]
    NotABackup {
        /// The directory.
        dir: String,
    },
    /// Somebody has it open for writing, or the backup is being written.
    #[error("{dir}: in use{}", holder.map_or_else(String::new, |pid| format!(" by process {pid}")))]
    Locked {
        /// The directory.
        dir: String,
        /// The process that holds the lock, if it left its id.
        holder: Option<u32>,
    },
    /// A later version wrote this.
    #[error("{0}")]
    Newer(Box<Finding>),
    /// The backup is not whole. One that was interrupted has no control file.
    #[error(
        "{dir}: this backup is not whole: {finding} (copy it again; or `planewal repair` accepts what it lost, and then it can be restored)"
    )]
    Refused {
        /// The directory.
        dir: String,
        /// What it is.
        finding: Box<Finding>,
    },
    /// The log has branched more often than the control file can tell.
    #[error("{dir}: a branch of {limit} branches, and the control file holds no more")]
    TooManyBranches {
        /// The directory.
        dir: String,
        /// Branches that can be written down.
        limit: u64,
    },
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}
