//! Tickets that nobody waits for in a blocking way: their wakers, and the word to the I/O thread.
//!
//! Wakers are never woken under the lock: an executor may poll again right away, from the same thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use super::{Gate, Guard, STALL_RETRY, State};
use crate::error::{AppendError, Poison};
use crate::lsn::Lsn;
use crate::options::Durability;
use crate::sync::{Condvar, unlocked};

/// Who is to be woken when a mark reaches an LSN.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    /// By LSN and ticket number.
    written: BTreeMap<(u64, u64), Waker>,
    synced: BTreeMap<(u64, u64), Waker>,
    last_number: u64,
}

impl Wakers {
    fn of(&mut self, level: Durability) -> &mut BTreeMap<(u64, u64), Waker> {
        if level == Durability::Synced { &mut self.synced } else { &mut self.written }
    }

    fn take_reached(&mut self, written: u64, durable: u64) -> Vec<Waker> {
        let mut reached = Vec::new();
        for (wakers, mark) in [(&mut self.written, written), (&mut self.synced, durable)] {
            while let Some(entry) = wakers.first_entry().filter(|entry| entry.key().0 <= mark) {
                reached.push(entry.remove());
            }
        }
        reached
    }

    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// A waker that may be registered.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    at: Option<(u64, u64)>,
}

/// What can be said of a mark that somebody waits for.
#[derive(Debug)]
pub(crate) enum Watched {
    Reached,
    Waiting,
    /// It will not be reached: the log is closed or its handles are gone.
    Over,
    Poisoned(Arc<Poison>),
}

impl Gate {
    /// The last LSN that is as durable as `level` says.
    pub(crate) fn mark(&self, level: Durability) -> u64 {
        if level == Durability::Synced { self.chain.durable() } else { self.chain.written() }
    }

    /// What is rung when that mark moves, or will not move any more.
    pub(super) fn rung_for(&self, level: Durability) -> &Condvar {
        if level == Durability::Synced { &self.synced } else { &self.done }
    }

    /// Whether the mark has reached an LSN, or ever will.
    pub(crate) fn watched(&self, lsn: u64, level: Durability) -> Watched {
        self.watched_in(&self.state.lock(), lsn, level)
    }

    fn watched_in(&self, state: &State, lsn: u64, level: Durability) -> Watched {
        match self.outcome(state, lsn, level) {
            None => Watched::Waiting,
            Some(Ok(())) => Watched::Reached,
            Some(Err(AppendError::Poisoned(poison))) => Watched::Poisoned(poison),
            Some(Err(_)) => Watched::Over,
        }
    }

    /// Waits for the mark, and makes nobody work for it; answers whether there is something new.
    pub(crate) fn watch_until(&self, lsn: u64, level: Durability, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while matches!(self.watched_in(&state, lsn, level), Watched::Waiting) {
            let timed_out = self.rest(&mut state, self.rung_for(level), until);
            if timed_out {
                return !matches!(self.watched_in(&state, lsn, level), Watched::Waiting);
            }
        }
        true
    }

    /// Registers a waker for the mark, in place of the one before; answers whether there is something new
    /// already.
    pub(crate) fn watch(&self, lsn: u64, level: Durability, watch: &mut Watch, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if let Some(at) = watch.at.take() {
            state.wakers.of(level).remove(&at);
        }
        if !matches!(self.watched_in(&state, lsn, level), Watched::Waiting) {
            return true;
        }
        let at = (lsn, state.wakers.new_number());
        state.wakers.of(level).insert(at, waker.clone());
        watch.at = Some(at);
        false
    }

    /// Takes a waker out again.
    pub(crate) fn unwatch(&self, watch: &mut Watch, level: Durability) {
        if let Some(at) = watch.at.take() {
            self.state.lock().wakers.of(level).remove(&at);
        }
    }

