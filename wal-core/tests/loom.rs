//! The writer under a model checker: every order of the steps of two or three threads, up to a number of
//! preemptions. It is the real code on a simulated disk; only locks and atomics are loom's (`src/sync.rs`).
//!
//! Empty without `--cfg loom`; `docs/testing.md` has the command. Whoever waits and is not woken is a deadlock,
//! which loom reports.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread;
use planewal_core::storage::{
    Access, Allocation, CrashPlan, Entry, LockError, MemStorage, Storage, StorageFile, StorageLock,
};
use planewal_core::{
    AppendError, Batch, Durability, HoldError, KeptBecause, Lsn, Options, ReadError, Tail, Tailed, Ticket,
    View, Wal,
};

use Durability::{Buffered, Synced, Written};

/// Runs a model in every order with at most so many preemptions.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(run);
}

/// No thread, room for everything in one segment, and little in staging.
fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        prepare_bytes: 64 << 10,
        group_bytes: 4 << 10,
        staging_bytes: 64 << 10,
        spares: 0,
        io_thread: false,
        ..Options::default()
    }
}

/// A log with a durable record, whose segment is begun.
fn begun() -> (MemStorage, Wal) {
    let disk = MemStorage::new(1);
    let wal = Wal::open_on(Arc::new(disk.clone()), options()).unwrap();
    wal.append_as(0x80, 1, &[0], Synced).unwrap();
    (disk, wal)
}

fn lsn(number: u64) -> Lsn {
    Lsn::new(number).unwrap()
}

fn batch(payload: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(0x80, 1, payload).unwrap();
    batch
}

/// Commits a record and checks what the acknowledgement claims; answers its LSN, and what of the disk would
/// outlive a loss of power.
fn commit(wal: &Wal, disk: &MemStorage, who: u8, level: Durability) -> (u64, Durability, MemStorage) {
    let before = marks(wal);
    let at = wal.append_as(0x80, 1, &[who], level).unwrap();
    let after = marks(wal);
    assert!(before.0 <= after.0 && before.1 <= after.1, "marks went back");
    assert!(level < Written || after.1 >= at.number(), "acknowledged above written()");
    assert!(level < Synced || after.0 >= at.number(), "acknowledged above durable()");
    (at.number(), level, disk.crash(&CrashPlan::Nothing))
}

/// The durable and the written mark, in the order in which the first may not be above the second.
fn marks(wal: &Wal) -> (u64, u64) {
    let durable = wal.durable().map_or(0, Lsn::number);
    let written = wal.written().map_or(0, Lsn::number);
    assert!(durable <= written, "{durable} is durable and {written} written");
    (durable, written)
}

/// Every record is there once and in order; what was acknowledged as synced outlives a loss of power.
fn check(wal: &Wal, mut commits: Vec<(u64, Durability, MemStorage)>) {
    commits.sort_by_key(|commit| commit.0);
    let lsns: Vec<u64> = commits.iter().map(|commit| commit.0).collect();
    let last = 1 + lsns.len() as u64;
    assert_eq!(lsns, (2..=last).collect::<Vec<u64>>(), "LSNs are dense");
    wal.sync().unwrap();
    assert_eq!(marks(wal), (last, last));
    assert_eq!(read(wal), last);
    for (at, level, image) in commits {
        if level == Synced {
            let view = View::open_on(Arc::new(image)).unwrap();
            assert!(view.report().last >= Lsn::new(at), "{at} was acknowledged as synced");
        }
    }
}

/// Reads from the first record on; answers the last LSN.
fn read(wal: &Wal) -> u64 {
    let mut reader = wal.read(wal.first()).unwrap();
    let mut last = wal.first().number() - 1;
    while let Some(record) = reader.next().unwrap() {
        last += 1;
        assert_eq!(record.lsn.number(), last);
    }
    last
}

// The gate.

fn commit_at(levels: &'static [Durability], preemptions: usize) {
    model(preemptions, move || {
        let (disk, wal) = begun();
        let others: Vec<_> = (1..)
            .zip(&levels[1..])
            .map(|(who, &level)| {
                let (wal, disk) = (wal.clone(), disk.clone());
                thread::spawn(move || commit(&wal, &disk, who, level))
            })
            .collect();
        let mut commits = vec![commit(&wal, &disk, 0, levels[0])];
        commits.extend(others.into_iter().map(|other| other.join().unwrap()));
        check(&wal, commits);
    });
}

