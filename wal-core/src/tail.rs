//! Reading at the end of a log that grows.
//!
//! A [`Tail`] is a reader that goes no further than a mark, durable by default, and that can wait for it to
//! move. It never makes anybody write or sync: who reads changes nothing.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::{HoldError, ReadError};
use crate::gate::{Gate, Watch, Watched};
use crate::hold::Hold;
use crate::lsn::Lsn;
use crate::options::Durability;
use crate::reader::{Cursor, Reader, Record};

/// What comes next at the end of a log that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tailed<'a> {
    /// The next record, lent until the next call.
    Record(Record<'a>),
    /// Nothing to be had yet; the LSN that is due next. What is there above it is not proved durable.
    CaughtUp(Lsn),
    /// Nothing more will come; the LSN that would have been next.
    Closed(Lsn),
}

/// Follows a log in the process that writes it: each record once it is durable, in LSN order.
///
/// What a tail showed at the durable level survives a loss of power; so whoever passes it on never passes on
/// what the log may forget. There may be many tails; each holds one window and the largest group in memory.
/// It outlives the [`Wal`](crate::Wal), and ends when that is closed or dropped.
///
/// ```
/// # use planewal_core::{Lsn, Options, Tailed, Wal};
/// # let dir = tempfile::tempdir()?;
/// # let wal = Wal::open(dir.path().join("log"), Options::default())?;
/// let mut tail = wal.tail(Lsn::FIRST)?;
/// wal.append(0x80, 1, b"hello")?;
/// let record = tail.next().wait()?; // or `.await`, or `.wait_timeout(limit)`
/// assert_eq!(record.unwrap().payload, b"hello");
/// assert_eq!(tail.try_next()?, Tailed::CaughtUp(Lsn::new(2).unwrap()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tail {
    gate: Arc<Gate>,
    reader: Reader,
    level: Durability,
    watch: Watch,
    hold: Option<Hold>,
}

/// Where a tail stands.
enum Step {
    Ready,
    /// The mark has to reach this LSN.
    Wait(u64),
    Closed,
}

impl Tail {
    /// A tail whose reader is made once there is a hold for it.
    pub(crate) fn new(
        gate: &Arc<Gate>,
        from: Lsn,
        reader: impl FnOnce() -> Result<Reader, ReadError>,
    ) -> Result<Tail, ReadError> {
        let hold = gate.holds.take_for_reading("tail", from);
        let reader = reader()?;
        let hold = match hold {
            // Decided to go, and still to be seen.
            Err(HoldError::Retired { first, .. }) if gate.chain.first() < Some(first.number()) => {
                return Err(ReadError::Retired { wanted: from, first });
            }
            // Below the first record there is what was given up, which needs no hold.
            Err(HoldError::Retired { first, .. }) => gate.holds.take_for_reading("tail", first).ok(),
            hold => hold.ok(),
        };
        Ok(Tail { gate: Arc::clone(gate), reader, level: Durability::Synced, watch: Watch::default(), hold })
    }

    /// Shows records as soon as they are written, durable or not: what it shows then survives the death of
    /// the process, and a loss of power may take it back.
    #[must_use]
    pub fn of_written(mut self) -> Tail {
        self.level = Durability::Written;
        self
    }

    /// The next record, if it is there. Never waits.
    ///
    /// # Errors
    /// As [`Reader::next`], and [`ReadError::Poisoned`] once everything that is safe was shown.
    pub fn try_next(&mut self) -> Result<Tailed<'_>, ReadError> {
        let step = self.step()?;
        let due = self.due();
        Ok(match step {
            Step::Ready => self.lend().map_or(Tailed::CaughtUp(due), Tailed::Record),
            Step::Wait(_) => Tailed::CaughtUp(due),
            Step::Closed => Tailed::Closed(due),
        })
    }

    /// The next record, to be waited for: [`wait`](Next::wait), [`wait_timeout`](Next::wait_timeout), or
    /// `.await` under any executor. Dropping the answer loses nothing.
    #[allow(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Next<'_> {
        Next { tail: Some(self) }
    }

    /// Where this tail stands: what [`Wal::tail_from`](crate::Wal::tail_from) goes on from.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.reader.cursor()
    }

    /// The LSN that it will show next.
    #[must_use]
    pub fn due(&self) -> Lsn {
        self.reader.due()
    }

    fn step(&mut self) -> Result<Step, ReadError> {
        loop {
            let mark = self.gate.mark(self.level);
            let due = self.reader.due().number();
            if due <= mark && self.reader.ready()? && self.reader.due().number() <= mark {
                return Ok(Step::Ready);
            }
            let target = self.reader.due().number().max(mark + 1);
            match self.gate.watched(target, self.level) {
                Watched::Reached => {}
                Watched::Waiting => return Ok(Step::Wait(target)),
                Watched::Over => return Ok(Step::Closed),
                Watched::Poisoned(poison) => return Err(ReadError::Poisoned(poison)),
            }
        }
    }

    fn lend(&mut self) -> Option<Record<'_>> {
        // What was lent before is not needed any more; one step behind costs nothing.
        if let Some(hold) = &self.hold {
            hold.follow(self.reader.due());
        }
        self.reader.lend()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.gate.unwatch(&mut self.watch, self.level);
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").field("due", &self.due()).field("level", &self.level).finish_non_exhaustive()
    }
}

/// The next record of a [`Tail`]: a future, and a thing to wait for. `None` once the log is closed and
/// everything was shown.
#[derive(Debug)]
#[must_use = "it does nothing until it is waited for or awaited"]
pub struct Next<'t> {
    tail: Option<&'t mut Tail>,
}

impl<'t> Next<'t> {
    /// Waits for the record.
    ///
    /// # Errors
    /// As [`Tail::try_next`].
    pub fn wait(self) -> Result<Option<Record<'t>>, ReadError> {
        match self.wait_until(None)? {
            Tailed::Record(record) => Ok(Some(record)),
            _ => Ok(None),
        }
    }

    /// Waits at most so long.
    ///
    /// # Errors
    /// As [`Tail::try_next`].
    pub fn wait_timeout(self, limit: Duration) -> Result<Tailed<'t>, ReadError> {
        self.wait_until(Instant::now().checked_add(limit))
    }

    fn wait_until(mut self, until: Option<Instant>) -> Result<Tailed<'t>, ReadError> {
        let Some(tail) = self.tail.take() else { unreachable!("a future that is done is gone") };
        loop {
            let step = tail.step()?;
            let due = tail.due();
            match step {
                Step::Ready => return Ok(tail.lend().map_or(Tailed::CaughtUp(due), Tailed::Record)),
                Step::Closed => return Ok(Tailed::Closed(due)),
                Step::Wait(target) => {
                    if !tail.gate.watch_until(target, tail.level, until) {
                        return Ok(Tailed::CaughtUp(due));
                    }
                }
            }
        }
    }
}

impl<'t> Future for Next<'t> {
    type Output = Result<Option<Record<'t>>, ReadError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let next = self.get_mut();
        loop {
            let Some(tail) = &mut next.tail else { unreachable!("polled after it was ready") };
            match tail.step() {
                Ok(Step::Wait(target)) => {
                    if !tail.gate.watch(target, tail.level, &mut tail.watch, context.waker()) {
                        return Poll::Pending;
                    }
                }
                Ok(Step::Ready) => return Poll::Ready(Ok(next.tail.take().and_then(Tail::lend))),
                Ok(Step::Closed) => return Poll::Ready(Ok(None)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}
