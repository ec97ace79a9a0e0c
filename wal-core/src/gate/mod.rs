//! The gate: where committers wait while one of them leads.
//!
//! Batches come in encoded. Under the lock a batch gets its LSNs and one copy into the filling group,
//! nothing else. Whoever needs a group on disk and finds no leader becomes it: takes the group, closes
//! its frame and makes one write and at most one sync outside the lock, while the next group fills.
//! Marks are published after the call that earned them, in LSN order, because there is one leader at a time.
//!
//! What the leader role protects: the place where the next frame goes, rotation, and the beacon. So a
//! segment's end is settled before its successor's link names it.
//!
//! The rule on closing syncs: a segment that is left with unsynced records is synced before anything
//! in its successor counts as durable, and before a third segment is begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::batch::Appendable;
use crate::chain::{Chain, Predecessor, Segment};
use crate::control::ControlFile;
use crate::copy::PendingCopy;
use crate::error::{AppendError, Poison, StorageError};
use crate::frame::{HEADER_BYTES, frame_bytes};
use crate::hold::Holds;
use crate::lsn::Lsn;
use crate::options::{Durability, Options};
use crate::prepare::{Prepared, SegmentFile};
use crate::segment::{HEADER_PAGE_BYTES, LINK_FRAME_BYTES, Link, PlaneTable, SEAL_BYTES_MAX};
use crate::storage::StorageLock;
use crate::wire::len64;

mod close;
mod lead;
mod polled;
mod retire;
mod rotate;
mod thread;

/// Staged bytes at which the I/O thread writes what is only `Buffered`.
const BUFFERED_WRITE_BYTES: usize = 256 << 10;

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

/// The capacity of a segment for a batch with a body of `body_bytes`.
pub(crate) fn capacity_for(options: &Options, body_bytes: u64) -> u64 {
    let needed = HEADER_PAGE_BYTES + LINK_FRAME_BYTES + frame_bytes(body_bytes);
    let with_seal = needed + seal_reserve(options.segment_bytes);
    if with_seal <= options.segment_bytes { options.segment_bytes } else { needed + SEAL_BYTES_MAX }
}

/// A group of batches that will be one frame.
#[derive(Debug, Default)]
struct Group {
    /// [`LEAD_BYTES`], then the body.
    buffer: Vec<u8>,
    first: u64,
    records: u32,
    strictest: Option<Durability>,
    /// Somebody waits only for the write.
    written_members: bool,
    planes: PlaneTable,
    /// Set if this group begins a segment.
    link: Option<Link>,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.records == 0
    }

    fn body_bytes(&self) -> u64 {
        len64(self.buffer.len().saturating_sub(LEAD_BYTES))
    }

    /// Bytes that the group takes in its file once `more` bytes of body are added.
    fn file_bytes(&self, more: u64) -> u64 {
        let link = if self.link.is_some() { LINK_FRAME_BYTES } else { 0 };
        link + frame_bytes(self.body_bytes() + more)
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
        self.planes.clear();
        self.records = 0;
        self.strictest = None;
        self.written_members = false;
        self.link = None;
    }
}

/// The segment that is being written.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: SegmentFile,
    capacity: u64,
    /// Records were written to it after its last sync.
    unsynced: AtomicBool,
}

impl Active {
    fn sync(&self) -> Result<(), StorageError> {
        self.file.sync()?;
        self.unsynced.store(false, Ordering::Release);
        Ok(())
    }
}

#[derive(Debug)]
struct State {
    next: u64,
    filling: Group,
    spare: Group,
    active: Option<Arc<Active>>,
    /// Where the filling group goes in the active segment.
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
    leader: bool,
    /// Others that do I/O: the I/O thread.
    busy: u32,
    preparing: bool,
    extending: bool,
    /// LSNs up to which somebody waits for a sync that no group's level asks for.
    sync_wanted: u64,
    /// Segments to be synced, if need be, and sealed.
    finished: VecDeque<Arc<Active>>,
    stalled: Option<(Group, Arc<StorageError>)>,
    pending_copy: Option<PendingCopy>,
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
    /// Up to here the I/O thread is asked to lead, for tickets that nobody waits for.
    asked_for: u64,
    wakers: polled::Wakers,
}

impl State {
    /// Nobody may do I/O any more: the log is closed, or every handle is gone, and the lock goes with the last
    /// I/O that was under way.
    fn is_over(&self) -> bool {
        self.closed || (self.dropped && !self.closing)
    }

