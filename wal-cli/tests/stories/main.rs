//! Stories about the `planewal` program, told by running it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod append_and_dump;
mod backup;
mod bench;
mod damage;
mod demo;
mod explain;
mod info;
mod messages;
mod repair;
mod support;
mod tail;
