//! Living with a log: tickets that are waited for, polled, dropped, and left behind; holds, retirement and spares.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod backup;
mod follow;
mod holds;
mod killed;
mod places;
mod pressure;
mod retire;
mod reviewed;
mod small_disk;
mod spares;
mod stress;
mod support;
mod tails;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use planewal::storage::{Fault, FaultStorage, MemStorage, Op};
use planewal::{AppendError, Batch, Cursor, Durability, Lsn, Options, ReadError, Ticket, View, Wal};

/// Wakes the one thread that polls, and counts how often.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    bell: Condvar,
    times: AtomicUsize,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::Relaxed);
        *self.rung.lock().unwrap() = true;
        self.bell.notify_all();
    }
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.bell.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The smallest executor: polls all that are pending whenever it is woken.
fn run(tickets: Vec<Ticket>) -> Vec<Result<Lsn, AppendError>> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut context = Context::from_waker(&waker);
    let mut pending: Vec<_> = tickets.into_iter().map(Box::pin).collect();
    let mut outcomes = Vec::new();
    while !pending.is_empty() {
        pending.retain_mut(|ticket| match ticket.as_mut().poll(&mut context) {
            Poll::Ready(outcome) => {
                outcomes.push(outcome.map(|receipt| receipt.last));
                false
            }
            Poll::Pending => true,
        });
        if !pending.is_empty() {
            bell.wait();
        }
    }
    outcomes
}

fn small() -> Options {
    Options { segment_bytes: 64 << 10, prepare_bytes: 16 << 10, group_bytes: 16 << 10, ..Options::default() }
}

fn batch(number: u64) -> Batch {
    let mut batch = Batch::new();
    batch.push(0x80, 1, &number.to_le_bytes()).unwrap();
    batch
}

// faults: B162
#[test]
fn ten_thousand_tickets_that_are_only_polled_all_resolve() {
    let disk = MemStorage::new(1);
    let wal = Wal::open_on(Arc::new(disk.clone()), small()).unwrap();
    let levels = [Durability::Buffered, Durability::Written, Durability::Synced];
    let tickets: Vec<Ticket> =
        (0..10_000_u64).map(|n| wal.submit_as(&mut batch(n), levels[(n % 3) as usize]).unwrap()).collect();
    let outcomes = run(tickets);
    assert_eq!(outcomes.len(), 10_000);
    assert!(outcomes.iter().all(Result::is_ok));
    let last_synced = wal.durable().unwrap().number();
    assert!(last_synced >= 9_999, "{last_synced}");
    // Nothing acknowledged is lost when the process dies right then.
    let wal = Wal::open_on(Arc::new(disk.fork_live()), small()).unwrap();
    assert!(wal.last().unwrap().number() >= last_synced);
}

#[test]
fn what_polled_tickets_acknowledged_survives_a_loss_of_power_at_any_moment() {
    let disk = MemStorage::new(2);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let acknowledged = Arc::new(Mutex::new(0_u64));
    let images = Arc::new(Mutex::new(Vec::new()));
    {
        let (disk, acknowledged, images) = (disk.clone(), Arc::clone(&acknowledged), Arc::clone(&images));
        storage.on_call(move |_, _| {
            // The mark first: what is acknowledged between the two is in the image as well.
            let mark = *acknowledged.lock().unwrap();
            images.lock().unwrap().push((mark, disk.crash(&planewal::storage::CrashPlan::Nothing)));
        });
    }
    let wal = Wal::open_on(Arc::new(storage), small()).unwrap();
    for round in 0..20 {
        let tickets: Vec<Ticket> = (0..50).map(|n| wal.submit(&mut batch(round * 50 + n)).unwrap()).collect();
        for outcome in run(tickets) {
            let lsn = outcome.unwrap().number();
            let mut acknowledged = acknowledged.lock().unwrap();
            *acknowledged = lsn.max(*acknowledged);
        }
    }
    drop(wal);
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 20);
    for (mark, image) in images {
        let wal = Wal::open_on(Arc::new(image), small()).unwrap();
        let last = wal.last().map_or(0, Lsn::number);
        assert!(last >= mark, "{mark} acknowledged, {last} kept");
    }
}

#[test]
fn a_dropped_ticket_cancels_nothing() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(3)), small()).unwrap();
    let lsn = wal.submit(&mut batch(1)).unwrap().lsn();
    wal.wait_durable(lsn).unwrap();
    let mut reader = wal.read(lsn).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().payload, 1_u64.to_le_bytes());
    // A ticket that was polled, and is then dropped by everybody: the thread leads all the same.
    let lsn = {
        let ticket = wal.submit(&mut batch(2)).unwrap();
        let lsn = ticket.lsn();
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(bell);
        let mut ticket = pin!(ticket);
        let _ = ticket.as_mut().poll(&mut Context::from_waker(&waker));
        lsn
    };
    while wal.durable() < Some(lsn) {
        std::thread::yield_now();
    }
}

