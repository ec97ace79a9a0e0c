//! Finishing: the closing sync and the seal of each segment, and the clean close of the log.

use std::sync::Arc;

use super::{Active, Gate, Guard, Next, STALL_RETRY, State, without};
use crate::control::CleanClose;
use crate::error::{CloseError, StorageError};
use crate::events::Event;
use crate::lsn::Lsn;
use crate::prepare::{Prepared, discard};
use crate::segment::{Seal, SparseIndex};
use crate::sync::unlocked;
use crate::wire::len64;

impl Gate {
    /// Syncs and seals the segments that get no more frames. Runs outside the lock.
    pub(super) fn seal_finished<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        while state.poison.is_none() && !state.is_over() {
            if state.extending || state.sealing {
                // Room is being made in a file that may just have been finished: not over its seal. And one seal
                // at a time: two would both take the oldest, and one of them the next off the list.
                self.done.wait(&mut state);
                continue;
            }
            let Some(active) = state.finished.front().cloned() else { break };
            state.sealing = true;
            state.busy += 1;
            let sealed = without(&mut state, || self.seal(&active));
            state.sealing = false;
            state.busy -= 1;
            match sealed {
                Ok(()) => {
                    // A leader may hold the segment in its list of what to sync; that does no harm.
                    state.finished.pop_front();
                    // All before it were synced before it: the mark may pass its end.
                    let (last, _) = active.segment.reach();
                    self.chain.publish_durable(last);
                    state = self.wake(state);
                }
                Err(error) => {
                    self.poison(&mut state, &error);
                    state = self.wake(state);
                }
            }
            self.ring();
            self.release_if_idle(&state);
        }
        state
    }

    /// The closing sync, then the seal, if there is room for one, and the file cut behind it.
    fn seal(&self, active: &Active) -> Result<(), StorageError> {
        let _flight = self.counters.begin("seal");
        if active.is_unsynced() {
            active.sync(&self.counters)?;
        }
        let (seal, end) = active.segment.with_extent(|extent| {
            (
                Seal {
                    base: active.segment.base,
                    last: extent.last,
                    planes: extent.planes.clone(),
                    index: extent.index.clone(),
                },
                extent.end,
            )
        });
        // The sync of everything up to here has returned, so the seal may say so.
        let frame = seal.frame(active.segment.salt, end, seal.last);
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
        Ok(())
    }

    /// Syncs and seals everything and writes the clean-close proof. On success the log is closed for
    /// every clone of the handle.
    pub(crate) fn close(self: &Arc<Self>) -> Result<(), CloseError> {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        while state.closing && !state.closed {
            self.done.wait_for(&mut state, STALL_RETRY);
        }
        if state.closed {
            return Ok(());
        }
        state.closing = true;
        loop {
            if let Some(poison) = state.poison.clone() {
                state.closing = false;
                return Err(CloseError::Poisoned(poison));
            }
            if state.writing || state.syncing || state.busy > 0 {
                self.done.wait_for(&mut state, STALL_RETRY);
                continue;
            }
            let staged = !state.staged.is_empty();
            if !staged && self.chain.durable() >= self.chain.written() {
                break;
            }
            if state.pending_copy.is_some() {
                // What is above the durable mark is not copied yet; a close cannot vouch for it.
                break;
            }
            if !staged {
                state = self.sync_written(state);
                continue;
            }
            state = self.lead(state, Next::Nothing);
            if state.stalled
                && let (Some(front), Some((_, source))) = (state.staged.front(), &state.full)
                && let (Some(first), Some(last)) = (Lsn::new(front.first), Lsn::new(state.next - 1))
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
        unlocked(&mut state, || thread.map(std::thread::JoinHandle::join));
        self.finish_active(&mut state);
        let newest = state.finished.back().cloned();
        state = self.seal_finished(state);
        if let Some(poison) = state.poison.clone() {
            state.closing = false;
            return Err(CloseError::Poisoned(poison));
        }
        let clean = self.clean_close(&state, newest.as_deref());
        let ready = state.ready.take();
        let result =
            without(&mut state, || self.write_clean_close(clean.filter(|_| vouched), ready.as_ref()));
        debug_assert!(!state.writing && !state.syncing && state.busy == 0, "the lock goes with the last I/O");
        state.closed = true;
        if result.is_ok() {
            self.events.note(|| Event::Closed { last: state.next - 1 });
        }
        self.ring();
        *self.lock.lock() = None;
        drop(self.wake(state));
        result.map_err(CloseError::Storage)
    }

    /// The proof that names where the log ends.
    fn clean_close(&self, state: &State, newest: Option<&Active>) -> Option<CleanClose> {
        match (newest, state.predecessor) {
            (Some(active), _) => {
                let (last, end) = active.segment.reach();
                let sealed = active.segment.with_extent(|extent| extent.sealed);
                Some(CleanClose {
                    segment_id: active.segment.id,
                    file_id: active.segment.file_id,
                    end,
                    last,
                    sealed,
                })
            }
            (None, Some(before)) => {
                let sealed = self
                    .chain
                    .segments()
                    .last()
                    .is_some_and(|segment| segment.with_extent(|extent| extent.sealed));
                Some(CleanClose {
                    segment_id: before.id,
                    file_id: before.file_id,
                    end: before.end,
                    last: before.last,
                    sealed,
                })
            }
            (None, None) => Some(CleanClose { segment_id: 0, file_id: 0, end: 0, last: 0, sealed: false }),
        }
    }

    fn write_clean_close(
        &self,
        clean: Option<CleanClose>,
        ready: Option<&Prepared>,
    ) -> Result<(), StorageError> {
        let mut control = self.control.lock();
        if let Some(ready) = ready {
            control.state.begun.retain(|begun| begun.file.segment_id != ready.header.segment_id);
        }
        if let Some(clean) = clean {
            control.state.begun.retain(|begun| begun.file.segment_id == clean.segment_id);
        }
        control.state.clean = clean;
        control.state.durable = control.state.durable.max(self.chain.durable());
        control.write_both()?;
        if let Some(ready) = ready {
            discard(&*self.chain.storage, &ready.name);
            let _ = self.chain.storage.sync_dir();
        }
        Ok(())
    }

    /// The last handle went away without a close: what is staged is written, not synced, nobody waits.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        // A group under way is not ours to wait for, but what is staged behind it can only go after it.
        while !state.closed && !state.staged.is_empty() && state.poison.is_none() {
            if state.writing {
                self.done.wait(&mut state);
            } else if state.stalled {
                break;
            } else {
                state = self.lead(state, Next::Nothing);
            }
        }
        state.dropped = true;
        self.work.notify_all();
        self.ring();
        self.release_if_idle(&state);
        drop(self.wake(state));
    }

    /// The lock goes with the last I/O in flight.
    pub(super) fn release_if_idle(&self, state: &State) {
        if state.is_over() && !state.writing && !state.syncing && state.busy == 0 {
            *self.lock.lock() = None;
        }
    }
}
