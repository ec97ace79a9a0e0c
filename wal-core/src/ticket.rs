//! Tickets: the receipt of a batch that has its LSNs, and the way to learn when it is as durable as was
//! asked.
//!
//! A ticket can be waited for, with or without a limit, and it is a future that needs no runtime. Who
//! waits for it may lead the group; a ticket that is only polled is led by the log's I/O thread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::AppendError;
use crate::gate::{Gate, Receipt};
use crate::lsn::Lsn;
use crate::options::Durability;

/// A batch that was appended, and whose durability is still to come.
///
/// Dropping a ticket cancels nothing: the batch is brought to disk all the same.
#[must_use = "a ticket tells whether its batch became durable"]
pub struct Ticket {
    gate: Arc<Gate>,
    receipt: Receipt,
    durability: Durability,
    /// By which the gate knows this ticket's waker; 0 before the first poll.
    number: u64,
}

impl Ticket {
    pub(crate) fn new(gate: Arc<Gate>, receipt: Receipt, durability: Durability) -> Ticket {
        Ticket { gate, receipt, durability, number: 0 }
    }

    /// The LSNs of the batch. They are given out, and not yet as durable as asked.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// The LSN of the batch's last record.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.receipt.last
    }

    /// How durable the batch is going to be.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Waits until the batch is as durable as asked. The calling thread may do the write and the sync,
    /// for itself and for others.
    ///
    /// # Errors
    /// [`AppendError::Poisoned`] or [`AppendError::Abandoned`]: the outcome is unknown until the log is
    /// opened again.
    pub fn wait(&self) -> Result<Receipt, AppendError> {
        self.gate.wait(self.receipt.last, self.durability).map(|()| self.receipt)
    }

    /// Waits at most so long; `None` if the batch is not as durable as asked by then. Leaves the work to
    /// others, as polling does; without the I/O thread it does the work itself, and no write or sync of its own
    /// is cut short by the limit.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    pub fn wait_timeout(&self, limit: Duration) -> Result<Option<Receipt>, AppendError> {
        let until = Instant::now().checked_add(limit);
        let reached = self.gate.wait_until(self.receipt.last, self.durability, until)?;
        Ok(reached.then_some(self.receipt))
    }
}

impl Future for Ticket {
    type Output = Result<Receipt, AppendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.get_mut();
        let outcome =
            ticket.gate.poll(ticket.receipt.last, ticket.durability, &mut ticket.number, context.waker());
        outcome.map(|outcome| outcome.map(|()| ticket.receipt))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gate.forget_ticket(self.receipt.last, self.durability, self.number);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("receipt", &self.receipt)
            .field("durability", &self.durability)
            .finish()
    }
}
