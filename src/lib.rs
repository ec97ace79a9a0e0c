//! A write-ahead log for databases and brokers: segments, planes, proofs.
//!
//! This crate is the door. It re-exports the crates of the family and has no logic of its own; each of
//! them can be used without it:
//!
//! * `planewal-core`, the mechanism: bytes into segments and out again, in order, as durable as asked.
//!   Use it alone for a log of your own records.
//! * `planewal-records`, the meaning, and `planewal-recycle`, the policy: still empty.
//!
//! Start with [`Wal`] for writing, [`View`] for looking without touching, and [`repair`] when a log is
//! refused. The guarantees are in the README, and how they come about in `docs/`.

pub use planewal_core::*;

/// The README's example, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
