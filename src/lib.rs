//! A write-ahead log for databases and brokers: segments, planes, proofs.
//!
//! A program that keeps state appends to a log what is going to happen, and does it when the log has it.
//! After a crash it reads the log again and is where it was. planewal is that log: one directory, one
//! writer, any number of readers. Records get dense numbers ([`Lsn`]) and belong to *planes* (a queue, a
//! table, deliveries under way), so that one log serves many parts of one program.
//!
//! # A first log
//!
//! ```
//! use planewal::{Batch, Lsn, Options, Wal};
//! # let home = tempfile::tempdir()?;
//! # let dir = home.path().join("log");
//! const ORDERS: u8 = 0x80; // planes and kinds from 0x80 up are yours
//! const PLACED: u8 = 0x80;
//!
//! let wal = Wal::open(&dir, Options::default())?; // makes it, or recovers what a crash left
//! wal.append(ORDERS, PLACED, b"one pound of tea")?; // on the disk when it returns
//!
//! let mut batch = Batch::new(); // in the log whole, or not at all
//! batch.push(ORDERS, PLACED, b"a teapot")?;
//! batch.push(ORDERS, PLACED, b"two cups")?;
//! let receipt = wal.commit(&mut batch)?;
//! assert_eq!((receipt.first.number(), receipt.last.number()), (2, 3));
//! drop(wal); // no close: the next open finds out by itself
//!
//! let wal = Wal::open(&dir, Options::default())?;
//! let mut reader = wal.read(Lsn::FIRST)?;
//! let mut orders = 0;
//! while let Some(record) = reader.next()? {
//!     assert_eq!((record.plane, record.kind), (ORDERS, PLACED));
//!     orders += 1;
//! }
//! assert_eq!(orders, 3);
//! wal.close()?; // seals the log, and proves where it ends
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! | | |
//! |---|---|
//! | P1 | After a crash you read a beginning of what was appended, in order, no batch in part. |
//! | P2 | What was acknowledged at a [`Durability`] survives what that level names, and all before it does. |
//! | P3 | You read nothing that was not appended to this very log. |
//! | P4 | LSNs are 1, 2, 3, ...; one that was proved durable never stands for another record. |
//! | P5 | Damage is told from a torn tail by proof. A torn tail is cut and reported, damage never cut. |
//! | P6 | After a failed write or sync the handle is poisoned; nothing is tried again behind your back. |
//! | P7 | Reading writes nothing: no byte, no time, no lock. |
//! | P8 | Not yet: a segment leaves when every plane in it has let go of it, durably. So far segments leave by [`Wal::retire_unchecked`] alone, which asks holds and nobody else. |
//! | P9 | A full disk is an answer, given before an LSN is; appends go on when there is room. |
//! | P10 | Opening, reading and writing hold 16 MiB and the largest group at most, whatever lies on disk. |
//! | P11 | No bytes make a parser panic, read too far, or allocate by a length that nobody checked. |
//! | P12 | Whoever looks on, by a [`View`] or a [`Reader`], changes nothing that is written or decided. |
//!
//! All of it rests on one assumption about disks: to rewrite a sector never harms those bytes in it that
//! stay the same. Nothing is assumed of the order of writes, of atomicity, or of a sync that failed.
//!
//! # Which durability
//!
//! | level | on return the record is | survives | costs | for |
//! |---|---|---|---|---|
//! | [`Buffered`](Durability::Buffered) | in the writer's memory | nothing | a copy | what a later commit covers |
//! | [`Written`](Durability::Written) | the operating system's | the death of the process | a write | what can be had again |
//! | [`Synced`](Durability::Synced) | on the disk | a loss of power | a write and a sync | what you have promised somebody |
//!
//! `Synced` is the default. Committers share writes and syncs, so more threads cost less each. An
//! acknowledgement covers every lower LSN, so one strict commit makes all before it as safe:
//!
//! ```
//! use planewal::{Durability, Options, Wal};
//! # let dir = tempfile::tempdir()?;
//! let wal = Wal::open(dir.path(), Options::default())?;
//! for step in 0..100_u32 {
//!     wal.append_as(0x80, 0x80, &step.to_le_bytes(), Durability::Buffered)?;
//! }
//! let done = wal.append(0x80, 0x81, b"all hundred")?; // one write and one sync for all of them
//! assert_eq!(wal.durable(), Some(done));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Wal::submit`] returns at once with a [`Ticket`], to wait for, or to `.await` under any runtime.
//!
//! # Where to go next
//!
//! * [`Wal`] writes and reads, [`Batch`] makes records one, [`Options`] has every number with its range.
//! * [`Reader`] lends records, a [`Cursor`] keeps its place; `Diverged` tells that a loss of power took
//!   what it had read.
//! * [`View`] looks without touching, beside a live writer too; [`Verdict`], [`Proof`] and [`Finding`] are
//!   what it sees. [`repair`] is the way out where [`Wal::open`] refuses.
//! * [`Ticket`] waits for durability without blocking, [`Permit`] reserves room before a state is changed,
//!   [`Stats`] tell how the log fares.
//! * [`Tail`] follows in this process, [`Follow`] in another one; a [`Hold`] keeps what is still needed, and
//!   [`Wal::retire_unchecked`] lets the rest go, behind a checkpoint: there is how.
//! * [`Wal::backup_to`] copies while the log is written, [`restore`] makes the copy a log of its own.
//! * [`storage`] is the disk as a trait. The feature `testing` adds disks that lose power and fail on
//!   demand, for tests of your own.
//! * In the repository `examples/` has short programs for each part, `docs/operations.md` is for who runs
//!   it, `docs/recovery.md` the table behind every verdict, `docs/format.md` the bytes, and `docs/testing.md` what all of this is tested with.
//!
//! This crate is a door without logic. Behind it are `planewal-core`, the mechanism, which can be used
//! alone; `planewal-records`, what records mean, and `planewal-recycle`, what may be forgotten, are still
//! empty.

pub use planewal_core::*;

/// The README's example, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the page for who runs it.
#[cfg(doctest)]
#[doc = include_str!("../docs/operations.md")]
struct Operations;
