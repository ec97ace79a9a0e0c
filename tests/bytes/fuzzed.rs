//! What fuzzers found, by name, and what random bytes find here.

use std::sync::Arc;

use planewal::repair;
use planewal_core::fuzzing::{self, Scene};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{long, open, segment, view};

// open_directory: 2e 0a 0a 0a
#[test]
fn a_log_goes_on_behind_a_stand_in_that_became_its_newest() {
    let storage = fuzzing::sample(Scene::Sieved, 7).storage;
    storage.remove_file(&segment(4));
    repair(Arc::new(storage.clone())).unwrap();
    let wal = open(&storage);
    let lsn = wal.append(0x80, 1, b"and on").unwrap();
    wal.close().unwrap();
    drop(wal);
    let report = view(&storage).report().clone();
    assert!(report.findings.iter().all(|finding| finding.harmless), "{:#?}", report.findings);
    assert_eq!((report.last, report.closed_cleanly), (Some(lsn), true));
}

fn cases(few: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if long() { few * 50 } else { few },
        max_shrink_iters: 200,
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

    // The last scene is a log made by a recipe, which is read from the same bytes.
    #[test]
    fn any_bytes_do_no_harm_to_any_directory(data in vec(any::<u8>(), 20..120)) {
        let mut data = data;
        data[0] = Scene::ALL.len() as u8;
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