// faults: B067, B162, B163
#[test]
fn two_committers_who_sync() {
    commit_at(&[Synced, Synced], 4);
}

// faults: B067, B162, B163
#[test]
fn a_committer_who_writes_beside_one_who_syncs() {
    commit_at(&[Written, Synced], 4);
}

// faults: B163
#[test]
fn a_record_is_buffered_beside_a_group_under_way() {
    commit_at(&[Synced, Buffered], 4);
}

// faults: B162, B163
#[test]
fn three_committers_at_two_levels() {
    let long = std::env::var_os("PLANEWAL_LONG").is_some();
    commit_at(&[Synced, Written, Synced], if long { 3 } else { 2 });
}

// Who leads to sync next leaves waking to that sync; but another's may have covered the group meanwhile.
// faults: B162
#[test]
fn a_leader_whose_group_another_syncs_wakes_those_behind_it() {
    model(3, || {
        let (_, wal) = begun();
        let ticket = wal.submit_as(&mut batch(&[1]), Synced).unwrap();
        let syncs = thread::spawn(move || {
            ticket.wait().unwrap();
        });
        let commits = {
            let wal = wal.clone();
            thread::spawn(move || wal.append_as(0x80, 1, &[2], Synced).map(drop).unwrap())
        };
        wal.append_as(0x80, 1, &[3], Synced).unwrap();
        syncs.join().unwrap();
        commits.join().unwrap();
        assert_eq!(marks(&wal), (4, 4));
    });
}

// faults: B162
#[test]
fn a_rotation_beside_a_committer() {
    model(4, || {
        let (disk, wal) = begun();
        let other = {
            let (wal, disk) = (wal.clone(), disk.clone());
            thread::spawn(move || commit(&wal, &disk, 1, Synced))
        };
        wal.rotate().unwrap();
        let mine = commit(&wal, &disk, 2, Written);
        check(&wal, vec![mine, other.join().unwrap()]);
    });
}

// Who waits for the write alone.

/// A disk whose syncs return only once the model lets them, and of which what is read, written and removed
/// are steps of their own.
#[derive(Debug, Clone)]
struct Slow {
    disk: MemStorage,
    lets: Arc<(Mutex<bool>, Condvar)>,
}

impl Slow {
    fn begun(options: Options) -> (Slow, Wal) {
        let slow = Slow { disk: MemStorage::new(1), lets: Arc::new((Mutex::new(true), Condvar::new())) };
        let wal = Wal::open_on(Arc::new(slow.clone()), options).unwrap();
        wal.append_as(0x80, 1, &[0], Synced).unwrap();
        (slow, wal)
    }

    /// A step of its own.
    fn step(&self) {
        drop(self.lets.0.lock().unwrap());
    }

    fn lets(&self, syncs: bool) {
        *self.lets.0.lock().unwrap() = syncs;
        self.lets.1.notify_all();
    }
}

