//! The gate: where committers wait while one of them writes and one of them syncs.
//!
//! Batches come in encoded. Under the lock a batch gets its LSNs, its place, and one copy into the last
//! staged group, nothing else. Two roles are taken in turn, each by one thread at a time. Who *leads* takes
//! the oldest group, closes its frame and makes one write outside the lock; who *syncs* makes one sync for
//! all that is written. Meanwhile the next group fills. So who only wants the write never waits for a
//! sync, and one that hangs stops nobody else until staging is full.
//!
//! What the leader's role protects: the place where the next frame goes, rotation, and the beacon. So a
//! segment's end is settled before its successor's link names it. Marks are published after the call that
//! earned them, in LSN order; the end that a sync covers is read before it is issued.
//!
//! The rule on closing syncs: a segment that is left with unsynced records is synced before anything
//! in its successor counts as durable, and before a third segment is begun.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::Appendable;
use crate::chain::{Chain, Predecessor, Segment};
use crate::control::ControlFile;
use crate::copy::PendingCopy;
use crate::error::{AppendError, NoRoom, Poison, StorageError};
use crate::events::{Event, Events};
use crate::frame::{HEADER_BYTES, frame_bytes};
use crate::hold::Holds;
use crate::lsn::Lsn;
use crate::options::{Durability, Options};
use crate::prepare::{Prepared, SegmentFile};
use crate::segment::{HEADER_PAGE_BYTES, LINK_FRAME_BYTES, Link, PlaneTable, SEAL_BYTES_MAX};
use crate::spare::SpareUse;
use crate::stats::{Counters, FullDisk, Stats};
use crate::storage::{Allocation, StorageLock};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, unlocked};
use crate::wire::len64;

mod close;
mod lead;
mod polled;
mod retire;
mod rotate;
mod stage;
mod sync;
mod thread;

pub(crate) use polled::{Watch, Watched};

/// Staged bytes at which the I/O thread writes what is only `Buffered`.
const BUFFERED_WRITE_BYTES: u64 = 256 << 10;

/// How often a group that found no room is tried again.
const STALL_RETRY: Duration = Duration::from_millis(20);

/// Space in front of a group's body: for a link, which only the first group of a segment has, and for the
/// frame's header.
const LEAD_BYTES: usize = LINK_BYTES + HEADER_BYTES;

/// [`LINK_FRAME_BYTES`], for buffers.
const LINK_BYTES: usize = 88;

const _: () = assert!(LINK_BYTES as u64 == LINK_FRAME_BYTES);

/// The room that a segment keeps for its seal: a full one, but never more than an eighth of it.
fn seal_reserve(capacity: u64) -> u64 {
    SEAL_BYTES_MAX.min(capacity / 8)
}

/// The capacity of a segment for so many bytes of frames.
pub(crate) fn capacity_for(options: &Options, frames: u64) -> u64 {
    let needed = START + frames;
    let with_seal = needed + seal_reserve(options.segment_bytes);
    if with_seal <= options.segment_bytes { options.segment_bytes } else { needed + SEAL_BYTES_MAX }
}

/// Where the first frame behind the link lies.
const START: u64 = HEADER_PAGE_BYTES + LINK_FRAME_BYTES;

/// A group of batches that will be one frame.
#[derive(Debug)]
struct Group {
    /// [`LEAD_BYTES`], then the body.
    buffer: Vec<u8>,
    first: u64,
    records: u32,
    strictest: Durability,
    /// Somebody waits only for the write.
    written_members: bool,
    planes: PlaneTable,
    /// It is the first of a segment.
    begins: bool,
    /// The link before it, once that segment is begun.
    link: Option<Link>,
    /// When its first batch came.
    since: Instant,
}

impl Group {
    fn new() -> Group {
        Group {
            buffer: vec![0; LEAD_BYTES],
            first: 0,
            records: 0,
            strictest: Durability::Buffered,
            written_members: false,
            planes: PlaneTable::default(),
            begins: false,
            link: None,
            since: Instant::now(),
        }
    }

