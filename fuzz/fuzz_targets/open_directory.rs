//! A whole directory that something happened to.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| planewal_core::fuzzing::open_directory(data));
