//! Crash consistency: power losses, dead processes and failing disks at every call, against a plain model.
//!
//! A longer variant of everything runs with `PLANEWAL_LONG=1`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it did not expect has failed"
)]

mod concurrency;
mod enumeration;
mod failures;
mod interleaving;
mod model;
mod neighbours;
mod repairs;
mod run;
mod scenarios;