#[test]
fn without_the_io_thread_polling_does_the_work() {
    let options = Options { io_thread: false, ..small() };
    let wal = Wal::open_on(Arc::new(MemStorage::new(4)), options).unwrap();
    let tickets: Vec<Ticket> = (0..100).map(|n| wal.submit(&mut batch(n)).unwrap()).collect();
    assert_eq!(run(tickets).len(), 100);
    assert_eq!(wal.durable(), Lsn::new(100));
}

#[test]
fn a_ticket_says_when_its_time_is_up_and_still_resolves() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(5)));
    let wal = Wal::open_on(Arc::new(storage.clone()), small()).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    storage.inject(Fault::hang().at(Op::Sync, 1));
    let ticket = wal.submit(&mut batch(1)).unwrap();
    assert!(ticket.wait_timeout(Duration::from_millis(5)).unwrap().is_none(), "the sync hangs");
    storage.release();
    assert_eq!(ticket.wait().unwrap().last, ticket.lsn());
}

// Without the I/O thread too, where somebody else is in the middle of a sync.
#[test]
fn a_ticket_says_when_its_time_is_up_beside_a_sync_that_hangs() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(5)));
    let options = Options { io_thread: false, ..small() };
    let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    storage.inject(Fault::hang().at(Op::Sync, 1));
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| wal.append(0x80, 1, b"leads"));
        assert!(storage.wait_hung());
        let ticket = wal.submit(&mut batch(1)).unwrap();
        assert!(ticket.wait_timeout(Duration::from_millis(5)).unwrap().is_none(), "the sync hangs");
        storage.release();
        leader.join().unwrap().unwrap();
        assert_eq!(ticket.wait().unwrap().last, ticket.lsn());
    });
}

// faults: B162
#[test]
fn a_failed_sync_wakes_everybody_with_the_error() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(6)));
    let wal = Wal::open_on(Arc::new(storage.clone()), small()).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Sync, 1).sticky());
    let tickets: Vec<Ticket> = (0..100).map(|n| wal.submit(&mut batch(n)).unwrap()).collect();
    let outcomes = run(tickets);
    assert_eq!(outcomes.len(), 100);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(AppendError::Poisoned(_)))));
}

#[test]
fn tickets_of_a_log_whose_handles_are_gone_are_answered() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(7)));
    let wal = Wal::open_on(Arc::new(storage.clone()), small()).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    let ticket = wal.submit(&mut batch(1)).unwrap();
    let written = wal.submit_as(&mut batch(2), Durability::Written).unwrap();
    drop(wal);
    assert!(matches!(ticket.wait(), Err(AppendError::Abandoned)) || ticket.wait().is_ok());
    assert!(written.wait().is_ok(), "dropping the last handle writes what is staged");
}

// What was staged while somebody led is written before the lock goes.
#[test]
fn dropping_the_last_handle_writes_what_is_staged_behind_a_group_under_way() {
    let disk = MemStorage::new(8);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let wal = Wal::open_on(Arc::new(storage.clone()), small()).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    storage.inject(Fault::hang().at(Op::Write, 1).on_name(".wal"));
    let first = wal.submit_as(&mut batch(1), Durability::Written).unwrap();
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| first.wait().map(|receipt| receipt.last));
        assert!(storage.wait_hung());
        let second = wal.submit_as(&mut batch(2), Durability::Written).unwrap();
        let dropped = scope.spawn(move || drop(wal));
        storage.release();
        assert_eq!(leader.join().unwrap().unwrap().number(), 2);
        dropped.join().unwrap();
        assert_eq!(second.wait().unwrap().last.number(), 3);
    });
    let wal = loop {
        match Wal::open_on(Arc::new(disk.clone()), small()) {
            Err(planewal::OpenError::Locked { .. }) => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    assert_eq!(wal.last(), Lsn::new(3));
}

// A stalled group of a log whose handles are gone is not written any more: the lock is gone, too.
#[test]
fn nothing_is_written_once_the_lock_is_gone() {
    for io_thread in [true, false] {
        let storage = FaultStorage::new(Arc::new(MemStorage::new(9)));
        let options = Options { io_thread, ..small() };
        let wal = Wal::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
        wal.append(0x80, 1, b"makes the segment").unwrap();
        for op in [Op::Write, Op::Create, Op::Allocate] {
            storage.inject(Fault::error(io::ErrorKind::StorageFull).at(op, 1).on_name(".wal").sticky());
        }
        let ticket = wal.submit_as(&mut batch(1), Durability::Written).unwrap();
        if io_thread {
            assert!(ticket.wait_timeout(Duration::from_millis(50)).unwrap().is_none(), "there is no room");
        } else {
            assert!(matches!(wal.append(0x80, 1, &[7; 60_000]), Err(AppendError::Full(_))));
        }
        drop(wal);
        // The lock is free, at once or when the thread's last try is over; only then is there room again.
        let other = loop {
            match Wal::open_on(Arc::new(storage.clone()), options.clone()) {
                Err(planewal::OpenError::Locked { .. }) => std::thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        storage.clear_faults();
        let before = storage.mutations();
        assert!(matches!(ticket.wait(), Err(AppendError::Abandoned)));
        assert_eq!(storage.mutations(), before, "written without the lock");
        assert_eq!(other.last(), Lsn::new(1));
    }
}

#[test]
fn closing_twice_at_once_closes_once() {
    for round in 0..50 {
        let disk = MemStorage::new(round);
        let wal = Wal::open_on(Arc::new(disk.clone()), small()).unwrap();
        wal.append(0x80, 1, b"one").unwrap();
        std::thread::scope(|scope| {
            let closers: Vec<_> = (0..3).map(|_| scope.spawn(|| wal.close())).collect();
            closers.into_iter().for_each(|closer| closer.join().unwrap().unwrap());
        });
        let again = Wal::open_on(Arc::new(disk), small()).unwrap();
        assert!(!again.recovery().unclean);
    }
}

// faults: B162
#[test]
fn a_storage_that_panics_poisons_and_leaves_nobody_waiting() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(10)));
    let wal = Wal::open_on(Arc::new(storage.clone()), small()).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    storage.on_call(|op, name| assert!(op != Op::Sync || !name.ends_with(".wal"), "a storage with a bug"));
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn({
                    let wal = wal.clone();
                    move || wal.commit(&mut batch(n))
                })
            })
            .collect();
        for thread in waiting {
            assert!(matches!(thread.join().unwrap(), Err(AppendError::Poisoned(_))));
        }
    });
    assert!(wal.poisoned().is_some() && wal.close().is_err());
}

