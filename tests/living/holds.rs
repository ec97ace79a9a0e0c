//! Holds: what they keep, how far they may go, and what of them survives.

use std::io;
use std::sync::Arc;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{HoldError, HoldKind, KeptBecause, Lsn, RetireError, Wal};
use planewal_core::fuzzing;

use crate::support::{fill, lsn, open};

const CONTROL: &str = "planewal.ctl";
const SLOT: usize = 65_536;

fn log(seed: u64, records: u64) -> (MemStorage, Wal) {
    let disk = MemStorage::new(seed);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, records);
    (disk, wal)
}

fn held(wal: &Wal) -> Vec<(String, u64, HoldKind)> {
    wal.holds().into_iter().map(|hold| (hold.name, hold.lsn.number(), hold.kind)).collect()
}

// faults: B125
#[test]
fn a_hold_names_the_first_lsn_kept_and_never_one_that_is_not_durable() {
    let (_disk, wal) = log(1, 3);
    wal.append_as(0x80, 1, b"only written", planewal::Durability::Written).unwrap();
    assert!(matches!(wal.hold("tail", lsn(5)), Err(HoldError::Ahead { most, .. }) if most == lsn(4)));
    assert!(matches!(wal.hold_durably("tail", lsn(5)), Err(HoldError::Ahead { .. })));
    let hold = wal.hold("tail", lsn(4)).unwrap();
    assert_eq!((hold.name(), hold.lsn()), ("tail", lsn(4)));
    assert!(matches!(hold.advance(lsn(5)), Err(HoldError::Ahead { .. })));
    assert!(matches!(hold.advance(lsn(3)), Err(HoldError::Backwards { at, .. }) if at == lsn(4)));
    wal.sync().unwrap();
    hold.advance(lsn(5)).unwrap();
    hold.advance(lsn(5)).unwrap();
    assert_eq!(hold.lsn(), lsn(5));
    // An empty log can be held as well.
    let empty = open(Arc::new(MemStorage::new(2)));
    assert!(matches!(empty.hold("early", lsn(2)), Err(HoldError::Ahead { .. })));
    drop(empty.hold("early", Lsn::FIRST).unwrap());
}

#[test]
fn names_have_bounds_and_in_memory_they_need_not_differ() {
    let (_disk, wal) = log(3, 1);
    for name in ["", &"x".repeat(64)] {
        assert!(matches!(wal.hold(name, lsn(1)), Err(HoldError::Name { limit: 63, .. })));
        assert!(matches!(wal.hold_durably(name, lsn(1)), Err(HoldError::Name { .. })));
    }
    let one = wal.hold("backup", lsn(1)).unwrap();
    let other = wal.hold("backup", lsn(2)).unwrap();
    wal.hold_durably("backup", lsn(1)).unwrap();
    assert!(matches!(wal.hold_durably("backup", lsn(1)), Err(HoldError::Exists { .. })));
    assert_eq!(held(&wal).len(), 3);
    drop((one, other));
    assert_eq!(held(&wal), [("backup".to_owned(), 1, HoldKind::Durable)]);
    assert!(matches!(wal.release_durable_hold("other"), Err(HoldError::Unknown { .. })));
    assert!(matches!(wal.advance_durable_hold("other", lsn(1)), Err(HoldError::Unknown { .. })));
}

// faults: B134
#[test]
fn a_held_segment_stays_and_the_report_names_the_hold() {
    let (_disk, wal) = log(4, 40);
    let hold = wal.hold("backup", lsn(1)).unwrap();
    let report = wal.retire_unchecked(lsn(40)).unwrap();
    assert!(report.retired.is_empty() && report.bytes == 0 && report.first == lsn(1));
    let stays = report.stays.unwrap();
    assert_eq!((stays.id.number(), stays.base), (1, lsn(1)));
    assert!(matches!(stays.why, KeptBecause::Held(hold) if hold.name == "backup" && hold.lsn == lsn(1)
            && hold.kind == HoldKind::InMemory));
    // A hold on the first record of the third segment lets two go, and no third.
    let third = wal.segments()[2].base;
    hold.advance(third).unwrap();
    let report = wal.retire_unchecked(lsn(40)).unwrap();
    assert_eq!(report.retired.len(), 2);
    assert_eq!((report.first, wal.first()), (third, third));
    assert!(matches!(report.stays.unwrap().why, KeptBecause::Held(_)));
    // Below, nothing is left to hold.
    let below = lsn(third.number() - 1);
    assert!(matches!(wal.hold("late", below), Err(HoldError::Retired { first, .. }) if first == third));
    assert!(matches!(wal.hold_durably("late", below), Err(HoldError::Retired { .. })));
    drop(hold);
    assert!(!wal.retire_unchecked(lsn(40)).unwrap().retired.is_empty());
}

