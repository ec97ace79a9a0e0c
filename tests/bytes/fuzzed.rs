//! What fuzzers found, by name, and what random bytes find here.

use planewal_core::fuzzing;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::long;

fn cases(few: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if long() { few * 50 } else { few },
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn any_bytes_do_no_harm_to_a_directory(data in vec(any::<u8>(), 0..60)) {
        fuzzing::open_directory(&data);
    }

    #[test]
    fn any_bytes_do_no_harm_to_a_scan(data in vec(any::<u8>(), 0..300)) {
        fuzzing::segment_scan(&data);
    }

    #[test]
    fn any_bytes_do_no_harm_to_a_decoder(data in vec(any::<u8>(), 0..300)) {
        fuzzing::frame_parser(&data);
    }
}
