//! Back-pressure: staging has a bound, permits keep their word, a disk that is full or hangs stops only what
//! needs it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{AppendError, Batch, Durability, Lsn, NoRoom, Options, Permit, Wal};

use crate::{batch, small};

const LEVELS: [Durability; 3] = [Durability::Buffered, Durability::Written, Durability::Synced];

fn tight() -> Options {
    Options { staging_bytes: 64 << 10, ..small() }
}

fn filled(bytes: usize) -> Batch {
    let mut batch = Batch::new();
    batch.push(0x80, 1, &vec![7; bytes]).unwrap();
    batch
}

/// A log with a segment.
fn begun(options: Options) -> (FaultStorage, Wal) {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(21)));
    let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
    wal.append(0x80, 1, b"makes the segment").unwrap();
    (storage, wal)
}

/// A log with a segment whose next call of this kind hangs.
fn hanging(op: Op, options: Options) -> (FaultStorage, Wal) {
    let (storage, wal) = begun(options);
    storage.inject(Fault::hang().at(op, 1).on_name("1.wal"));
    (storage, wal)
}

fn no_io_thread() -> Options {
    Options { io_thread: false, ..tight() }
}

#[test]
fn staging_has_a_bound_that_who_does_not_wait_is_told() {
    let (storage, wal) = hanging(Op::Write, no_io_thread());
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| wal.append_as(0x80, 1, b"hangs", Durability::Written));
        assert!(storage.wait_hung());
        let mut accepted = 0;
        let refused = loop {
            match wal.try_submit(&mut filled(1000), Durability::Written) {
                Ok(ticket) => drop(ticket),
                Err(error) => break error,
            }
            accepted += 1;
        };
        let AppendError::Full(NoRoom::Staging { staged, limit }) = refused else { panic!("{refused}") };
        assert!(staged <= limit && limit == 64 << 10 && accepted >= 20, "{staged} of {limit}, {accepted}");
        let mut mine = filled(2000);
        assert!(matches!(
            wal.try_commit(&mut mine, Durability::Buffered),
            Err(AppendError::Full(NoRoom::Staging { .. }))
        ));
        assert_eq!(
            (mine.records(), mine.payload_bytes()),
            (1, 2000),
            "a refused batch is still the caller's"
        );
        let stats = wal.stats();
        assert_eq!((stats.refused_staging, stats.refused_disk), (2, 0));
        assert!(stats.staged_bytes <= 64 << 10);
        // Who waits gets a place once there is one.
        let waiter = scope.spawn(|| wal.commit_as(&mut filled(3000), Durability::Synced).unwrap());
        storage.release();
        leader.join().unwrap().unwrap();
        assert_eq!(waiter.join().unwrap().last.number(), 1 + 1 + accepted + 1);
    });
    wal.sync().unwrap();
    assert_eq!(wal.stats().staged_bytes, 0);
}

#[test]
fn a_batch_larger_than_staging_goes_alone() {
    let options = Options { staging_bytes: 64 << 10, segment_bytes: 64 << 10, ..Options::default() };
    let wal = Wal::open_on(Arc::new(MemStorage::new(22)), options).unwrap();
    for bytes in [200_000, 10, 65_536, 65_530] {
        let lsn = wal.commit(&mut filled(bytes)).unwrap().last;
        let mut reader = wal.read(lsn).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().payload.len(), bytes);
    }
}

/// Draws numbers.
struct Dice(u64);

