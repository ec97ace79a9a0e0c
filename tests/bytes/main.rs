//! Any bytes: what a log directory gets whose bytes are wrong, what its format is, and what an append
//! costs.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails is a test that fails"
)]

mod backups;
mod budgets;
mod claims;
mod corpus;
mod counting;
mod damage;
mod files;
mod fuzzed;
mod golden;
mod repairs;
mod support;
