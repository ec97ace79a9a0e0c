//! A walk over one segment, of any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| planewal_core::fuzzing::segment_scan(data));