    fn body_bytes(&self) -> u64 {
        len64(self.buffer.len().saturating_sub(LEAD_BYTES))
    }

    /// Bytes that the group takes in its file.
    fn file_bytes(&self) -> u64 {
        let link = if self.begins { LINK_FRAME_BYTES } else { 0 };
        link + frame_bytes(self.body_bytes())
    }

    fn last(&self) -> u64 {
        self.first + u64::from(self.records) - 1
    }

    /// Empties it, keeping the memory if it is not more than `keep` bytes.
    fn reset(&mut self, keep: usize) {
        if self.buffer.capacity() > keep {
            self.buffer = Vec::new();
        }
        self.buffer.clear();
        self.buffer.resize(LEAD_BYTES, 0);
        self.planes.clear();
        self.records = 0;
        self.strictest = Durability::Buffered;
        self.written_members = false;
        self.begins = false;
        self.link = None;
    }
}

/// The segment that is being written.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: Arc<SegmentFile>,
    capacity: u64,
    /// Raised before and after each write, so that a sync beside it does not pass for one behind it.
    changes: AtomicU64,
    /// What `changes` was before the last sync that returned.
    synced: AtomicU64,
}

impl Active {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let written = self.file.write(offset, bytes);
        self.changes.fetch_add(1, Ordering::AcqRel);
        written
    }

    fn sync(&self, counters: &Counters) -> Result<(), StorageError> {
        let changes = self.changes.load(Ordering::Acquire);
        let flight = counters.begin("sync");
        self.file.sync()?;
        flight.landed(&counters.sync);
        self.synced.fetch_max(changes, Ordering::AcqRel);
        Ok(())
    }

    /// Whether something was written to it after its last sync.
    fn is_unsynced(&self) -> bool {
        self.changes.load(Ordering::Acquire) != self.synced.load(Ordering::Acquire)
    }

    /// How far frames may go in it, given that there is real room up to `room`.
    fn limit(&self, room: u64) -> u64 {
        room.min(self.capacity - seal_reserve(self.capacity))
    }
}

/// Permits that are outstanding.
#[derive(Debug, Default)]
struct Reserved {
    /// Bytes of body that they may bring.
    bodies: u64,
    /// Bytes in the file, each in a frame of its own.
    frames: u64,
}

#[derive(Debug)]
struct State {
    next: u64,
    /// Groups in LSN order; the last one is filling.
    staged: VecDeque<Group>,
    /// Bytes of body in memory: staged, and being written.
    staged_bytes: u64,
    /// Where the staged groups end in the segment that the last of them is for.
    end: u64,
    reserved: Reserved,
    /// Empty groups, for their memory.
    spares: Vec<Group>,
    active: Option<Arc<Active>>,
    /// Where the next frame goes in the active segment.
    place: u64,
    /// How far the active segment has real room.
    room: u64,
    ready: Option<Prepared>,
    /// What the next link names, while there is no active segment.
    predecessor: Option<Predecessor>,
    /// The last LSN that recovery kept, for the first link of this run.
    kept: Option<u64>,
    /// The next LSN jumps over what `repair` gave up.
    branch: bool,
    /// Somebody leads.
    writing: bool,
    /// Somebody syncs.
    syncing: bool,
    /// Others that do I/O: the I/O thread.
    busy: u32,
    preparing: bool,
    extending: bool,
    /// Somebody seals the oldest finished segment.
    sealing: bool,
    /// The oldest group found no room in the file that it was for.
    stalled: bool,
    /// Since when the disk is full, and what it said.
    full: Option<(Instant, Arc<StorageError>)>,
    /// Segments to be synced, if need be, and sealed.
    finished: VecDeque<Arc<Active>>,
    /// Stays until it is copied: nothing is appended before that.
    pending_copy: Option<Arc<PendingCopy>>,
    poison: Option<Arc<Poison>>,
    /// The durable LSN that frames or slots on disk testify to.
    testified: u64,
    last_commit: Instant,
    closing: bool,
    closed: bool,
    dropped: bool,
    thread: Option<std::thread::JoinHandle<()>>,
    /// The I/O thread sleeps until it is woken.
    resting: bool,
    /// Up to here the I/O thread is asked to write, for tickets that nobody waits for.
    asked_for: u64,
    /// Up to here it is asked to sync.
    sync_asked: u64,
    wakers: polled::Wakers,
    allocation: Allocation,
}

