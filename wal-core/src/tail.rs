//! What somebody who reads at the end of a log is told.

use crate::lsn::Lsn;
use crate::reader::Record;

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
