//! loom's locks and atomics, as the crate calls them.
//!
//! loom has no time. A wait with a deadline of its caller's is over at once, when the others have had their
//! turn. A wait that is tried again from time to time is never over by itself: whoever relies on that alone
//! is a deadlock to loom.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

/// A lock that no panic poisons.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.take()) }
    }

    fn take(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex { .. }")
    }
}

/// The lock, but for the moments in which its owner waits or works without it.
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    held: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(held) = &self.held else { unreachable!("used while it is given up") };
        held
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(held) = &mut self.held else { unreachable!("used while it is given up") };
        held
    }
}

/// Does something without the lock, and takes it again.
pub(crate) fn unlocked<T, R>(guard: &mut MutexGuard<'_, T>, work: impl FnOnce() -> R) -> R {
    guard.held = None;
    let result = work();
    guard.held = Some(guard.mutex.take());
    result
}

/// Where others wait.
#[derive(Debug)]
pub(crate) struct Condvar(loom::sync::Condvar);

/// Whether the time was over.
#[derive(Debug)]
pub(crate) struct Waited {
    timed_out: bool,
}

impl Waited {
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let Some(held) = guard.held.take() else { unreachable!("waits with the lock") };
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits to be woken: in a model the time never comes.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> Waited {
        self.wait(guard);
        Waited { timed_out: false }
    }

    /// Lets the others have their turn, and is late.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> Waited {
        unlocked(guard, loom::thread::yield_now);
        Waited { timed_out: true }
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock for many readers.
#[derive(Debug)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
