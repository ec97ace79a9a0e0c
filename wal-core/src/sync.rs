//! Locks and atomics, in one place: so that what waits and wakes can run under a model checker.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// Does something without the lock, and takes it again.
pub(crate) fn unlocked<T, R>(guard: &mut MutexGuard<'_, T>, work: impl FnOnce() -> R) -> R {
    MutexGuard::unlocked(guard, work)
}
