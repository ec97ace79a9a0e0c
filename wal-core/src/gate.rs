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

use crate::batch::Batch;
use crate::chain::{Chain, Segment};
use crate::control::{CONTROL_NAME, CleanClose, ControlFile, FileRow};
use crate::error::{AppendError, CloseError, Poison, StorageError};
use crate::frame::{FrameDraft, FrameKind, HEADER_BYTES, frame_bytes};
use crate::lsn::Lsn;
use crate::open::PendingCopy;
use crate::options::{Durability, Options};
use crate::prepare::{Prepared, SegmentFile, discard, prepare};
use crate::segment::{HEADER_PAGE_BYTES, LINK_FRAME_BYTES, Link, PlaneTable, SEAL_BYTES_MAX, Seal, SparseIndex};
use crate::storage::StorageLock;
use crate::wire::{len_usize, len64};

/// Staged bytes at which the I/O thread writes what is only `Buffered`.
const BUFFERED_WRITE_BYTES: usize = 256 << 10;

/// How often a group that found no room is tried again.
const STALL_RETRY: Duration = Duration::from_millis(20);

/// Space in front of a group's body: for a link, which only the first group of a segment has, and for the
/// frame's header.
const LEAD_BYTES: usize = LINK_FRAME_BYTES as usize + HEADER_BYTES;

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
    fn error_free_sync(&self) -> Result<(), StorageError> {
        self.file.sync()?;
        self.unsynced.store(false, Ordering::Release);
        Ok(())
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
}