impl State {
    /// Nobody may do I/O any more: the log is closed, or every handle is gone, and the lock goes with the last
    /// I/O that was under way.
    fn is_over(&self) -> bool {
        self.closed || (self.dropped && !self.closing)
    }

    /// Whether what is staged is worth a write that nobody waits for.
    fn holds_much(&self) -> bool {
        self.staged_bytes >= BUFFERED_WRITE_BYTES && !self.staged.is_empty()
    }

    /// Segments that were left with records that are not synced, oldest first.
    fn unsynced(&self) -> Vec<Arc<Active>> {
        self.finished.iter().filter(|active| active.is_unsynced()).cloned().collect()
    }
}

type Guard<'a> = MutexGuard<'a, State>;

/// Does I/O without the lock. A panic in it, of a storage or of ours, leaves the outcome unknown and may not
/// leave the others waiting: it comes out as a failed sync does, which poisons.
fn without<T>(
    state: &mut Guard<'_>,
    work: impl FnOnce() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    unlocked(state, || {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(StorageError::new("sync", "the log", io::Error::other("a panic in the middle of I/O")))
        })
    })
}

/// The writer's shared part.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) chain: Arc<Chain>,
    pub(crate) options: Options,
    control: Mutex<ControlFile>,
    state: Mutex<State>,
    /// A group is written, or room is made.
    done: Condvar,
    /// A sync is done, or is to be done by who waits for it.
    synced: Condvar,
    /// There is work for the I/O thread.
    work: Condvar,
    lock: Mutex<Option<Box<dyn StorageLock>>>,
    pub(crate) counters: Counters,
    events: Events,
    spare_use: Arc<SpareUse>,
    pub(crate) holds: Arc<Holds>,
    retiring: Mutex<()>,
}

/// Where a new gate begins.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) next: u64,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) kept: Option<u64>,
    pub(crate) branch: bool,
    pub(crate) pending_copy: Option<PendingCopy>,
}

/// What a commit appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The LSN of the batch's first record.
    pub first: Lsn,
    /// The LSN of the batch's last record.
    pub last: Lsn,
}

impl Gate {
    pub(crate) fn new(
        chain: Arc<Chain>,
        options: Options,
        control: ControlFile,
        lock: Box<dyn StorageLock>,
        start: Start,
    ) -> Gate {
        let testified = chain.durable();
        let state = State {
            next: start.next,
            staged: VecDeque::new(),
            staged_bytes: 0,
            end: 0,
            reserved: Reserved::default(),
            spares: Vec::new(),
            active: None,
            place: 0,
            room: 0,
            ready: None,
            predecessor: start.predecessor,
            kept: start.kept,
            branch: start.branch,
            writing: false,
            syncing: false,
            busy: 0,
            preparing: false,
            extending: false,
            sealing: false,
            stalled: false,
            full: None,
            finished: VecDeque::new(),
            pending_copy: start.pending_copy.map(Arc::new),
            poison: None,
            testified,
            last_commit: Instant::now(),
            closing: false,
            closed: false,
            dropped: false,
            thread: None,
            resting: false,
            asked_for: 0,
            sync_asked: 0,
            wakers: polled::Wakers::default(),
            allocation: options.preparation,
        };
        Gate {
            spare_use: Arc::clone(&control.spare_use),
            holds: Holds::new(Arc::clone(&chain), &control.state),
            retiring: Mutex::new(()),
            chain,
            options,
            control: Mutex::new(control),
            state: Mutex::new(state),
            done: Condvar::new(),
            synced: Condvar::new(),
            work: Condvar::new(),
            lock: Mutex::new(Some(lock)),
            counters: Counters::default(),
            events: Events::default(),
        }
    }