impl Dice {
    #[allow(clippy::cast_possible_truncation, reason = "below a usize")]
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

// The promise of a permit, under every order: whatever came before, and however full the disk is by now.
#[test]
fn a_permit_never_finds_the_log_full() {
    for seed in 1..=300_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let disk = MemStorage::new(seed);
        let options = Options {
            segment_bytes: 16 << 10,
            prepare_bytes: 4 << 10,
            group_bytes: 4 << 10,
            staging_bytes: (64 << 10) + (dice.below(3) as u64 * 65_536),
            io_thread: dice.below(2) == 0,
            ..Options::default()
        };
        let wal = Wal::open_on(Arc::new(disk.clone()), options).unwrap();
        let mut permits: Vec<Permit> = Vec::new();
        let mut appended = 0;
        for _ in 0..dice.below(40) {
            let bytes = 1 + dice.below(9000);
            match dice.below(8) {
                0 => drop(wal.rotate()),
                1 if !permits.is_empty() => drop(permits.swap_remove(dice.below(permits.len()))),
                2 => {
                    let room = 2 << 20;
                    disk.set_capacity(Some(if dice.below(3) == 0 { 0 } else { room }));
                }
                3..=4 => match wal.try_reserve(Batch::encoded(bytes)) {
                    Ok(permit) => permits.push(permit),
                    Err(error) => assert!(matches!(error, AppendError::Full(_)), "seed {seed}: {error}"),
                },
                5 if !permits.is_empty() => {
                    let permit = permits.swap_remove(dice.below(permits.len()));
                    let bytes = (usize::try_from(permit.bytes()).unwrap() / 2).saturating_sub(3);
                    permit.commit_as(&mut filled(bytes), LEVELS[dice.below(3)]).unwrap();
                    appended += 1;
                }
                _ => match wal.commit_as(&mut filled(bytes), LEVELS[dice.below(3)]) {
                    Ok(_) => appended += 1,
                    Err(error) => {
                        assert!(matches!(error, AppendError::Full(NoRoom::Disk(_))), "seed {seed}: {error}");
                    }
                },
            }
        }
        // From now on not a byte is to be had.
        disk.set_capacity(Some(0));
        let reserved: u64 = permits.iter().map(Permit::bytes).sum();
        assert_eq!(wal.stats().reserved_bytes, reserved, "seed {seed}");
        while !permits.is_empty() {
            let permit = permits.swap_remove(dice.below(permits.len()));
            let bytes = usize::try_from(permit.bytes()).unwrap();
            let payload = permit.bytes() - (Batch::encoded(bytes) - permit.bytes());
            let level = LEVELS[dice.below(3)];
            permit
                .commit_as(&mut filled(usize::try_from(payload).unwrap()), level)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            appended += 1;
        }
        wal.sync().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(wal.durable(), Lsn::new(appended), "seed {seed}");
        let kept = Wal::open_on(Arc::new(disk.crash(&CrashPlan::Nothing)), Options::default()).unwrap();
        assert_eq!(kept.last(), Lsn::new(appended), "seed {seed}");
    }
}

#[test]
fn a_submit_on_a_permit_does_no_io_and_waits_for_nobody() {
    for op in [Op::Write, Op::Sync] {
        let (storage, wal) = begun(no_io_thread());
        let permits: Vec<Permit> = (0..8).map(|_| wal.reserve(Batch::encoded(4000)).unwrap()).collect();
        storage.inject(Fault::hang().at(op, 1).on_name("1.wal"));
        std::thread::scope(|scope| {
            let leader = scope.spawn(|| wal.append(0x80, 1, b"hangs"));
            assert!(storage.wait_hung());
            let before = storage.counts().total();
            let tickets: Vec<_> =
                permits.into_iter().map(|permit| permit.submit(&mut filled(4000)).unwrap()).collect();
            assert_eq!(storage.counts().total(), before, "{op:?}");
            assert_eq!(wal.stats().reserved_bytes, 0);
            storage.release();
            leader.join().unwrap().unwrap();
            for ticket in tickets {
                ticket.wait().unwrap();
            }
        });
    }
}

