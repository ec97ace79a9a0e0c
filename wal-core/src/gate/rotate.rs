//! Room: ahead in the active segment, or in the next one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::MutexGuard;

use super::{Active, Gate, Guard, Predecessor, State, capacity_for, seal_reserve};
use crate::chain::Segment;
use crate::control::{CONTROL_NAME, FileRow};
use crate::error::{AppendError, StorageError};
use crate::frame::frame_bytes;
use crate::prepare::{Prepared, discard, prepare};
use crate::segment::{HEADER_PAGE_BYTES, LINK_FRAME_BYTES, Link};

impl Gate {
    /// Makes room for a batch while nothing is staged: ahead in the active segment, or in a new one.
    pub(super) fn make_room<'a>(
        self: &'a Arc<Self>,
        state: Guard<'a>,
        body: u64,
    ) -> Result<Guard<'a>, AppendError> {
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
    pub(super) fn extend<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        active: &Arc<Active>,
        end: u64,
    ) -> Result<Guard<'a>, AppendError> {
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
    pub(super) fn failed_preparation(&self, state: &mut Guard<'_>, error: StorageError) -> AppendError {
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
            self.sync_left(&unsynced)?;
            unused.map_or(Ok(()), |unused| self.give_up(&unused))
        });
        state.leader = false;
        self.done.notify_all();
        if let Err(error) = synced {
            return Err(AppendError::Poisoned(self.poison(&mut state, &error)));
        }
        if !state.filling.is_empty() {
            // Somebody's batch still went into the old segment meanwhile: it is written there first.
            return Ok(state);
        }
        if state.thread.is_none() && !state.finished.is_empty() {
            // Without the thread the older ones are sealed here; the one that is left now has its turn at
            // the next rotation, so that nobody waits for its sync who did not ask for one.
            return Ok(self.seal_finished(state));
        }
        self.begin_segment(&mut state);
        self.work.notify_one();
        Ok(state)
    }

    /// Makes the next segment file; called by whoever needs it first, mostly the I/O thread.
    pub(super) fn prepare_next<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        unfit: Option<Prepared>,
        capacity: u64,
        body: u64,
    ) -> Result<Guard<'a>, AppendError> {
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
    pub(super) fn forget_prepared(&self, prepared: &Prepared) -> Result<(), StorageError> {
        let row = FileRow { segment_id: prepared.header.segment_id, file_id: prepared.header.file_id };
        let mut control = self.control.lock();
        control.state.begun.retain(|begun| begun.file != row);
        control.write_both()?;
        discard(&*self.chain.storage, &prepared.name);
        Ok(())
    }

    /// Installs the ready segment; nothing is staged and nobody leads.
    pub(super) fn begin_segment(&self, state: &mut State) {
        self.finish_active(state);
        let Some(ready) = state.ready.take() else { return };
        let link = self.next_link(state);
        let room = ready.room;
        let start = HEADER_PAGE_BYTES + LINK_FRAME_BYTES;
        let segment = Arc::new(Segment::begin(&ready.header, state.next, start, room));
        state.active = Some(Arc::new(Active {
            segment,
            capacity: ready.header.capacity,
            file: ready.file,
            unsynced: AtomicBool::new(false),
        }));
        state.place = HEADER_PAGE_BYTES;
        state.room = room;
        state.filling.link = Some(link);
    }

    /// The active segment gets no more frames.
    pub(super) fn finish_active(&self, state: &mut State) {
        if let Some(active) = state.active.take() {
            let (last, end) = active.segment.reach();
            state.predecessor =
                Some(Predecessor { id: active.segment.id, file_id: active.segment.file_id, last, end });
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
                    if state.thread.is_none() && !state.finished.is_empty() {
                        state = self.seal_finished(state);
                        continue;
                    }
                    self.finish_active(&mut state);
                    self.work.notify_one();
                }
                return self.refusal(&state).map_or(Ok(()), Err);
            }
        }
    }
}