    /// Appends a batch and waits until it is as durable as `level` says.
    pub(crate) fn commit(
        self: &Arc<Self>,
        batch: &mut impl Appendable,
        level: Durability,
        for_room: ForRoom,
    ) -> Result<Receipt, AppendError> {
        let _telling = self.events.telling();
        let (state, receipt) = self.stage(batch, level, for_room)?;
        self.go_on(state, receipt, level)
    }

    /// What a commit does once its batch is staged.
    fn go_on<'a>(
        self: &'a Arc<Self>,
        state: Guard<'a>,
        receipt: Receipt,
        level: Durability,
    ) -> Result<Receipt, AppendError> {
        if level == Durability::Buffered {
            self.leave_to_thread(state);
        } else {
            self.wait_for(state, receipt.last.number(), level, None)?;
        }
        Ok(receipt)
    }

    /// Appends a batch; whoever leads its group will make it as durable as `level` says.
    pub(crate) fn submit(
        self: &Arc<Self>,
        batch: &mut impl Appendable,
        level: Durability,
        for_room: ForRoom,
    ) -> Result<Receipt, AppendError> {
        let _telling = self.events.telling();
        let (state, receipt) = self.stage(batch, level, for_room)?;
        self.leave_to_thread(state);
        Ok(receipt)
    }

    /// Nobody waits for what was staged: the I/O thread writes it once there is much.
    fn leave_to_thread(&self, state: Guard<'_>) {
        let much = state.holds_much() && !state.writing;
        drop(state);
        if much {
            self.work.notify_one();
        }
    }

    /// Waits until `lsn` is as durable as `level` says.
    pub(crate) fn wait(self: &Arc<Self>, lsn: Lsn, level: Durability) -> Result<(), AppendError> {
        let _telling = self.events.telling();
        let state = self.state.lock();
        if lsn.number() >= state.next {
            return Err(AppendError::NotYetAppended { lsn });
        }
        self.wait_for(state, lsn.number(), level, None).map(|_| ())
    }

    /// Waits until everything appended so far is durable.
    pub(crate) fn sync(self: &Arc<Self>) -> Result<(), AppendError> {
        let last = self.state.lock().next - 1;
        match Lsn::new(last) {
            Some(lsn) if last > self.chain.durable() => self.wait(lsn, Durability::Synced),
            _ => self.refusal(&self.state.lock()).map_or(Ok(()), Err),
        }
    }

    /// Wakes whoever waits for anything.
    fn ring(&self) {
        self.done.notify_all();
        self.synced.notify_all();
    }

    fn refusal(&self, state: &State) -> Option<AppendError> {
        match &state.poison {
            Some(poison) => Some(AppendError::Poisoned(Arc::clone(poison))),
            None if state.closed || state.closing => Some(AppendError::Closed),
            None => state.is_over().then_some(AppendError::Abandoned),
        }
    }

    fn reached(&self, lsn: u64, level: Durability) -> bool {
        match level {
            Durability::Buffered => true,
            Durability::Written => self.chain.written() >= lsn,
            Durability::Synced => self.chain.durable() >= lsn,
        }
    }

    /// Waits, and does what is to be done if nobody else does it; answers whether the mark was reached in
    /// time. I/O of its own it does not interrupt.
    fn wait_for<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        lsn: u64,
        level: Durability,
        until: Option<Instant>,
    ) -> Result<bool, AppendError> {
        let syncs = level == Durability::Synced;
        loop {
            if let Some(outcome) = self.outcome(&state, lsn, level) {
                return outcome.map(|()| true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            if self.chain.written() >= lsn {
                // Only the sync is missing.
                if state.syncing {
                    self.rest(&mut state, &self.synced, until);
                } else if state.pending_copy.is_some() {
                    state = self.copy_pending_tail(state)?;
                } else {
                    state = self.sync_written(state);
                }
            } else if state.writing || (syncs && state.syncing) {
                // Who wants a sync joins the group that fills while one is under way.
                self.rest(&mut state, self.rung_for(level), until);
            } else if state.stalled {
                // Not while a segment is being made: ids go into the chain in their order.
                self.done.wait_for(&mut state, STALL_RETRY);
                state = self.lead_if_free(state);
            } else {
                // Whose time may be up before the sync promises none.
                state = self.lead(state, if syncs && until.is_none() { Next::Sync } else { Next::HandOver });
            }
        }
    }

    /// Waits for a bell, until a moment at most; answers whether that has come.
    fn rest(&self, state: &mut Guard<'_>, bell: &Condvar, until: Option<Instant>) -> bool {
        match until {
            Some(until) => bell.wait_until(state, until).timed_out(),
            None => {
                bell.wait(state);
                false
            }
        }
    }

    fn lead_if_free<'a>(self: &'a Arc<Self>, state: Guard<'a>) -> Guard<'a> {
        let may = !state.writing && !state.preparing && state.poison.is_none() && !state.is_over();
        if may { self.lead(state, Next::HandOver) } else { state }
    }

    fn poison(&self, state: &mut State, error: &StorageError) -> Arc<Poison> {
        let durable = Lsn::new(self.chain.durable());
        let poison = state.poison.get_or_insert_with(|| {
            let poison = Arc::new(Poison {
                operation: error.operation,
                file: error.file.clone(),
                error: error.source.to_string(),
                durable,
            });
            self.events.note(|| Event::Poisoned { poison: Arc::clone(&poison) });
            poison
        });
        let poison = Arc::clone(poison);
        self.ring();
        self.work.notify_all();
        poison
    }

    /// The disk is full; answers what the caller is told.
    fn note_full(&self, state: &mut State, error: StorageError) -> Arc<StorageError> {
        let error = Arc::new(error);
        let since = state.full.as_ref().map(|(since, _)| *since);
        if since.is_none() {
            self.events.note(|| Event::Full { error: error.to_string() });
        }
        let since = since.unwrap_or_else(Instant::now);
        state.full = Some((since, Arc::clone(&error)));
        error
    }

    /// There is room again, and no group waits for some.
    fn found_room(&self, state: &mut State) {
        if let Some((since, _)) = state.full.take_if(|_| !state.stalled) {
            self.events.note(|| Event::Resumed { after: since.elapsed() });
        }
    }

    /// Counts an append that was refused for want of room.
    fn count_refusal<T>(&self, outcome: Result<T, AppendError>) -> Result<T, AppendError> {
        match &outcome {
            Err(AppendError::Full(NoRoom::Disk(_))) => self.counters.refused_disk.add(1),
            Err(AppendError::Full(NoRoom::Staging { .. })) => self.counters.refused_staging.add(1),
            _ => {}
        }
        outcome
    }

    pub(crate) fn poisoned(&self) -> Option<Arc<Poison>> {
        self.state.lock().poison.clone()
    }

    pub(crate) fn stats(&self, torn_tails: u64) -> Stats {
        let mut stats = Stats::new(torn_tails);
        stats.count(&self.counters);
        (stats.spare_hits, stats.spare_misses) = (self.spare_use.hits.get(), self.spare_use.misses.get());
        let state = self.state.lock();
        stats.last = Lsn::new(state.next - 1);
        stats.written = Lsn::new(self.chain.written());
        stats.durable = Lsn::new(self.chain.durable());
        stats.staged_bytes = state.staged_bytes;
        stats.reserved_bytes = state.reserved.bodies;
        stats.allocation = state.allocation;
        stats.full = state
            .full
            .as_ref()
            .map(|(since, error)| FullDisk { since: since.elapsed(), error: Arc::clone(error) });
        stats.poison.clone_from(&state.poison);
        stats
    }
}

/// Whether an append waits for a place in staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForRoom {
    Wait,
    Refuse,
}

/// What becomes of a group that asks for a sync, once its leader has written it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The leader syncs next.
    Sync,
    /// The I/O thread is asked to; without one the leader does it.
    HandOver,
    /// Nobody: every handle is gone.
    Nothing,
}
