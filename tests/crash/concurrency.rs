//! Many threads at once: every acknowledged record is where its receipt says, and marks only rise.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use planewal::storage::{CrashPlan, Fault, FaultStorage, FsStorage, MemStorage, Op, Storage};
use planewal::{AppendError, Batch, Durability, Lsn, Options, Verdict, View, Wal};

use crate::model::{Crash, Model, Rec, batch_of, check, drain, encoded, long, number, on, small_options};

/// What threads appended, by first LSN.
type Appended = Arc<Mutex<BTreeMap<u64, Vec<Rec>>>>;

const LEVELS: [Durability; 3] = [Durability::Buffered, Durability::Written, Durability::Synced];

/// Commits `count` batches at mixed levels and checks what each acknowledgement claims.
fn commit_many(wal: &Wal, thread: u64, count: u64, appended: &Appended) {
    for number_in_thread in 0..count {
        let draw = (thread * 7919 + number_in_thread * 104_729) % 1009;
        let sizes: &[usize] = match draw % 9 {
            0 => &[0],
            1 => &[3000],
            2 => &[1, 0, 700],
            3 if draw.is_multiple_of(5) => &[20_000],
            4 => &[511, 513],
            _ => &[60],
        };
        let level = LEVELS[(draw % 3) as usize];
        let records = batch_of(1000 + thread, number_in_thread << 3, sizes);
        let mut batch = encoded(&records);
        // Into the model first: an image may hold it before the receipt is here. The LSN is not known yet.
        let receipt = wal.commit_as(&mut batch, level).unwrap();
        assert!(batch.is_empty());
        assert_eq!(receipt.last.number() - receipt.first.number() + 1, sizes.len() as u64);
        match level {
            Durability::Synced => assert!(wal.durable() >= Some(receipt.last)),
            Durability::Written => assert!(wal.written() >= Some(receipt.last)),
            Durability::Buffered => assert!(wal.last() >= Some(receipt.last)),
        }
        if level >= Durability::Written {
            let mut reader = wal.read(receipt.first).unwrap();
            for expected in &records {
                let record = reader.next().unwrap().unwrap();
                assert_eq!(*record.payload, *expected.payload);
            }
        }
        assert!(
            appended.lock().unwrap().insert(receipt.first.number(), records).is_none(),
            "an LSN given twice"
        );
    }
}

/// Watches the marks until told to stop, and once more then.
fn watch_marks(wal: &Wal, stop: &AtomicBool) {
    let (mut durable, mut written, mut last) = (0, 0, 0);
    loop {
        let stopped = stop.load(Ordering::Acquire);
        let now = (number(wal.durable()), number(wal.written()), number(wal.last()));
        assert!(now.0 >= durable && now.1 >= written && now.2 >= last, "marks went back");
        (durable, written, last) = now;
        // Read in this order, a lower mark may not be above a higher one.
        assert!(durable <= written && written <= last, "{durable} {written} {last}");
        if stopped {
            return;
        }
        std::thread::yield_now();
    }
}

/// Reads along while others write; answers how many records it read.
fn read_along(wal: &Wal, stop: &AtomicBool) -> u64 {
    let mut reader = wal.read(Lsn::FIRST).unwrap();
    let mut last = 0;
    loop {
        let stopped = stop.load(Ordering::Acquire);
        while let Some(record) = reader.next().unwrap() {
            last += 1;
            assert_eq!(record.lsn.number(), last);
        }
        if stopped {
            return last;
        }
        std::thread::yield_now();
    }
}

/// Stops the others, also in a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The model of a log whose writers are done: dense LSNs, every one of them accounted for.
fn model_of(appended: &Appended) -> Model {
    let mut model = Model::default();
    for (first, records) in appended.lock().unwrap().iter() {
        assert_eq!(model.append(records.iter().cloned()).0, *first, "an LSN is missing");
    }
    model
}

/// Threads commit, others watch and read; then the log is closed and read again.
fn stress(storage: Arc<dyn Storage>, options: &Options, threads: u64, count: u64) -> Model {
    let wal = Wal::open_on(Arc::clone(&storage), options.clone()).unwrap();
    let appended = Appended::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let marks = scope.spawn(|| watch_marks(&wal, &stop));
        let reader = scope.spawn(|| read_along(&wal, &stop));
        let rotations = scope.spawn(|| {
            for _ in 0..count / 10 {
                wal.rotate().unwrap();
                wal.sync().unwrap();
            }
        });
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let (wal, appended) = (&wal, &appended);
                scope.spawn(move || commit_many(wal, thread, count, appended))
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        rotations.join().unwrap();
        wal.sync().unwrap();
        stop.store(true, Ordering::Release);
        marks.join().unwrap();
        assert_eq!(reader.join().unwrap(), number(wal.last()));
    });
    let model = model_of(&appended);
    assert_eq!(number(wal.durable()), model.len());
    assert!(wal.segments().len() > 3);
    assert_eq!(model.compare_wal(&wal), Ok(model.len()));
    wal.close().unwrap();
    drop(wal);
    let wal = Wal::open_on(storage, options.clone()).unwrap();
    assert!(!wal.recovery().unclean);
    assert_eq!(model.compare_wal(&wal), Ok(model.len()));
    wal.close().unwrap();
    model
}

