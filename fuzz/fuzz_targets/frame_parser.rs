//! Every decoder, on any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| planewal_core::fuzzing::frame_parser(data));
