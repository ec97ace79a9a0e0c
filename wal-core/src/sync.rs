//! Locks and atomics, in one place: so that what waits and wakes can run under a model checker.
//!
//! With `--cfg loom` they are loom's, which tries every order of their steps in a model of a few threads;
//! `tests/loom.rs` has the models.

#[cfg(loom)]
mod modelled;

#[cfg(loom)]
pub(crate) use modelled::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, RwLock, unlocked};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// For what is counted and decides nothing: no part of any model, as it differs with every run.
pub(crate) mod counted {
    pub(crate) use parking_lot::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

/// Does something without the lock, and takes it again.
#[cfg(not(loom))]
pub(crate) fn unlocked<T, R>(guard: &mut MutexGuard<'_, T>, work: impl FnOnce() -> R) -> R {
    MutexGuard::unlocked(guard, work)
}
