//! The mechanism of planewal: bytes into segments and out again, in order, as durable as asked.
//!
//! Use this crate alone for a log of records of your own. A record is an [`Lsn`], a plane, a kind and a
//! payload of up to 1 GiB; plane and kind are two bytes that mean nothing here, but for zero, which is
//! never valid. The crate `planewal` has the promises in a table, and says how to choose a durability.
//!
//! # Writing
//!
//! [`Wal`] is a handle that is cheap to clone and to share; one process has it, and a lock on the
//! directory. A [`Batch`] is in the log whole or not at all. A commit returns when its batch is as durable
//! as [`Durability`] says; many committers share one write and one sync.
//!
//! Three marks only rise: [`Wal::last`], the LSNs given out; [`Wal::written`], what the death of the
//! process leaves; [`Wal::durable`], what a loss of power leaves. Until a record is at or below the mark
//! that you need, act as if it were not there.
//!
//! ```
//! use planewal_core::{Batch, Durability, Options, Wal};
//! # let dir = tempfile::tempdir()?;
//! let wal = Wal::open(dir.path(), Options::default())?;
//! let mut batch = Batch::new();
//! batch.push(0x80, 0x80, b"from")?;
//! batch.push(0x80, 0x81, b"to")?;
//! let receipt = wal.commit_as(&mut batch, Durability::Written)?; // survives kill -9
//! assert!(batch.is_empty() && wal.written() >= Some(receipt.last));
//! wal.wait_durable(receipt.last)?; // and now a loss of power
//! assert_eq!(wal.durable(), Some(receipt.last));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What an error means for the records is in its type. After [`AppendError::Full`], `Storage` or
//! `TooLarge` the batch has no LSN and is still the caller's. After [`AppendError::Poisoned`] its outcome
//! is unknown: drop the handle, open the log again, and read.
//!
//! # Reading
//!
//! [`Reader`] lends records in LSN order, out of a [`Wal`] up to what is written, or out of a [`View`] up
//! to what it found; a view takes no lock and changes no byte. A [`Cursor`] keeps a place over restarts.
//! It may have seen records that were not durable, and if a loss of power took them, it is told
//! ([`ReadError::Diverged`]).
//!
//! ```
//! use planewal_core::{Cursor, Lsn, Options, View, Wal};
//! # let dir = tempfile::tempdir()?;
//! let wal = Wal::open(dir.path(), Options::default())?;
//! wal.append(0x80, 0x80, b"one")?;
//! wal.append(0x80, 0x80, b"two")?;
//!
//! let view = View::open(dir.path())?; // beside the writer
//! let mut reader = view.read(Lsn::FIRST)?;
//! assert_eq!(reader.next()?.map(|record| record.payload), Some(&b"one"[..]));
//! let kept: [u8; 44] = reader.cursor().to_bytes();
//!
//! let cursor = Cursor::from_bytes(&kept).ok_or("no cursor")?;
//! let mut reader = wal.read_from(&cursor)?;
//! assert_eq!(reader.next()?.map(|record| record.payload), Some(&b"two"[..]));
//! assert!(reader.next()?.is_none()); // caught up; ask again later
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Follow`] reads a log that another process writes, by looking again and again, and gives only what is
//! proved durable.
//!
//! # Letting go
//!
//! [`Wal::retire_unchecked`] takes away whole segments at the head of the chain. What a [`Hold`], in memory
//! or durable by name, reaches into stays. Which records are still needed is the caller's to know.
//!
//! # After a crash
//!
//! Opening surveys the whole log and comes to a [`Verdict`] with its [`Proof`]. A torn tail is cut, and
//! [`Wal::recovery`] says what it was; what is missing below a durable mark is damage, and refused with a
//! [`Finding`] that names file, offset and LSN, before a byte is changed. [`repair`] accepts the loss on a
//! new branch, leaves the segments as they are, and every later reader is told of it.
//!
//! ```
//! use planewal_core::{Lsn, Options, OpenError, Verdict, View, Wal, repair, storage::FsStorage};
//! # let home = tempfile::tempdir()?;
//! # let dir = home.path();
//! let wal = Wal::open(dir, Options::default())?;
//! wal.append(0x80, 0x80, b"one")?;
//! let second = wal.append(0x80, 0x80, b"two")?;
//! let place = wal.seek(second)?;
//! wal.close()?;
//! drop(wal);
//!
//! // The end is cut off, long after it was whole.
//! let file = std::fs::OpenOptions::new().write(true).open(dir.join(place.segment.file_name()))?;
//! file.set_len(place.offset)?;
//!
//! let Err(OpenError::Refused { finding, .. }) = Wal::open(dir, Options::default()) else { panic!() };
//! assert_eq!((finding.verdict, finding.lsn), (Verdict::Damaged, Some(second)));
//! assert_eq!(View::open(dir)?.report().last, Some(Lsn::FIRST)); // looking is allowed
//!
//! let done = repair(std::sync::Arc::new(FsStorage::new(dir)))?;
//! assert_eq!(done.lost, [(second, second)]);
//! assert_eq!(Wal::open(dir, Options::default())?.next(), second.next());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Backup
//!
//! [`Wal::backup_to`] copies a proved prefix beside the writer, and verifies the copy; [`restore`] turns a
//! backup into a log of its own, on a new branch.
//!
//! # The disk
//!
//! Everything goes through [`storage::Storage`]. The feature `testing` has a simulated disk that knows
//! what is durable, a storage that fails as told, and a conformance suite for storages of your own.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod backup;
mod batch;
mod chain;
mod control;
mod copy;
mod error;
mod events;
mod follow;
mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod gate;
mod hold;
mod io_util;
mod lsn;
mod open;
mod options;
mod permit;
mod prepare;
mod reader;
mod repair;
mod report;
mod restore;
mod scan;
mod scout;
mod segment;
mod spare;
mod stats;
pub mod storage;
mod survey;
mod sync;
mod tail;
mod ticket;
mod usage;
mod verdict;
mod view;
mod wal;
mod wire;

pub use backup::BackupReport;
pub use batch::Batch;
pub use chain::SegmentInfo;
pub use error::{
    AppendError, BackupError, CloseError, HoldError, NoRoom, OpenError, OptionError, Poison, ReadError,
    RepairError, RestoreError, RetireError, StorageError,
};
pub use follow::Follow;
pub use gate::Receipt;
pub use hold::{Hold, HoldInfo, HoldKind};
pub use lsn::{LogId, Lsn, SegmentId};
pub use options::{Create, Durability, Options, Recovery};
pub use permit::Permit;
pub use reader::{Cursor, Position, Reader, Record};
pub use repair::{RepairPlan, plan_repair, repair};
pub use report::{
    Ancestor, CleanClose, ExtraFile, KeptBecause, RecoveryReport, RetireReport, RetiredFile, RetiredSegment,
    StayingSegment, SurveyReport,
};
pub use restore::{RestoreReport, restore};
pub use segment::PlaneCount;
pub use stats::{FullDisk, Histogram, InFlight, Metric, Stats};
pub use tail::{Next, Tail, Tailed};
pub use ticket::Ticket;
pub use usage::DiskUsage;
pub use verdict::{Finding, Proof, Verdict};
pub use view::View;
pub use wal::Wal;
