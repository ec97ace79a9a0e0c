//! Retiring: what goes, what stays and why, at every crash and failure on the way.

use std::io;
use std::sync::{Arc, Mutex};

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{
    Durability, KeptBecause, Lsn, Options, ReadError, RetireError, RetiredFile, Verdict, View, Wal,
};

use crate::support::{check_disk, check_wal, fill, lsn, open, open_with, payload, tiny};

#[test]
fn whole_segments_at_the_head_go_and_the_rest_reads_as_before() {
    let disk = MemStorage::new(1);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 40);
    let segments = wal.segments();
    // In the middle of the third segment: two go.
    let before = lsn(segments[2].base.number() + 1);
    let report = wal.retire_unchecked(before).unwrap();
    assert_eq!(report.retired.len(), 2);
    for (gone, was) in report.retired.iter().zip(&segments) {
        assert_eq!((gone.id, gone.base, gone.last, gone.bytes), (was.id, was.base, was.last, was.file_bytes));
    }
    assert_eq!(report.bytes, segments[0].file_bytes + segments[1].file_bytes);
    assert!(
        matches!(&report.retired[0].file, RetiredFile::Spare(name) if name == "00000000000000000001.spare")
    );
    assert_eq!(report.retired[1].file, RetiredFile::Removed, "one spare is enough");
    let stays = report.stays.unwrap();
    assert_eq!((stays.id, stays.why), (segments[2].id, KeptBecause::NotBefore));
    assert_eq!(wal.first(), segments[2].base);
    assert!(matches!(wal.read(lsn(1)), Err(ReadError::Retired { first, .. }) if first == segments[2].base));
    assert!(matches!(wal.seek(lsn(1)), Err(ReadError::Retired { .. })));
    assert_eq!(check_wal(&wal), (segments[2].base.number(), 40));
    // The same again does nothing, and writes nothing.
    assert!(wal.retire_unchecked(before).unwrap().retired.is_empty());
    let view = View::open_on(Arc::new(disk.clone())).unwrap();
    assert_eq!(view.report().first, Some(segments[2].base));
    assert_eq!(view.report().spares, ["00000000000000000001.spare"]);
    wal.close().unwrap();
    drop(wal);
    let wal = open(Arc::new(disk));
    assert_eq!(check_wal(&wal), (segments[2].base.number(), 40));
    assert_eq!(wal.recovery().spares, 1);
    assert!(wal.recovery().removed.is_empty());
}

// faults: B053, B125
#[test]
fn the_newest_segment_stays_and_so_does_an_unfinished_one() {
    let wal = open(Arc::new(MemStorage::new(2)));
    let report = wal.retire_unchecked(lsn(100)).unwrap();
    assert!(report.stays.is_none() && report.retired.is_empty());
    fill(&wal, 3);
    assert_eq!(wal.retire_unchecked(lsn(100)).unwrap().stays.unwrap().why, KeptBecause::Newest);
    wal.rotate().unwrap();
    assert_eq!(wal.retire_unchecked(lsn(100)).unwrap().stays.unwrap().why, KeptBecause::Newest);
    // The successor is there, and none of its records is durable.
    wal.append_as(0x80, 1, &payload(4), Durability::Written).unwrap();
    assert_eq!(wal.retire_unchecked(lsn(100)).unwrap().stays.unwrap().why, KeptBecause::NotFinished);
    fill(&wal, 40);
    let report = wal.retire_unchecked(lsn(100)).unwrap();
    assert!(report.retired.len() > 3);
    assert!(matches!(report.stays.unwrap().why, KeptBecause::Newest | KeptBecause::NotFinished));
    assert_eq!(check_wal(&wal).1, 40);
}

/// What a run of appends, retirements, holds and reuse promised at some moment.
#[derive(Clone, Copy, Default)]
struct Promised {
    /// Records from here on were not to be retired.
    from: u64,
    durable: u64,
    appended: u64,
}