// faults: B162
#[test]
fn a_permit_is_for_what_it_says() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(23)), tight()).unwrap();
    let permit = wal.reserve(100).unwrap();
    let mut large = filled(100);
    let error = permit.commit(&mut large).unwrap_err();
    assert!(matches!(error, AppendError::PermitTooSmall { needed: 104, reserved: 100 }), "{error}");
    // A permit that no batch could use is not given.
    let most = tight().record_bytes_max;
    assert!(matches!(wal.try_reserve(most * 2), Err(AppendError::TooLarge { limit, .. }) if limit == most));
    assert_eq!((large.records(), wal.stats().reserved_bytes, wal.last()), (1, 0, None));
    // Staging is full of permits: the next waits until one is given back.
    let held = wal.reserve(60 << 10).unwrap();
    assert!(matches!(wal.try_reserve(8 << 10), Err(AppendError::Full(NoRoom::Staging { .. }))));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let permit = wal.reserve(8 << 10).unwrap();
            assert!(done.load(Ordering::Acquire), "had room that another permit holds");
            permit.commit(&mut filled(8000)).unwrap()
        });
        std::thread::yield_now();
        done.store(true, Ordering::Release);
        drop(held);
        assert_eq!(waiter.join().unwrap().last, Lsn::FIRST);
    });
    wal.close().unwrap();
    assert!(matches!(wal.reserve(1), Err(AppendError::Closed)));
}

#[test]
fn a_permit_of_a_poisoned_log_says_so_and_keeps_the_batch() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(24)));
    let wal = Wal::open_on(Arc::new(storage.clone()), tight()).unwrap();
    let permit = wal.reserve(1000).unwrap();
    storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Sync, 1).sticky());
    assert!(matches!(wal.append(0x80, 1, b"fails"), Err(AppendError::Poisoned(_))));
    let mut mine = batch(1);
    assert!(matches!(permit.commit(&mut mine), Err(AppendError::Poisoned(_))));
    assert_eq!(mine.records(), 1);
}

// A sync that hangs is seen, and holds up only who waits for a sync.
// faults: B166
#[test]
fn appends_that_need_no_sync_go_on_while_one_hangs() {
    for io_thread in [true, false] {
        let options = Options { io_thread, segment_bytes: 1 << 20, prepare_bytes: 1 << 20, ..tight() };
        let (storage, wal) = hanging(Op::Sync, options);
        std::thread::scope(|scope| {
            let hung = scope.spawn(|| wal.append(0x80, 1, b"hangs").unwrap());
            assert!(storage.wait_hung());
            // Many times more than staging holds: they are written.
            for _ in 0..200 {
                wal.commit_as(&mut filled(2000), Durability::Written).unwrap();
            }
            for _ in 0..100 {
                wal.commit_as(&mut filled(2000), Durability::Buffered).unwrap();
            }
            assert_eq!(wal.durable(), Lsn::new(1));
            assert!(wal.written() >= Lsn::new(202));
            let flight = wal.stats().in_flight.unwrap();
            assert_eq!(flight.operation, "sync");
            std::thread::sleep(Duration::from_millis(2));
            assert!(wal.stats().in_flight.unwrap().age > flight.age, "its age grows");
            let strict = scope.spawn(|| wal.append(0x80, 1, b"waits for the next sync").unwrap());
            storage.release();
            assert_eq!(hung.join().unwrap().number(), 2);
            strict.join().unwrap();
        });
        let stats = wal.stats();
        assert!(stats.in_flight.is_none_or(|flight| flight.operation != "sync"));
        assert!(stats.sync_ns.count() >= 3 && stats.sync_ns.max() > 2_000_000);
        assert_eq!(stats.records, 303);
        wal.close().unwrap();
    }
}

#[test]
fn a_full_disk_is_a_state_that_passes() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        let storage = FaultStorage::new(Arc::new(MemStorage::new(25)));
        let wal = Wal::open_on(Arc::new(storage.clone()), no_io_thread()).unwrap();
        wal.append(0x80, 1, b"makes the segment").unwrap();
        storage.inject(Fault::error(kind).at(Op::Allocate, 1).sticky());
        storage.inject(Fault::error(kind).at(Op::Create, 1).sticky());
        let mut last = wal.last();
        let error = loop {
            match wal.append(0x80, 1, &[1; 500]) {
                Ok(lsn) => last = Some(lsn),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AppendError::Full(NoRoom::Disk(_))), "{error}");
        let stats = wal.stats();
        assert!(stats.full.is_some() && stats.refused_disk == 1 && stats.poison.is_none());
        assert_eq!((wal.last(), wal.durable()), (last, last), "no LSN was given");
        let mut reader = wal.read(Lsn::FIRST).unwrap();
        let mut read = 0;
        while reader.next().unwrap().is_some() {
            read += 1;
        }
        assert_eq!(Lsn::new(read), last, "reading goes on");
        storage.clear_faults();
        assert_eq!(wal.append(0x80, 1, &[1; 500]).unwrap().number(), read + 1);
        assert!(wal.stats().full.is_none());
        wal.close().unwrap();
    }
}