    /// Whether what is staged is worth a write that nobody waits for.
    fn holds_much(&self) -> bool {
        self.filling.buffer.len() >= BUFFERED_WRITE_BYTES
    }

    /// Segments that were left with records that are not synced, oldest first.
    fn unsynced(&self) -> Vec<Arc<Active>> {
        self.finished.iter().filter(|active| active.unsynced.load(Ordering::Acquire)).cloned().collect()
    }
}

type Guard<'a> = MutexGuard<'a, State>;

/// The writer's shared part.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) chain: Arc<Chain>,
    pub(crate) options: Options,
    control: Mutex<ControlFile>,
    state: Mutex<State>,
    /// A group is done, or room is made.
    done: Condvar,
    /// There is work for the I/O thread.
    work: Condvar,
    lock: Mutex<Option<Box<dyn StorageLock>>>,
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
            filling: Group::default(),
            spare: Group::default(),
            active: None,
            place: 0,
            room: 0,
            ready: None,
            predecessor: start.predecessor,
            kept: start.kept,
            branch: start.branch,
            leader: false,
            busy: 0,
            preparing: false,
            extending: false,
            sync_wanted: 0,
            finished: VecDeque::new(),
            stalled: None,
            pending_copy: start.pending_copy,
            poison: None,
            testified,
            last_commit: Instant::now(),
            closing: false,
            closed: false,
            dropped: false,
            thread: None,
            resting: false,
            asked_for: 0,
            wakers: polled::Wakers::default(),
        };
        Gate {
            holds: Holds::new(Arc::clone(&chain), &control.state),
            retiring: Mutex::new(()),
            chain,
            options,
            control: Mutex::new(control),
            state: Mutex::new(state),
            done: Condvar::new(),
            work: Condvar::new(),
            lock: Mutex::new(Some(lock)),
        }
    }

    /// Appends a batch and waits until it is as durable as `level` says.
    pub(crate) fn commit(
        self: &Arc<Self>,
        batch: &mut impl Appendable,
        level: Durability,
    ) -> Result<Receipt, AppendError> {
        let (state, receipt) = self.stage(batch, level)?;
        if level == Durability::Buffered {
            self.after_buffered(state);
            return Ok(receipt);
        }
        self.wait_for(state, receipt.last.number(), level)?;
        Ok(receipt)
    }

    /// Appends a batch; whoever leads its group will make it as durable as `level` says.
    pub(crate) fn submit(
        self: &Arc<Self>,
        batch: &mut impl Appendable,
        level: Durability,
    ) -> Result<Receipt, AppendError> {
        let (state, receipt) = self.stage(batch, level)?;
        self.after_buffered(state);
        Ok(receipt)
    }

    /// Nobody waits for what was staged: the I/O thread writes it once there is much.
    fn after_buffered(&self, state: Guard<'_>) {
        let much = state.holds_much() && !state.leader;
        drop(state);
        if much {
            self.work.notify_one();
        }
    }

    /// Gives a batch its LSNs and its place in the filling group.
    fn stage<'a>(
        self: &'a Arc<Self>,
        batch: &mut impl Appendable,
        level: Durability,
    ) -> Result<(Guard<'a>, Receipt), AppendError> {
        if batch.records() == 0 {
            return Err(AppendError::EmptyBatch);
        }
        if batch.payload_bytes() > self.options.record_bytes_max {
            return Err(AppendError::TooLarge {
                bytes: batch.payload_bytes(),
                limit: self.options.record_bytes_max,
            });
        }
        let mut state = self.make_place(self.state.lock(), &*batch)?;
        let first = state.next;
        let last = first + u64::from(batch.records()) - 1;
        let (Some(first_lsn), Some(last_lsn)) = (Lsn::new(first), Lsn::new(last)) else {
            unreachable!("LSNs do not run out")
        };
        if state.filling.is_empty() {
            state.filling.first = first;
            state.filling.buffer.resize(LEAD_BYTES, 0);
        }
        batch.copy_to(&mut state.filling.buffer);
        batch.count_in(&mut state.filling.planes, first);
        state.filling.records += batch.records();
        state.filling.strictest = state.filling.strictest.max(Some(level));
        state.filling.written_members |= level == Durability::Written;
        state.next = last + 1;
        self.chain.publish_next(last + 1);
        batch.taken();
        Ok((state, Receipt { first: first_lsn, last: last_lsn }))
    }

    /// Waits until `lsn` is as durable as `level` says.
    pub(crate) fn wait(self: &Arc<Self>, lsn: Lsn, level: Durability) -> Result<(), AppendError> {
        let state = self.state.lock();
        if lsn.number() >= state.next {
            return Err(AppendError::NotYetAppended { lsn });
        }
        self.wait_for(state, lsn.number(), level)
    }

    /// Waits until everything appended so far is durable.
    pub(crate) fn sync(self: &Arc<Self>) -> Result<(), AppendError> {
        let last = self.state.lock().next - 1;
        match Lsn::new(last) {
            Some(lsn) if last > self.chain.durable() => self.wait(lsn, Durability::Synced),
            _ => self.refusal(&self.state.lock()).map_or(Ok(()), Err),
        }
    }

    fn refusal(&self, state: &State) -> Option<AppendError> {
        match &state.poison {
            Some(poison) => Some(AppendError::Poisoned(Arc::clone(poison))),
            None if state.closed || state.closing => Some(AppendError::Closed),
            None => None,
        }
    }

    fn reached(&self, lsn: u64, level: Durability) -> bool {
        match level {
            Durability::Buffered => true,
            Durability::Written => self.chain.written() >= lsn,
            Durability::Synced => self.chain.durable() >= lsn,
        }
    }

    fn wait_for<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        lsn: u64,
        level: Durability,
    ) -> Result<(), AppendError> {
        loop {
            if let Some(outcome) = self.outcome(&state, lsn, level) {
                return outcome;
            }
            if level == Durability::Synced {
                state.sync_wanted = state.sync_wanted.max(lsn);
            }
            if state.leader {
                self.done.wait(&mut state);
            } else if state.pending_copy.is_some() {
                state = self.copy_pending_tail(state)?;
            } else if state.stalled.is_some() {
                // Not while a segment is being made: ids go into the chain in their order.
                self.done.wait_for(&mut state, STALL_RETRY);
                state = self.lead_if_free(state);
            } else {
                state = self.lead(state);
            }
        }
    }

    fn lead_if_free<'a>(self: &'a Arc<Self>, state: Guard<'a>) -> Guard<'a> {
        let may = !state.leader && !state.preparing && state.poison.is_none() && !state.is_over();
        if may { self.lead(state) } else { state }
    }

    /// Returns with room for the batch in the filling group, or with an error and no LSN given.
    fn make_place<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        batch: &impl Appendable,
    ) -> Result<Guard<'a>, AppendError> {
        let body = batch.body_bytes();
        loop {
            if let Some(refusal) = self.refusal(&state) {
                return Err(refusal);
            }
            if state.stalled.is_none()
                && state.pending_copy.is_none()
                && self.group_takes(&state, batch)
                && self.segment_takes(&state, body)
            {
                return Ok(state);
            }
            if state.leader || (state.stalled.is_some() && state.preparing) {
                self.done.wait(&mut state);
            } else if state.stalled.is_some() {
                state = self.lead(state);
                if let Some((_, error)) = &state.stalled {
                    return Err(AppendError::Full(Arc::clone(error)));
                }
            } else if state.pending_copy.is_some() {
                state = self.copy_pending_tail(state)?;
            } else if state.filling.is_empty() {
                state = self.make_room(state, body)?;
            } else {
                state = self.lead(state);
            }
        }
    }

    /// Whether the filling group has room for the batch: a larger one goes alone.
    fn group_takes(&self, state: &State, batch: &impl Appendable) -> bool {
        let fits = state.filling.body_bytes() + batch.body_bytes() <= self.options.group_bytes;
        state.filling.is_empty() || (fits && state.filling.records.checked_add(batch.records()).is_some())
    }

    /// Whether the active segment has real room for `body` more bytes in the filling group.
    fn segment_takes(&self, state: &State, body: u64) -> bool {
        let Some(active) = &state.active else { return false };
        let end = state.place + state.filling.file_bytes(body);
        end <= state.room && end + seal_reserve(active.capacity) <= active.capacity
    }

    fn poison(&self, state: &mut State, error: &StorageError) -> Arc<Poison> {
        let durable = Lsn::new(self.chain.durable());
        let poison = state.poison.get_or_insert_with(|| {
            Arc::new(Poison {
                operation: error.operation,
                file: error.file.clone(),
                error: error.source.to_string(),
                durable,
            })
        });
        let poison = Arc::clone(poison);
        self.done.notify_all();
        self.work.notify_all();
        poison
    }

    pub(crate) fn poisoned(&self) -> Option<Arc<Poison>> {
        self.state.lock().poison.clone()
    }
}