// The rule on closing syncs: a log that nobody syncs still proves all but its last two segments.
#[test]
fn an_unproved_tail_spans_two_segments_at_most() {
    for io_thread in [true, false] {
        let disk = MemStorage::new(11);
        let options = Options { io_thread, ..small() };
        let wal = Wal::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
        while wal.segments().len() < 12 {
            wal.append_as(0x80, 1, &[7; 3000], Durability::Written).unwrap();
        }
        let written = wal.written();
        let dead = disk.fork_live();
        let segments = View::open_on(Arc::new(dead.clone())).unwrap().report().segments.clone();
        let again = Wal::open_on(Arc::new(dead), options).unwrap();
        assert_eq!(again.last(), written);
        let (first, _) = again.recovery().copied.expect("the newest records were not proved");
        let spanned = segments.iter().filter(|segment| segment.last >= Some(first)).count();
        assert!(spanned <= 2, "{spanned} segments, with the I/O thread: {io_thread}");
    }
}

#[test]
fn a_cursor_of_another_log_and_bytes_that_are_none_are_refused() {
    let [one, two] = [12, 13].map(|seed| Wal::open_on(Arc::new(MemStorage::new(seed)), small()).unwrap());
    for wal in [&one, &two] {
        (0..5).for_each(|n| drop(wal.submit(&mut batch(n)).unwrap()));
        wal.sync().unwrap();
    }
    let mut reader = one.read(Lsn::FIRST).unwrap();
    reader.next().unwrap();
    let bytes = reader.cursor().to_bytes();
    let cursor = Cursor::from_bytes(&bytes).unwrap();
    assert_eq!(one.read_from(&cursor).unwrap().due(), Lsn::new(2).unwrap());
    assert!(matches!(two.read_from(&cursor), Err(ReadError::OtherLog { .. })));
    assert_eq!(Cursor::from_bytes(&[0; 44]), None);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Cursor::from_bytes(&flipped), None, "bit {bit}");
    }
}

// Recovery moves an unproved tail under a reader of another process.
// faults: B113, B119
#[test]
fn a_views_reader_goes_on_in_a_log_that_was_recovered_meanwhile() {
    let disk = MemStorage::new(14);
    let options = Options { io_thread: false, ..small() };
    let wal = Wal::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
    wal.append(0x80, 1, b"durable").unwrap();
    for _ in 0..40 {
        wal.append_as(0x80, 1, &[7; 3000], Durability::Written).unwrap();
    }
    drop(wal);
    for read_before in [0, 1, 5, 30] {
        let disk = disk.fork_live();
        let view = View::open_on(Arc::new(disk.clone())).unwrap();
        let mut reader = view.read(Lsn::FIRST).unwrap();
        for _ in 0..read_before {
            reader.next().unwrap().unwrap();
        }
        let wal = Wal::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
        assert!(wal.recovery().copied.is_some());
        let mut last = read_before;
        while let Some(record) = reader.next().unwrap() {
            last += 1;
            assert_eq!(record.lsn.number(), last);
        }
        assert_eq!(last, 41, "after {read_before} records");
    }
}