impl Storage for Slow {
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        Ok(Box::new(SlowFile { file: self.disk.create(name)?, disk: self.clone() }))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
        self.step();
        Ok(Box::new(SlowFile { file: self.disk.open(name, access)?, disk: self.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step();
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }

    fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError> {
        self.disk.lock(name)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.disk.random(bytes)
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Box<dyn StorageFile>,
    disk: Slow,
}

impl StorageFile for SlowFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.step();
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.disk.step();
        self.file.write_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> io::Result<Allocation> {
        self.file.allocate(offset, len, how)
    }

    fn sync(&self) -> io::Result<()> {
        let mut lets = self.disk.lets.0.lock().unwrap();
        while !*lets {
            lets = self.disk.lets.1.wait(lets).unwrap();
        }
        drop(lets);
        self.file.sync()
    }
}

/// A committer whose sync takes until another has got what only the write is needed for.
fn beside_a_slow_sync(payload: usize, other: fn(&Wal)) {
    model(4, move || {
        let options = Options { segment_bytes: 256 << 10, prepare_bytes: 256 << 10, ..options() };
        let (slow, wal) = Slow::begun(options);
        slow.lets(false);
        let committer = {
            let wal = wal.clone();
            thread::spawn(move || wal.append_as(0x80, 1, &vec![1; payload], Synced).map(drop).unwrap())
        };
        other(&wal);
        slow.lets(true);
        committer.join().unwrap();
    });
}

// faults: B162, B166
#[test]
fn who_waits_for_the_write_never_waits_for_the_sync_behind_it() {
    beside_a_slow_sync(1, |wal| {
        wal.append_as(0x80, 1, &[2], Written).unwrap();
    });
}

// faults: B162, B166
#[test]
fn who_waits_for_a_place_in_staging_never_waits_for_the_sync_behind_it() {
    beside_a_slow_sync(40 << 10, |wal| {
        wal.append_as(0x80, 1, &[2; 40 << 10], Written).unwrap();
    });
}

// faults: B162, B166
#[test]
fn a_tail_of_written_records_never_waits_for_the_sync_behind_them() {
    for next in [wait, poll] {
        model(4, move || {
            let (slow, wal) = Slow::begun(options());
            slow.lets(false);
            let mut tail = wal.tail(lsn(2)).unwrap().of_written();
            let committer = thread::spawn(move || wal.append_as(0x80, 1, &[1], Synced).unwrap());
            assert_eq!(next(&mut tail), Some(2));
            slow.lets(true);
            assert_eq!(committer.join().unwrap(), lsn(2));
        });
    }
}

// Permits.

// faults: B162
#[test]
fn who_waits_for_room_is_woken_by_a_permit_that_goes() {
    model(4, || {
        let (_, wal) = begun();
        let permit = wal.reserve(64 << 10).unwrap();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || {
                let permit = wal.reserve(Batch::encoded(1)).unwrap();
                permit.commit_as(&mut batch(&[1]), Written).unwrap().last
            })
        };
        drop(permit);
        assert_eq!(other.join().unwrap(), lsn(2));
    });
}

// faults: B162
#[test]
fn who_waits_for_room_is_woken_by_a_permit_that_is_used() {
    model(4, || {
        let (_, wal) = begun();
        let permit = wal.reserve(64 << 10).unwrap();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || {
                let permit = wal.reserve(Batch::encoded(1)).unwrap();
                permit.submit_as(&mut batch(&[1]), Written).unwrap().wait().unwrap();
            })
        };
        permit.commit_as(&mut batch(&[2]), Synced).unwrap();
        other.join().unwrap();
        assert_eq!(read(&wal), 3);
        assert_eq!(wal.stats().reserved_bytes, 0);
    });
}

// faults: B162
#[test]
fn two_who_wait_for_room_are_woken_by_a_permit_that_goes() {
    model(3, || {
        let (_, wal) = begun();
        let permit = wal.reserve(64 << 10).unwrap();
        let others = [1, 2].map(|who| {
            let wal = wal.clone();
            thread::spawn(move || {
                let permit = wal.reserve(40 << 10).unwrap();
                permit.commit_as(&mut batch(&[who]), Written).unwrap();
            })
        });
        drop(permit);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(read(&wal), 3);
    });
}

// faults: B162
#[test]
fn a_permit_beside_a_committer_in_tight_staging() {
    model(4, || {
        let (disk, wal) = begun();
        let permit = wal.reserve(64 << 10).unwrap();
        // It is in staging, so the next one finds no room beside the permit.
        let ticket = wal.submit_as(&mut batch(&[1]), Written).unwrap();
        let other = {
            let (wal, disk) = (wal.clone(), disk.clone());
            thread::spawn(move || commit(&wal, &disk, 2, Written))
        };
        drop(permit);
        let mine = (ticket.wait().unwrap().last.number(), Written, disk.clone());
        check(&wal, vec![mine, other.join().unwrap()]);
    });
}

// Tails.

/// A waker that can be waited for.
struct Bell {
    rung: Mutex<u32>,
    bell: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() += 1;
        self.bell.notify_all();
    }
}

/// Polls until it is ready, each time only once it was woken; at most once for nothing.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let bell = Arc::new(Bell { rung: Mutex::new(0), bell: Condvar::new() });
    let waker = Waker::from(Arc::clone(&bell));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut polls = 0;
    loop {
        if let Poll::Ready(ready) = future.as_mut().poll(&mut context) {
            return ready;
        }
        polls += 1;
        let mut rung = bell.rung.lock().unwrap();
        assert!(*rung <= polls, "woken without need");
        while *rung < polls {
            rung = bell.bell.wait(rung).unwrap();
        }
    }
}

