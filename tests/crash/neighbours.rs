//! What goes on beside an append: options in every combination, reads that fail, syncs that hang, names that
//! are taken, and a preparation that outlasts the log.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use planewal::storage::{Allocation, CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{Batch, Durability, Lsn, OpenError, Options, ReadError, Verdict, View, Wal, repair};

use crate::model::{Crash, batch_of, check, content, drain, encoded, lsn, number, on, small_options};
use crate::run::{Run, SCRIPT, Step};

use Durability::{Buffered, Synced, Written};

/// Every combination of two values of each option that has a say in how bytes get to the disk.
fn combinations() -> impl Iterator<Item = Options> {
    (0..64_u32).map(|bits| {
        let of = |bit: u32, values: [u64; 2]| values[usize::from(bits >> bit & 1 == 1)];
        Options {
            segment_bytes: of(0, [16 << 10, 256 << 10]),
            prepare_bytes: of(1, [4 << 10, 64 << 10]),
            group_bytes: of(2, [4 << 10, 1 << 20]),
            preparation: if of(3, [0, 1]) == 0 { Allocation::Zeros } else { Allocation::Reserve },
            beacon_idle: Duration::from_millis(of(4, [0, 1])),
            io_thread: of(5, [0, 1]) == 1,
            ..small_options()
        }
    })
}

// faults: B080, B106
#[test]
fn every_combination_of_options_keeps_the_promises() {
    for options in combinations() {
        let mut run = Run::new(options.clone());
        for (at, step) in SCRIPT.iter().enumerate() {
            run.step(*step).unwrap_or_else(|refusal| panic!("{options:?}, step {at}: {refusal:?}"));
            // The promises first: the thread may go on meanwhile.
            let model = run.model();
            let images = [
                (run.disk.crash(&CrashPlan::Nothing), Crash::Power),
                (run.disk.crash(&CrashPlan::Seeded(at as u64)), Crash::Power),
                (run.disk.fork_live(), Crash::Process),
            ];
            for (image, crash) in images.into_iter().skip(at % 3).take(1) {
                check(&image, &model, crash)
                    .unwrap_or_else(|found| panic!("{options:?}, step {at}, {crash:?}: {found}"));
            }
        }
    }
}

/// With room ahead, so that nobody has to make some.
fn roomy(io_thread: bool) -> Options {
    Options { io_thread, segment_bytes: 1 << 20, prepare_bytes: 256 << 10, ..small_options() }
}

/// What cannot be read now says nothing of what can be written.
// faults: B105
#[test]
fn a_read_that_fails_stops_no_writer() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10, 600]), Step::Commit(Synced, &[700])]).unwrap();
    let wal = run.wal().unwrap();
    let mut reader = wal.read(Lsn::FIRST).unwrap();
    run.faults.inject(Fault::error(ErrorKind::Other).at(Op::Read, 1).sticky());
    assert!(matches!(reader.next(), Err(ReadError::Storage(_) | ReadError::Broken(_))));
    assert!(wal.read(Lsn::FIRST).and_then(|mut reader| reader.next().map(|_| ())).is_err());
    // In this segment, and in those to come.
    for sizes in [&[10][..], &[6000], &[6000], &[6000]] {
        wal.commit_as(&mut encoded(&batch_of(9, number(wal.last()), sizes)), Synced).unwrap();
    }
    assert!(wal.poisoned().is_none());
    run.faults.clear_faults();
    let (records, error) = drain(wal.read(Lsn::FIRST).unwrap());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(records.len(), 7);
    wal.close().unwrap();
}

/// A disk that has become read-only is told, and neither an empty nor a damaged log.
// faults: B105, B158
#[test]
fn a_disk_that_takes_nothing_is_told_and_changes_nothing() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Drop]).unwrap();
    let before = content(&run.disk);
    let mutating = Op::ALL.into_iter().filter(|op| op.is_mutating());
    for (ops, fault) in [
        (mutating.collect::<Vec<_>>(), Fault::error(ErrorKind::ReadOnlyFilesystem)),
        (vec![Op::Lock], Fault::error(ErrorKind::PermissionDenied)),
        // A directory whose names cannot be made durable.
        (vec![Op::SyncDir], Fault::raw_error(22)),
    ] {
        let storage = FaultStorage::new(on(&run.disk));
        for op in &ops {
            storage.inject(fault.clone().at(*op, 1).sticky());
        }
        for _ in 0..2 {
            let error = Wal::open_on(Arc::new(storage.clone()), small_options()).unwrap_err();
            assert!(matches!(error, OpenError::Storage(_)), "{ops:?}: {error}");
        }
        let view = View::open_on(Arc::new(storage)).unwrap();
        assert_eq!((view.report().verdict, view.report().last), (Verdict::Clean, Some(lsn(1))));
        assert_eq!(content(&run.disk), before, "{ops:?}");
        // A log that is new has no place there at all.
        let empty = MemStorage::new(1);
        let storage = FaultStorage::new(on(&empty));
        for op in &ops {
            storage.inject(fault.clone().at(*op, 1).sticky());
        }
        Wal::open_on(Arc::new(storage), small_options()).unwrap_err();
        assert!(open_again(&empty).is_ok(), "{ops:?}: what is left is in the way");
    }
    run.open().unwrap();
}