// A little room is room: an append takes what it needs where there is less than is prepared at a time.
#[test]
fn with_less_room_than_is_prepared_at_a_time_an_append_takes_what_it_needs() {
    let disk = MemStorage::new(26).with_capacity(300 << 10);
    let options = Options { io_thread: false, prepare_bytes: 1 << 20, ..Options::default() };
    let wal = Wal::open_on(Arc::new(disk), options).unwrap();
    wal.append(0x80, 1, &[1; 1000]).unwrap();
    let mut appended = 1;
    while wal.append(0x80, 1, &[1; 1000]).is_ok() {
        appended += 1;
    }
    assert!(appended > 100, "{appended} KiB in 300 KiB, less the control file");
}

#[test]
fn a_disk_that_turns_read_only_poisons_with_its_error() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(27)));
    let wal = Wal::open_on(Arc::new(storage.clone()), no_io_thread()).unwrap();
    wal.append(0x80, 1, b"kept").unwrap();
    storage.inject(Fault::error(io::ErrorKind::ReadOnlyFilesystem).at_mutation(1).sticky());
    let error = wal.append(0x80, 1, b"refused").unwrap_err();
    let AppendError::Poisoned(poison) = error else { panic!("{error}") };
    assert_eq!(poison.operation, "write");
    assert_eq!(poison.durable, Some(Lsn::FIRST));
    let mut reader = wal.read(Lsn::FIRST).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().payload, b"kept");
    assert_eq!(wal.stats().poison.as_deref(), Some(&*poison));
}

#[test]
fn counts_tell_what_happened() {
    let wal = Wal::open_on(Arc::new(MemStorage::new(28)), no_io_thread()).unwrap();
    for n in 0..10 {
        wal.commit(&mut batch(n)).unwrap();
    }
    wal.rotate().unwrap();
    wal.append(0x80, 1, b"0123456789").unwrap();
    let stats = wal.stats();
    assert_eq!((stats.records, stats.batches, stats.body_bytes), (11, 11, 10 * 11 + 13));
    assert_eq!((stats.groups.count(), stats.write_ns.count(), stats.queue_ns.count()), (11, 11, 11));
    assert_eq!((stats.sync_ns.count(), stats.rotations, stats.beacons), (11, 2, 0));
    assert_eq!((stats.last, stats.written, stats.durable), (Lsn::new(11), Lsn::new(11), Lsn::new(11)));
    let mut names = Vec::new();
    stats.visit(|name, _| names.push(name));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(count > 20 && names.len() == count && names.iter().all(|name| name.starts_with("planewal_")));
}

#[test]
fn what_lies_on_the_disk_is_told_by_what_it_is() {
    let disk = MemStorage::new(29);
    let options = Options { spares: 1, ..no_io_thread() };
    let wal = Wal::open_on(Arc::new(disk.clone()), options).unwrap();
    for _ in 0..40 {
        wal.append(0x80, 1, &[1; 4000]).unwrap();
    }
    wal.retire_unchecked(wal.next()).unwrap();
    disk.write("somebody's notes", b"12345");
    let usage = wal.disk_usage().unwrap();
    let listed: u64 = disk.names().iter().filter_map(|name| disk.len(name)).sum();
    assert_eq!(usage.total(), listed);
    assert_eq!((usage.control, usage.others), (128 << 10, 5));
    assert!(usage.spares > 32 << 10 && usage.ahead > 0 && usage.segments > 4000, "{usage:?}");
    wal.close().unwrap();
    let usage = wal.disk_usage().unwrap();
    assert_eq!(usage.ahead, 0, "a closed log gives its room back");
}