    /// What can be said at once about an LSN at a level.
    pub(super) fn outcome(
        &self,
        state: &State,
        lsn: u64,
        level: Durability,
    ) -> Option<Result<(), AppendError>> {
        if self.reached(lsn, level) {
            return Some(Ok(()));
        }
        if let Some(poison) = &state.poison {
            return Some(Err(AppendError::Poisoned(Arc::clone(poison))));
        }
        if state.closed {
            return Some(Err(AppendError::Closed));
        }
        state.is_over().then_some(Err(AppendError::Abandoned))
    }

    /// A ticket is polled.
    pub(crate) fn poll(
        self: &Arc<Self>,
        lsn: Lsn,
        level: Durability,
        number: &mut u64,
        waker: &Waker,
    ) -> Poll<Result<(), AppendError>> {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        if let Some(outcome) = self.outcome(&state, lsn.number(), level) {
            return Poll::Ready(outcome);
        }
        if state.thread.is_none() {
            // Without the thread there is nobody else: polling does the work.
            return Poll::Ready(self.wait_for(state, lsn.number(), level, None).map(|_| ()));
        }
        if *number == 0 {
            *number = state.wakers.new_number();
        }
        state.wakers.of(level).insert((lsn.number(), *number), waker.clone());
        self.ask_thread(&mut state, lsn.number(), level);
        Poll::Pending
    }

    /// A ticket is gone; its batch is not.
    pub(crate) fn forget_ticket(self: &Arc<Self>, lsn: Lsn, level: Durability, number: u64) {
        if self.reached(lsn.number(), level) && number == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.wakers.of(level).remove(&(lsn.number(), number));
        if self.outcome(&state, lsn.number(), level).is_none() {
            self.ask_thread(&mut state, lsn.number(), level);
        }
    }

    /// Waits until a moment, without leading; answers whether the mark was reached.
    pub(crate) fn wait_until(
        self: &Arc<Self>,
        lsn: Lsn,
        level: Durability,
        until: Option<Instant>,
    ) -> Result<bool, AppendError> {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = self.outcome(&state, lsn.number(), level) {
                return outcome.map(|()| true);
            }
            // Without the thread nobody else would do it.
            if state.thread.is_none() {
                return self.wait_for(state, lsn.number(), level, until);
            }
            self.ask_thread(&mut state, lsn.number(), level);
            if self.rest(&mut state, self.rung_for(level), until) {
                let outcome = self.outcome(&state, lsn.number(), level);
                return outcome.map_or(Ok(false), |outcome| outcome.map(|()| true));
            }
        }
    }

    fn ask_thread(&self, state: &mut State, lsn: u64, level: Durability) {
        state.asked_for = state.asked_for.max(lsn);
        if level == Durability::Synced {
            state.sync_asked = state.sync_asked.max(lsn);
        }
        self.work.notify_one();
    }

    /// Whether the I/O thread is asked to write and could. While a sync is under way the group fills, unless
    /// somebody waits only for the write.
    pub(super) fn is_asked_to_write(&self, state: &State) -> bool {
        let Some(front) = state.staged.front() else { return false };
        let now = !state.syncing || front.strictest < Durability::Synced || front.written_members;
        !state.writing && !state.stalled && now && state.asked_for >= front.first
    }

    /// Whether the I/O thread is asked to sync and could: once all that it is asked for is written.
    pub(super) fn is_asked_to_sync(&self, state: &State) -> bool {
        let (written, durable) = (self.chain.written(), self.chain.durable());
        !state.syncing && durable < written && durable < state.sync_asked
    }

    /// Wakes whoever waits for what is reached; or everybody, when nothing more will be.
    pub(super) fn wake<'a>(&self, mut state: Guard<'a>) -> Guard<'a> {
        let over = state.poison.is_some() || state.is_over();
        let (written, durable) =
            if over { (u64::MAX, u64::MAX) } else { (self.chain.written(), self.chain.durable()) };
        let wakers = state.wakers.take_reached(written, durable);
        if !wakers.is_empty() {
            unlocked(&mut state, || wakers.into_iter().for_each(Waker::wake));
        }
        state
    }

    /// Lets the I/O thread try a stalled group again.
    pub(super) fn retry_stalled<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        self.work.wait_for(&mut state, STALL_RETRY);
        self.lead_if_free(state)
    }
}
