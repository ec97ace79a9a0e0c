//! Tails in the writer's process: nothing before it is durable, nothing twice, nobody forgotten.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{Durability, KeptBecause, Lsn, Options, ReadError, Tail, Tailed, Wal};

use crate::{Bell, batch, small};

fn quiet() -> Options {
    Options { io_thread: false, ..small() }
}

fn lsn(number: u64) -> Lsn {
    Lsn::new(number).unwrap()
}

/// The LSNs that the tail shows now.
fn shown(tail: &mut Tail) -> Vec<u64> {
    let mut shown = Vec::new();
    while let Tailed::Record(record) = tail.try_next().unwrap() {
        shown.push(record.lsn.number());
    }
    shown
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => bell.wait(),
        }
    }
}

// faults: B109
#[test]
fn a_tail_shows_what_is_durable_and_if_asked_what_is_written() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(31)));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    let mut durable = wal.tail(Lsn::FIRST).unwrap();
    let mut written = wal.tail(Lsn::FIRST).unwrap().of_written();
    wal.append_as(0x80, 1, b"one", Durability::Written).unwrap();
    wal.append_as(0x80, 1, b"two", Durability::Buffered).unwrap();
    let before = storage.mutations();
    assert_eq!(shown(&mut durable), []);
    assert_eq!(durable.try_next().unwrap(), Tailed::CaughtUp(Lsn::FIRST));
    assert_eq!(shown(&mut written), [1]);
    let waited = durable.next().wait_timeout(Duration::from_millis(5)).unwrap();
    assert_eq!(waited, Tailed::CaughtUp(Lsn::FIRST));
    let waited = written.next().wait_timeout(Duration::from_millis(5)).unwrap();
    assert_eq!(waited, Tailed::CaughtUp(lsn(2)));
    assert_eq!(storage.mutations(), before, "a tail makes nobody write");
    wal.sync().unwrap();
    assert_eq!((shown(&mut durable), shown(&mut written)), (vec![1, 2], vec![2]));
    assert_eq!(durable.due(), lsn(3));
    // From a cursor, and from the end.
    wal.append(0x80, 1, b"three").unwrap();
    assert_eq!(shown(&mut wal.tail_from(&durable.cursor()).unwrap()), [3]);
    assert_eq!(shown(&mut wal.tail(lsn(4)).unwrap()), []);
    assert!(matches!(wal.tail(lsn(5)), Err(ReadError::Ahead { .. })));
}

// faults: B162
#[test]
fn many_tails_see_every_record_once_and_in_order() {
    for io_thread in [true, false] {
        let wal = Wal::open_on(Arc::new(MemStorage::new(32)), Options { io_thread, ..small() }).unwrap();
        let records = 4000;
        std::thread::scope(|scope| {
            let mut followers = Vec::new();
            for number in 0..12 {
                let mut tail = wal.tail(Lsn::FIRST).unwrap();
                if number % 2 == 0 {
                    tail = tail.of_written();
                }
                followers.push(scope.spawn(move || {
                    let mut due = 1;
                    loop {
                        let record = match number % 3 {
                            0 => tail.next().wait().unwrap(),
                            1 => block_on(tail.next()).unwrap(),
                            _ => match tail.next().wait_timeout(Duration::from_millis(1)).unwrap() {
                                Tailed::Record(record) => Some(record),
                                Tailed::Closed(_) => None,
                                _ => continue,
                            },
                        };
                        let Some(record) = record else { return due - 1 };
                        assert_eq!(record.lsn.number(), due);
                        due += 1;
                    }
                }));
            }
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let wal = wal.clone();
                    scope.spawn(move || {
                        let levels = [Durability::Synced, Durability::Written, Durability::Buffered];
                        for n in 0..records / 2 {
                            wal.commit_as(&mut batch(n), levels[((n + writer) % 3) as usize]).unwrap();
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            wal.close().unwrap();
            for follower in followers {
                assert_eq!(follower.join().unwrap(), records);
            }
        });
    }
}

// Nobody rings when nothing is written; a tail that is behind does not wait for that.
// faults: B111
#[test]
fn a_tail_three_segments_behind_goes_on_without_new_writes() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(33)), quiet()).unwrap();
    let mut tail = wal.tail(Lsn::FIRST).unwrap();
    for n in 0..20 {
        wal.commit(&mut batch(n)).unwrap();
        if n % 5 == 4 {
            wal.rotate().unwrap();
        }
    }
    for due in 1..=20 {
        let record = if due % 2 == 0 { tail.next().wait() } else { block_on(tail.next()) };
        assert_eq!(record.unwrap().unwrap().lsn, lsn(due));
    }
    assert_eq!(tail.try_next().unwrap(), Tailed::CaughtUp(lsn(21)));
}