fn open_again(disk: &MemStorage) -> Result<Wal, OpenError> {
    loop {
        match Wal::open_on(on(disk), small_options()) {
            Err(OpenError::Locked { .. }) => std::thread::yield_now(),
            other => return other,
        }
    }
}

/// Of every kind of file: segment, copy, control file.
// faults: B072, B076, B079
#[test]
fn no_file_gets_its_name_before_all_of_it_is_durable() {
    let mut run = Run::new(small_options());
    let unsynced = Arc::new(Mutex::new(HashSet::new()));
    let named = Arc::new(Mutex::new(HashSet::new()));
    run.watch({
        let (unsynced, named) = (Arc::clone(&unsynced), Arc::clone(&named));
        move |moment| {
            let mut unsynced = unsynced.lock().unwrap();
            match moment.op {
                Op::Create | Op::Write | Op::SetLen | Op::Allocate => {
                    unsynced.insert(moment.name.to_owned());
                }
                Op::Sync => {
                    unsynced.remove(moment.name);
                }
                Op::Rename => {
                    assert!(!unsynced.contains(moment.name), "{moment}: it is not synced");
                    assert!(moment.name.ends_with(".tmp"), "{moment}");
                    named.lock().unwrap().insert(moment.name.to_owned());
                }
                _ => {}
            }
            // And nothing begins under its own name.
            assert!(moment.op != Op::Create || moment.name.ends_with(".tmp"), "{moment}");
        }
    });
    run.run(SCRIPT).unwrap();
    let named = named.lock().unwrap();
    assert!(named.contains("planewal.ctl.tmp") && named.len() > 6, "{named:?}");
}

/// Somebody puts files where the log is going to put its next ones. They stay, the log goes on beside them, and
/// the next open tells of them.
// faults: B032
#[test]
fn a_name_that_is_taken_is_left_to_who_has_it() {
    for io_thread in [false, true] {
        let disk = MemStorage::new(3);
        let options = Options { io_thread, ..small_options() };
        let wal = Wal::open_on(on(&disk), options).unwrap();
        wal.append(0x80, 1, b"first").unwrap();
        let taken: Vec<String> = [3, 4, 6]
            .map(|id| format!("{id:020}.wal"))
            .into_iter()
            .chain([format!("{:020}.wal.tmp", 8)])
            .collect();
        taken.iter().for_each(|name| disk.write(name, b"somebody's"));
        disk.plant_directory(&format!("{:020}.wal", 7));
        let mut appended = 1;
        while wal.segments().len() < 6 {
            // One that cannot be made is a refusal that may be tried again.
            appended += u64::from(wal.append(0x80, 1, &[7; 6000]).is_ok());
        }
        let segments: Vec<u64> = wal.segments().iter().map(|segment| segment.id.number()).collect();
        assert!([3, 4, 6, 7].iter().all(|id| !segments.contains(id)), "{segments:?}");
        assert_eq!(drain(wal.read(Lsn::FIRST).unwrap()).0.len() as u64, appended);
        wal.close().unwrap();
        drop(wal);
        for name in &taken {
            assert_eq!(disk.read(name).as_deref(), Some(&b"somebody's"[..]), "{name} was not ours");
        }
        let Err(OpenError::Refused { finding, .. }) = open_again(&disk) else { panic!("nothing is told") };
        assert!(matches!(finding.verdict, Verdict::ForeignFile | Verdict::Damaged), "{finding}");
        let done = repair(on(&disk)).unwrap();
        assert!(done.lost.is_empty(), "{:?}", done.lost);
        assert_eq!(number(open_again(&disk).unwrap().last()), appended);
    }
}

