//! Permits: room that is reserved before its batch exists.

use std::fmt;
use std::sync::Arc;

use crate::batch::Batch;
use crate::error::AppendError;
use crate::gate::{ForRoom, Gate, Receipt};
use crate::options::Durability;
use crate::ticket::Ticket;

/// Room for one batch, in staging and in a file, taken before the caller changes a state of its own: an
/// append on a permit cannot fail for want of room, and never waits for any.
///
/// It still fails where the log is poisoned or closed. Where the file system cannot reserve space for real
/// ([`Stats::allocation`](crate::Stats::allocation) is `Sparse`), the batch is staged all the same, and
/// written once there is room. Dropping a permit gives the room back. A permit keeps the log open.
///
/// ```
/// # use planewal_core::{Batch, Options, Wal};
/// # let dir = tempfile::tempdir()?;
/// # let wal = Wal::open(dir.path().join("log"), Options::default())?;
/// let mut batch = Batch::new();
/// let permit = wal.reserve(Batch::encoded(5))?; // may answer `Full`: nothing has changed yet
/// batch.push(0x80, 1, b"taken")?;
/// permit.commit(&mut batch)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a permit gives its room back"]
pub struct Permit {
    gate: Arc<Gate>,
    bytes: u64,
    /// Its room is still reserved.
    holds: bool,
}

impl Permit {
    pub(crate) fn new(gate: &Arc<Gate>, bytes: u64, for_room: ForRoom) -> Result<Permit, AppendError> {
        // No more than a batch may bring, or a state would be changed on a permit that is of no use.
        let limit = gate.options.record_bytes_max;
        if bytes > Batch::encoded(usize::try_from(limit).unwrap_or(usize::MAX)) {
            return Err(AppendError::TooLarge { bytes, limit });
        }
        gate.reserve(bytes, for_room)?;
        Ok(Permit { gate: Arc::clone(gate), bytes, holds: true })
    }

    /// The encoded bytes that it is for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a batch of at most [`bytes`](Permit::bytes), as [`Wal::commit`](crate::Wal::commit) does.
    ///
    /// # Errors
    /// [`AppendError::PermitTooSmall`] for a larger batch, which stays the caller's, and as
    /// [`Wal::commit`](crate::Wal::commit), but never [`AppendError::Full`].
    pub fn commit(self, batch: &mut Batch) -> Result<Receipt, AppendError> {
        let durability = self.gate.options.durability;
        self.commit_as(batch, durability)
    }

    /// Appends a batch and waits until it is as durable as asked.
    ///
    /// # Errors
    /// As [`Permit::commit`].
    pub fn commit_as(mut self, batch: &mut Batch, durability: Durability) -> Result<Receipt, AppendError> {
        self.gate.commit_reserved(&mut self.holds, self.bytes, batch, durability)
    }

    /// Appends a batch and returns at once, as [`Wal::submit`](crate::Wal::submit) does, and without any I/O.
    ///
    /// # Errors
    /// As [`Permit::commit`], but for what only waiting can tell.
    pub fn submit(self, batch: &mut Batch) -> Result<Ticket, AppendError> {
        let durability = self.gate.options.durability;
        self.submit_as(batch, durability)
    }

    /// Appends a batch and returns at once; it will be as durable as asked.
    ///
    /// # Errors
    /// As [`Permit::submit`].
    pub fn submit_as(mut self, batch: &mut Batch, durability: Durability) -> Result<Ticket, AppendError> {
        let receipt = self.gate.submit_reserved(&mut self.holds, self.bytes, batch, durability)?;
        Ok(Ticket::new(Arc::clone(&self.gate), receipt, durability))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.holds {
            self.gate.unreserve(self.bytes);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