fn rounds() -> u64 {
    if long() { 20 } else { 2 }
}

// faults: B067, B103, B161, B163, B167
#[test]
fn every_acknowledged_record_can_be_read_in_memory() {
    for round in 0..rounds() {
        for io_thread in [false, true] {
            let options = Options { io_thread, group_bytes: 4 << 10, ..small_options() };
            stress(Arc::new(MemStorage::new(round)), &options, 4, 120);
        }
    }
}

// faults: B161, B166
#[test]
fn every_acknowledged_record_can_be_read_on_a_file_system() {
    for io_thread in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { io_thread, segment_bytes: 64 << 10, ..small_options() };
        stress(Arc::new(FsStorage::new(dir.path())), &options, 4, 60 * rounds());
    }
}

/// Images while threads commit. The floor is read before an image is taken; what the records were is known
/// once all have their receipts.
#[test]
fn the_power_may_go_beside_many_committers() {
    for io_thread in [false, true] {
        let disk = MemStorage::new(9);
        let storage = FaultStorage::new(on(&disk));
        let options = Options { io_thread, group_bytes: 4 << 10, ..small_options() };
        let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
        let images = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::new(AtomicU64::new(0));
        storage.on_call({
            let (images, disk, seen) = (Arc::clone(&images), disk.clone(), Arc::clone(&seen));
            let marks = wal.clone();
            move |_, _| {
                let call = seen.fetch_add(1, Ordering::Relaxed);
                if !call.is_multiple_of(3) {
                    return;
                }
                let (durable, written) = (number(marks.durable()), number(marks.written()));
                let power = disk.crash(&CrashPlan::Seeded(call));
                let process = disk.fork_live();
                let mut images = images.lock().unwrap();
                images.push((power, durable, Crash::Power));
                images.push((process, written, Crash::Process));
            }
        });
        let appended = Appended::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (wal, appended) = (&wal, &appended);
                scope.spawn(move || commit_many(wal, thread, 40, appended));
            }
        });
        storage.on_call(|_, _| {});
        let all = model_of(&appended);
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 50);
        for (at, (image, floor, crash)) in images.into_iter().enumerate() {
            let mut model = all.clone();
            model.written = floor;
            model.durable = floor;
            check(&image, &model, crash).unwrap_or_else(|found| panic!("image {at}, {crash:?}: {found}"));
        }
    }
}

/// A view as it has to be beside a writer.
fn sound_view(disk: &MemStorage, floor: u64) {
    let storage = FaultStorage::new(on(disk));
    let view = View::open_on(Arc::new(storage.clone())).unwrap();
    let report = view.report();
    assert!(
        matches!(report.verdict, Verdict::Clean | Verdict::TornTail),
        "{}: {:?}",
        report.verdict,
        report.findings
    );
    assert!(number(report.last) >= floor, "{:?} of {floor}", report.last);
    assert_eq!(storage.mutations(), 0);
}

/// Runs `round` again and again beside a thread that opens views; `kept` is what each view has to see.
fn beside_views(disk: &MemStorage, kept: &AtomicU64, read: bool, mut round: impl FnMut(u64)) {
    let looks = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let _done = Done(&looks, u64::MAX);
            while !stop.load(Ordering::Acquire) {
                let floor = kept.load(Ordering::Acquire);
                sound_view(disk, floor);
                if read {
                    let view = View::open_on(on(disk)).unwrap();
                    let (records, error) = drain(view.read(Lsn::FIRST).unwrap());
                    assert!(error.is_none(), "{error:?}");
                    assert!(records.len() as u64 >= floor, "{} of {floor} seen", records.len());
                    assert!(records.iter().zip(1..).all(|((lsn, _), due)| *lsn == due));
                }
                looks.fetch_add(1, Ordering::AcqRel);
            }
        });
        for number in 0..40 * rounds() {
            round(number);
            while looks.load(Ordering::Acquire) < number {
                std::thread::yield_now();
            }
        }
    });
}