/// The next record's LSN, which may not be above its mark; `None` at the end.
type Shown = Option<u64>;

fn wait(tail: &mut Tail) -> Shown {
    tail.next().wait().unwrap().map(|record| record.lsn.number())
}

fn poll(tail: &mut Tail) -> Shown {
    block_on(tail.next()).unwrap().map(|record| record.lsn.number())
}

fn tail_beside_committer(preemptions: usize, level: Durability, next: fn(&mut Tail) -> Shown) {
    model(preemptions, move || {
        let (_, wal) = begun();
        let mut tail = wal.tail(lsn(2)).unwrap();
        if level == Written {
            tail = tail.of_written();
        }
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.append_as(0x80, 1, &[1], level).unwrap())
        };
        assert_eq!(next(&mut tail), Some(2));
        let (durable, written) = marks(&wal);
        assert_eq!(if level == Synced { durable } else { written }, 2);
        assert_eq!(tail.try_next().unwrap(), Tailed::CaughtUp(lsn(3)));
        assert_eq!(other.join().unwrap(), lsn(2));
    });
}

// faults: B162
#[test]
fn a_tail_that_waits_is_woken_by_a_sync() {
    tail_beside_committer(4, Synced, wait);
}

// faults: B162
#[test]
fn a_tail_that_waits_is_woken_by_a_write() {
    tail_beside_committer(4, Written, wait);
}

// faults: B162
#[test]
fn a_tail_that_is_polled_is_woken_by_a_sync() {
    tail_beside_committer(4, Synced, poll);
}

// faults: B162
#[test]
fn a_tail_that_is_polled_is_woken_by_a_write() {
    tail_beside_committer(4, Written, poll);
}

fn tail_to_the_end(next: fn(&mut Tail) -> Shown, end: fn(Wal)) {
    model(4, move || {
        let (disk, wal) = begun();
        let mut tail = wal.tail(lsn(2)).unwrap();
        // Staged, and brought to disk by the end.
        let ticket = wal.submit_as(&mut batch(&[1]), Synced).unwrap();
        let other = thread::spawn(move || end(wal));
        let shown = next(&mut tail);
        assert!(shown.is_none_or(|at| at == 2));
        if shown.is_some() {
            let image = disk.crash(&CrashPlan::Nothing);
            assert_eq!(View::open_on(Arc::new(image)).unwrap().report().last, Lsn::new(2));
            assert_eq!(next(&mut tail), None);
        }
        other.join().unwrap();
        drop(ticket);
    });
}

// faults: B162
#[test]
fn a_tail_ends_with_a_log_that_is_closed() {
    tail_to_the_end(wait, |wal| wal.close().unwrap());
    tail_to_the_end(poll, |wal| wal.close().unwrap());
}

// faults: B162
#[test]
fn a_tail_ends_with_a_log_that_is_dropped() {
    tail_to_the_end(wait, drop);
    tail_to_the_end(poll, drop);
}

// Nothing is staged, so no leader wakes anybody.
// faults: B162
#[test]
fn a_tail_ends_with_an_idle_log_that_is_dropped() {
    for next in [wait, poll] {
        model(4, move || {
            let (_, wal) = begun();
            let mut tail = wal.tail(lsn(2)).unwrap();
            let other = thread::spawn(move || drop(wal));
            assert_eq!(next(&mut tail), None);
            other.join().unwrap();
        });
    }
}

// faults: B162
#[test]
fn a_tail_with_a_deadline_returns() {
    model(4, || {
        let (_, wal) = begun();
        let mut tail = wal.tail(lsn(2)).unwrap();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.append_as(0x80, 1, &[1], Synced).unwrap())
        };
        match tail.next().wait_timeout(Duration::from_millis(1)).unwrap() {
            Tailed::Record(record) => assert_eq!(record.lsn, lsn(2)),
            Tailed::CaughtUp(due) => assert_eq!(due, lsn(2)),
            other => panic!("{other:?}"),
        }
        other.join().unwrap();
    });
}

// Holds.

