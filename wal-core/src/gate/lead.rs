//! Leading: one write and at most one sync for a whole group, outside the lock.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::{Active, Gate, Group, Guard, LEAD_BYTES, LINK_BYTES, Predecessor, State, capacity_for};
use crate::control::FileRow;
use crate::copy::CopyError;
use crate::error::{AppendError, StorageError};
use crate::frame::{FrameDraft, FrameKind, HEADER_BYTES, frame_bytes};
use crate::options::Durability;
use crate::prepare::{Prepared, discard, prepare};
use crate::segment::{HEADER_PAGE_BYTES, LINK_FRAME_BYTES};
use crate::wire::len_usize;

impl Gate {
    /// Takes the filling group and brings it to disk; the caller found no leader.
    pub(super) fn lead<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        debug_assert!(!state.leader, "one leads at a time");
        state.leader = true;
        state.last_commit = Instant::now();
        if let Some((group, _)) = state.stalled.take() {
            return self.lead_stalled(state, group);
        }
        let offset = state.place;
        if state.filling.is_empty() {
            // A sync alone. The filling group stays: it may hold the link of a segment just begun.
            return self.finish_leading(state, Group::default(), offset);
        }
        let spare = std::mem::take(&mut state.spare);
        let group = std::mem::replace(&mut state.filling, spare);
        state.place += group.file_bytes(0);
        self.finish_leading(state, group, offset)
    }

    /// Writes and syncs outside the lock; takes it again for the outcome.
    fn finish_leading<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        mut group: Group,
        offset: u64,
    ) -> Guard<'a> {
        let wanted = std::mem::take(&mut state.sync_wanted);
        let sync = group.strictest == Some(Durability::Synced) || wanted > self.chain.durable();
        let active = state.active.clone();
        let mut unsynced: Vec<Arc<Active>> = Vec::new();
        if sync {
            unsynced = state.unsynced();
        }
        let work = || -> Result<u64, StorageError> {
            let mut testified = 0;
            if let Some(active) = active.as_ref().filter(|_| !group.is_empty()) {
                testified = self.write_group(active, &mut group, offset)?;
                if sync && group.written_members {
                    self.done.notify_all();
                    drop(self.wake(self.state.lock()));
                }
            }
            if sync {
                self.sync_all(&unsynced, active.as_deref())?;
            }
            Ok(testified)
        };
        let outcome = MutexGuard::unlocked(&mut state, || poisoning(work));
        state.leader = false;
        match outcome {
            Ok(testified) => {
                state.testified = state.testified.max(testified);
                if !group.is_empty() {
                    group.reset(LEAD_BYTES + 2 * len_usize(self.options.group_bytes));
                    state.spare = group;
                }
            }
            Err(error) if error.is_full() => self.stall(&mut state, group, error),
            Err(error) => {
                self.poison(&mut state, &error);
            }
        }
        self.done.notify_all();
        self.poke_thread(&state);
        self.release_if_idle(&state);
        self.wake(state)
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
        Ok(durable)
    }

    /// Syncs all segments that were left with records that are not synced, oldest first; the mark may
    /// then pass the end of the last of them.
    pub(super) fn sync_left(&self, left: &[Arc<Active>]) -> Result<(), StorageError> {
        left.iter().try_for_each(|active| active.sync())?;
        if let Some(last) = left.last() {
            self.chain.publish_durable(last.segment.reach().0);
        }
        Ok(())
    }

    /// Syncs what stands before the mark, oldest first, and publishes the mark that was read before.
    fn sync_all(&self, before: &[Arc<Active>], active: Option<&Active>) -> Result<(), StorageError> {
        let written = self.chain.written();
        self.sync_left(before)?;
        if let Some(active) = active {
            active.sync()?;
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
    pub(super) fn unbegin(&self, state: &mut State) -> Option<Arc<Active>> {
        let link = state.filling.link.take()?;
        let before = Predecessor {
            id: link.predecessor_id,
            file_id: link.predecessor_file_id,
            last: link.predecessor_last,
            end: link.predecessor_end,
        };
        state.predecessor = (before.id != 0).then_some(before);
        state.kept = link.kept;
        state.branch = link.branch;
        state.active.take()
    }

    /// Writes down that a segment's file is no part of the log, and removes it.
    pub(super) fn give_up(&self, active: &Active) -> Result<(), StorageError> {
        let row = FileRow { segment_id: active.segment.id, file_id: active.segment.file_id };
        let mut control = self.control.lock();
        control.state.begun.retain(|begun| begun.file != row);
        control.state.abandoned.push(row);
        control.write_both()?;
        discard(&*self.chain.storage, &active.segment.name);
        self.chain
            .storage
            .sync_dir()
            .map_err(|error| StorageError::new("sync", self.chain.storage.describe(), error))?;
        control.state.abandoned.retain(|gone| *gone != row);
        Ok(())
    }

    /// Tries a stalled group again, in a new segment. The caller took the leader's role.
    fn lead_stalled<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, mut group: Group) -> Guard<'a> {
        let body = group.body_bytes() + state.filling.body_bytes() + 2 * HEADER_BYTES as u64;
        let capacity = capacity_for(&self.options, body);
        let fits = |ready: &Prepared| {
            let room = HEADER_PAGE_BYTES + LINK_FRAME_BYTES + frame_bytes(body);
            ready.header.capacity >= capacity && ready.room >= room
        };
        let (ready, unfit) = match state.ready.take() {
            Some(ready) if fits(&ready) => (Some(ready), None),
            unfit => (None, unfit),
        };
        let room = HEADER_PAGE_BYTES + LINK_FRAME_BYTES + frame_bytes(body).max(self.options.prepare_bytes);
        let unsynced = state.unsynced();
        let prepared = MutexGuard::unlocked(&mut state, || {
            // Two unsynced segments at most: what was left behind is synced before another begins.
            self.sync_left(&unsynced)?;
            if let Some(unfit) = unfit {
                self.forget_prepared(&unfit)?;
            }
            match ready {
                Some(ready) => Ok(ready),
                None => prepare(
                    &self.chain.storage,
                    &self.control,
                    &self.options,
                    capacity,
                    room,
                    self.chain.durable(),
                ),
            }
        });
        match prepared {
            Ok(prepared) => {
                state.ready = Some(prepared);
                // The link names the LSN that the stalled group begins with, not the next to give out.
                let next = std::mem::replace(&mut state.next, group.first);
                debug_assert!(state.filling.link.is_none(), "a stalled log has no active segment");
                self.begin_segment(&mut state);
                state.next = next;
                group.link = state.filling.link.take();
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
                self.poke_thread(&state);
                self.release_if_idle(&state);
                state
            }
        }
    }

    /// Copies a tail that found no room at opening, before the first append is let in.
    pub(super) fn copy_pending_tail<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
    ) -> Result<Guard<'a>, AppendError> {
        let Some(pending) = state.pending_copy.take() else { return Ok(state) };
        state.leader = true;
        let result = MutexGuard::unlocked(&mut state, || pending.run(&mut self.control.lock()));
        state.leader = false;
        self.done.notify_all();
        match result {
            Ok(predecessor) => {
                state.predecessor = Some(predecessor);
                Ok(state)
            }
            Err(CopyError::NoRoom(error)) => {
                state.pending_copy = Some(pending);
                Err(AppendError::Full(Arc::new(error)))
            }
            Err(CopyError::Failed(error)) => Err(AppendError::Poisoned(self.poison(&mut state, &error))),
        }
    }
}

/// Does a leader's work. A panic in it, of a storage or of ours, leaves the outcome unknown and may not
/// leave the others waiting: it poisons, as a failed sync does.
fn poisoning<T>(work: impl FnOnce() -> Result<T, StorageError>) -> Result<T, StorageError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let panicked = io::Error::other("a panic while writing or syncing a group");
        Err(StorageError::new("sync", "the log", panicked))
    })
}