/// Whoever waits for the disk waits outside: staging, marks and reading go on.
// faults: B166
#[test]
fn a_sync_that_hangs_keeps_nobody_from_appending_or_reading() {
    for io_thread in [false, true] {
        let disk = MemStorage::new(1);
        let storage = FaultStorage::new(on(&disk));
        let wal = Wal::open_on(Arc::new(storage.clone()), roomy(io_thread)).unwrap();
        wal.append(0x80, 1, b"first").unwrap();
        storage.inject(Fault::hang().at(Op::Sync, 1).on_name(".wal"));
        let waiting = std::thread::spawn({
            let wal = wal.clone();
            move || wal.append(0x80, 1, b"second")
        });
        assert!(storage.wait_hung());
        // None of this returns before the sync does, if it waits for it.
        let mut tickets = Vec::new();
        for _ in 0..20 {
            wal.append_as(0x80, 1, b"more", Buffered).unwrap();
            let mut batch = Batch::new();
            batch.push(0x80, 1, b"and more").unwrap();
            tickets.push(wal.submit_as(&mut batch, Synced).unwrap());
        }
        assert_eq!((number(wal.durable()), number(wal.last())), (1, 42));
        let mut reader = wal.read(Lsn::FIRST).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().payload, b"first");
        assert_eq!(wal.segments().len(), 1);
        assert!(View::open_on(on(&disk)).is_ok());
        storage.release();
        waiting.join().unwrap().unwrap();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        assert_eq!(number(wal.durable()), 42);
    }
}

/// The bytes are the log's once they have their LSN: the batch may be filled anew while they are on their way.
// faults: B164
#[test]
fn a_batch_may_be_used_again_while_its_records_are_on_their_way() {
    let disk = MemStorage::new(1);
    let storage = FaultStorage::new(on(&disk));
    let wal = Wal::open_on(Arc::new(storage.clone()), roomy(false)).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    let mut batch = Batch::new();
    for round in 0..40_u8 {
        storage.inject(Fault::hang().at(Op::Write, 1).on_name(".wal"));
        batch.push(0x80, 1, &[round; 300]).unwrap();
        let first = wal.submit_as(&mut batch, Written).unwrap();
        assert!(batch.is_empty());
        std::thread::scope(|scope| {
            let leader = scope.spawn(|| first.wait().map(drop));
            assert!(storage.wait_hung());
            // More than a group, so that buffers are turned over.
            for _ in 0..3 {
                batch.push(0x80, 1, &[100 + round; 200]).unwrap();
                wal.commit_as(&mut batch, Buffered).unwrap();
            }
            storage.release();
            leader.join().unwrap().unwrap();
        });
    }
    wal.sync().unwrap();
    for wal in [wal, Wal::open_on(on(&disk.fork_live()), small_options()).unwrap()] {
        let (records, error) = drain(wal.read(lsn(2)).unwrap());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(records.len(), 160);
        for (at, (_, payload)) in records.iter().enumerate() {
            let round = (at / 4) as u8;
            let due = if at % 4 == 0 { vec![round; 300] } else { vec![100 + round; 200] };
            assert_eq!(*payload, due, "record {at}");
        }
    }
}

/// The I/O thread is in the middle of making a segment when the log is closed.
// faults: B028, B139
#[test]
fn a_preparation_that_outlasts_the_log_leaves_no_stray_file() {
    let places =
        [(Op::Create, ".tmp"), (Op::Allocate, "2.wal.tmp"), (Op::Sync, "2.wal.tmp"), (Op::Rename, "2.wal")];
    for (op, name) in places {
        for close in [true, false] {
            let disk = MemStorage::new(1);
            let storage = FaultStorage::new(on(&disk));
            let options = Options { io_thread: true, ..small_options() };
            let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
            wal.append(0x80, 1, b"first").unwrap();
            storage.inject(Fault::hang().at(op, 1).on_name(name));
            wal.append_as(0x80, 1, &[7; 9000], Written).unwrap();
            assert!(storage.wait_hung(), "{op:?}: nothing is prepared ahead");
            let ended = std::thread::spawn(move || {
                if close {
                    wal.close().unwrap();
                }
            });
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            storage.release();
            ended.join().unwrap();
            let again = open_again(&disk).unwrap();
            assert_eq!((number(again.last()), again.recovery().unclean), (2, !close), "{op:?}");
            again.close().unwrap();
            let view = View::open_on(on(&disk)).unwrap();
            let known: HashSet<String> =
                view.report().segments.iter().map(|segment| segment.file.clone()).collect();
            let stray: Vec<String> = disk
                .names()
                .into_iter()
                .filter(|name| {
                    !known.contains(name) && !["planewal.ctl", "planewal.lock"].contains(&name.as_str())
                })
                .collect();
            assert!(stray.is_empty(), "{op:?}, closed: {close}: {stray:?}");
        }
    }
}

