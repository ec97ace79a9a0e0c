//! Leading: one write for a whole group, outside the lock.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::{Active, Gate, Group, Guard, LEAD_BYTES, LINK_BYTES, Next, Predecessor, START};
use super::{capacity_for, seal_reserve, without};
use crate::control::FileRow;
use crate::copy::CopyError;
use crate::error::{AppendError, NoRoom, StorageError};
use crate::frame::{FrameDraft, FrameKind, frame_bytes};
use crate::options::Durability;
use crate::segment::LINK_FRAME_BYTES;
use crate::wire::len_usize;

/// Empty groups that are kept for their memory: one that fills while another is written.
const SPARE_GROUPS: usize = 2;

impl Gate {
    /// Writes the oldest staged group; the caller found no leader, and something staged.
    pub(super) fn lead<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, next: Next) -> Guard<'a> {
        debug_assert!(!state.writing, "one leads at a time");
        state.writing = true;
        state.last_commit = Instant::now();
        let (mut state, has_place) = self.go_to_place(state);
        let group = if has_place { state.staged.pop_front() } else { None };
        let Some(mut group) = group else {
            return self.stop_leading(state);
        };
        let offset = state.place;
        state.place += group.file_bytes();
        let Some(active) = state.active.clone() else { unreachable!("a group with a place") };
        let queued = group.since.elapsed();
        let written = without(&mut state, || self.write_group(&active, &mut group, offset));
        self.counters.queue.add_time(queued);
        match written {
            Ok(testified) => {
                state.testified = state.testified.max(testified);
                self.finish_group(state, group, next)
            }
            Err(error) if error.is_full() => {
                self.stall(&mut state, group, error);
                self.stop_leading(state)
            }
            Err(error) => {
                self.poison(&mut state, &error);
                self.stop_leading(state)
            }
        }
    }

    /// The group is written.
    fn finish_group<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        mut group: Group,
        next: Next,
    ) -> Guard<'a> {
        state.staged_bytes -= group.body_bytes();
        if std::mem::take(&mut state.stalled) {
            self.found_room(&mut state);
            state.restage(self.options.segment_bytes);
        }
        debug_assert!(state.end_is_right());
        let sync_is_due = group.strictest == Durability::Synced && self.chain.durable() < group.last();
        if sync_is_due && next == Next::HandOver {
            state.sync_asked = state.sync_asked.max(group.last());
        }
        // Another may have synced the group already, or nobody may any more: then there is no sync to come.
        let syncs = next == Next::Sync && self.outcome(&state, group.last(), Durability::Synced).is_none();
        if state.spares.len() < SPARE_GROUPS {
            group.reset(LEAD_BYTES + 2 * len_usize(self.options.group_bytes));
            state.spares.push(group);
        }
        if syncs {
            // Who waits for a sync is woken by it, and not twice.
            state.writing = false;
            self.done.notify_all();
            self.poke_thread(&state);
            self.release_if_idle(&state);
            return self.wake(state);
        }
        let state = self.stop_leading(state);
        let alone = state.thread.is_none() && !state.syncing && state.poison.is_none();
        if sync_is_due && alone && next == Next::HandOver { self.sync_written(state) } else { state }
    }

    fn stop_leading<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        state.writing = false;
        self.ring();
        self.poke_thread(&state);
        self.release_if_idle(&state);
        self.wake(state)
    }

    /// Sees to it that the oldest group has its place: begins the next segment if it is the first one there.
    /// Answers whether it has one; if not, the disk is full or the log is poisoned.
    fn go_to_place<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> (Guard<'a>, bool) {
        loop {
            let Some(front) = state.staged.front().filter(|_| state.poison.is_none()) else {
                return (state, false);
            };
            let (body, first, begins) = (front.body_bytes(), front.first, front.begins);
            if let Some(active) = state.active.clone().filter(|_| !begins) {
                let end = state.place + frame_bytes(body);
                if end <= state.room {
                    return (state, true);
                }
                // Only after a stall: its room was not certain when it was staged.
                if end + seal_reserve(active.capacity) <= active.capacity {
                    match self.extend(state, end) {
                        Ok(extended) => state = extended,
                        Err(error) => return (self.stall_again(&error), false),
                    }
                } else {
                    state.restage(self.options.segment_bytes);
                }
                continue;
            }
            let fits = state.ready_limit().is_some_and(|limit| START + frame_bytes(body) <= limit);
            if fits && !state.extending {
                return self.begin_next(state, first);
            }
            if state.preparing || state.extending {
                self.done.wait(&mut state);
                continue;
            }
            // Only after a stall, or where a permit found none.
            let capacity = capacity_for(&self.options, frame_bytes(body));
            let unfit = state.ready.take();
            state.preparing = true;
            let prepared = without(&mut state, || {
                unfit.map_or(Ok(()), |unfit| self.forget_prepared(&unfit))?;
                self.make_segment(capacity, START + frame_bytes(body), false)
            });
            state.preparing = false;
            match prepared {
                Ok(prepared) => state.ready = Some(prepared),
                Err(error) if error.is_full() => {
                    self.note_full(&mut state, error);
                    state.stalled = true;
                    return (state, false);
                }
                Err(error) => {
                    self.poison(&mut state, &error);
                    return (state, false);
                }
            }
        }
    }

    /// No room was found for a group that waits for some.
    fn stall_again(&self, error: &AppendError) -> Guard<'_> {
        let mut state = self.state.lock();
        state.stalled = true;
        if let AppendError::Storage(error) = error {
            self.poison(&mut state, error);
        }
        state
    }

    /// Leaves the active segment and begins the one that is ready, with the LSN `base`.
    fn begin_next<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, base: u64) -> (Guard<'a>, bool) {
        // Two unsynced segments at most: what was left behind is synced before another begins.
        let unsynced = state.unsynced();
        if !unsynced.is_empty() {
            let synced = without(&mut state, || self.sync_left(&unsynced));
            if let Err(error) = synced {
                self.poison(&mut state, &error);
                return (state, false);
            }
            self.synced.notify_all();
        }
        if state.thread.is_none() && !state.finished.is_empty() {
            // Without the thread the older ones are sealed here; the one that is left now has its turn at
            // the next rotation, so that nobody waits for its sync who did not ask for one.
            state = self.seal_finished(state);
        }
        if state.poison.is_some() {
            return (state, false);
        }
        self.begin_segment(&mut state, base);
        self.work.notify_one();
        (state, true)
    }

    /// One write for the whole group, and the link before it if it begins a segment. Answers the
    /// durable LSN that the frame testifies to.
    fn write_group(&self, active: &Active, group: &mut Group, offset: u64) -> Result<u64, StorageError> {
        let salt = active.segment.salt;
        let durable = self.chain.durable();
        let body_bytes = group.body_bytes();
        let link_bytes = LINK_BYTES;
        let total = link_bytes + len_usize(frame_bytes(body_bytes));
        group.buffer.resize(total, 0);
        let frame_offset = offset + if group.link.is_some() { LINK_FRAME_BYTES } else { 0 };
        let draft =
            FrameDraft { kind: FrameKind::Records, first_lsn: group.first, records: group.records, durable };
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
        let flight = self.counters.begin("write");
        let written = active.write(offset, group.buffer.get(from..).unwrap_or_default());
        // Back to head and body, without the padding.
        group.buffer.truncate(LEAD_BYTES + len_usize(body_bytes));
        written?;
        flight.landed(&self.counters.write);
        self.counters.group_bytes.add(frame_offset - offset + frame_bytes(body_bytes));
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
        Ok(durable)
    }

    /// A group found no room in a place that was not really there: it stays staged and goes to a new
    /// segment, never again to that file.
    fn stall(&self, state: &mut Guard<'_>, mut group: Group, error: StorageError) {
        let mut unused = None;
        match group.link.take() {
            Some(link) => {
                // The segment never held anything: it is given up, and the link goes to the next.
                let before = Predecessor {
                    id: link.predecessor_id,
                    file_id: link.predecessor_file_id,
                    last: link.predecessor_last,
                    end: link.predecessor_end,
                };
                state.predecessor = (before.id != 0).then_some(before);
                state.kept = link.kept;
                state.branch = link.branch;
                unused = state.active.take();
            }
            None => self.finish_active(state),
        }
        self.note_full(state, error);
        state.stalled = true;
        group.begins = true;
        state.staged.push_front(group);
        state.restage(self.options.segment_bytes);
        // Last: who comes meanwhile finds a log that is full.
        if let Some(unused) = unused {
            let given_up = without(state, || self.give_up(&unused));
            if let Err(error) = given_up {
                self.poison(state, &error);
            }
        }
    }

    /// Writes down that a segment's file is no part of the log, and removes it.
    fn give_up(&self, active: &Active) -> Result<(), StorageError> {
        let row = FileRow { segment_id: active.segment.id, file_id: active.segment.file_id };
        let mut control = self.control.lock();
        control.state.begun.retain(|begun| begun.file != row);
        control.state.abandoned.push(row);
        control.write_both()?;
        let storage = &self.chain.storage;
        let removed = storage.remove(&active.segment.name);
        storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
        // What is still there has to stay known; the next open removes it.
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if removed.map_or_else(gone, |()| true) {
            control.state.abandoned.retain(|gone| *gone != row);
        }
        Ok(())
    }

    /// Copies a tail that found no room at opening, before the first append is let in.
    pub(super) fn copy_pending_tail<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
    ) -> Result<Guard<'a>, AppendError> {
        if let Some(refusal) = self.refusal(&state) {
            return Err(refusal);
        }
        let Some(pending) = state.pending_copy.clone() else { return Ok(state) };
        // Nobody may write or sync meanwhile: the tail is not durable because it is written.
        (state.writing, state.syncing) = (true, true);
        let copied = without(&mut state, || Ok(pending.run(&mut self.control.lock())));
        let result = copied.unwrap_or_else(|error| Err(CopyError::Failed(error)));
        (state.writing, state.syncing) = (false, false);
        self.ring();
        match result {
            Ok(predecessor) => {
                state.pending_copy = None;
                state.predecessor = Some(predecessor);
                self.found_room(&mut state);
                Ok(state)
            }
            Err(CopyError::NoRoom(error)) => {
                let error = self.note_full(&mut state, error);
                Err(AppendError::Full(NoRoom::Disk(error)))
            }
            Err(CopyError::Failed(error)) => {
                let poison = self.poison(&mut state, &error);
                drop(self.wake(state));
                Err(AppendError::Poisoned(poison))
            }
        }
    }
}
