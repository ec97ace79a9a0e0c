//! Sequences that a reader of the code found: each went wrong once.

use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use planewal::storage::{Fault, FaultStorage, MemStorage, Op};
use planewal::{AppendError, Batch, Durability, KeptBecause, Lsn, Options, ReadError, View, Wal};

use crate::Bell;

fn quiet() -> Options {
    Options {
        io_thread: false,
        segment_bytes: 64 << 10,
        prepare_bytes: 4096,
        beacon_idle: Duration::ZERO,
        ..Options::default()
    }
}

fn filled(bytes: usize) -> Batch {
    let mut batch = Batch::new();
    batch.push(0x80, 1, &vec![7; bytes]).unwrap();
    batch
}

fn lsn(number: u64) -> Lsn {
    Lsn::new(number).unwrap()
}

/// What is on the disk opens, and ends with this LSN.
fn reopens(disk: &MemStorage, last: Option<Lsn>) {
    let image = disk.fork_live();
    let report = View::open_on(Arc::new(image.fork_live())).unwrap().report().clone();
    assert!(report.findings.iter().all(|finding| finding.harmless), "{:#?}", report.findings);
    assert_eq!(Wal::open_on(Arc::new(image), quiet()).unwrap().last(), last);
}

// The copy of an unproved tail found no room at opening. While one appender tries it again, no other may pass.
#[test]
fn no_append_slips_past_a_tail_that_waits_to_be_copied() {
    let disk = MemStorage::new(61);
    {
        let wal = Wal::open_on(Arc::new(disk.clone()), quiet()).unwrap();
        wal.commit(&mut filled(10)).unwrap();
        for _ in 0..5 {
            wal.commit_as(&mut filled(100), Durability::Written).unwrap();
        }
    }
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let full = || Fault::error(ErrorKind::StorageFull).at(Op::Write, 1).on_name("00002.wal.tmp").sticky();
    storage.inject(full());
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    assert!(wal.recovery().copy_pending);
    for _ in 0..2 {
        storage.inject(Fault::hang().at(Op::Create, 1).on_name("00002.wal.tmp"));
        thread::scope(|scope| {
            let copies = scope.spawn(|| wal.commit_as(&mut filled(10), Durability::Written));
            assert!(storage.wait_hung());
            let other = scope.spawn(|| wal.commit_as(&mut filled(10), Durability::Synced));
            for _ in 0..1000 {
                thread::yield_now();
            }
            storage.release();
            for refused in [copies.join().unwrap(), other.join().unwrap()] {
                assert!(matches!(refused, Err(AppendError::Full(_))), "{refused:?}");
            }
        });
        assert_eq!(wal.last(), Some(lsn(6)), "no LSN was given");
    }
    storage.clear_faults();
    for last in 7..=9 {
        assert_eq!(wal.commit(&mut filled(10)).unwrap().last, lsn(last));
    }
    reopens(&disk, Some(lsn(9)));
}

#[test]
fn a_segment_that_was_given_up_and_could_not_be_removed_stays_known() {
    let disk = MemStorage::new(62);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    wal.commit(&mut filled(10)).unwrap();
    wal.rotate().unwrap();
    // The link of the next segment is whole, its first group finds no room.
    storage.inject(Fault::torn_write(100, ErrorKind::StorageFull).at(Op::Write, 2).on_name("2.wal"));
    storage.inject(Fault::error(ErrorKind::StorageFull).at(Op::Remove, 1).on_name("2.wal"));
    wal.commit(&mut filled(10)).unwrap();
    wal.commit(&mut filled(10)).unwrap();
    wal.rotate().unwrap();
    wal.commit(&mut filled(10)).unwrap();
    assert!(disk.names().contains(&"00000000000000000002.wal".to_owned()), "it was to stay");
    reopens(&disk, Some(lsn(4)));
}

