//! A write-ahead log for databases and brokers.
//!
//! This crate is the door: it re-exports the crates of the family and has no logic of its own.

pub use planewal_core::*;
