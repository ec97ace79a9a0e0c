//! Staging: an LSN is given only to a batch whose place is certain, in memory and in a file.
//!
//! Staged groups go into the active segment one behind the other, and from the first that does not fit
//! there into the one that is ready. Permits take part of that room before their batches come: all that are
//! outstanding fit into one of the two, whatever their order, so the last one finds its place as the
//! first does.

use std::sync::Arc;
use std::time::Instant;

use super::{ForRoom, Gate, Group, Guard, Next, Receipt, START, State, capacity_for, seal_reserve};
use crate::batch::{Appendable, Batch};
use crate::error::{AppendError, NoRoom};
use crate::frame::frame_bytes;
use crate::lsn::Lsn;
use crate::options::Durability;
use crate::segment::HEADER_PAGE_BYTES;

/// Where a batch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Into the last group.
    Join,
    /// Into a group of its own behind it.
    Follow,
    /// Into the first group of the segment that is ready.
    Begin,
}

/// What wants a place.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    body: u64,
    records: u32,
}

impl State {
    /// Segments that the staged groups will begin.
    fn beginnings(&self) -> usize {
        self.staged.iter().filter(|group| group.begins).count()
    }

    /// How far frames may go in the segment that is ready.
    pub(super) fn ready_limit(&self) -> Option<u64> {
        let ready = self.ready.as_ref()?;
        Some(ready.room.min(ready.header.capacity - seal_reserve(ready.header.capacity)))
    }

    /// How far frames may go in the segment that the last staged group is for; `None` where nothing is
    /// certain.
    fn limit(&self) -> Option<u64> {
        if self.stalled {
            return None;
        }
        match self.beginnings() {
            0 => self.active.as_ref().map(|active| active.limit(self.room)),
            1 => self.ready_limit(),
            _ => None,
        }
    }

    /// Whether the segment that is ready takes so many bytes of frames, whatever goes into the active one.
    fn ready_takes(&self, frames: u64) -> bool {
        self.beginnings() == 0 && self.ready_limit().is_some_and(|limit| START + frames <= limit)
    }

    /// Whether permits would have their place if the active segment were left now.
    pub(super) fn permits_fit_next(&self) -> bool {
        self.reserved.frames == 0 || self.ready_takes(self.reserved.frames)
    }

    /// Whether permits for so many bytes have their place if the staged groups end at `end`.
    pub(super) fn covers(&self, frames: u64, end: u64) -> bool {
        frames == 0
            || self.limit().is_some_and(|limit| end + frames <= limit)
            || (!self.stalled && self.ready_takes(frames))
    }

    /// How the batch would go behind what is staged, and the end then.
    fn behind(&self, wanted: Wanted, group_bytes: u64) -> (Target, u64) {
        if let Some(last) = self.staged.back() {
            let body = last.body_bytes() + wanted.body;
            if body <= group_bytes && last.records.checked_add(wanted.records).is_some() {
                return (Target::Join, self.end + frame_bytes(body) - frame_bytes(last.body_bytes()));
            }
        }
        (Target::Follow, self.end + frame_bytes(wanted.body))
    }

    /// Where the batch has a certain place that leaves the permits theirs.
    fn target(&self, wanted: Wanted, group_bytes: u64) -> Option<Target> {
        let (target, end) = self.behind(wanted, group_bytes);
        if self.limit().is_some_and(|limit| end <= limit) && self.covers(self.reserved.frames, end) {
            return Some(target);
        }
        None
    }

    /// Whether `end` is what the groups add up to.
    pub(super) fn end_is_right(&self) -> bool {
        let adds_up = self.staged.iter().fold(self.place, |end, group| {
            let from = if group.begins && group.link.is_none() { HEADER_PAGE_BYTES } else { end };
            from + group.file_bytes()
        });
        self.end == adds_up
    }

    /// Places the groups anew from the active segment's place on, after one went elsewhere than it was meant to.
    pub(super) fn restage(&mut self, segment_bytes: u64) {
        let mut end = self.place;
        let mut capacity = self.active.as_ref().map(|active| active.capacity);
        for group in &mut self.staged {
            if group.link.is_none() {
                let next = end + frame_bytes(group.body_bytes());
                group.begins = capacity.is_none_or(|capacity| next + seal_reserve(capacity) > capacity);
            }
            if group.begins && group.link.is_none() {
                capacity = Some(segment_bytes);
                end = HEADER_PAGE_BYTES;
            }
            end += group.file_bytes();
        }
        self.end = end;
    }
}