#[test]
fn a_polled_write_does_not_wait_for_a_sync_that_hangs() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(63)));
    let options = Options { beacon_idle: Duration::ZERO, ..Options::default() };
    let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
    wal.commit(&mut filled(10)).unwrap();
    storage.inject(Fault::hang().at(Op::Write, 1).on_name("1.wal"));
    thread::scope(|scope| {
        let syncs = scope.spawn(|| wal.commit(&mut filled(10)));
        assert!(storage.wait_hung());
        // Polled while somebody writes: the thread is asked, and has to be told when that is over.
        let mut ticket = wal.submit_as(&mut filled(10), Durability::Written).unwrap();
        let waker = Waker::from(Arc::new(Bell::default()));
        assert!(Future::poll(Pin::new(&mut ticket), &mut Context::from_waker(&waker)).is_pending());
        thread::sleep(Duration::from_millis(20));
        storage.inject(Fault::hang().at(Op::Sync, 1).on_name("1.wal"));
        storage.release();
        assert!(storage.wait_hung());
        let until = Instant::now() + Duration::from_secs(10);
        while wal.written() < Some(lsn(3)) && Instant::now() < until {
            thread::yield_now();
        }
        let written = wal.written();
        storage.release();
        syncs.join().unwrap().unwrap();
        assert_eq!(written, Some(lsn(3)), "while the sync hung");
    });
}

#[test]
fn whoever_awaits_a_record_is_woken_by_a_poison_wherever_it_comes_from() {
    for op in [Op::Sync, Op::Write] {
        let storage = FaultStorage::new(Arc::new(MemStorage::new(64)));
        let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
        wal.commit(&mut filled(10)).unwrap();
        let mut tail = wal.tail(lsn(2)).unwrap();
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        {
            let next = pin!(tail.next());
            assert!(next.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        storage.inject(Fault::error(ErrorKind::Other).at(op, 1).on_name(".wal"));
        if op == Op::Sync {
            // The sync of room that is made.
            wal.commit(&mut filled(30_000)).unwrap_err();
        } else {
            // The seal.
            wal.close().unwrap_err();
        }
        assert!(wal.poisoned().is_some());
        assert_eq!(bell.times.load(Ordering::Relaxed), 1, "{op:?}");
        assert!(matches!(tail.try_next(), Err(ReadError::Poisoned(_))));
    }
}

#[test]
fn a_time_limit_counts_on_a_full_disk_without_the_thread() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(65)));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    wal.commit(&mut filled(10)).unwrap();
    let ticket = wal.submit_as(&mut filled(10), Durability::Written).unwrap();
    for op in [Op::Write, Op::Allocate] {
        storage.inject(Fault::error(ErrorKind::StorageFull).at(op, 1).on_name(".wal").sticky());
    }
    assert!(ticket.wait_timeout(Duration::from_millis(50)).unwrap().is_none());
    storage.clear_faults();
    assert_eq!(ticket.wait().unwrap().last, lsn(2));
}

// A write without room takes the segment that two permits relied on.
#[test]
fn permits_go_on_after_a_group_that_found_no_room() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(66)));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    let permits = [(); 2].map(|()| wal.reserve(40_000).unwrap());
    storage.inject(Fault::error(ErrorKind::StorageFull).at(Op::Write, 2).on_name(".wal"));
    let _ = wal.commit_as(&mut filled(10), Durability::Written).unwrap();
    let tickets = permits.map(|permit| permit.submit(&mut filled(39_000)).unwrap());
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    assert_eq!(wal.durable(), Some(lsn(3)));
    wal.commit(&mut filled(10)).unwrap();
    wal.close().unwrap();
}

#[test]
fn a_permit_of_a_log_that_is_gone_takes_nothing() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(67)), quiet()).unwrap();
    let permit = wal.reserve(100).unwrap();
    drop(wal);
    let mut batch = filled(10);
    assert!(matches!(permit.commit_as(&mut batch, Durability::Buffered), Err(AppendError::Abandoned)));
    assert_eq!(batch.records(), 1);
}