// faults: B122
#[test]
fn a_durable_hold_survives_a_reopen_a_kill_and_a_loss_of_power() {
    let (disk, wal) = log(5, 40);
    wal.hold_durably("replica", lsn(12)).unwrap();
    wal.hold_durably("archive", lsn(20)).unwrap();
    wal.advance_durable_hold("replica", lsn(17)).unwrap();
    wal.hold_durably("gone", lsn(1)).unwrap();
    wal.release_durable_hold("gone").unwrap();
    let _memory = wal.hold("in memory only", lsn(1)).unwrap();
    let all = [("archive".to_owned(), 20, HoldKind::Durable), ("replica".to_owned(), 17, HoldKind::Durable)];
    let images = [disk.fork_live(), disk.crash(&CrashPlan::Nothing)];
    wal.close().unwrap();
    drop(wal);
    for image in images.into_iter().chain([disk]) {
        let wal = open(Arc::new(image));
        assert_eq!(held(&wal), all);
        let report = wal.retire_unchecked(lsn(40)).unwrap();
        assert!(report.first <= lsn(17), "{report:?}");
        assert!(matches!(&report.stays.unwrap().why, KeptBecause::Held(hold) if hold.name == "replica"
                && hold.kind == HoldKind::Durable));
        assert!(matches!(wal.advance_durable_hold("replica", lsn(16)), Err(HoldError::Backwards { .. })));
        assert_eq!(wal.read(lsn(17)).unwrap().next().unwrap().unwrap().lsn, lsn(17));
    }
}

/// Taken, moved and released: at any cut the hold is where it was or where it shall be, and whichever slot
/// is lost, the other one is safe to act on.
#[test]
fn either_slot_alone_is_safe() {
    let (disk, wal) = log(6, 20);
    wal.hold_durably("replica", lsn(3)).unwrap();
    wal.advance_durable_hold("replica", lsn(9)).unwrap();
    wal.hold_durably("archive", lsn(4)).unwrap();
    wal.release_durable_hold("archive").unwrap();
    for slot in 0..2 {
        let image = disk.fork_live();
        assert!(image.flip_bit(CONTROL, (slot * SLOT + 40) as u64 * 8));
        let wal = open(Arc::new(image));
        assert_eq!(held(&wal), [("replica".to_owned(), 9, HoldKind::Durable)], "without slot {slot}");
    }
}

type Changed = fn(&Wal) -> Result<(), HoldError>;

