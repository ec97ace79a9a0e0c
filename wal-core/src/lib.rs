//! The mechanism of planewal: bytes into segments and out again, in order, as durable as asked.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod batch;
mod chain;
mod control;
mod error;
mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod gate;
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
pub mod storage;
mod survey;
mod verdict;
mod view;
mod wal;
mod wire;

pub use batch::Batch;
pub use chain::SegmentInfo;
pub use error::{
    AppendError, CloseError, OpenError, OptionError, Poison, ReadError, RepairError, StorageError,
};
pub use gate::Receipt;
pub use lsn::{LogId, Lsn, SegmentId};
pub use options::{Create, Durability, Options, Recovery};
pub use reader::{Cursor, Position, Reader, Record};
pub use repair::{RepairPlan, plan_repair, repair};
pub use report::{Ancestor, ExtraFile, RecoveryReport, SurveyReport};
pub use segment::PlaneCount;
pub use verdict::{Finding, Proof, Verdict};
pub use view::View;
pub use wal::Wal;