#[test]
fn a_tail_ends_when_the_log_is_closed_or_dropped_and_says_when_it_is_poisoned() {
    // Closed: everything is durable, and shown first.
    let wal = Wal::open_on(Arc::new(MemStorage::new(34)), small()).unwrap();
    let mut tail = wal.tail(Lsn::FIRST).unwrap();
    wal.append_as(0x80, 1, b"one", Durability::Buffered).unwrap();
    std::thread::scope(|scope| {
        let follower = scope.spawn(move || {
            assert_eq!(block_on(tail.next()).unwrap().unwrap().lsn, Lsn::FIRST);
            assert!(block_on(tail.next()).unwrap().is_none());
            assert_eq!(tail.try_next().unwrap(), Tailed::Closed(lsn(2)));
        });
        wal.close().unwrap();
        follower.join().unwrap();
    });
    // Dropped: what was not durable is not shown.
    let wal = Wal::open_on(Arc::new(MemStorage::new(35)), small()).unwrap();
    let [mut durable, written] = [(); 2].map(|()| wal.tail(Lsn::FIRST).unwrap());
    let mut written = written.of_written();
    wal.append_as(0x80, 1, b"one", Durability::Buffered).unwrap();
    std::thread::scope(|scope| {
        let follower = scope.spawn(move || assert!(durable.next().wait().unwrap().is_none()));
        drop(wal);
        follower.join().unwrap();
    });
    assert_eq!(written.next().wait().unwrap().unwrap().payload, b"one");
    assert!(written.next().wait().unwrap().is_none());
    // Poisoned.
    let storage = FaultStorage::new(Arc::new(MemStorage::new(36)));
    let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
    let mut tail = wal.tail(Lsn::FIRST).unwrap();
    wal.append(0x80, 1, b"safe").unwrap();
    storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Sync, 1).sticky());
    let mut waiting = wal.tail(lsn(2)).unwrap();
    std::thread::scope(|scope| {
        let follower = scope.spawn(move || waiting.next().wait().map(|record| record.is_some()));
        wal.append(0x80, 1, b"lost").unwrap_err();
        assert!(matches!(follower.join().unwrap(), Err(ReadError::Poisoned(_))));
    });
    assert_eq!(shown_until_error(&mut tail), (vec![1], true));
}

fn shown_until_error(tail: &mut Tail) -> (Vec<u64>, bool) {
    let mut shown = Vec::new();
    loop {
        match tail.try_next() {
            Ok(Tailed::Record(record)) => shown.push(record.lsn.number()),
            Ok(_) => return (shown, false),
            Err(error) => return (shown, matches!(error, ReadError::Poisoned(_))),
        }
    }
}

// What a durable tail showed, no crash takes back; what another showed is told apart.
#[test]
fn a_cursor_of_a_tail_is_good_after_a_loss_of_power_if_the_tail_was_durable() {
    let disk = MemStorage::new(37);
    let wal = Wal::open_on(Arc::new(disk.clone()), quiet()).unwrap();
    wal.append(0x80, 1, b"durable").unwrap();
    wal.append_as(0x80, 1, b"written", Durability::Written).unwrap();
    let mut durable = wal.tail(Lsn::FIRST).unwrap();
    let mut written = wal.tail(Lsn::FIRST).unwrap().of_written();
    assert_eq!((shown(&mut durable), shown(&mut written)), (vec![1], vec![1, 2]));
    let again = Wal::open_on(Arc::new(disk.crash(&CrashPlan::Nothing)), quiet()).unwrap();
    again.append(0x80, 1, b"another second").unwrap();
    assert_eq!(shown(&mut again.tail_from(&durable.cursor()).unwrap()), [2]);
    assert!(matches!(again.tail_from(&written.cursor()), Err(ReadError::Diverged { .. })));
    assert_eq!(again.stats().diverged_readers, 1);
}

// A future that is dropped before it is ready takes nothing with it.
#[test]
fn a_dropped_wait_loses_nothing() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(38)), small()).unwrap();
    let mut tail = wal.tail(Lsn::FIRST).unwrap();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    for n in 1..=100 {
        {
            let next = pin!(tail.next());
            assert!(next.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        wal.commit(&mut batch(n)).unwrap();
        bell.wait();
        assert_eq!(shown(&mut tail), [n]);
    }
}

// A tail keeps what it has not shown; a reader from below the first record kept is told where to begin.
// faults: B115
#[test]
fn a_tail_holds_what_it_has_not_shown() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(39)), quiet()).unwrap();
    for n in 0..20 {
        wal.commit(&mut batch(n)).unwrap();
        if n % 5 == 4 {
            wal.rotate().unwrap();
        }
    }
    wal.commit(&mut batch(20)).unwrap();
    let mut tail = wal.tail(lsn(1)).unwrap();
    let from = tail.cursor();
    for _ in 0..7 {
        tail.next().wait().unwrap().unwrap();
    }
    let report = wal.retire_unchecked(lsn(16)).unwrap();
    assert_eq!(report.first, lsn(6), "the segment of the records 6 to 10 stays");
    let Some(KeptBecause::Held(hold)) = report.stays.map(|stays| stays.why) else { panic!("held by nobody") };
    assert_eq!((hold.name.as_str(), hold.lsn), ("tail", lsn(7)));
    assert_eq!(shown(&mut tail), (8..=21).collect::<Vec<_>>());
    drop(tail);
    assert_eq!(wal.retire_unchecked(lsn(16)).unwrap().first, lsn(16));
    assert!(matches!(wal.tail_from(&from), Err(ReadError::Retired { first, .. }) if first == lsn(16)));
    assert!(wal.holds().is_empty());
    // A tail above the durable mark holds from there on.
    wal.append_as(0x80, 1, b"written", Durability::Written).unwrap();
    let tail = wal.tail(lsn(23)).unwrap();
    assert_eq!(wal.holds()[0].lsn, lsn(22));
    drop(tail);
}
