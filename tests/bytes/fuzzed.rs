//! What fuzzers found, by name, and what random bytes find here.

use std::process::{Command, Stdio};
use std::sync::Arc;

use planewal::storage::MemStorage;
use planewal::{Batch, Durability, Verdict, repair};
use planewal_core::fuzzing::{self, Scene};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::support::{
    append, closed, edit, groups, long, numbers, open, payload, refusal, reseal_frame, segment, view, works,
};

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

// Found as a torn tail that was not cut because a seal stood behind it. Since a seal says that all before
// it was synced, such a place is damage, and stays accepted beside what stood in the way.
// open_directory: 5d fe 2a 2a 7e 33 40 ff 61
#[test]
fn damage_before_a_seal_is_proved_by_the_seal() {
    let storage = MemStorage::new(7);
    let wal = open(&storage);
    append(&wal, 3);
    let mut batch = Batch::new();
    for lsn in 4..=6 {
        if lsn == 6 {
            wal.rotate().unwrap();
        }
        batch.push(0x80, 1, &payload(lsn)).unwrap();
        wal.commit_as(&mut batch, Durability::Written).unwrap();
    }
    drop(wal);
    let group = groups(&storage.read(&segment(1)).unwrap())[4];
    edit(&storage, &segment(1), |bytes| bytes[group.offset + 40] ^= 1);
    let finding = refusal(&storage);
    assert_eq!((finding.verdict, finding.lsn.map(|lsn| lsn.number())), (Verdict::Damaged, Some(5)));
    storage.remove_file(&segment(2));
    storage.plant_directory(&segment(2));
    refusal(&storage);
    repair(Arc::new(storage.clone())).unwrap();
    let (reading, next) = works(&storage);
    assert_eq!((reading.lsns(), reading.lost), (numbers(4), vec![(5, 5)]));
    assert!(next >= 6);
}

// open_directory: 00 00 01 01 00 00 b5 1e 00 00 31 68
#[test]
fn losses_that_meet_stay_accepted_when_the_log_goes_on() {
    let storage = closed(&[4, 4, 4]);
    let group = groups(&storage.read(&segment(2)).unwrap())[3];
    edit(&storage, &segment(2), |bytes| bytes[group.offset + 40] ^= 1);
    storage.truncate(&segment(3), 100);
    let done = repair(Arc::new(storage.clone())).unwrap();
    assert!(!done.lost.is_empty());
    let (reading, next) = works(&storage);
    assert_eq!((reading.lsns(), next), (numbers(7), 13));
}

// A link with the right CRC that names a predecessor behind itself. In a process of its own, with
// bounded memory and time: it was an endless list.
// open_directory: 00 00 35 ba 00 00 00 1c 07 0f
#[test]
fn a_link_that_points_forwards_ends_a_survey() {
    const NAME: &str = "fuzzed::a_link_that_points_forwards_ends_a_survey";
    if std::env::var_os("PLANEWAL_BOUNDED").is_none() {
        let limits = "ulimit -v 2000000; ulimit -t 20; exec \"$0\" \"$@\"";
        let status = Command::new("sh")
            .args(["-c", limits])
            .arg(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--test-threads", "1"])
            .env("PLANEWAL_BOUNDED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    for target in [2, 3, 9, u64::MAX] {
        let storage = closed(&[4, 4, 4]);
        edit(&storage, &segment(2), |bytes| {
            bytes[4096 + 32..][..8].copy_from_slice(&target.to_le_bytes());
            reseal_frame(bytes, 4096);
        });
        assert_ne!(view(&storage).report().verdict, Verdict::Clean, "to segment {target}");
        refusal(&storage);
    }
}

// open_directory: ec aa 7b 05 26 aa aa aa aa aa 2a aa aa 00 00
#[test]
fn a_damaged_stand_in_speaks_for_all_its_lsns() {
    fuzzing::open_directory(&[
        0xec, 0xaa, 0x7b, 5, 0x26, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0x2a, 0xaa, 0xaa, 0, 0,
    ]);
}

// Numbers that no slot can hold, in forged headers of a log without a control file.
// open_directory: 01 09 1e 1e 1e 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 5d 2b 09 01
#[test]
fn repair_writes_no_slot_that_nobody_can_read() {
    let mut bytes = vec![0x01, 0x09, 0x1e, 0x1e, 0x1e];
    bytes.extend([0x5d; 17]);
    bytes.extend([0x2b, 0x09, 0x01]);
    fuzzing::open_directory(&bytes);
}

// Found as a stranger's records that a view believed: the recipe had drawn the stranger's seed, so that it
// was the same log. Kept so that the harness stays honest.
#[test]
fn a_recipe_never_makes_the_log_that_is_foreign_to_it() {
    let mut data = [
        0, 99, 26, 36, 0, 0, 0, 60, 0, 24, 88, 157, 4, 20, 179, 49, 214, 140, 162, 223, 84, 144, 88, 20, 95,
        129, 196, 23, 169, 238, 241, 25, 23, 17, 79, 39, 173, 37, 88, 185, 12, 104, 255, 22, 141, 81, 38,
        230, 25, 133, 179, 63, 50, 38, 119, 125, 125, 46, 7, 180, 66, 53, 84, 203,
    ];
    data[0] = Scene::ALL.len() as u8;
    fuzzing::open_directory(&data);
}

/// A short run takes the same cases every time, so that it says something about the change; a long one
/// takes new ones.
fn cases(few: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if long() { few * 50 } else { few },
        max_shrink_iters: 200,
        rng_seed: if long() { RngSeed::Random } else { RngSeed::Fixed(7) },
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