impl State {
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
    pub(crate) fn new(chain: Arc<Chain>, options: Options, control: ControlFile, lock: Box<dyn StorageLock>, start: Start) -> Gate {
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
        };
        Gate { chain, options, control: Mutex::new(control), state: Mutex::new(state), done: Condvar::new(), work: Condvar::new(), lock: Mutex::new(Some(lock)) }
    }

    /// Appends a batch and waits until it is as durable as `level` says.
    pub(crate) fn commit(self: &Arc<Self>, batch: &mut Batch, level: Durability) -> Result<Receipt, AppendError> {
        if batch.is_empty() {
            return Err(AppendError::EmptyBatch);
        }
        if batch.payload_bytes() > self.options.record_bytes_max {
            return Err(AppendError::TooLarge { bytes: batch.payload_bytes(), limit: self.options.record_bytes_max });
        }
        let mut state = self.state.lock();
        state = self.make_place(state, batch)?;
        let first = state.next;
        let last = first + u64::from(batch.records()) - 1;
        let (Some(first_lsn), Some(last_lsn)) = (Lsn::new(first), Lsn::new(last)) else { unreachable!("LSNs do not run out") };
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
        batch.clear();
        let receipt = Receipt { first: first_lsn, last: last_lsn };
        if level == Durability::Buffered {
            let much = state.filling.buffer.len() >= BUFFERED_WRITE_BYTES && !state.leader;
            drop(state);
            if much {
                self.work.notify_one();
            }
            return Ok(receipt);
        }
        self.wait_for(state, last, level)?;
        Ok(receipt)
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

    fn wait_for<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, lsn: u64, level: Durability) -> Result<(), AppendError> {
        loop {
            if self.reached(lsn, level) {
                return Ok(());
            }
            if let Some(poison) = &state.poison {
                return Err(AppendError::Poisoned(Arc::clone(poison)));
            }
            if state.closed {
                return Err(AppendError::Closed);
            }
            if level == Durability::Synced {
                state.sync_wanted = state.sync_wanted.max(lsn);
            }
            if state.leader {
                self.done.wait(&mut state);
            } else if state.pending_copy.is_some() {
                state = self.copy_pending_tail(state)?;
            } else if state.stalled.is_some() {
                self.done.wait_for(&mut state, STALL_RETRY);
                state = self.lead_if_free(state);
            } else {
                state = self.lead(state);
            }
        }
    }

    fn lead_if_free<'a>(self: &'a Arc<Self>, state: Guard<'a>) -> Guard<'a> {
        if state.leader || state.poison.is_some() { state } else { self.lead(state) }
    }

    /// Returns with room for the batch in the filling group, or with an error and no LSN given.
    fn make_place<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, batch: &Batch) -> Result<Guard<'a>, AppendError> {
        let body = batch.body_bytes();
        loop {
            if let Some(refusal) = self.refusal(&state) {
                return Err(refusal);
            }
            if state.stalled.is_none() && state.pending_copy.is_none() && self.group_takes(&state, batch) && self.segment_takes(&state, body) {
                return Ok(state);
            }
            if state.leader {
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
    fn group_takes(&self, state: &State, batch: &Batch) -> bool {
        let fits = state.filling.body_bytes() + batch.body_bytes() <= self.options.group_bytes;
        state.filling.is_empty() || (fits && state.filling.records.checked_add(batch.records()).is_some())
    }

    /// Whether the active segment has real room for `body` more bytes in the filling group.
    fn segment_takes(&self, state: &State, body: u64) -> bool {
        let Some(active) = &state.active else { return false };
        let end = state.place + state.filling.file_bytes(body);
        end <= state.room && end + seal_reserve(active.capacity) <= active.capacity
    }

    /// Makes room for a batch while nothing is staged: ahead in the active segment, or in a new one.
    fn make_room<'a>(self: &'a Arc<Self>, state: Guard<'a>, body: u64) -> Result<Guard<'a>, AppendError> {
        let needed = state.filling.file_bytes(body);
        if let Some(active) = state.active.clone() {
            let end = state.place + needed;
            if end + seal_reserve(active.capacity) <= active.capacity {
                return self.extend(state, &active, end);
            }
        }
        self.rotate_to(state, body)
    }

    /// Makes real room in the active segment up to `end` at least.
    fn extend<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, active: &Arc<Active>, end: u64) -> Result<Guard<'a>, AppendError> {
        if state.extending {
            self.done.wait(&mut state);
            return Ok(state);
        }
        state.extending = true;
        state.busy += 1;
        let from = state.room;
        let to = (from + self.options.prepare_bytes).max(end).min(active.capacity);
        let result = MutexGuard::unlocked(&mut state, || active.file.make_room(from, to));
        state.extending = false;
        state.busy -= 1;
        match result {
            Ok(_) => {
                if state.active.as_ref().is_some_and(|now| Arc::ptr_eq(now, active)) {
                    state.room = to;
                    active.segment.with_extent(|extent| extent.file_bytes = to);
                }
                self.done.notify_all();
                self.release_if_idle(&state);
                Ok(state)
            }
            Err(error) => Err(self.failed_preparation(&mut state, error)),
        }
    }

    /// What an error outside a group's write means: no room is a state; a sync that failed is for ever.
    fn failed_preparation(&self, state: &mut Guard<'_>, error: StorageError) -> AppendError {
        self.done.notify_all();
        self.release_if_idle(state);
        if error.is_full() {
            return AppendError::Full(Arc::new(error));
        }
        if error.operation == "sync" || error.file == CONTROL_NAME {
            return AppendError::Poisoned(self.poison(state, &error));
        }
        AppendError::Storage(Arc::new(error))
    }

    fn poison(&self, state: &mut State, error: &StorageError) -> Arc<Poison> {
        let durable = Lsn::new(self.chain.durable());
        let poison = state
            .poison
            .get_or_insert_with(|| Arc::new(Poison { operation: error.operation, file: error.file.clone(), error: error.source.to_string(), durable }));
        let poison = Arc::clone(poison);
        self.done.notify_all();
        self.work.notify_all();
        poison
    }

    /// Leaves the active segment, if there is one, and begins the next, with room for `body`.
    fn rotate_to<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, body: u64) -> Result<Guard<'a>, AppendError> {
        if state.preparing {
            self.done.wait(&mut state);
            return Ok(state);
        }
        let capacity = capacity_for(&self.options, body);
        let fits = state.ready.as_ref().is_some_and(|ready| ready.header.capacity >= capacity);
        if !fits {
            let unfit = state.ready.take();
            return self.prepare_next(state, unfit, capacity, body);
        }
        state.leader = true;
        let unused = self.unbegin(&mut state);
        let unsynced = state.unsynced();
        let synced = MutexGuard::unlocked(&mut state, || {
            unsynced.iter().try_for_each(|active| active.error_free_sync())?;
            unused.map_or(Ok(()), |unused| self.give_up(&unused))
        });
        state.leader = false;
        self.done.notify_all();
        if let Err(error) = synced {
            return Err(AppendError::Poisoned(self.poison(&mut state, &error)));
        }
        self.begin_segment(&mut state);
        if !self.options.io_thread {
            return Ok(self.seal_finished(state));
        }
        self.work.notify_one();
        Ok(state)
    }

    /// Makes the next segment file; called by whoever needs it first, mostly the I/O thread.
    fn prepare_next<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, unfit: Option<Prepared>, capacity: u64, body: u64) -> Result<Guard<'a>, AppendError> {
        self.start_thread(&mut state);
        state.preparing = true;
        state.busy += 1;
        let room = HEADER_PAGE_BYTES + LINK_FRAME_BYTES + frame_bytes(body).max(self.options.prepare_bytes);
        let result = MutexGuard::unlocked(&mut state, || {
            if let Some(unfit) = unfit {
                self.forget_prepared(&unfit)?;
            }
            prepare(&self.chain.storage, &self.control, &self.options, capacity, room, self.chain.durable())
        });
        state.preparing = false;
        state.busy -= 1;
        match result {
            Ok(prepared) => {
                state.ready = Some(prepared);
                self.done.notify_all();
                self.release_if_idle(&state);
                Ok(state)
            }
            Err(error) => Err(self.failed_preparation(&mut state, error)),
        }
    }

    /// Removes a segment that was prepared and never used: out of the slots first.
    fn forget_prepared(&self, prepared: &Prepared) -> Result<(), StorageError> {
        let row = FileRow { segment_id: prepared.header.segment_id, file_id: prepared.header.file_id };
        let mut control = self.control.lock();
        control.state.begun.retain(|begun| begun.file != row);
        control.write_both().map_err(|error| StorageError::new("write", CONTROL_NAME, error))?;
        discard(&*self.chain.storage, &prepared.name);
        Ok(())
    }

    /// Installs the ready segment; nothing is staged and nobody leads.
    fn begin_segment(&self, state: &mut State) {
        self.finish_active(state);
        let Some(ready) = state.ready.take() else { return };
        let link = self.next_link(state);
        let room = ready.room;
        let start = HEADER_PAGE_BYTES + LINK_FRAME_BYTES;
        let segment = Arc::new(Segment::begin(&ready.header, state.next, start, room));
        state.active = Some(Arc::new(Active { segment, capacity: ready.header.capacity, file: ready.file, unsynced: AtomicBool::new(false) }));
        state.place = HEADER_PAGE_BYTES;
        state.room = room;
        state.filling.link = Some(link);
    }

    /// The active segment gets no more frames.
    fn finish_active(&self, state: &mut State) {
        if let Some(active) = state.active.take() {
            let (last, end) = active.segment.reach();
            state.predecessor = Some(Predecessor { id: active.segment.id, file_id: active.segment.file_id, last, end });
            state.finished.push_back(active);
        }
    }

    fn next_link(&self, state: &mut State) -> Link {
        let before = state.predecessor.take();
        let branch = std::mem::take(&mut state.branch);
        Link {
            predecessor_id: before.map_or(0, |before| before.id),
            predecessor_file_id: before.map_or(0, |before| before.file_id),
            predecessor_last: before.map_or(0, |before| before.last),
            predecessor_end: before.map_or(0, |before| before.end),
            base: state.next,
            kept: state.kept.take(),
            branch,
        }
    }

    /// Takes the filling group and brings it to disk; the caller found no leader.
    fn lead<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        debug_assert!(!state.leader, "one leads at a time");
        state.leader = true;
        state.last_commit = Instant::now();
        if let Some((group, _)) = state.stalled.take() {
            return self.lead_stalled(state, group);
        }
        let spare = std::mem::take(&mut state.spare);
        let group = std::mem::replace(&mut state.filling, spare);
        let offset = state.place;
        if !group.is_empty() {
            state.place += group.file_bytes(0);
        }
        self.finish_leading(state, group, offset)
    }

    /// Writes and syncs outside the lock; takes it again for the outcome.
    fn finish_leading<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, mut group: Group, offset: u64) -> Guard<'a> {
        let wanted = std::mem::take(&mut state.sync_wanted);
        let sync = group.strictest == Some(Durability::Synced) || wanted > self.chain.durable();
        let active = state.active.clone();
        let mut unsynced: Vec<Arc<Active>> = Vec::new();
        if sync {
            unsynced = state.unsynced();
        }
        let outcome = MutexGuard::unlocked(&mut state, || -> Result<(), StorageError> {
            if let Some(active) = active.as_ref().filter(|_| !group.is_empty()) {
                self.write_group(active, &mut group, offset)?;
                if sync && group.written_members {
                    self.done.notify_all();
                }
            }
            if sync {
                self.sync_all(&unsynced, active.as_deref())?;
            }
            Ok(())
        });
        state.leader = false;
        match outcome {
            Ok(()) => {
                if !group.is_empty() {
                    state.testified = state.testified.max(self.testimony(&group));
                }
                group.reset(LEAD_BYTES + 2 * len_usize(self.options.group_bytes));
                state.spare = group;
            }
            Err(error) if error.is_full() && error.operation == "write" => self.stall(&mut state, group, error),
            Err(error) => {
                self.poison(&mut state, &error);
            }
        }
        self.done.notify_all();
        self.poke_thread(&state);
        self.release_if_idle(&state);
        state
    }

    /// The durable LSN that a group's header told when it was closed.
    fn testimony(&self, group: &Group) -> u64 {
        group.buffer.get(LINK_FRAME_BYTES as usize..).and_then(|frame| frame.get(24..28)).and_then(|lag| lag.first_chunk()).map_or(0, |lag| {
            let lag = u32::from_le_bytes(*lag);
            (group.first - 1).saturating_sub(u64::from(lag))
        })
    }

    /// One write for the whole group, and the link before it if it begins a segment.
    fn write_group(&self, active: &Active, group: &mut Group, offset: u64) -> Result<(), StorageError> {
        let salt = active.segment.salt;
        let durable = self.chain.durable();
        let body_bytes = group.body_bytes();
        let link_bytes = len_usize(LINK_FRAME_BYTES);
        let total = link_bytes + len_usize(frame_bytes(body_bytes));
        group.buffer.resize(total, 0);
        let frame_offset = offset + if group.link.is_some() { LINK_FRAME_BYTES } else { 0 };
        let draft = FrameDraft { kind: FrameKind::Records, first_lsn: group.first, records: group.records, durable };
        if let Some(frame) = group.buffer.get_mut(link_bytes..) {
            draft.close(salt, frame_offset, frame, body_bytes);
        }
        let mut from = link_bytes;
        if let Some(link) = group.link {
            let frame = link.frame(salt, offset, durable);
            if let Some(place) = group.buffer.get_mut(..link_bytes) {
                place.copy_from_slice(&frame);
            }
            from = 0;
        }
        active.unsynced.store(true, Ordering::Release);
        let written = active.file.write(offset, group.buffer.get(from..).unwrap_or_default());
        if written.is_err() {
            group.buffer.truncate(LEAD_BYTES + len_usize(body_bytes));
        }
        written?;
        active.segment.with_extent(|extent| {
            extent.last = group.last();
            extent.end = frame_offset + frame_bytes(body_bytes);
            extent.planes.merge(&group.planes);
            extent.index.add(group.first, frame_offset);
        });
        if group.link.is_some() {
            self.chain.push(Arc::clone(&active.segment));
        }
        self.chain.publish_written(group.last());
        Ok(())
    }

    /// Syncs what stands before the mark, oldest first, and publishes the mark that was read before.
    fn sync_all(&self, before: &[Arc<Active>], active: Option<&Active>) -> Result<(), StorageError> {
        let written = self.chain.written();
        before.iter().try_for_each(|active| active.error_free_sync())?;
        if let Some(active) = active {
            active.error_free_sync()?;
        }
        self.chain.publish_durable(written);
        Ok(())
    }

    /// A group found no room in a place that was not really there: it stays staged and goes to a new
    /// segment, never again to that file.
    fn stall(&self, state: &mut Guard<'_>, mut group: Group, error: StorageError) {
        if let Some(link) = group.link.take() {
            // The segment never held anything: it is given up, and the link goes to the next.
            state.filling.link = Some(link);
        }
        match self.unbegin(state) {
            Some(unused) => {
                state.leader = true;
                let given_up = MutexGuard::unlocked(state, || self.give_up(&unused));
                state.leader = false;
                if let Err(error) = given_up {
                    self.poison(state, &error);
                }
            }
            None => self.finish_active(state),
        }
        state.stalled = Some((group, Arc::new(error)));
    }

    /// Takes back the beginning of a segment whose link is not on disk; answers its file.
    fn unbegin(&self, state: &mut State) -> Option<Arc<Active>> {
        let link = state.filling.link.take()?;
        let before = Predecessor { id: link.predecessor_id, file_id: link.predecessor_file_id, last: link.predecessor_last, end: link.predecessor_end };
        state.predecessor = (before.id != 0).then_some(before);
        state.kept = link.kept;
        state.branch = link.branch;
        state.active.take()
    }

    /// Writes down that a segment's file is no part of the log, and removes it.
    fn give_up(&self, active: &Active) -> Result<(), StorageError> {
        let row = FileRow { segment_id: active.segment.id, file_id: active.segment.file_id };
        let mut control = self.control.lock();
        control.state.begun.retain(|begun| begun.file != row);
        control.state.abandoned.push(row);
        control.write_both().map_err(|error| StorageError::new("write", CONTROL_NAME, error))?;
        discard(&*self.chain.storage, &active.segment.name);
        self.chain.storage.sync_dir().map_err(|error| StorageError::new("sync", self.chain.storage.describe(), error))?;
        control.state.abandoned.retain(|gone| *gone != row);
        Ok(())
    }

    /// Tries a stalled group again, in a new segment. The caller took the leader's role.
    fn lead_stalled<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, mut group: Group) -> Guard<'a> {
        let body = group.body_bytes() + state.filling.body_bytes() + 2 * HEADER_BYTES as u64;
        let capacity = capacity_for(&self.options, body);
        let ready = state.ready.take().filter(|ready| ready.header.capacity >= capacity && ready.room >= HEADER_PAGE_BYTES + LINK_FRAME_BYTES + frame_bytes(body));
        let room = HEADER_PAGE_BYTES + LINK_FRAME_BYTES + frame_bytes(body).max(self.options.prepare_bytes);
        let unsynced = state.unsynced();
        let prepared = MutexGuard::unlocked(&mut state, || {
            // Two unsynced segments at most: what was left behind is synced before another begins.
            unsynced.iter().try_for_each(|active| active.error_free_sync())?;
            match ready {
                Some(ready) => Ok(ready),
                None => prepare(&self.chain.storage, &self.control, &self.options, capacity, room, self.chain.durable()),
            }
        });
        match prepared {
            Ok(prepared) => {
                state.ready = Some(prepared);
                // The link names the LSN that the stalled group begins with, not the next to give out.
                let next = std::mem::replace(&mut state.next, group.first);
                let staged_link = state.filling.link.take();
                self.begin_segment(&mut state);
                state.next = next;
                group.link = state.filling.link.take();
                state.filling.link = staged_link;
                let offset = state.place;
                state.place += group.file_bytes(0);
                self.finish_leading(state, group, offset)
            }
            Err(error) => {
                state.leader = false;
                if error.is_full() {
                    state.stalled = Some((group, Arc::new(error)));
                } else {
                    self.poison(&mut state, &error);
                }
                self.done.notify_all();
                self.release_if_idle(&state);
                state
            }
        }
    }

    /// Copies a tail that found no room at opening, before the first append is let in.
    fn copy_pending_tail<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Result<Guard<'a>, AppendError> {
        let Some(pending) = state.pending_copy.take() else { return Ok(state) };
        state.leader = true;
        let result = MutexGuard::unlocked(&mut state, || pending.run(&mut self.control.lock(), &self.options));
        state.leader = false;
        self.done.notify_all();
        match result {
            Ok(predecessor) => {
                state.predecessor = Some(predecessor);
                self.chain.publish_durable(predecessor.last);
                Ok(state)
            }
            Err(error) if error.is_full() => {
                state.pending_copy = Some(pending);
                Err(AppendError::Full(Arc::new(error)))
            }
            Err(error) => Err(AppendError::Poisoned(self.poison(&mut state, &error))),
        }
    }

    /// Ends the current segment: the next group begins a new one.
    pub(crate) fn rotate(self: &Arc<Self>) -> Result<(), AppendError> {
        let mut state = self.state.lock();
        loop {
            if let Some(refusal) = self.refusal(&state) {
                return Err(refusal);
            }
            if let Some((_, error)) = &state.stalled {
                return Err(AppendError::Full(Arc::clone(error)));
            }
            if state.leader {
                self.done.wait(&mut state);
            } else if !state.filling.is_empty() {
                state = self.lead(state);
            } else {
                // A segment whose link is not written yet is still empty, and is begun by the next group.
                if state.filling.link.is_none() {
                    self.finish_active(&mut state);
                    self.work.notify_one();
                    if !self.options.io_thread {
                        state = self.seal_finished(state);
                    }
                }
                return self.refusal(&state).map_or(Ok(()), Err);
            }
        }
    }

    /// Syncs and seals the segments that get no more frames. Runs outside the lock.
    fn seal_finished<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        while state.poison.is_none() {
            let Some(active) = state.finished.front().cloned() else { break };
            state.busy += 1;
            let sealed = MutexGuard::unlocked(&mut state, || self.seal(&active));
            state.busy -= 1;
            match sealed {
                Ok(_) => {
                    // A leader may hold the segment in its list of what to sync; that does no harm.
                    state.finished.pop_front();
                }
                Err(error) => {
                    self.poison(&mut state, &error);
                }
            }
            self.release_if_idle(&state);
        }
        state
    }

    /// The closing sync, then the seal, cut behind it. Answers whether there was room for a seal.
    fn seal(&self, active: &Active) -> Result<bool, StorageError> {
        if active.unsynced.load(Ordering::Acquire) {
            active.error_free_sync()?;
        }
        let (seal, end) = active.segment.with_extent(|extent| {
            (Seal { base: active.segment.base, last: extent.last, planes: extent.planes.clone(), index: extent.index.clone() }, extent.end)
        });
        let frame = seal.frame(active.segment.salt, end, self.chain.durable());
        let behind = end + len64(frame.len());
        let fits = behind <= active.capacity;
        let written = if fits { active.file.write(end, &frame) } else { Ok(()) };
        let sealed = match written {
            Ok(()) => fits,
            Err(error) if error.is_full() => false,
            Err(error) => return Err(error),
        };
        active.file.cut(if sealed { behind } else { end })?;
        active.file.sync()?;
        active.segment.with_extent(|extent| {
            extent.sealed = sealed;
            extent.file_bytes = if sealed { behind } else { end };
            if sealed {
                extent.index = SparseIndex::default();
            }
        });
        Ok(sealed)
    }

    /// Syncs and seals everything and writes the clean-close proof. On success the log is closed for
    /// every clone of the handle.
    pub(crate) fn close(self: &Arc<Self>) -> Result<(), CloseError> {
        let mut state = self.state.lock();
        if state.closed {
            return Ok(());
        }
        state.closing = true;
        loop {
            if let Some(poison) = &state.poison {
                return Err(CloseError::Poisoned(Arc::clone(poison)));
            }
            if state.leader || state.busy > 0 {
                self.done.wait_for(&mut state, STALL_RETRY);
                continue;
            }
            let staged = !state.filling.is_empty() || state.stalled.is_some();
            if !staged && self.chain.durable() >= self.chain.written() {
                break;
            }
            if state.pending_copy.is_some() {
                // What is above the durable mark is not copied yet; a close cannot vouch for it.
                break;
            }
            state.sync_wanted = self.chain.written().max(state.next - 1);
            state = self.lead(state);
            if let Some((group, source)) = &state.stalled
                && let (Some(first), Some(last)) = (Lsn::new(group.first), Lsn::new(state.next - 1))
            {
                let source = Arc::clone(source);
                state.closing = false;
                return Err(CloseError::Full { first, last, source });
            }
        }
        self.finish_closing(state)
    }

    fn finish_closing<'a>(&'a self, mut state: Guard<'a>) -> Result<(), CloseError> {
        let vouched = state.pending_copy.is_none();
        let thread = state.thread.take();
        state.dropped = true;
        self.work.notify_all();
        MutexGuard::unlocked(&mut state, || thread.map(std::thread::JoinHandle::join));
        if let Some(unused) = self.unbegin(&mut state) {
            let discarded = MutexGuard::unlocked(&mut state, || self.give_up(&unused));
            if let Err(error) = discarded {
                return Err(CloseError::Poisoned(self.poison(&mut state, &error)));
            }
        }
        self.finish_active(&mut state);
        let newest = state.finished.back().cloned();
        state = self.seal_finished(state);
        if let Some(poison) = &state.poison {
            return Err(CloseError::Poisoned(Arc::clone(poison)));
        }
        let clean = self.clean_close(&state, newest.as_deref());
        let ready = state.ready.take();
        let result = MutexGuard::unlocked(&mut state, || self.write_clean_close(clean.filter(|_| vouched), ready.as_ref()));
        state.closed = true;
        self.done.notify_all();
        *self.lock.lock() = None;
        result.map_err(CloseError::Storage)
    }

    /// The proof that names where the log ends.
    fn clean_close(&self, state: &State, newest: Option<&Active>) -> Option<CleanClose> {
        match (newest, state.predecessor) {
            (Some(active), _) => {
                let (last, end) = active.segment.reach();
                let sealed = active.segment.with_extent(|extent| extent.sealed);
                Some(CleanClose { segment_id: active.segment.id, file_id: active.segment.file_id, end, last, sealed })
            }
            (None, Some(before)) => {
                let sealed = self.chain.segments().last().is_some_and(|segment| segment.with_extent(|extent| extent.sealed));
                Some(CleanClose { segment_id: before.id, file_id: before.file_id, end: before.end, last: before.last, sealed })
            }
            (None, None) => Some(CleanClose { segment_id: 0, file_id: 0, end: 0, last: 0, sealed: false }),
        }
    }

    fn write_clean_close(&self, clean: Option<CleanClose>, ready: Option<&Prepared>) -> Result<(), StorageError> {
        let mut control = self.control.lock();
        if let Some(ready) = ready {
            control.state.begun.retain(|begun| begun.file.segment_id != ready.header.segment_id);
        }
        control.state.clean = clean;
        control.state.durable = control.state.durable.max(self.chain.durable());
        control.write_both().map_err(|error| StorageError::new("write", CONTROL_NAME, error))?;
        if let Some(ready) = ready {
            discard(&*self.chain.storage, &ready.name);
            let _ = self.chain.storage.sync_dir();
        }
        Ok(())
    }

    /// The last handle went away without a close: what is staged is written, not synced, nobody waits.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let state = self.state.lock();
        let mut state = self.write_what_is_staged(state);
        state.dropped = true;
        self.work.notify_all();
        self.release_if_idle(&state);
    }

    fn write_what_is_staged<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        if !state.closed && state.poison.is_none() && !state.leader && state.stalled.is_none() && !state.filling.is_empty() {
            state.filling.strictest = Some(Durability::Written);
            state = self.lead(state);
        }
        state
    }

    /// The lock goes with the last I/O in flight.
    fn release_if_idle(&self, state: &State) {
        if state.dropped && !state.closing && !state.leader && state.busy == 0 {
            *self.lock.lock() = None;
        }
    }

    fn start_thread(self: &Arc<Self>, state: &mut State) {
        if self.options.io_thread && state.thread.is_none() && !state.dropped {
            let gate = Arc::clone(self);
            state.thread = std::thread::Builder::new().name("planewal".to_owned()).spawn(move || gate.run_thread()).ok();
        }
    }

    fn poke_thread(&self, state: &State) {
        let low = state.active.as_ref().is_some_and(|active| self.wants_room(state, active) || self.wants_next(state, active));
        let beacon = state.resting && self.chain.durable() > state.testified && !self.options.beacon_idle.is_zero();
        if low || beacon || !state.finished.is_empty() {
            self.work.notify_one();
        }
    }

    fn wants_room(&self, state: &State, active: &Active) -> bool {
        !state.extending && state.room < active.capacity && state.place + self.options.prepare_bytes / 2 > state.room
    }

    fn wants_next(&self, state: &State, active: &Active) -> bool {
        state.ready.is_none() && !state.preparing && state.place > active.capacity / 2
    }

    /// The I/O thread: makes room ahead, seals behind, writes what is buffered, and beacons.
    fn run_thread(self: Arc<Self>) {
        let mut state = self.state.lock();
        let mut full_until: Option<Instant> = None;
        loop {
            if state.dropped || state.closed || state.poison.is_some() {
                break;
            }
            let may_prepare = full_until.is_none_or(|until| Instant::now() >= until);
            if let Some(active) = state.active.clone().filter(|_| may_prepare) {
                if self.wants_room(&state, &active) {
                    let end = state.place;
                    match self.extend(state, &active, end) {
                        Ok(guard) => state = guard,
                        Err(_) => {
                            full_until = Some(Instant::now() + STALL_RETRY);
                            state = self.state.lock();
                        }
                    }
                    continue;
                }
                if self.wants_next(&state, &active) {
                    let capacity = self.options.segment_bytes;
                    match self.prepare_next(state, None, capacity, 0) {
                        Ok(guard) => state = guard,
                        Err(_) => {
                            full_until = Some(Instant::now() + STALL_RETRY);
                            state = self.state.lock();
                        }
                    }
                    continue;
                }
            }
            if !state.finished.is_empty() {
                state = self.seal_finished(state);
                continue;
            }
            if state.stalled.is_some() && !state.leader {
                self.work.wait_for(&mut state, STALL_RETRY);
                state = self.lead_if_free(state);
                continue;
            }
            if state.filling.buffer.len() >= BUFFERED_WRITE_BYTES && !state.leader {
                state = self.lead(state);
                continue;
            }
            state = self.beacon_or_rest(state);
        }
        if state.dropped && !state.closing && !state.closed {
            state = self.write_what_is_staged(state);
        }
        self.release_if_idle(&state);
    }

    fn beacon_or_rest<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        let idle = self.options.beacon_idle;
        let due = !idle.is_zero() && self.chain.durable() > state.testified;
        if !due {
            state.resting = true;
            self.work.wait(&mut state);
            state.resting = false;
            return state;
        }
        let rested = state.last_commit.elapsed();
        if rested < idle {
            self.work.wait_for(&mut state, idle - rested);
            return state;
        }
        if state.leader || state.stalled.is_some() || !state.filling.is_empty() {
            self.work.wait_for(&mut state, idle.max(Duration::from_millis(1)));
            return state;
        }
        self.write_beacon(state)
    }

    /// Carries the durable mark forward, in a frame or, without a place for one, in a slot. Not synced.
    fn write_beacon<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        let durable = self.chain.durable();
        let offset = state.place;
        let place = state.active.clone().filter(|active| {
            let end = offset + HEADER_BYTES as u64;
            state.filling.link.is_none() && end <= state.room && end + seal_reserve(active.capacity) <= active.capacity
        });
        state.leader = true;
        if place.is_some() {
            state.place += HEADER_BYTES as u64;
        }
        let next = state.next;
        let result = MutexGuard::unlocked(&mut state, || match &place {
            Some(active) => {
                let draft = FrameDraft { kind: FrameKind::Beacon, first_lsn: next, records: 0, durable };
                active.file.write(offset, &draft.frame(active.segment.salt, offset, &[]))?;
                active.unsynced.store(true, Ordering::Release);
                active.segment.with_extent(|extent| extent.end = offset + HEADER_BYTES as u64);
                Ok(())
            }
            None => {
                let mut control = self.control.lock();
                control.state.durable = control.state.durable.max(durable);
                control.write_one().map_err(|error| StorageError::new("write", CONTROL_NAME, error))
            }
        });
        state.leader = false;
        state.testified = durable;
        if let Err(error) = result {
            self.poison(&mut state, &error);
        }
        self.done.notify_all();
        state
    }

    pub(crate) fn poisoned(&self) -> Option<Arc<Poison>> {
        self.state.lock().poison.clone()
    }

    pub(crate) fn log_id(&self) -> [u8; 16] {
        self.control.lock().state.log_id
    }
}
