//! The handle of a log that is open for writing.

use std::path::Path;
use std::sync::Arc;

use crate::batch::{Batch, Single};
use crate::chain::{Chain, SegmentInfo};
use crate::error::{
    AppendError, CloseError, HoldError, OpenError, Poison, ReadError, RetireError, StorageError,
};
use crate::gate::{ForRoom, Gate, Receipt};
use crate::hold::{Change, Hold, HoldInfo};
use crate::lsn::{LogId, Lsn};
use crate::open::open;
use crate::options::{Create, Durability, Options};
use crate::permit::Permit;
use crate::reader::{Cursor, Position, Reader, seek};
use crate::report::{RecoveryReport, RetireReport};
use crate::stats::Stats;
use crate::storage::{FsStorage, Storage};
use crate::tail::Tail;
use crate::ticket::Ticket;
use crate::usage::DiskUsage;

/// A log, open for writing. Cheap to clone and to share; all methods take `&self`.
///
/// Dropping the last clone writes what is staged, but syncs nothing and is no clean close; call
/// [`close`](Wal::close) for that. It waits for nobody: I/O that is under way, such as room being made ahead, keeps
/// the lock until it returns, mostly some milliseconds. Who opens the log again at once may be answered
/// [`OpenError::Locked`] for so long, with the own process as holder; after `close` never.
///
/// ```
/// use planewal_core::{Lsn, Options, Wal};
/// # let dir = tempfile::tempdir()?;
/// let wal = Wal::open(dir.path().join("log"), Options::default())?;
/// let lsn = wal.append(0x80, 0x80, b"hello")?; // durable when it returns
/// assert_eq!(wal.durable(), Some(lsn));
/// let mut reader = wal.read(Lsn::FIRST)?;
/// while let Some(record) = reader.next()? {
///     assert_eq!(record.payload, b"hello");
/// }
/// wal.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Wal {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    gate: Arc<Gate>,
    recovery: RecoveryReport,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.gate.abandon();
    }
}

