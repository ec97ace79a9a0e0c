//! The log's one thread: makes room ahead, seals behind, writes what is buffered, and beacons.
//!
//! It never waits for its own queue, and everything it does somebody who commits can do as well.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Active, Gate, Guard, Next, STALL_RETRY, START, State, without};
use crate::frame::{FrameDraft, FrameKind, HEADER_BYTES};
use crate::sync::unlocked;

impl Gate {
    pub(super) fn start_thread(self: &Arc<Self>, state: &mut State) {
        if self.options.io_thread && state.thread.is_none() && !state.dropped {
            let gate = Arc::clone(self);
            state.thread =
                std::thread::Builder::new().name("planewal".to_owned()).spawn(move || gate.run_thread()).ok();
        }
    }

    pub(super) fn poke_thread(&self, state: &State) {
        let low = state
            .active
            .as_ref()
            .is_some_and(|active| self.wants_room(state, active) || self.wants_next(state, active));
        let beacon =
            state.resting && self.chain.durable() > state.testified && !self.options.beacon_idle.is_zero();
        let asked = self.is_asked_to_write(state) || self.is_asked_to_sync(state);
        if low || beacon || asked || state.stalled || state.holds_much() || !state.finished.is_empty() {
            self.work.notify_one();
        }
    }

    fn wants_room(&self, state: &State, active: &Active) -> bool {
        let end = if state.staged.iter().any(|group| group.begins) { state.place } else { state.end };
        !state.extending && state.room < active.capacity && end + self.options.prepare_bytes / 2 > state.room
    }

    fn wants_next(&self, state: &State, active: &Active) -> bool {
        state.ready.is_none() && !state.preparing && state.place > active.capacity / 2
    }

    /// The I/O thread: makes room ahead, seals behind, writes what is buffered, and beacons.
    fn run_thread(self: Arc<Self>) {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        let mut full_until: Option<Instant> = None;
        loop {
            if state.dropped || state.closed || state.poison.is_some() {
                break;
            }
            if !self.events.are_told() {
                unlocked(&mut state, || self.events.tell());
                continue;
            }
            let may_prepare = full_until.is_none_or(|until| Instant::now() >= until);
            if let Some(active) = state.active.clone().filter(|_| may_prepare) {
                if self.wants_room(&state, &active) {
                    let end = state.place;
                    match self.extend(state, end) {
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
                    match self.prepare_next(state, capacity, START) {
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
            if state.stalled && !state.writing {
                state = self.retry_stalled(state);
                continue;
            }
            let much = state.holds_much() && !state.writing;
            if much || self.is_asked_to_write(&state) {
                state = self.lead(state, Next::HandOver);
                continue;
            }
            if self.is_asked_to_sync(&state) {
                state = self.sync_written(state);
                continue;
            }
            state = self.beacon_or_rest(state);
        }
        state = self.wake(state);
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
        if state.writing || state.stalled || !state.staged.is_empty() {
            self.work.wait_for(&mut state, idle.max(Duration::from_millis(1)));
            return state;
        }
        self.write_beacon(state)
    }

    /// Carries the durable mark forward, in a frame or, without a place for one, in a slot. Not synced.
    fn write_beacon<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        let durable = self.chain.durable();
        let offset = state.place;
        let end = offset + HEADER_BYTES as u64;
        let reserved = state.reserved.frames;
        let place = state
            .active
            .clone()
            .filter(|active| end <= active.limit(state.room) && state.covers(reserved, end));
        state.writing = true;
        if place.is_some() {
            (state.place, state.end) = (end, end);
        }
        let next = state.next;
        let result = without(&mut state, || match &place {
            Some(active) => {
                let draft = FrameDraft { kind: FrameKind::Beacon, first_lsn: next, records: 0, durable };
                active.write(offset, &draft.frame(active.segment.salt, offset, &[]))?;
                active.segment.with_extent(|extent| extent.end = end);
                Ok(())
            }
            None => {
                let mut control = self.control.lock();
                control.state.durable = control.state.durable.max(durable);
                control.write_one()
            }
        });
        state.writing = false;
        self.counters.beacons.add(1);
        match result {
            Ok(()) => state.testified = durable,
            // Nothing was promised, so nothing is lost but this proof: the next group goes over what little
            // was written.
            Err(error) if error.is_full() => {
                if place.is_some() {
                    state.place = offset;
                    state.restage(self.options.segment_bytes);
                }
                state.testified = durable;
            }
            Err(error) => {
                self.poison(&mut state, &error);
            }
        }
        self.ring();
        state
    }
}