/// Scenario 16: a view is opened and read again and again beside a writer that rotates and seals.
// faults: B109
#[test]
fn a_view_beside_a_writer_sees_a_prefix_and_no_damage() {
    for io_thread in [false, true] {
        let disk = MemStorage::new(4);
        let options =
            Options { io_thread, beacon_idle: std::time::Duration::from_millis(1), ..small_options() };
        let wal = Wal::open_on(on(&disk), options).unwrap();
        let appended = Appended::default();
        let kept = AtomicU64::new(0);
        beside_views(&disk, &kept, true, |round| {
            commit_many(&wal, round, 6, &appended);
            kept.store(number(wal.written()), Ordering::Release);
        });
        let model = model_of(&appended);
        drop(wal);
        check(&disk.fork_live(), &model, Crash::Process).unwrap();
    }
}

/// Scenario 16: a view beside opens, copies and closes.
#[test]
fn a_view_beside_recovery_sees_a_prefix_and_no_damage() {
    let disk = MemStorage::new(4);
    drop(Wal::open_on(on(&disk), small_options()).unwrap());
    let kept = AtomicU64::new(0);
    let mut due = 0;
    beside_views(&disk, &kept, false, |round| {
        let wal = Wal::open_on(on(&disk), small_options()).unwrap();
        assert_eq!(number(wal.last()), due);
        for sizes in [&[100][..], &[6000], &[6000, 1]] {
            let batch = batch_of(round, due, sizes);
            due = wal.commit_as(&mut encoded(&batch), Durability::Written).unwrap().last.number();
            kept.store(due, Ordering::Release);
        }
        if round % 4 == 0 {
            wal.close().unwrap();
        }
    });
}

/// A record is staged while another thread, whose batch does not fit any more, is about to leave the segment: it
/// belongs to the segment that it was staged for, or to the next, and never to one whose link begins behind it.
/// (Found by `every_acknowledged_record_can_be_read_on_a_file_system`.)
// faults: B161, B163
#[test]
fn a_record_staged_during_a_rotation_keeps_its_place() {
    let disk = MemStorage::new(1);
    let storage = FaultStorage::new(on(&disk));
    let options = Options { io_thread: true, beacon_idle: std::time::Duration::ZERO, ..small_options() };
    let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
    let commit = |level, size: usize| {
        let due = number(wal.last());
        wal.commit_as(&mut encoded(&batch_of(1, due, &[size])), level).unwrap();
    };
    commit(Durability::Synced, 10);
    commit(Durability::Written, 6000);
    // The closing sync of the first segment hangs; whoever begins a third one has to wait for it.
    storage.inject(Fault::hang().at(Op::Sync, 1).on_name("00001.wal"));
    commit(Durability::Written, 6000);
    assert!(storage.wait_hung());
    let rotator = std::thread::spawn({
        let wal = wal.clone();
        move || wal.append(0xff, 1, &[1; 6000])
    });
    while !disk.names().iter().any(|name| name.ends_with("00003.wal")) {
        std::thread::yield_now();
    }
    for _ in 0..20 {
        commit(Durability::Buffered, 1);
        (0..5000).for_each(|_| std::thread::yield_now());
    }
    storage.release();
    let big = rotator.join().unwrap().unwrap();
    wal.sync().unwrap();
    let (records, error) = drain(wal.read(Lsn::FIRST).unwrap());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(records.len(), 24);
    for (lsn, payload) in records.iter().skip(3) {
        assert_eq!(payload.len(), if *lsn == big.number() { 6000 } else { 1 });
    }
    wal.close().unwrap();
    assert_eq!(drain(View::open_on(on(&disk)).unwrap().read(Lsn::FIRST).unwrap()).0, records);
}