impl Wal {
    /// Opens the log in a directory, recovering it if it was not closed.
    ///
    /// Reads and checks the whole log, at the speed of the disk. One process writes at a time; the lock dies
    /// with the process, and a second open in the same process is refused as well. The directory is made with mode 0700 if the options allow, its
    /// files with 0600.
    ///
    /// # Errors
    /// See [`OpenError`]; a refusal has changed no byte.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Wal, OpenError> {
        options.check()?;
        let storage = FsStorage::new(dir.as_ref());
        if options.create == Create::Never {
            if !dir.as_ref().is_dir() {
                return Err(OpenError::Missing { dir: storage.describe() });
            }
        } else {
            storage.make_dir().map_err(|error| StorageError::new("create", storage.describe(), error))?;
        }
        Wal::open_on(Arc::new(storage), options)
    }

    /// Opens the log on a storage.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_on(storage: Arc<dyn Storage>, options: Options) -> Result<Wal, OpenError> {
        let (gate, recovery) = open(storage, options)?;
        Ok(Wal { handle: Arc::new(Handle { gate, recovery }) })
    }

    fn gate(&self) -> &Arc<Gate> {
        &self.handle.gate
    }

    /// The chain, for what stands above the handle.
    pub(crate) fn chain(&self) -> &Arc<Chain> {
        &self.handle.gate.chain
    }

    /// Keeps everything that is there while it is copied.
    pub(crate) fn hold_for_backup(&self) -> Option<Hold> {
        self.gate().hold_everything("backup")
    }

    /// What opening found and did.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.handle.recovery
    }

    /// The log's id.
    #[must_use]
    pub fn log_id(&self) -> Option<LogId> {
        LogId::new(self.gate().chain.log_id())
    }

    /// Appends one record and waits until it is as durable as the options say.
    ///
    /// Planes and kinds from `0x80` up are an application's; those below are given out by
    /// `planewal-records`. Zero is never valid.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(&self, plane: u8, kind: u8, payload: &[u8]) -> Result<Lsn, AppendError> {
        self.append_as(plane, kind, payload, self.gate().options.durability)
    }

    /// Appends one record and waits until it is as durable as asked.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_as(
        &self,
        plane: u8,
        kind: u8,
        payload: &[u8],
        durability: Durability,
    ) -> Result<Lsn, AppendError> {
        let mut record = Single::new(plane, kind, payload)?;
        self.gate().commit(&mut record, durability, ForRoom::Wait).map(|receipt| receipt.last)
    }

    /// Appends a batch, whole or not at all, and waits until it is as durable as the options say. The batch is empty
    /// afterwards.
    ///
    /// # Errors
    /// After [`AppendError::Full`], [`AppendError::TooLarge`] and [`AppendError::Storage`] the batch is as it was and has no LSN. After
    /// [`AppendError::Poisoned`] its outcome is unknown until the log is opened again.
    pub fn commit(&self, batch: &mut Batch) -> Result<Receipt, AppendError> {
        self.commit_as(batch, self.gate().options.durability)
    }

    /// Appends a batch and waits until it is as durable as asked.
    ///
    /// # Errors
    /// As [`Wal::commit`].
    pub fn commit_as(&self, batch: &mut Batch, durability: Durability) -> Result<Receipt, AppendError> {
        self.gate().commit(batch, durability, ForRoom::Wait)
    }

    /// Appends a batch and returns at once, with its LSNs and a [`Ticket`] to wait for or to poll. It will be as
    /// durable as the options say; until the ticket says so, a crash may take it.
    ///
    /// # Errors
    /// As [`Wal::commit`], but for what only waiting can tell.
    pub fn submit(&self, batch: &mut Batch) -> Result<Ticket, AppendError> {
        self.submit_as(batch, self.gate().options.durability)
    }

    /// Appends a batch and returns at once; it will be as durable as asked.
    ///
    /// # Errors
    /// As [`Wal::submit`].
    pub fn submit_as(&self, batch: &mut Batch, durability: Durability) -> Result<Ticket, AppendError> {
        let receipt = self.gate().submit(batch, durability, ForRoom::Wait)?;
        Ok(Ticket::new(Arc::clone(self.gate()), receipt, durability))
    }

    /// As [`commit_as`](Wal::commit_as), but where staging is full it is refused, and does not wait for a place. It
    /// may still write what is staged, where nobody else does, and make room on the disk where none was made
    /// ahead; so it may wait for the disk, but for no other thread.
    ///
    /// # Errors
    /// As [`Wal::commit`]; [`AppendError::Full`] with [`NoRoom::Staging`](crate::NoRoom::Staging) leaves the
    /// batch as it was.
    pub fn try_commit(&self, batch: &mut Batch, durability: Durability) -> Result<Receipt, AppendError> {
        self.gate().commit(batch, durability, ForRoom::Refuse)
    }

    /// As [`submit_as`](Wal::submit_as), but where staging is full it is refused, and does not wait for a place. As
    /// [`try_commit`](Wal::try_commit) it may write and make room; a [`Permit`] does no I/O at all.
    ///
    /// # Errors
    /// As [`Wal::try_commit`].
    pub fn try_submit(&self, batch: &mut Batch, durability: Durability) -> Result<Ticket, AppendError> {
        let receipt = self.gate().submit(batch, durability, ForRoom::Refuse)?;
        Ok(Ticket::new(Arc::clone(self.gate()), receipt, durability))
    }

    /// Reserves room for one batch of at most so many encoded bytes ([`Batch::encoded`] tells how many a record
    /// takes), in staging and on the disk; waits where permits or staged records take all of staging. Who holds
    /// a permit and asks for another that finds no place while it does waits for itself.
    ///
    /// # Errors
    /// [`AppendError::Full`] if the disk is full, [`AppendError::TooLarge`] above `record_bytes_max`, and as
    /// [`Wal::commit`].
    pub fn reserve(&self, bytes: u64) -> Result<Permit, AppendError> {
        Permit::new(self.gate(), bytes, ForRoom::Wait)
    }

    /// As [`reserve`](Wal::reserve), but does not wait for a place in staging. It may write and make room.
    ///
    /// # Errors
    /// As [`Wal::reserve`], and [`AppendError::Full`] with [`NoRoom::Staging`](crate::NoRoom::Staging).
    pub fn try_reserve(&self, bytes: u64) -> Result<Permit, AppendError> {
        Permit::new(self.gate(), bytes, ForRoom::Refuse)
    }

    /// What lies in the directory, in bytes, by what it is. Lists the directory; changes nothing.
    ///
    /// # Errors
    /// What the storage answers.
    pub fn disk_usage(&self) -> Result<DiskUsage, StorageError> {
        DiskUsage::of(self.chain())
    }

    /// How the log fares, in numbers: counts since it was opened, latencies, what is under way. Cheap, and
    /// changes nothing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.gate().stats(u64::from(self.recovery().torn_tail.is_some()))
    }

    /// Waits until everything appended so far is durable.
    ///
    /// # Errors
    /// [`AppendError::Poisoned`], [`AppendError::Closed`], or [`AppendError::Full`] while the copy of an unproved tail finds no room.
    pub fn sync(&self) -> Result<(), AppendError> {
        self.gate().sync()
    }

    /// Waits until a record, and so every record before it, survives a loss of power.
    ///
    /// # Errors
    /// As [`Wal::sync`], and [`AppendError::NotYetAppended`].
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), AppendError> {
        self.gate().wait(lsn, Durability::Synced)
    }

    /// Waits until a record, and so every record before it, survives the death of the process.
    ///
    /// # Errors
    /// As [`Wal::wait_durable`].
    pub fn wait_written(&self, lsn: Lsn) -> Result<(), AppendError> {
        self.gate().wait(lsn, Durability::Written)
    }

    /// The first LSN that is kept, or the next one to come if there is none: where reading everything starts.
    #[must_use]
    pub fn first(&self) -> Lsn {
        let chain = &self.gate().chain;
        chain.first().and_then(Lsn::new).unwrap_or_else(|| self.next())
    }

    /// The last LSN given out; `None` before the first.
    #[must_use]
    pub fn last(&self) -> Option<Lsn> {
        Lsn::new(self.next().number() - 1)
    }

    /// The next LSN to be given out.
    #[must_use]
    pub fn next(&self) -> Lsn {
        Lsn::new(self.gate().chain.next()).unwrap_or(Lsn::FIRST)
    }

    /// Everything up to here survives the death of the process.
    #[must_use]
    pub fn written(&self) -> Option<Lsn> {
        Lsn::new(self.gate().chain.written())
    }

    /// Everything up to here survives a loss of power.
    #[must_use]
    pub fn durable(&self) -> Option<Lsn> {
        Lsn::new(self.gate().chain.durable())
    }

    /// What poisoned the log, if anything did.
    #[must_use]
    pub fn poisoned(&self) -> Option<Arc<Poison>> {
        self.gate().poisoned()
    }

    /// Reads from an LSN on, up to what is written, and further as more is written.
    ///
    /// # Errors
    /// [`ReadError::Retired`] below the first LSN kept, [`ReadError::Ahead`] above the next one.
    pub fn read(&self, from: Lsn) -> Result<Reader, ReadError> {
        Reader::new(Arc::clone(&self.gate().chain), from, false)
    }

    /// Reads from where another reader stood.
    ///
    /// # Errors
    /// As [`Wal::read`], and [`ReadError::Diverged`].
    pub fn read_from(&self, cursor: &Cursor) -> Result<Reader, ReadError> {
        let reader = Reader::resume(Arc::clone(&self.gate().chain), cursor, false);
        if matches!(reader, Err(ReadError::Diverged { .. })) {
            self.gate().counters.diverged.add(1);
        }
        reader
    }

    /// Follows the log from an LSN on: each record once it is durable. See [`Tail`].
    ///
    /// # Errors
    /// As [`Wal::read`].
    pub fn tail(&self, from: Lsn) -> Result<Tail, ReadError> {
        Tail::new(self.gate(), from, || self.read(from))
    }

    /// Follows the log from where a reader, a tail or a follower stood.
    ///
    /// # Errors
    /// As [`Wal::read_from`].
    pub fn tail_from(&self, cursor: &Cursor) -> Result<Tail, ReadError> {
        Tail::new(self.gate(), cursor.next(), || self.read_from(cursor))
    }

    /// Where the record with this LSN lies. In a segment of up to 64 MiB this reads less than 64 KiB.
    ///
    /// # Errors
    /// [`ReadError::Ahead`] if it is not written, [`ReadError::Retired`] or [`ReadError::Lost`] if it is gone.
    pub fn seek(&self, lsn: Lsn) -> Result<Position, ReadError> {
        seek(&self.gate().chain, lsn)
    }

    /// The segments, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.gate().chain.segments().iter().filter_map(|segment| segment.info()).collect()
    }

    /// Keeps the log from `lsn` on, for as long as the guard lives. It does not survive the process. Names are
    /// 1 to 63 bytes and need not differ.
    ///
    /// # Errors
    /// [`HoldError::Ahead`] above `durable()` + 1, [`HoldError::Retired`] below the first LSN kept, [`HoldError::Name`].
    pub fn hold(&self, name: &str, lsn: Lsn) -> Result<Hold, HoldError> {
        self.gate().holds.take(name, lsn)
    }

    /// Keeps the log from `lsn` on until [`release_durable_hold`](Self::release_durable_hold), over restarts. When
    /// this returns, a loss of power does not lose it. There are at most 64, with names of 1 to 63 bytes that differ.
    ///
    /// # Errors
    /// As [`Wal::hold`], and [`HoldError::Exists`], [`HoldError::TooMany`], [`HoldError::Unreadable`],
    /// [`HoldError::Full`], [`HoldError::Poisoned`], [`HoldError::Closed`].
    pub fn hold_durably(&self, name: &str, lsn: Lsn) -> Result<(), HoldError> {
        self.gate().change_hold(name, Change::Take(lsn))
    }

    /// Moves a durable hold forwards, durably, which costs two syncs of the control file: once in a while, and
    /// not for each record. It counts where it was until this returns; after a crash meanwhile
    /// it is at either place.
    ///
    /// # Errors
    /// [`HoldError::Unknown`], [`HoldError::Backwards`], and as [`Wal::hold_durably`].
    pub fn advance_durable_hold(&self, name: &str, lsn: Lsn) -> Result<(), HoldError> {
        self.gate().change_hold(name, Change::Advance(lsn))
    }

    /// Lets go of a durable hold, durably.
    ///
    /// # Errors
    /// [`HoldError::Unknown`], and as [`Wal::hold_durably`].
    pub fn release_durable_hold(&self, name: &str) -> Result<(), HoldError> {
        self.gate().change_hold(name, Change::Release)
    }

    /// Every hold: the durable ones first, by name.
    #[must_use]
    pub fn holds(&self) -> Vec<HoldInfo> {
        self.gate().holds.list()
    }

    /// Retires the segments at the head of the log whose last LSN is below `before`, as far as they are
    /// finished (the closing sync has returned, and a record behind them is durable) and no hold reaches into
    /// them. The newest segment always stays. The report says what went, and what stayed first and why.
    ///
    /// *Unchecked*: whether anybody still needs the records is not asked. A database asks the planes first,
    /// which is what `planewal-recycle` is for. Until then, a checkpoint goes like this:
    ///
    /// 1. Under the lock of your state, take the state and the last LSN that it holds, `at`.
    /// 2. [`wait_durable(at)`](Self::wait_durable), before anybody can see the checkpoint: one that is ahead of
    ///    what a power loss leaves would hold records whose LSNs are given out again.
    /// 3. Write it with `at` to a new file, sync that, rename it, sync its directory.
    /// 4. `retire_unchecked(at.next())`.
    /// 5. After a restart load it, and [`read(at.next())`](Self::read).
    ///
    /// A segment that [`rotate`](Self::rotate) has just ended is the newest until a record behind it is durable,
    /// so what goes is one segment behind. A log that has taken the whole disk can only be retired behind a
    /// checkpoint, which needs room of its own.
    ///
    /// When this returns, the records are gone for good. After a crash meanwhile each segment is there or
    /// gone, and whatever is there begins at a segment's first record. It needs no free space. A reader in a
    /// retired segment may read on to its end, and is then told the gap as [`ReadError::NotKept`].
    ///
    /// # Errors
    /// See [`RetireError`].
    pub fn retire_unchecked(&self, before: Lsn) -> Result<RetireReport, RetireError> {
        self.gate().retire(before)
    }

    /// Ends the current segment, writing what is staged: the next group begins a new one. What was appended
    /// before survives the death of the process when it returns; it makes nothing durable.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn rotate(&self) -> Result<(), AppendError> {
        self.gate().rotate()
    }

    /// Makes everything durable, seals the newest segment and writes the clean-close proof. Closes the log
    /// for every clone; closing again does nothing.
    ///
    /// # Errors
    /// See [`CloseError`]; after [`CloseError::Full`] the handle stays open.
    pub fn close(&self) -> Result<(), CloseError> {
        self.gate().close()
    }
}