/// Appends and retires by turns, so that every third segment lies in a reused file.
fn turns(wal: &Wal, promised: &Mutex<Promised>, rounds: u64) -> Result<(), String> {
    for _ in 0..rounds {
        for at in 0..6 {
            let number = wal.next().number();
            promised.lock().unwrap().appended = number;
            let level = [Durability::Synced, Durability::Written, Durability::Synced][at % 3];
            let outcome = wal.append_as(0x80, 1, &payload(number), level);
            promised.lock().unwrap().durable = wal.durable().map_or(0, Lsn::number);
            outcome.map_err(|error| error.to_string())?;
        }
        let before = wal.durable().map_or(1, Lsn::number).saturating_sub(4).max(1);
        promised.lock().unwrap().from = before;
        wal.retire_unchecked(lsn(before)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// P1 to P5, at every call: before it the power goes, with nothing, all or some of what is unsynced, or the
/// process dies.
// faults: B020, B024, B062, B128, B160
#[test]
fn a_retirement_and_a_reuse_may_be_cut_anywhere() {
    let disk = MemStorage::new(3);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let promised = Arc::new(Mutex::new(Promised { from: 1, ..Promised::default() }));
    let images = Arc::new(Mutex::new(Vec::new()));
    {
        let (disk, promised, images) = (disk.clone(), Arc::clone(&promised), Arc::clone(&images));
        let counter = storage.clone();
        storage.on_call(move |op, name| {
            if !op.is_mutating() {
                return;
            }
            let place = format!("before call {} ({op:?} {name})", counter.mutations());
            let now = *promised.lock().unwrap();
            let pending = disk.pending();
            let window = pending.min(4);
            let mut plans =
                vec![CrashPlan::Nothing, CrashPlan::Everything, CrashPlan::Seeded(pending as u64)];
            for bits in 0..1_u64 << window {
                plans.push(CrashPlan::Mask { first: pending - window, bits, others: true });
            }
            let mut images = images.lock().unwrap();
            for plan in plans {
                images.push((format!("{place}, {plan:?}"), now, disk.crash(&plan)));
            }
            let written = Promised { durable: now.appended.saturating_sub(1), ..now };
            images.push((format!("{place}, process death"), written, disk.fork_live()));
        });
    }
    let wal = open(Arc::new(storage.clone()));
    turns(&wal, &promised, 7).unwrap();
    let reused = wal.segments().iter().filter(|segment| is_reused(&disk, &segment.file)).count();
    assert!(reused > 0, "nothing was reused");
    assert!(wal.first() > lsn(20));
    storage.on_call(|_, _| {});
    let images = std::mem::take(&mut *images.lock().unwrap());
    println!("{} images", images.len());
    assert!(images.len() > 1000);
    let mut firsts = std::collections::BTreeSet::new();
    for (place, now, image) in images {
        firsts.insert(check_disk(&image, &place, now.from, now.durable, now.appended));
    }
    assert!(firsts.len() > 4, "crashes never met a retirement: {firsts:?}");
}

pub(crate) fn is_reused(disk: &MemStorage, name: &str) -> bool {
    disk.read(name).is_some_and(|bytes| bytes[28] & 1 == 1)
}

/// Recovery of a directory with leftovers, spares and reused files may itself be cut.
// faults: B013, B028
#[test]
fn recovery_after_a_cut_retirement_may_be_cut_again() {
    let disk = MemStorage::new(4);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let wal = open(Arc::new(storage.clone()));
    fill(&wal, 30);
    wal.retire_unchecked(lsn(12)).unwrap();
    fill(&wal, 45);
    // Slots are written, and no file is gone yet.
    for op in [Op::Rename, Op::Remove] {
        storage.inject(Fault::error(io::ErrorKind::Other).at(op, 1).sticky());
    }
    let report = wal.retire_unchecked(lsn(40)).unwrap();
    let left: Vec<_> =
        report.retired.iter().filter(|gone| matches!(gone.file, RetiredFile::LeftBehind(_))).collect();
    assert!(left.len() > 2, "{report:?}");
    assert_eq!(report.bytes, 0);
    storage.clear_faults();
    assert_eq!(check_wal(&wal), (report.first.number(), 45));
    drop(wal);
    let image = disk.fork_live();
    for at in 1..60 {
        let disk = image.fork_live();
        let storage = FaultStorage::new(Arc::new(disk.clone()));
        storage.inject(Fault::error(io::ErrorKind::Other).at_mutation(at).sticky());
        let outcome = Wal::open_on(Arc::new(storage.clone()), tiny());
        if let Ok(wal) = &outcome {
            let why: Vec<&str> = wal.recovery().removed.iter().map(|extra| extra.why).collect();
            assert!(why.iter().filter(|why| **why == "leftover").count() == left.len(), "{why:?}");
        }
        let done = outcome.is_ok();
        drop(outcome);
        for plan in [CrashPlan::Nothing, CrashPlan::Everything, CrashPlan::Seeded(at)] {
            let first = check_disk(&disk.crash(&plan), &format!("open fails at {at}, {plan:?}"), 41, 45, 45);
            assert_eq!(first, report.first.number());
        }
        if done {
            return;
        }
    }
    panic!("opening never ended");
}

/// Each call of appends, retirement and reuse fails once, with an error or for want of room.
// faults: B033, B095, B102, B108
#[test]
fn any_call_of_a_retirement_may_fail() {
    let calls = {
        let storage = FaultStorage::new(Arc::new(MemStorage::new(5)));
        let wal = open(Arc::new(storage.clone()));
        turns(&wal, &Mutex::default(), 5).unwrap();
        storage.mutations()
    };
    let (mut poisoned, mut passed) = (0, 0);
    for kind in [io::ErrorKind::Other, io::ErrorKind::StorageFull, io::ErrorKind::PermissionDenied] {
        for at in 1..=calls {
            let disk = MemStorage::new(5);
            let storage = FaultStorage::new(Arc::new(disk.clone()));
            storage.inject(Fault::error(kind).at_mutation(at));
            let Ok(wal) = Wal::open_on(Arc::new(storage.clone()), tiny()) else { continue };
            let promised = Mutex::new(Promised { from: 1, ..Promised::default() });
            let outcome = turns(&wal, &promised, 5);
            if wal.poisoned().is_some() {
                poisoned += 1;
                assert!(matches!(wal.retire_unchecked(lsn(1)), Err(RetireError::Poisoned(_))));
            } else {
                // Refused without harm, or nobody noticed: it goes on.
                passed += 1;
                turns(&wal, &promised, 2)
                    .unwrap_or_else(|error| panic!("{kind:?} at {at}: {outcome:?}, {error}"));
                check_wal(&wal);
            }
            let now = *promised.lock().unwrap();
            let place = format!("{kind:?} at call {at}");
            check_disk(&disk.crash(&CrashPlan::Nothing), &place, now.from, now.durable, now.appended);
            check_disk(&disk.fork_live(), &place, now.from, now.durable, now.appended);
        }
    }
    assert!(poisoned > 20 && passed > 20, "{poisoned} {passed}");
}

// faults: B087, B127
#[test]
fn a_full_disk_retires_and_goes_on_from_the_spare() {
    let disk = MemStorage::new(6);
    let options = Options { spares: 2, ..tiny() };
    let wal = open_with(Arc::new(disk.clone()), &options);
    fill(&wal, 40);
    // Not a byte is free from here on.
    let used = |disk: &MemStorage| -> u64 { disk.names().iter().filter_map(|name| disk.len(name)).sum() };
    disk.set_capacity(Some(used(&disk)));
    let last = loop {
        let next = wal.next().number();
        match wal.append(0x80, 1, &payload(next)) {
            Ok(_) => assert!(next < 60),
            Err(planewal::AppendError::Full(_)) => break next - 1,
            Err(error) => panic!("{error}"),
        }
    };
    let report = wal.retire_unchecked(lsn(last)).unwrap();
    assert!(report.retired.len() > 4);
    // Somebody else takes what the removed ones gave back: only the spares are left.
    disk.set_capacity(Some(used(&disk)));
    fill(&wal, last + 8);
    assert!(wal.segments().iter().any(|segment| is_reused(&disk, &segment.file)));
    assert_eq!(check_wal(&wal).1, last + 8);
    wal.close().unwrap();
}

/// A reader stays in a segment while it is retired: it reads on to the end, then it is told the gap.
// faults: B113, B114
#[test]
fn a_reader_in_a_retired_segment_finishes_it_and_is_told_the_gap() {
    for spares in [0, 1, 4] {
        let disk = MemStorage::new(7);
        let options = Options { spares, ..tiny() };
        let wal = open_with(Arc::new(disk), &options);
        fill(&wal, 60);
        let end = wal.segments()[0].last.unwrap().number();
        let mut reader = wal.read(lsn(1)).unwrap();
        let early = wal.read(lsn(1)).unwrap().cursor();
        assert_eq!(reader.next().unwrap().unwrap().lsn, lsn(1));
        let first = wal.retire_unchecked(lsn(50)).unwrap().first;
        // The files are written again by now.
        fill(&wal, 100);
        for number in 2..=end {
            let record = reader.next().unwrap().unwrap();
            assert_eq!((record.lsn, record.payload), (lsn(number), &payload(number)[..]));
        }
        match reader.next() {
            Err(ReadError::NotKept { first: from, last }) => {
                assert_eq!((from.number(), last.number()), (end + 1, first.number() - 1));
            }
            other => panic!("{other:?}"),
        }
        for number in first.number()..=100 {
            let record = reader.next().unwrap().unwrap();
            assert_eq!((record.lsn, record.payload), (lsn(number), &payload(number)[..]));
        }
        assert!(reader.next().unwrap().is_none());
        assert!(matches!(wal.read_from(&early), Err(ReadError::Retired { .. })));
    }
}

/// Readers of the same process and views beside it, while segments go and files are written again.
// faults: B109, B114, B031
#[test]
fn readers_and_views_that_race_retirements_never_see_damage() {
    let disk = MemStorage::new(8);
    let options = Options { spares: 2, io_thread: true, ..tiny() };
    let wal = open_with(Arc::new(disk.clone()), &options);
    fill(&wal, 20);
    let done = std::sync::atomic::AtomicBool::new(false);
    let over = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut rounds = 0;
                while !over() || rounds == 0 {
                    rounds += 1;
                    let mut reader = match wal.read(wal.first()) {
                        Err(ReadError::Retired { .. }) => continue,
                        reader => reader.unwrap(),
                    };
                    read_on(|| reader.next().map(|record| record.map(|one| (one.lsn, one.payload.to_vec()))));
                }
            });
        }
        scope.spawn(|| {
            let mut rounds = 0;
            while !over() || rounds == 0 {
                rounds += 1;
                let view = View::open_on(Arc::new(disk.clone())).unwrap();
                let report = view.report();
                assert!(
                    matches!(report.verdict, Verdict::Clean | Verdict::TornTail),
                    "{:?}",
                    report.findings
                );
                let from = report.first.unwrap();
                let mut reader = match view.read(from) {
                    Err(ReadError::Retired { .. }) => continue,
                    reader => reader.unwrap(),
                };
                read_on(|| reader.next().map(|record| record.map(|one| (one.lsn, one.payload.to_vec()))));
                match view.seek(from) {
                    Ok(position) => assert!(position.first <= from),
                    Err(ReadError::Retired { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for round in 1..=60_u64 {
            fill(&wal, 20 + round * 10);
            wal.retire_unchecked(lsn(round * 10)).unwrap();
            // The thread that seals has its turn when it has it.
            while wal.first().number() + 60 < round * 10 {
                std::thread::yield_now();
                wal.retire_unchecked(lsn(round * 10)).unwrap();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(wal.first() > lsn(500));
    assert_eq!(check_wal(&wal).1, 620);
}

/// A survey is a series of reads; between any two of them segments go, and their files are written again.
// faults: B114
#[test]
fn a_survey_is_right_whatever_is_retired_between_two_of_its_calls() {
    let world = || {
        let disk = MemStorage::new(12);
        let wal = open_with(Arc::new(disk.clone()), &Options { spares: 2, ..tiny() });
        fill(&wal, 40);
        (FaultStorage::new(Arc::new(disk.clone())), wal)
    };
    for op in [Op::List, Op::Open, Op::Read] {
        let calls = {
            let (storage, _wal) = world();
            View::open_on(Arc::new(storage.clone())).unwrap();
            storage.counts().get(op)
        };
        assert!(calls > 1);
        for at in 1..=calls {
            let (storage, wal) = world();
            storage.inject(Fault::hang().at(op, at));
            let view = std::thread::scope(|scope| {
                let looking = scope.spawn(|| View::open_on(Arc::new(storage.clone())).unwrap());
                assert!(storage.wait_hung());
                wal.retire_unchecked(lsn(30)).unwrap();
                fill(&wal, 60);
                storage.release();
                looking.join().unwrap()
            });
            let report = view.report();
            assert_eq!(report.verdict, Verdict::Clean, "at {op:?} {at}: {:?}", report.findings);
            let last = report.last.unwrap();
            assert!([40, 60].contains(&last.number()), "at {op:?} {at}: {last}");
            let mut reader = view.read(report.first.unwrap()).unwrap();
            read_on(|| reader.next().map(|record| record.map(|one| (one.lsn, one.payload.to_vec()))));
        }
    }
}

fn read_on(mut next: impl FnMut() -> Result<Option<(Lsn, Vec<u8>)>, ReadError>) {
    let mut before = 0;
    loop {
        match next() {
            Ok(Some((lsn, read))) => {
                assert!(lsn.number() > before);
                before = lsn.number();
                assert_eq!(read, payload(before), "LSN {lsn}");
            }
            Ok(None) => return,
            Err(ReadError::NotKept { last, .. }) => before = last.number(),
            Err(error) => panic!("behind LSN {before}: {error}"),
        }
    }
}

#[test]
fn a_view_that_was_opened_before_is_told_what_went() {
    for spares in [0, 2] {
        let disk = MemStorage::new(9);
        let wal = open_with(Arc::new(disk.clone()), &Options { spares, ..tiny() });
        fill(&wal, 60);
        let view = View::open_on(Arc::new(disk)).unwrap();
        let mut reader = view.read(lsn(1)).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().lsn, lsn(1));
        let first = wal.retire_unchecked(lsn(50)).unwrap().first;
        fill(&wal, 90);
        assert!(matches!(view.seek(lsn(8)), Err(ReadError::Retired { .. })));
        let mut due = 2;
        loop {
            match reader.next() {
                Ok(Some(record)) => {
                    assert_eq!((record.lsn.number(), record.payload), (due, &payload(due)[..]));
                    due += 1;
                }
                Ok(None) => break,
                Err(ReadError::NotKept { first: from, last }) => {
                    assert_eq!((from.number(), last.number()), (due, first.number() - 1));
                    due = first.number();
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(due > 60, "{due}");
    }
}

#[test]
fn a_view_begins_to_read_in_the_log_as_it_is_now_where_its_files_are_gone() {
    let disk = MemStorage::new(10);
    let wal = open_with(Arc::new(disk.clone()), &Options { spares: 0, ..tiny() });
    fill(&wal, 30);
    let cursor = wal.read(lsn(1)).unwrap().cursor();
    let view = View::open_on(Arc::new(disk)).unwrap();
    let kept = wal.retire_unchecked(lsn(20)).unwrap().first;
    let refusals = [
        view.read(lsn(1)).err(),
        view.read_from(&cursor).err(),
        view.follow(lsn(1)).err(),
        view.follow_from(&cursor).err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Some(ReadError::Retired { first, .. }) if first == kept), "{refusal:?}");
    }
    assert_eq!(view.read(kept).unwrap().next().unwrap().unwrap().lsn, kept);
}

/// The I/O thread seals behind; what it may still write to is not retired.
#[test]
fn retiring_beside_the_io_thread_waits_for_nobody_and_loses_nothing() {
    let disk = MemStorage::new(10);
    let options = Options { io_thread: true, spares: 3, ..tiny() };
    let wal = open_with(Arc::new(disk.clone()), &options);
    for round in 1..=40_u64 {
        fill(&wal, round * 7);
        wal.retire_unchecked(wal.next()).unwrap();
    }
    // The thread has its turn when it has it.
    while wal.first() < lsn(200) {
        std::thread::yield_now();
        wal.retire_unchecked(wal.next()).unwrap();
    }
    let (first, last) = check_wal(&wal);
    assert_eq!(last, 280);
    wal.close().unwrap();
    drop(wal);
    let wal = open_with(Arc::new(disk), &options);
    assert_eq!(check_wal(&wal), (first, last));
}

/// With the copy of an unproved tail still pending, retiring is what makes room for it.
// faults: B087
#[test]
fn a_log_whose_copy_found_no_room_retires_and_goes_on() {
    let disk = MemStorage::new(11);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 40);
    for number in 41..=44 {
        wal.append_as(0x80, 1, &payload(number), Durability::Written).unwrap();
    }
    drop(wal);
    let used: u64 = disk.names().iter().filter_map(|name| disk.len(name)).sum();
    disk.set_capacity(Some(used));
    let wal = open_with(Arc::new(disk.clone()), &Options { spares: 0, ..tiny() });
    assert!(wal.recovery().copy_pending);
    assert!(matches!(wal.append(0x80, 1, b"x"), Err(planewal::AppendError::Full(_))));
    let report = wal.retire_unchecked(lsn(30)).unwrap();
    assert!(!report.retired.is_empty());
    fill(&wal, 50);
    assert_eq!(check_wal(&wal), (report.first.number(), 50));
}

/// Without a control file nothing says that the head was retired and not lost; `repair` accepts it, and the
/// rest reads as before.
#[test]
fn a_retired_log_whose_control_file_is_lost_is_repaired() {
    let disk = MemStorage::new(13);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 40);
    let first = wal.retire_unchecked(lsn(20)).unwrap().first;
    wal.close().unwrap();
    drop(wal);
    assert!(disk.remove_file("planewal.ctl"));
    let view = View::open_on(Arc::new(disk.clone())).unwrap();
    assert_eq!(view.report().verdict, Verdict::Damaged);
    planewal::repair(Arc::new(disk.clone())).unwrap();
    let wal = open(Arc::new(disk));
    assert_eq!(check_wal(&wal), (first.number(), 40));
    fill(&wal, 60);
    assert!(wal.retire_unchecked(lsn(50)).unwrap().first > first);
    assert_eq!(check_wal(&wal).1, 60);
}

/// The first segment kept vanishes: what was retired before it is still no loss, and it is.
#[test]
fn a_head_that_vanished_is_missed_and_what_was_retired_is_not() {
    let disk = MemStorage::new(14);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 40);
    let first = wal.retire_unchecked(lsn(20)).unwrap().first;
    let head = wal.segments()[0].clone();
    wal.close().unwrap();
    drop(wal);
    assert!(disk.remove_file(&head.file));
    let view = View::open_on(Arc::new(disk.clone())).unwrap();
    let report = view.report();
    assert_eq!(report.verdict, Verdict::MissingSegment, "{:?}", report.findings);
    let missing = report.findings.iter().find_map(|finding| finding.missing).unwrap();
    assert_eq!(missing, (first, head.last.unwrap()));
    assert!(Wal::open_on(Arc::new(disk), tiny()).is_err());
}