impl Gate {
    /// Gives a batch its LSNs and its place.
    pub(super) fn stage<'a>(
        self: &'a Arc<Self>,
        batch: &mut impl Appendable,
        level: Durability,
        for_room: ForRoom,
    ) -> Result<(Guard<'a>, Receipt), AppendError> {
        self.check_batch(&*batch)?;
        let wanted = Wanted { body: batch.body_bytes(), records: batch.records() };
        let placed = self.make_place(self.state.lock(), wanted, for_room);
        let (mut state, target) = self.count_refusal(placed)?;
        let receipt = self.put(&mut state, batch, level, target);
        Ok((state, receipt))
    }

    fn check_batch(&self, batch: &impl Appendable) -> Result<(), AppendError> {
        if batch.records() == 0 {
            return Err(AppendError::EmptyBatch);
        }
        if batch.payload_bytes() > self.options.record_bytes_max {
            return Err(AppendError::TooLarge {
                bytes: batch.payload_bytes(),
                limit: self.options.record_bytes_max,
            });
        }
        Ok(())
    }

    /// Puts a batch where it has its place.
    fn put(
        &self,
        state: &mut State,
        batch: &mut impl Appendable,
        level: Durability,
        target: Target,
    ) -> Receipt {
        let first = state.next;
        let last = first + u64::from(batch.records()) - 1;
        let (Some(first_lsn), Some(last_lsn)) = (Lsn::new(first), Lsn::new(last)) else {
            unreachable!("LSNs do not run out")
        };
        if target != Target::Join {
            let mut group = state.spares.pop().unwrap_or_else(Group::new);
            (group.first, group.since, group.begins) = (first, Instant::now(), target == Target::Begin);
            state.staged.push_back(group);
        }
        let (body, records) = (batch.body_bytes(), batch.records());
        if let Some(group) = state.staged.back_mut() {
            let before = if target == Target::Join { group.file_bytes() } else { 0 };
            batch.copy_to(&mut group.buffer);
            batch.count_in(&mut group.planes, first);
            group.records += records;
            group.strictest = group.strictest.max(level);
            group.written_members |= level == Durability::Written;
            let grown = group.file_bytes() - before;
            let from = if target == Target::Begin { HEADER_PAGE_BYTES } else { state.end };
            state.end = from + grown;
        }
        state.staged_bytes += body;
        state.next = last + 1;
        self.chain.publish_next(last + 1);
        batch.taken();
        self.counters.records.add(u64::from(records));
        self.counters.batches.add(1);
        self.counters.body_bytes.add(body);
        Receipt { first: first_lsn, last: last_lsn }
    }

    /// Waits for what keeps an append from going on: the disk is full, or the copy of a tail is to be made first.
    fn clear_the_way<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
    ) -> Result<(Guard<'a>, bool), AppendError> {
        if let Some(refusal) = self.refusal(&state) {
            return Err(refusal);
        }
        if state.pending_copy.is_some() {
            if state.writing {
                self.done.wait(&mut state);
                return Ok((state, false));
            }
            return Ok((self.copy_pending_tail(state)?, false));
        }
        if state.stalled {
            if state.writing || state.preparing {
                self.done.wait(&mut state);
                return Ok((state, false));
            }
            state = self.lead(state, Next::HandOver);
            if let Some((_, error)) = state.full.as_ref().filter(|_| state.stalled) {
                return Err(AppendError::Full(NoRoom::Disk(Arc::clone(error))));
            }
            return Ok((state, false));
        }
        Ok((state, true))
    }

    /// Whether staging takes so many bytes more. What is larger than staging goes alone.
    fn staging_takes(&self, state: &State, body: u64) -> bool {
        state.staged_bytes == 0
            || state.staged_bytes + state.reserved.bodies + body <= self.options.staging_bytes
    }

    /// Waits for the leader, or leads.
    fn drain<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        for_room: ForRoom,
    ) -> Result<Guard<'a>, AppendError> {
        if state.writing || state.staged.is_empty() {
            if for_room == ForRoom::Refuse {
                let staged = state.staged_bytes + state.reserved.bodies;
                return Err(AppendError::Full(NoRoom::Staging { staged, limit: self.options.staging_bytes }));
            }
            self.done.wait(&mut state);
            return Ok(state);
        }
        Ok(self.lead(state, Next::HandOver))
    }

    /// Returns with a certain place for the batch, or with an error and no LSN given.
    fn make_place<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        wanted: Wanted,
        for_room: ForRoom,
    ) -> Result<(Guard<'a>, Target), AppendError> {
        loop {
            let (cleared, clear) = self.clear_the_way(state)?;
            state = cleared;
            if !clear {
                continue;
            }
            if !self.staging_takes(&state, wanted.body) {
                state = self.drain(state, for_room)?;
                continue;
            }
            if let Some(target) = state.target(wanted, self.options.group_bytes) {
                return Ok((state, target));
            }
            let (_, end) = state.behind(wanted, self.options.group_bytes);
            let frames = frame_bytes(wanted.body) + state.reserved.frames;
            if state.beginnings() > 0 {
                // Nothing more fits behind what will begin the next segment: it has to be begun first.
                state = self.drain(state, for_room)?;
            } else if let Some(active) = state.active.clone()
                && end + seal_reserve(active.capacity) <= active.capacity
            {
                // It fits into the active segment, and if the permits do not, they fit into the next.
                let reserved = state.reserved.frames;
                let with_permits = end + reserved;
                if state.ready_takes(reserved) {
                    state = self.extend(state, end)?;
                } else if with_permits + seal_reserve(active.capacity) <= active.capacity {
                    state = self.extend(state, with_permits)?;
                } else {
                    state = self.make_ready(state, reserved)?;
                }
            } else if state.ready_takes(frames) {
                return Ok((state, Target::Begin));
            } else {
                state = self.make_ready(state, frames)?;
            }
        }
    }

    /// Reserves the room of a permit: in staging, and in the active segment or in the one that is ready.
    pub(crate) fn reserve(self: &Arc<Self>, body: u64, for_room: ForRoom) -> Result<(), AppendError> {
        let _telling = self.events.telling();
        self.count_refusal(self.reserve_room(body, for_room))
    }

    fn reserve_room(self: &Arc<Self>, body: u64, for_room: ForRoom) -> Result<(), AppendError> {
        let mut state = self.state.lock();
        loop {
            let (cleared, clear) = self.clear_the_way(state)?;
            state = cleared;
            if !clear {
                continue;
            }
            let alone = state.reserved.frames == 0 && state.staged_bytes == 0;
            let bodies = state.reserved.bodies + body;
            if !alone && state.staged_bytes + bodies > self.options.staging_bytes {
                state = self.drain(state, for_room)?;
                continue;
            }
            let frames = state.reserved.frames + frame_bytes(body);
            if state.covers(frames, state.end) {
                state.reserved.bodies = bodies;
                state.reserved.frames = frames;
                return Ok(());
            }
            if state.beginnings() > 0 {
                state = self.drain(state, for_room)?;
                continue;
            }
            let end = state.end + frames;
            let fits = |capacity: u64| end + seal_reserve(capacity) <= capacity;
            state = if state.active.as_ref().is_some_and(|active| fits(active.capacity)) {
                self.extend(state, end)?
            } else {
                self.make_ready(state, frames)?
            };
        }
    }

    /// Gives the room of a permit back.
    pub(crate) fn unreserve(&self, body: u64) {
        self.release(&mut self.state.lock(), body);
    }

    /// Commits a batch in the room of a permit for `reserved` bytes, which is taken from it.
    pub(crate) fn commit_reserved(
        self: &Arc<Self>,
        holds: &mut bool,
        reserved: u64,
        batch: &mut Batch,
        level: Durability,
    ) -> Result<Receipt, AppendError> {
        let _telling = self.events.telling();
        let (state, receipt) = self.stage_reserved(holds, reserved, batch, level)?;
        self.go_on(state, receipt, level)
    }

    /// Submits a batch in the room of a permit; does no I/O.
    pub(crate) fn submit_reserved(
        self: &Arc<Self>,
        holds: &mut bool,
        reserved: u64,
        batch: &mut Batch,
        level: Durability,
    ) -> Result<Receipt, AppendError> {
        let (state, receipt) = self.stage_reserved(holds, reserved, batch, level)?;
        self.leave_to_thread(state);
        Ok(receipt)
    }

    fn stage_reserved<'a>(
        self: &'a Arc<Self>,
        holds: &mut bool,
        reserved: u64,
        batch: &mut Batch,
        level: Durability,
    ) -> Result<(Guard<'a>, Receipt), AppendError> {
        self.check_batch(&*batch)?;
        let wanted = Wanted { body: batch.body_bytes(), records: batch.records() };
        if wanted.body > reserved {
            return Err(AppendError::PermitTooSmall { needed: wanted.body, reserved });
        }
        let mut state = self.state.lock();
        if let Some(refusal) = self.refusal(&state) {
            return Err(refusal);
        }
        self.release(&mut state, reserved);
        *holds = false;
        let next = !state.stalled && state.ready_takes(frame_bytes(wanted.body));
        let target = state.target(wanted, self.options.group_bytes).or_else(|| next.then_some(Target::Begin));
        let receipt = self.put(&mut state, batch, level, target.unwrap_or(Target::Follow));
        if target.is_none() {
            // A group that found no room has taken that of the permits: this goes behind the others when
            // there is some.
            state.restage(self.options.segment_bytes);
        }
        Ok((state, receipt))
    }

    fn release(&self, state: &mut State, body: u64) {
        state.reserved.bodies -= body;
        state.reserved.frames -= frame_bytes(body);
        self.done.notify_all();
    }

    /// Makes the segment that is ready large enough for `frames`.
    pub(super) fn make_ready<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        frames: u64,
    ) -> Result<Guard<'a>, AppendError> {
        if state.preparing || state.extending {
            self.done.wait(&mut state);
            return Ok(state);
        }
        let capacity = capacity_for(&self.options, frames);
        match &state.ready {
            Some(ready) if ready.header.capacity >= capacity => self.extend_ready(state, START + frames),
            _ => self.prepare_next(state, capacity, START + frames),
        }
    }
}
