//! The mechanism of planewal: bytes into segments and out again, in order, as durable as asked.
//!
//! Use this crate alone for a log of records of your own. A record is an LSN, a plane, a kind and a
//! payload; plane and kind are two opaque bytes here.
//!
//! # Writing
//!
//! [`Wal`] is a handle that is cheap to clone and to share. A [`Batch`] is in the log whole or not at
//! all. A commit returns when its batch is as durable as [`Durability`] says; many committers share one
//! write and one sync.
//!
//! # Reading
//!
//! [`Reader`] lends records in LSN order, out of a [`Wal`] or out of a [`View`], which takes no lock and
//! changes no byte. A [`Cursor`] keeps a place over restarts, and knows when a loss of power took what
//! it had read.
//!
//! # Letting go
//!
//! [`Wal::retire_unchecked`] takes away whole segments at the head of the chain. What a [`Hold`], in memory
//! or durable by name, reaches into stays. Which records are still needed is the caller's to know.
//!
//! # After a crash
//!
//! Opening surveys the whole log and comes to a [`Verdict`] with its [`Proof`]. A torn tail is cut; what
//! is missing below a durable mark is damage, and refused with a [`Finding`] that names file, offset and
//! LSN. [`repair`] accepts a loss on a new branch.
//!
//! # The disk
//!
//! Everything goes through [`storage::Storage`]. The feature `testing` has a simulated disk that knows
//! what is durable, a storage that fails as told, and a conformance suite for storages of your own.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod batch;
mod chain;
mod control;
mod copy;
mod error;
mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod gate;
mod hold;
mod io_util;
mod lsn;
mod open;
mod options;
mod prepare;
mod reader;
mod repair;
mod report;
mod scan;
mod segment;
mod spare;
pub mod storage;
mod survey;
mod ticket;
mod verdict;
mod view;
mod wal;
mod wire;

pub use batch::Batch;
pub use chain::SegmentInfo;
pub use error::{
    AppendError, CloseError, HoldError, OpenError, OptionError, Poison, ReadError, RepairError, RetireError,
    StorageError,
};
pub use gate::Receipt;
pub use hold::{Hold, HoldInfo, HoldKind};
pub use lsn::{LogId, Lsn, SegmentId};
pub use options::{Create, Durability, Options, Recovery};
pub use reader::{Cursor, Position, Reader, Record};
pub use repair::{RepairPlan, plan_repair, repair};
pub use report::{
    Ancestor, ExtraFile, KeptBecause, RecoveryReport, RetireReport, RetiredFile, RetiredSegment,
    StayingSegment, SurveyReport,
};
pub use segment::PlaneCount;
pub use ticket::Ticket;
pub use verdict::{Finding, Proof, Verdict};
pub use view::View;
pub use wal::Wal;