// Decided, and not carried out yet: there is no hold to be had, so no tail either.
#[test]
fn no_tail_lives_without_its_hold() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(68)));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    for _ in 0..4 {
        wal.commit(&mut filled(10)).unwrap();
        wal.rotate().unwrap();
    }
    wal.commit(&mut filled(10)).unwrap();
    storage.inject(Fault::hang().at(Op::Write, 1).on_name("planewal.ctl"));
    thread::scope(|scope| {
        let retires = scope.spawn(|| wal.retire_unchecked(lsn(2)));
        assert!(storage.wait_hung());
        let below = wal.tail(Lsn::FIRST);
        let above = wal.tail(lsn(2)).unwrap();
        storage.release();
        assert_eq!(retires.join().unwrap().unwrap().first, lsn(2));
        assert!(matches!(below, Err(ReadError::Retired { first, .. }) if first == lsn(2)), "{below:?}");
        let stays = wal.retire_unchecked(lsn(5)).unwrap().stays.unwrap();
        assert!(matches!(stays.why, KeptBecause::Held(_)), "{stays:?}");
        drop(above);
    });
}

// Who leads with a time limit may be gone before the sync: those behind it are told all the same.
#[test]
fn a_leader_whose_time_is_up_leaves_nobody_asleep() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(69)));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    wal.commit(&mut filled(10)).unwrap();
    let ticket = wal.submit(&mut filled(10)).unwrap();
    storage.inject(Fault::hang().at(Op::Write, 1).on_name("1.wal"));
    thread::scope(|scope| {
        let limited = scope.spawn(|| ticket.wait_timeout(Duration::from_millis(1)));
        assert!(storage.wait_hung());
        let behind = scope.spawn(|| wal.commit(&mut filled(10)));
        while wal.last() < Some(lsn(3)) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(5));
        storage.release();
        limited.join().unwrap().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while !behind.is_finished() && Instant::now() < until {
            thread::yield_now();
        }
        let asleep = !behind.is_finished();
        // Wakes it, so that this test can end whatever happened.
        wal.sync().unwrap();
        behind.join().unwrap().unwrap();
        assert!(!asleep, "nobody told it that there is a sync to be made");
    });
}

#[test]
fn a_storage_that_panics_while_a_tail_is_copied_leaves_nobody_waiting() {
    let disk = MemStorage::new(70);
    {
        let wal = Wal::open_on(Arc::new(disk.clone()), quiet()).unwrap();
        wal.commit(&mut filled(10)).unwrap();
        wal.commit_as(&mut filled(100), Durability::Written).unwrap();
    }
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    storage.inject(Fault::error(ErrorKind::StorageFull).at(Op::Write, 1).on_name("00002.wal.tmp"));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    assert!(wal.recovery().copy_pending);
    storage.on_call(|op, name| assert!(op != Op::Create || !name.ends_with(".tmp"), "a storage with a bug"));
    assert!(matches!(wal.commit(&mut filled(10)), Err(AppendError::Poisoned(_))));
    assert!(matches!(wal.sync(), Err(AppendError::Poisoned(_))));
    assert!(wal.close().is_err());
    reopens(&disk, Some(lsn(2)));
}

#[test]
fn a_storage_that_panics_in_the_clean_close_lets_the_lock_go() {
    let disk = MemStorage::new(71);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    wal.commit(&mut filled(10)).unwrap();
    storage.on_call(|op, name| assert!(op != Op::Write || name != "planewal.ctl", "a storage with a bug"));
    assert!(wal.close().is_err());
    assert!(matches!(wal.commit(&mut filled(10)), Err(AppendError::Closed)));
    let again = Wal::open_on(Arc::new(disk), quiet()).unwrap();
    assert!(again.recovery().unclean && again.last() == Some(lsn(1)));
}