/// Two finished segments, of the records 1 and 2, and a third with record 3.
fn three_segments() -> Wal {
    let (_, wal) = begun();
    three_segments_of(&wal);
    wal
}

fn three_segments_of(wal: &Wal) {
    for number in 2..=3 {
        wal.rotate().unwrap();
        wal.append_as(0x80, 1, &[number], Synced).unwrap();
    }
    // Without the thread the one before is sealed at the next rotation.
    wal.rotate().unwrap();
    wal.append_as(0x80, 1, &[4], Synced).unwrap();
}

#[test]
fn a_hold_beside_a_retirement_is_refused_or_kept() {
    model(4, || {
        let wal = three_segments();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.hold("late", lsn(1)))
        };
        let report = wal.retire_unchecked(lsn(3)).unwrap();
        match other.join().unwrap() {
            Ok(hold) => {
                assert_eq!(wal.first(), lsn(1));
                assert!(matches!(report.stays.unwrap().why, KeptBecause::Held(_)));
                assert_eq!(read(&wal), 4);
                drop(hold);
                wal.retire_unchecked(lsn(3)).unwrap();
            }
            Err(HoldError::Retired { first, .. }) => assert_eq!(first, lsn(3)),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(wal.first(), lsn(3));
        assert!(wal.holds().is_empty());
    });
}

#[test]
fn a_durable_hold_beside_a_retirement_is_refused_or_kept() {
    model(4, || {
        let wal = three_segments();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.hold_durably("late", lsn(1)))
        };
        wal.retire_unchecked(lsn(3)).unwrap();
        match other.join().unwrap() {
            Ok(()) => assert_eq!((wal.first(), read(&wal)), (lsn(1), 4)),
            Err(HoldError::Retired { first, .. }) => assert_eq!((first, wal.first()), (lsn(3), lsn(3))),
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn a_hold_that_advances_beside_a_retirement_frees_what_is_below_it() {
    model(4, || {
        let wal = three_segments();
        let hold = wal.hold("mine", lsn(1)).unwrap();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.retire_unchecked(lsn(4)).unwrap().first)
        };
        hold.advance(lsn(2)).unwrap();
        assert!(matches!(hold.advance(lsn(1)), Err(HoldError::Backwards { .. })));
        assert!(other.join().unwrap() <= lsn(2));
        assert_eq!(hold.lsn(), lsn(2));
        wal.retire_unchecked(lsn(4)).unwrap();
        assert_eq!(wal.first(), lsn(2));
    });
}

#[test]
fn a_tail_holds_beside_a_retirement_what_it_has_not_shown() {
    model(4, || {
        let wal = three_segments();
        let mut tail = wal.tail(lsn(1)).unwrap();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.retire_unchecked(lsn(4)).unwrap())
        };
        for due in 1..=3 {
            assert_eq!(wait(&mut tail), Some(due));
        }
        other.join().unwrap();
        assert!(wal.first() <= lsn(3));
        drop(tail);
        wal.retire_unchecked(lsn(4)).unwrap();
    });
}

#[test]
fn a_tail_taken_beside_a_retirement_is_refused_or_whole() {
    model(4, || {
        let wal = three_segments();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.retire_unchecked(lsn(3)).unwrap())
        };
        match wal.tail(lsn(1)) {
            Ok(mut tail) => match tail.try_next() {
                Ok(Tailed::Record(record)) => assert_eq!(record.lsn, lsn(1)),
                Err(ReadError::NotKept { .. } | ReadError::Retired { .. }) => {}
                other => panic!("{other:?}"),
            },
            Err(ReadError::Retired { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        other.join().unwrap();
    });
}

// faults: B134
#[test]
fn a_backup_beside_a_retirement_is_whole() {
    model(3, || {
        let (_, wal) = Slow::begun(options());
        three_segments_of(&wal);
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.retire_unchecked(lsn(3)).unwrap())
        };
        let copy = MemStorage::new(2);
        wal.backup_to_storage(Arc::new(copy.clone())).unwrap();
        other.join().unwrap();
        let view = View::open_on(Arc::new(copy)).unwrap();
        assert!([Lsn::new(1), Lsn::new(3)].contains(&view.report().first));
        assert_eq!(view.report().last, Lsn::new(4));
    });
}

// Tickets.

