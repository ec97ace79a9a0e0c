//! Events for the `tracing` feature: told on the thread whose call caused them, once no lock is held.
//!
//! A subscriber can look at the log from an event, and can panic: neither changes what is written or
//! decided. Without the feature nothing is noted and nothing is told.

use std::time::Duration;

use crate::error::Poison;
use crate::report::RecoveryReport;

/// What happened.
#[derive(Debug)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "noted only where somebody may be told"))]
pub(crate) enum Event {
    /// A segment was begun.
    Rotated { segment: u64, base: u64 },
    /// The disk is full.
    Full { error: String },
    /// It is not full any more.
    Resumed { after: Duration },
    /// A write or sync failed; the log is done for.
    Poisoned { poison: std::sync::Arc<Poison> },
    /// Cleanly, behind this LSN.
    Closed { last: u64 },
}

/// Events that are not told yet.
#[derive(Debug, Default)]
pub(crate) struct Events {
    #[cfg(feature = "tracing")]
    noted: crate::sync::Mutex<Vec<Event>>,
}

/// Tells what was noted when it goes: taken before the log's lock, it goes after it.
pub(crate) struct Telling<'a>(&'a Events);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.tell();
    }
}

impl Events {
    /// Has what is noted from here on told at the end of the scope.
    pub(crate) fn telling(&self) -> Telling<'_> {
        Telling(self)
    }

    /// Notes an event; may be called under any lock.
    #[cfg(feature = "tracing")]
    pub(crate) fn note(&self, event: impl FnOnce() -> Event) {
        self.noted.lock().push(event());
    }

    #[cfg(not(feature = "tracing"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn note(&self, _event: impl FnOnce() -> Event) {}

    /// Whether there is nothing to tell.
    #[cfg(feature = "tracing")]
    pub(crate) fn are_told(&self) -> bool {
        self.noted.lock().is_empty()
    }

    #[cfg(not(feature = "tracing"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn are_told(&self) -> bool {
        true
    }

    /// Tells what was noted; the caller holds no lock.
    #[cfg(feature = "tracing")]
    pub(crate) fn tell(&self) {
        let noted = std::mem::take(&mut *self.noted.lock());
        noted.into_iter().for_each(|event| guarded(|| event.emit()));
    }

    #[cfg(not(feature = "tracing"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn tell(&self) {}
}

/// A subscriber that panics is nobody's concern here.
#[cfg(feature = "tracing")]
fn guarded(emit: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(emit));
}

#[cfg(feature = "tracing")]
impl Event {
    fn emit(&self) {
        match self {
            Event::Rotated { segment, base } => {
                tracing::debug!(target: "planewal", event = "rotated", segment, base);
            }
            Event::Full { error } => tracing::warn!(target: "planewal", event = "full", error),
            Event::Resumed { after } => tracing::info!(target: "planewal", event = "resumed", ?after),
            Event::Poisoned { poison } => {
                tracing::error!(target: "planewal", event = "poisoned", %poison);
            }
            Event::Closed { last } => tracing::info!(target: "planewal", event = "closed", last),
        }
    }
}

/// A log was opened.
#[cfg(feature = "tracing")]
pub(crate) fn opened(dir: &str, report: &RecoveryReport) {
    let next = report.survey.next.number();
    let torn = report.torn_tail.as_ref().map(tracing::field::display);
    let (created, unclean, total) = (report.created, report.unclean, report.total);
    guarded(|| {
        tracing::info!(target: "planewal", event = "opened", dir, created, unclean, next, torn, ?total);
    });
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn opened(_dir: &str, _report: &RecoveryReport) {}
