//! Any bytes: what a log directory gets whose bytes are wrong, what its format is, and what an append
//! costs.

mod budgets;
mod corpus;
mod counting;
mod damage;
mod files;
mod fuzzed;
mod golden;
mod repairs;
mod support;