fn ticket_beside_leader(preemptions: usize, end: fn(Ticket)) {
    model(preemptions, move || {
        let (_, wal) = begun();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || end(wal.submit_as(&mut batch(&[1]), Synced).unwrap()))
        };
        wal.append_as(0x80, 1, &[2], Synced).unwrap();
        other.join().unwrap();
        wal.sync().unwrap();
        assert_eq!(marks(&wal), (3, 3));
        assert_eq!(read(&wal), 3);
    });
}

// faults: B162
#[test]
fn a_ticket_is_dropped_beside_a_leader() {
    ticket_beside_leader(4, drop);
}

// faults: B162
#[test]
fn a_ticket_is_polled_beside_a_leader() {
    ticket_beside_leader(4, |ticket| {
        block_on(ticket).unwrap();
    });
}

// faults: B162
#[test]
fn a_ticket_with_a_deadline_beside_a_leader() {
    ticket_beside_leader(4, |ticket| {
        // Late at once, or done by itself, as nobody else was about to.
        let _ = ticket.wait_timeout(Duration::from_millis(1)).unwrap();
    });
}

// The end.

// faults: B067, B162
#[test]
fn a_close_beside_a_committer() {
    model(4, || {
        let (disk, wal) = begun();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.append_as(0x80, 1, &[1], Synced))
        };
        wal.close().unwrap();
        let last = match other.join().unwrap() {
            Ok(at) => at,
            Err(AppendError::Closed) => lsn(1),
            Err(error) => panic!("{error}"),
        };
        let view = View::open_on(Arc::new(disk.crash(&CrashPlan::Nothing))).unwrap();
        assert!(view.report().closed_cleanly);
        assert_eq!(view.report().last, Some(last));
    });
}

// faults: B067, B162
#[test]
fn a_close_beside_two_committers() {
    model(3, || {
        let (disk, wal) = begun();
        let others = [Written, Synced].map(|level| {
            let wal = wal.clone();
            thread::spawn(move || wal.append_as(0x80, 1, &[1], level))
        });
        wal.close().unwrap();
        let mut last = lsn(1);
        for outcome in others.map(|other| other.join().unwrap()) {
            match outcome {
                Ok(at) => last = last.max(at),
                Err(AppendError::Closed) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let view = View::open_on(Arc::new(disk.crash(&CrashPlan::Nothing))).unwrap();
        assert!(view.report().closed_cleanly);
        assert_eq!(view.report().last, Some(last));
    });
}

// faults: B162
#[test]
fn two_who_close() {
    model(4, || {
        let (disk, wal) = begun();
        let other = {
            let wal = wal.clone();
            thread::spawn(move || wal.close().unwrap())
        };
        wal.close().unwrap();
        other.join().unwrap();
        assert!(View::open_on(Arc::new(disk)).unwrap().report().closed_cleanly);
    });
}

// A ticket outlives the handle; the lock does not outlive the last write and sync.
// faults: B162
#[test]
fn a_handle_that_goes_leaves_no_ticket_waiting_and_no_lock() {
    model(4, || {
        let (disk, wal) = begun();
        let ticket = Arc::new(wal.submit_as(&mut batch(&[1]), Synced).unwrap());
        let other = {
            let ticket = Arc::clone(&ticket);
            thread::spawn(move || match ticket.wait() {
                Ok(receipt) => receipt.last,
                Err(AppendError::Abandoned) => lsn(1),
                Err(error) => panic!("{error}"),
            })
        };
        drop(wal);
        let acknowledged = other.join().unwrap();
        let wal = Wal::open_on(Arc::new(disk), options()).unwrap();
        assert!(wal.last() >= Some(acknowledged));
        drop(ticket);
    });
}

// What is staged behind a group under way can only go after it.
#[test]
fn a_handle_that_goes_writes_what_is_staged() {
    model(4, || {
        let (disk, wal) = begun();
        let ticket = wal.submit_as(&mut batch(&[1]), Synced).unwrap();
        let other = thread::spawn(move || ticket.wait().map(drop));
        drop(wal.submit_as(&mut batch(&[2]), Buffered).unwrap());
        drop(wal);
        match other.join().unwrap() {
            Ok(()) | Err(AppendError::Abandoned) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(View::open_on(Arc::new(disk)).unwrap().report().last, Lsn::new(3));
    });
}