#[test]
fn a_change_of_a_hold_may_be_cut_anywhere() {
    let (disk, wal) = log(7, 20);
    wal.hold_durably("moved", lsn(3)).unwrap();
    wal.hold_durably("released", lsn(4)).unwrap();
    wal.close().unwrap();
    drop(wal);
    let changes: [Changed; 3] = [
        |wal| wal.hold_durably("taken", lsn(5)),
        |wal| wal.advance_durable_hold("moved", lsn(8)),
        |wal| wal.release_durable_hold("released"),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull] {
            for at in 1..=5 {
                let disk = disk.fork_live();
                let storage = FaultStorage::new(Arc::new(disk.clone()));
                let wal = open(Arc::new(storage.clone()));
                storage.inject(Fault::error(kind).at_mutation(at));
                let outcome = change(&wal);
                storage.clear_faults();
                let there =
                    |wal: &Wal| held(wal).into_iter().map(|(name, at, _)| (name, at)).collect::<Vec<_>>();
                let count = |changed: bool| match number {
                    0 => there(&wal).contains(&("taken".to_owned(), 5)) == changed,
                    1 => there(&wal).contains(&("moved".to_owned(), if changed { 8 } else { 3 })),
                    _ => there(&wal).contains(&("released".to_owned(), 4)) != changed,
                };
                assert!(count(outcome.is_ok()), "{number} {at} {outcome:?}: {:?}", held(&wal));
                match &outcome {
                    Ok(()) => assert!(at > 4, "two writes and two syncs"),
                    Err(HoldError::Full(_)) => change(&wal).unwrap(),
                    Err(HoldError::Poisoned(_)) => {
                        assert!(matches!(wal.retire_unchecked(lsn(20)), Err(RetireError::Poisoned(_))));
                    }
                    Err(error) => panic!("{error}"),
                }
                let acted = !matches!(outcome, Err(HoldError::Poisoned(_)));
                for plan in [CrashPlan::Nothing, CrashPlan::Everything, CrashPlan::Seeded(at)] {
                    let wal = open(Arc::new(disk.crash(&plan)));
                    let moved = there(&wal).into_iter().find(|(name, _)| name == "moved").unwrap().1;
                    assert!(moved == 3 || (number == 1 && moved == 8));
                    if acted {
                        let done = match number {
                            0 => there(&wal).contains(&("taken".to_owned(), 5)),
                            1 => moved == 8,
                            _ => !there(&wal).contains(&("released".to_owned(), 4)),
                        };
                        assert!(done, "acknowledged and lost: {number} at {at}, {plan:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn there_are_sixty_four_durable_holds_at_most() {
    let (disk, wal) = log(8, 2);
    for number in 0..64 {
        wal.hold_durably(&format!("{number:063}"), lsn(1)).unwrap();
    }
    assert!(matches!(wal.hold_durably("one more", lsn(1)), Err(HoldError::TooMany { limit: 64 })));
    drop(wal);
    let wal = open(Arc::new(disk));
    assert_eq!(held(&wal).len(), 64);
    wal.release_durable_hold(&format!("{:063}", 7)).unwrap();
    wal.hold_durably("one more", lsn(1)).unwrap();
}

/// A section that a later version wrote, or that is garbage: nobody can say what it does not hold.
#[test]
fn a_section_that_does_not_decode_holds_everything_and_is_kept() {
    let whole = {
        let mut bytes = vec![1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, b'a'];
        bytes.resize(80, 0);
        bytes
    };
    let later = [&[2][..], &whole[1..]].concat();
    for (at, bytes) in [later, whole[..79].to_vec(), Vec::new(), vec![0xff; 200]].iter().enumerate() {
        let (disk, wal) = log(9, 40);
        wal.close().unwrap();
        drop(wal);
        fuzzing::add_section(&disk, 2, bytes);
        let wal = open(Arc::new(disk.clone()));
        assert_eq!(held(&wal), [(String::new(), 1, HoldKind::Unreadable)], "{at}");
        let report = wal.retire_unchecked(lsn(40)).unwrap();
        assert!(report.retired.is_empty());
        let why = report.stays.unwrap().why;
        assert!(matches!(why, KeptBecause::Held(hold) if hold.kind == HoldKind::Unreadable));
        assert!(matches!(wal.hold_durably("b", lsn(1)), Err(HoldError::Unreadable)));
        assert!(matches!(wal.release_durable_hold("a"), Err(HoldError::Unreadable)));
        // Holds in memory are still to be had, and the bytes stay for whoever can read them.
        drop(wal.hold("tail", lsn(1)).unwrap());
        fill(&wal, 60);
        wal.close().unwrap();
        let control = disk.read(CONTROL).unwrap();
        for slot in [&control[..SLOT], &control[SLOT..]] {
            let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
            let section = [&2_u32.to_le_bytes()[..], &length, bytes].concat();
            assert!(slot.windows(section.len()).any(|window| window == section), "{at}");
        }
    }
    // The same bytes, whole, are a hold.
    let (disk, wal) = log(10, 40);
    wal.close().unwrap();
    drop(wal);
    fuzzing::add_section(&disk, 2, &whole);
    assert_eq!(held(&open(Arc::new(disk))), [("a".to_owned(), 1, HoldKind::Durable)]);
}

#[test]
fn a_closed_log_and_a_poisoned_one_change_no_durable_hold_and_retire_nothing() {
    let (_disk, wal) = log(11, 40);
    wal.close().unwrap();
    assert!(matches!(wal.retire_unchecked(lsn(40)), Err(RetireError::Closed)));
    assert!(matches!(wal.hold_durably("a", lsn(1)), Err(HoldError::Closed)));
    let storage = FaultStorage::new(Arc::new(MemStorage::new(12)));
    let wal = open(Arc::new(storage.clone()));
    fill(&wal, 40);
    storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Sync, 1));
    wal.append(0x80, 1, b"fails").unwrap_err();
    let before = storage.mutations();
    assert!(matches!(wal.retire_unchecked(lsn(40)), Err(RetireError::Poisoned(_))));
    assert!(matches!(wal.release_durable_hold("a"), Err(HoldError::Poisoned(_))));
    assert_eq!(storage.mutations(), before);
}

/// Taking a hold and deciding to retire take one lock: a hold that was got is kept.
// faults: B134
#[test]
fn a_hold_that_races_a_retirement_is_refused_or_kept() {
    for seed in 0..20 {
        let (_disk, wal) = log(100 + seed, 60);
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut got = Vec::new();
                for number in (1..=50).rev() {
                    match wal.hold("racer", lsn(number)) {
                        Ok(hold) => got.push(hold),
                        Err(HoldError::Retired { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                got
            });
            for before in (5..=50).step_by(5) {
                wal.retire_unchecked(lsn(before)).unwrap();
            }
            let got = holder.join().unwrap();
            for hold in &got {
                let mut reader = wal.read(hold.lsn()).unwrap();
                assert_eq!(reader.next().unwrap().unwrap().lsn, hold.lsn());
            }
        });
    }
}
