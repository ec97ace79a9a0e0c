//! Stories about the `planewal` program, told by running it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod append_and_dump;
mod backup;
mod damage;
mod demo;
mod explain;
mod repair;
mod support;
mod tail;