/// A close that failed is a close: what it could not prove is for the next open to find out.
// faults: B102
#[test]
fn nothing_is_appended_after_a_close_that_failed() {
    let mut failed = 0;
    for call in 1..=12 {
        let mut run = Run::new(small_options());
        run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Commit(Written, &[20])]).unwrap();
        let wal = run.wal().unwrap();
        run.faults.inject(Fault::error(ErrorKind::Other).at_mutation(call));
        if wal.close().is_ok() {
            continue;
        }
        failed += 1;
        let mutations = run.faults.mutations();
        for level in [Buffered, Written, Synced] {
            assert!(wal.commit_as(&mut encoded(&batch_of(9, 2, &[5])), level).is_err(), "call {call}");
        }
        assert_eq!((run.faults.mutations(), number(wal.last())), (mutations, 2), "call {call}");
        drop(wal);
        run.let_go();
        let model = run.model();
        for plan in [CrashPlan::Nothing, CrashPlan::Everything] {
            check(&run.disk.crash(&plan), &model, Crash::Power)
                .unwrap_or_else(|found| panic!("{call}: {found}"));
        }
    }
    assert!(failed > 4, "{failed}");
}

/// Logs side by side, and handles that were refused: what one does when it goes is its own business.
// faults: B132, B148
#[test]
fn a_handle_that_goes_takes_nothing_of_another() {
    // Twins, as alike as two logs can be.
    let disks = [MemStorage::new(7), MemStorage::new(7)];
    let [one, two] = disks.each_ref().map(|disk| Wal::open_on(on(disk), small_options()).unwrap());
    for wal in [&one, &two] {
        wal.append(0x80, 1, &[7; 6000]).unwrap();
        wal.append_as(0x80, 1, &[7; 6000], Written).unwrap();
    }
    let before = content(&disks[0]);
    two.close().unwrap();
    drop(two);
    for _ in 0..2 {
        assert!(matches!(Wal::open_on(on(&disks[0]), small_options()), Err(OpenError::Locked { .. })));
        drop(View::open_on(on(&disks[0])).unwrap());
    }
    assert_eq!(content(&disks[0]), before);
    // A clone that is dropped closes nothing; closing one closes all, and takes no file away.
    drop(one.clone());
    one.append(0x80, 1, b"goes on").unwrap();
    let names = disks[0].names();
    one.clone().close().unwrap();
    assert_eq!(disks[0].names(), names);
    assert_eq!(number(open_again(&disks[0]).unwrap().last()), 3);
}

/// The wrong disk was mounted.
// faults: B148
#[test]
fn another_log_than_the_expected_one_is_refused() {
    let [ours, other] = [MemStorage::new(1), MemStorage::new(2)];
    let id = Wal::open_on(on(&ours), small_options()).unwrap().log_id();
    drop(Wal::open_on(on(&other), small_options()).unwrap());
    let expecting = Options { expect_log_id: id, ..small_options() };
    let before = content(&other);
    let error = Wal::open_on(on(&other), expecting.clone()).unwrap_err();
    assert!(matches!(error, OpenError::WrongLog { expected, .. } if Some(expected) == id), "{error}");
    assert_eq!(content(&other), before);
    assert_eq!(Wal::open_on(on(&ours), expecting).unwrap().log_id(), id);
}

/// Readers share a log and no buffer.
// faults: B118
#[test]
fn random_reads_at_once_each_see_their_own_record() {
    const RECORDS: u64 = 400;
    let disk = MemStorage::new(1);
    let wal = Wal::open_on(on(&disk), Options { segment_bytes: 64 << 10, ..small_options() }).unwrap();
    let payload = |lsn: u64| vec![(lsn % 251) as u8; (lsn * 37 % 900) as usize];
    for lsn in 1..=RECORDS {
        wal.append_as(0x80, 1, &payload(lsn), Written).unwrap();
    }
    wal.sync().unwrap();
    let view = View::open_on(on(&disk)).unwrap();
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (wal, view, reads) = (&wal, &view, &reads);
            scope.spawn(move || {
                let mut draw = thread * 7919 + 1;
                for _ in 0..300 {
                    draw =
                        draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let from = 1 + (draw >> 33) % RECORDS;
                    let of_view = draw >> 40 & 1 == 0;
                    let place = if of_view { view.seek(lsn(from)) } else { wal.seek(lsn(from)) }.unwrap();
                    assert!((place.first..=place.last).contains(&lsn(from)));
                    let mut reader =
                        if of_view { view.read(lsn(from)) } else { wal.read(lsn(from)) }.unwrap();
                    for due in from..(from + 5).min(RECORDS) {
                        let record = reader.next().unwrap().unwrap();
                        assert_eq!((record.lsn, record.payload), (lsn(due), &payload(due)[..]));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(reads.into_inner() > 5000);
}
