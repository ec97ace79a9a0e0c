//! Room: ahead in the active segment, or in the next one.

use std::sync::Arc;

use super::{Active, Gate, Guard, Next, Predecessor, START, State, without};
use crate::chain::Segment;
use crate::control::{CONTROL_NAME, FileRow};
use crate::error::{AppendError, NoRoom, StorageError};
use crate::events::Event;
use crate::prepare::{Prepared, SegmentFile, discard, prepare};
use crate::segment::{HEADER_PAGE_BYTES, Link};
use crate::storage::Allocation;
use crate::sync::AtomicU64;

impl Gate {
    /// Makes real room in the active segment up to `end` at least.
    pub(super) fn extend<'a>(
        self: &'a Arc<Self>,
        state: Guard<'a>,
        end: u64,
    ) -> Result<Guard<'a>, AppendError> {
        let Some(active) = state.active.clone() else { return Ok(state) };
        let from = state.room;
        self.extend_file(state, &active.file, active.segment.id, from, end, active.capacity)
    }

    /// Makes real room in the segment that is ready up to `end` at least.
    pub(super) fn extend_ready<'a>(
        self: &'a Arc<Self>,
        state: Guard<'a>,
        end: u64,
    ) -> Result<Guard<'a>, AppendError> {
        let Some(ready) = &state.ready else { return Ok(state) };
        let (file, id) = (Arc::clone(&ready.file), ready.header.segment_id);
        let (from, capacity) = (ready.room, ready.header.capacity);
        self.extend_file(state, &file, id, from, end, capacity)
    }

    fn extend_file<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        file: &Arc<SegmentFile>,
        id: u64,
        from: u64,
        end: u64,
        capacity: u64,
    ) -> Result<Guard<'a>, AppendError> {
        if state.extending {
            self.done.wait(&mut state);
            return Ok(state);
        }
        state.extending = true;
        state.busy += 1;
        let ahead = (from + self.options.prepare_bytes).max(end).min(capacity);
        let made = without(&mut state, || {
            let _flight = self.counters.begin("allocate");
            let made = file.make_room(from, ahead).map(|how| (how, ahead));
            match made {
                // There may still be room for what is wanted now.
                Err(error) if error.is_full() && from < end && end < ahead => {
                    file.make_room(from, end).map(|how| (how, end))
                }
                made => made,
            }
        });
        state.extending = false;
        state.busy -= 1;
        match made {
            Ok((how, room)) => {
                self.note_allocation(&mut state, how);
                if let Some(active) = state.active.clone().filter(|active| active.segment.id == id) {
                    state.room = state.room.max(room);
                    active.segment.with_extent(|extent| extent.file_bytes = extent.file_bytes.max(room));
                } else if let Some(ready) = state.ready.as_mut().filter(|ready| ready.header.segment_id == id)
                {
                    ready.room = ready.room.max(room);
                }
                self.ring();
                self.release_if_idle(&state);
                Ok(state)
            }
            Err(error) => {
                let error = self.failed_preparation(&mut state, error);
                drop(self.wake(state));
                Err(error)
            }
        }
    }

    fn note_allocation(&self, state: &mut State, how: Allocation) {
        state.allocation = how;
        self.found_room(state);
    }

    /// What an error outside a group's write means: no room is a state; a sync that failed is for ever.
    pub(super) fn failed_preparation(&self, state: &mut State, error: StorageError) -> AppendError {
        self.ring();
        self.release_if_idle(state);
        if error.is_full() {
            let error = self.note_full(state, error);
            return AppendError::Full(NoRoom::Disk(error));
        }
        if error.operation == "sync" || error.file == CONTROL_NAME {
            return AppendError::Poisoned(self.poison(state, &error));
        }
        AppendError::Storage(Arc::new(error))
    }

    /// Makes the next segment file, with room up to `end` at least; called by whoever needs it first, mostly
    /// the I/O thread. It takes the place of one that is ready and not large enough.
    pub(super) fn prepare_next<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        capacity: u64,
        end: u64,
    ) -> Result<Guard<'a>, AppendError> {
        if state.preparing {
            self.done.wait(&mut state);
            return Ok(state);
        }
        self.start_thread(&mut state);
        state.preparing = true;
        state.busy += 1;
        // What permits rely on stays until there is something larger.
        let unfit = if state.reserved.frames == 0 { state.ready.take() } else { None };
        let replaces = state.ready.is_some();
        let made = without(&mut state, || {
            unfit.map_or(Ok(()), |unfit| self.forget_prepared(&unfit))?;
            let ahead = end.max(START + self.options.prepare_bytes);
            match self.make_segment(capacity, ahead, replaces) {
                // There may still be room for what is wanted now.
                Err(error) if error.is_full() && end > START && end < ahead => {
                    self.make_segment(capacity, end, replaces)
                }
                made => made,
            }
        });
        let made = match made {
            Ok(prepared) if state.ready.is_some() => {
                // Meanwhile groups may have been staged for the smaller one; then it stays.
                let staged = state.staged.iter().any(|group| group.begins);
                let surplus = if staged { Some(prepared) } else { state.ready.replace(prepared) };
                without(&mut state, || surplus.map_or(Ok(()), |surplus| self.forget_prepared(&surplus)))
            }
            Ok(prepared) => {
                state.ready = Some(prepared);
                Ok(())
            }
            Err(error) => Err(error),
        };
        state.preparing = false;
        state.busy -= 1;
        if let Err(error) = made {
            let error = self.failed_preparation(&mut state, error);
            drop(self.wake(state));
            return Err(error);
        }
        if let Some(how) = state.ready.as_ref().map(|ready| ready.how) {
            self.note_allocation(&mut state, how);
        }
        self.ring();
        self.release_if_idle(&state);
        Ok(state)
    }

    /// Makes a segment file with room up to `end`; it may be made in place of another that is ready.
    pub(super) fn make_segment(
        &self,
        capacity: u64,
        end: u64,
        replaces: bool,
    ) -> Result<Prepared, StorageError> {
        let _flight = self.counters.begin("prepare");
        let durable = self.chain.durable();
        prepare(&self.chain.storage, &self.control, &self.options, capacity, end, durable, replaces)
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

    /// Installs the ready segment for the oldest staged group, whose first LSN is `base`.
    pub(super) fn begin_segment(&self, state: &mut State, base: u64) {
        self.finish_active(state);
        let Some(ready) = state.ready.take() else { return };
        let link = self.next_link(state, base);
        let segment = Arc::new(Segment::begin(&ready.header, base, START, ready.room));
        state.active = Some(Arc::new(Active {
            segment,
            capacity: ready.header.capacity,
            file: ready.file,
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        }));
        state.place = HEADER_PAGE_BYTES;
        state.room = ready.room;
        self.counters.rotations.add(1);
        self.events.note(|| Event::Rotated { segment: ready.header.segment_id, base });
        if let Some(front) = state.staged.front_mut() {
            front.begins = true;
            front.link = Some(link);
        }
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

    fn next_link(&self, state: &mut State, base: u64) -> Link {
        let before = state.predecessor.take();
        let branch = std::mem::take(&mut state.branch);
        Link {
            predecessor_id: before.map_or(0, |before| before.id),
            predecessor_file_id: before.map_or(0, |before| before.file_id),
            predecessor_last: before.map_or(0, |before| before.last),
            predecessor_end: before.map_or(0, |before| before.end),
            base,
            kept: state.kept.take(),
            branch,
        }
    }

    /// Ends the current segment: the next group begins a new one.
    pub(crate) fn rotate(self: &Arc<Self>) -> Result<(), AppendError> {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        loop {
            if let Some(refusal) = self.refusal(&state) {
                return Err(refusal);
            }
            if let Some((_, error)) = state.full.as_ref().filter(|_| state.stalled) {
                return Err(AppendError::Full(NoRoom::Disk(Arc::clone(error))));
            }
            if state.writing {
                self.done.wait(&mut state);
            } else if !state.staged.is_empty() {
                state = self.lead(state, Next::HandOver);
            } else if state.active.is_none() {
                return Ok(());
            } else if !state.permits_fit_next() {
                let frames = state.reserved.frames;
                state = self.make_ready(state, frames)?;
            } else if state.thread.is_none() && !state.finished.is_empty() {
                state = self.seal_finished(state);
            } else {
                self.finish_active(&mut state);
                self.work.notify_one();
                return Ok(());
            }
        }
    }
}
