//! Syncing: one sync for everything that is written.

use std::sync::Arc;

use super::{Active, Gate, Guard, without};
use crate::error::StorageError;

impl Gate {
    /// Syncs all that is written, and publishes the mark. The caller found nobody who syncs.
    pub(super) fn sync_written<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        debug_assert!(!state.syncing, "one syncs at a time");
        state.syncing = true;
        // Read before the sync is issued, together with what it takes to cover it: under the lock no leader
        // changes the segment that it writes to.
        let written = self.chain.written();
        let (left, active) = (state.unsynced(), state.active.clone());
        let synced = without(&mut state, || {
            self.sync_left(&left)?;
            active.map_or(Ok(()), |active| active.sync(&self.counters))
        });
        state.syncing = false;
        match synced {
            Ok(()) => self.chain.publish_durable(written),
            Err(error) => {
                self.poison(&mut state, &error);
            }
        }
        self.ring();
        self.poke_thread(&state);
        self.release_if_idle(&state);
        self.wake(state)
    }

    /// Syncs all segments that were left with records that are not synced, oldest first; the mark may
    /// then pass the end of the last of them.
    pub(super) fn sync_left(&self, left: &[Arc<Active>]) -> Result<(), StorageError> {
        left.iter().try_for_each(|active| active.sync(&self.counters))?;
        if let Some(last) = left.last() {
            self.chain.publish_durable(last.segment.reach().0);
        }
        Ok(())
    }
}