/// A segment was begun, its link is staged, and whoever began it still makes room in it: a sync of what was
/// written earlier may not take the link away.
/// (Found by `a_close_beside_committers_leaves_nothing_half_done`.)
// faults: B052, B161
#[test]
fn a_sync_beside_a_rotation_leaves_the_next_segment_its_link() {
    // The I/O thread may seal the first segment before the sync is asked for, and then nothing is left to lead.
    for round in 0..60 {
        let close = round % 2 == 0;
        let disk = MemStorage::new(1);
        let storage = FaultStorage::new(on(&disk));
        let options = Options { io_thread: true, beacon_idle: std::time::Duration::ZERO, ..small_options() };
        let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
        let mut model = Model::default();
        let mut appended = |sizes: &[usize]| {
            let batch = batch_of(1, model.len(), sizes);
            model.append(batch.iter().cloned());
            (encoded(&batch), model.clone())
        };
        wal.commit_as(&mut appended(&[10]).0, Durability::Synced).unwrap();
        wal.commit_as(&mut appended(&[6000]).0, Durability::Written).unwrap();
        // The I/O thread prepares the second segment, with less room than the next batch needs.
        while !disk.names().iter().any(|name| name.ends_with("00002.wal")) {
            std::thread::yield_now();
        }
        storage.inject(Fault::hang().at(Op::Allocate, 1).on_name("00002.wal"));
        let (mut batch, mut model) = appended(&[6000]);
        let rotator = std::thread::spawn({
            let wal = wal.clone();
            move || wal.commit_as(&mut batch, Durability::Synced)
        });
        assert!(storage.wait_hung());
        // LSN 2 is written and not durable: this leads a group without a record.
        wal.wait_durable(crate::model::lsn(2)).unwrap();
        if close {
            storage.release();
            let outcome = rotator.join().unwrap();
            wal.close().unwrap();
            outcome.unwrap();
        } else {
            storage.release();
            rotator.join().unwrap().unwrap();
        }
        assert_eq!(model.compare_wal(&wal), Ok(3), "closed: {close}");
        model.acknowledge(Durability::Synced, 3);
        assert_eq!(check(&disk.crash(&CrashPlan::Nothing), &model, Crash::Power), Ok(3), "closed: {close}");
    }
}

/// Stores a number when it goes, also in a panic: nobody waits for a thread that is gone.
struct Done<'a>(&'a AtomicU64, u64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::Relaxed);
    }
}

/// Closing while others commit: each commit is acknowledged and there, or refused and not there.
// faults: B139, B167
#[test]
fn a_close_beside_committers_leaves_nothing_half_done() {
    for round in 0..10 * rounds() {
        let disk = MemStorage::new(round);
        let options = Options { io_thread: round % 2 == 0, ..small_options() };
        let wal = Wal::open_on(on(&disk), options).unwrap();
        let acknowledged = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (wal, acknowledged) = (&wal, &acknowledged);
                scope.spawn(move || {
                    for at in 0.. {
                        let payload = [thread.to_le_bytes(), u64::to_le_bytes(at)].concat();
                        let mut batch = Batch::new();
                        batch.push(0x80, 1, &payload).unwrap();
                        match wal.commit_as(&mut batch, LEVELS[(at % 3) as usize]) {
                            Ok(receipt) => {
                                acknowledged.lock().unwrap().insert(receipt.first.number(), payload);
                            }
                            Err(AppendError::Closed) => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            while acknowledged.lock().unwrap().len() < 60 {
                std::thread::yield_now();
            }
            wal.close().unwrap();
        });
        let view = View::open_on(on(&disk.crash(&CrashPlan::Nothing))).unwrap();
        let report = view.report();
        assert!(report.closed_cleanly, "round {round}: {report:?}");
        let records: BTreeMap<u64, Vec<u8>> = drain(view.read(Lsn::FIRST).unwrap()).0.into_iter().collect();
        assert_eq!(records, *acknowledged.lock().unwrap());
    }
}

// Without the I/O thread whoever rotates seals what was left. Two who come to the same segment do not take the
// one behind it off the list, which nobody has synced yet.
// faults: B100, B161
#[test]
fn two_who_seal_one_segment_leave_the_next_one_to_be_synced() {
    let disk = MemStorage::new(1);
    let storage = FaultStorage::new(on(&disk));
    let wal = Wal::open_on(Arc::new(storage.clone()), small_options()).unwrap();
    let commit = |level, size: usize| {
        let due = number(wal.last());
        wal.commit_as(&mut encoded(&batch_of(1, due, &[size])), level).unwrap();
    };
    commit(Durability::Synced, 10);
    commit(Durability::Written, 6000);
    // Begins the second segment.
    commit(Durability::Written, 9000);
    // Who ends that one seals the first, and hangs there; another one comes along meanwhile.
    storage.inject(Fault::hang().at(Op::SetLen, 1).on_name("00001.wal"));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| wal.rotate().unwrap());
        assert!(storage.wait_hung());
        let other = scope.spawn(|| wal.append_as(0xff, 1, &[1; 14_000], Durability::Written).unwrap());
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        storage.release();
        slow.join().unwrap();
        other.join().unwrap();
    });
    let last = wal.append(0x80, 1, b"and all before it").unwrap();
    let view = View::open_on(on(&disk.crash(&CrashPlan::Nothing))).unwrap();
    assert_eq!((view.report().verdict, view.report().last), (Verdict::Clean, Some(last)), "P2");
}
