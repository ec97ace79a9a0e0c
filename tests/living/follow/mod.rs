//! Following a log that somebody else writes: what is proved and nothing else, in order, once.

mod crashes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use planewal::fuzzing::{retire_head, sieved_log};
use planewal::storage::{CrashPlan, FaultStorage, MemStorage, Op};
use planewal::{Cursor, Durability, Follow, Lsn, Options, ReadError, Tailed, View, Wal};

/// A writer that seals and prepares by itself, and writes no beacon: so every step is its caller's.
fn quiet() -> Options {
    Options { io_thread: false, ..super::small() }
}

/// Small segments, so that a test sees many.
fn tiny() -> Options {
    Options { segment_bytes: 16 << 10, prepare_bytes: 4 << 10, ..quiet() }
}

fn open(disk: &MemStorage, options: Options) -> Wal {
    Wal::open_on(Arc::new(disk.clone()), options).unwrap()
}

fn view(disk: &MemStorage) -> View {
    View::open_on(Arc::new(disk.clone())).unwrap()
}

fn lsn(number: u64) -> Lsn {
    Lsn::new(number).unwrap()
}

/// A payload that says what it is.
fn payload(life: u64, number: u64) -> Vec<u8> {
    let mut bytes = format!("life {life} number {number} ").into_bytes();
    bytes.resize(40 + (number * 37 % 400) as usize, b'.');
    bytes
}

/// Everything that a follower gives until it has caught up.
fn drain(follow: &mut Follow) -> Vec<(u64, Vec<u8>)> {
    drain_until(follow, |_| false)
}

fn drain_until(follow: &mut Follow, enough: impl Fn(u64) -> bool) -> Vec<(u64, Vec<u8>)> {
    let mut given = Vec::new();
    loop {
        match follow.wait_timeout(Duration::ZERO).unwrap() {
            Tailed::Record(record) => {
                let number = record.lsn.number();
                given.push((number, record.payload.to_vec()));
                if enough(number) {
                    return given;
                }
            }
            Tailed::CaughtUp(due) => {
                let last = given.last().map(|(number, _)| number + 1);
                assert!(last.is_none_or(|next| next == due.number()));
                return given;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn numbers(given: &[(u64, Vec<u8>)]) -> Vec<u64> {
    given.iter().map(|(number, _)| *number).collect()
}

/// What the log holds, read by a view.
fn content(disk: &MemStorage) -> Vec<(u64, Vec<u8>)> {
    let mut reader = view(disk).read(Lsn::FIRST).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        all.push((record.lsn.number(), record.payload.to_vec()));
    }
    all
}

#[test]
fn a_record_comes_when_the_next_group_proves_it() {
    let disk = MemStorage::new(1);
    let wal = open(&disk, quiet());
    wal.append(0x80, 1, b"one").unwrap();
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    assert_eq!(follow.try_next().unwrap(), Tailed::CaughtUp(lsn(1)), "durable, and nothing says so yet");
    assert_eq!(follow.proved(), None);
    for number in 2..50 {
        wal.append(0x80, 1, b"more").unwrap();
        assert_eq!(numbers(&drain(&mut follow)), [number - 1]);
        assert_eq!(follow.proved(), Lsn::new(number - 1));
    }
    wal.append_as(0x80, 1, b"written", Durability::Written).unwrap();
    assert_eq!(numbers(&drain(&mut follow)), [49]);
    wal.append_as(0x80, 1, b"written", Durability::Written).unwrap();
    assert_eq!(numbers(&drain(&mut follow)), [] as [u64; 0], "written is not durable");
    wal.close().unwrap();
    assert_eq!(numbers(&drain(&mut follow)), [50, 51], "a clean close proves all");
}

#[test]
fn a_beacon_proves_the_last_group() {
    let disk = MemStorage::new(2);
    let wal = open(&disk, Options { beacon_idle: Duration::from_millis(2), ..super::small() });
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap().poll_interval(Duration::from_millis(1)).unwrap();
    for number in 1..6 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
        match follow.wait_timeout(Duration::from_secs(20)).unwrap() {
            Tailed::Record(record) => {
                assert_eq!((record.lsn, record.payload), (lsn(number), &*payload(1, number)))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn waiting_ends_and_the_interval_has_a_range() {
    let disk = MemStorage::new(3);
    let _wal = open(&disk, quiet());
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    let begun = Instant::now();
    assert_eq!(follow.wait_timeout(Duration::from_millis(50)).unwrap(), Tailed::CaughtUp(lsn(1)));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    for wrong in [Duration::ZERO, Duration::from_micros(999), Duration::from_millis(60_001)] {
        let error = view(&disk).follow(Lsn::FIRST).unwrap().poll_interval(wrong).unwrap_err();
        assert_eq!((error.option, error.range.as_str()), ("poll_interval", "1 ms to 60 s"));
    }
    for right in [Duration::from_millis(1), Duration::from_secs(60)] {
        view(&disk).follow(Lsn::FIRST).unwrap().poll_interval(right).unwrap();
    }
    assert!(matches!(view(&disk).follow(lsn(2)), Err(ReadError::Ahead { .. })));
}

// Looks are steps, not surveys: they list nothing, and what they read is about what came.
#[test]
fn rotations_are_followed_by_reading_what_is_new() {
    let disk = MemStorage::new(4);
    let wal = open(&disk, tiny());
    wal.append(0x80, 1, &payload(1, 1)).unwrap();
    let watched = FaultStorage::new(Arc::new(disk.clone()));
    let mut follow = View::open_on(Arc::new(watched.clone())).unwrap().follow(Lsn::FIRST).unwrap();
    watched.reset_counts();
    let mut given = Vec::new();
    for number in 2..3000 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
        // Now and then it falls several segments behind.
        if number % 7 == 0 && number % 1000 < 500 {
            given.extend(drain(&mut follow));
        }
    }
    given.extend(drain(&mut follow));
    assert!(wal.segments().len() > 40);
    assert_eq!(numbers(&given), (1..2999).collect::<Vec<_>>());
    assert!(given.iter().all(|(number, bytes)| *bytes == payload(1, *number)));
    let counts = watched.counts();
    assert_eq!((counts.get(Op::List), counts.get(Op::Lock), watched.mutations()), (0, 0, 0));

    watched.reset_counts();
    for _ in 0..100 {
        assert!(matches!(follow.try_next().unwrap(), Tailed::CaughtUp(_)));
    }
    let idle = watched.counts();
    assert!(
        idle.bytes_read / 100 < (128 + 64) << 10,
        "{} bytes for a look without news",
        idle.bytes_read / 100
    );
    assert_eq!(idle.get(Op::List), 0);
}

#[test]
fn a_follower_goes_on_from_a_cursor_and_from_the_middle() {
    let disk = MemStorage::new(5);
    let wal = open(&disk, tiny());
    let mut given = Vec::new();
    let mut cursor: Option<Cursor> = None;
    for number in 1..1000 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
        if number % 83 == 0 {
            let mut follow = match &cursor {
                Some(cursor) => view(&disk).follow_from(cursor).unwrap(),
                None => view(&disk).follow(Lsn::FIRST).unwrap(),
            };
            given.extend(drain(&mut follow));
            cursor = Cursor::from_bytes(&follow.cursor().to_bytes());
        }
    }
    assert_eq!(numbers(&given), (1..=given.len() as u64).collect::<Vec<_>>());
    assert!(given.len() > 900);
    let mut follow = view(&disk).follow(lsn(500)).unwrap();
    assert_eq!(numbers(&drain(&mut follow)), (500..999).collect::<Vec<_>>());
}

/// Goes on until a number of records was given; a survey that just was may put off the next.
fn wait_for(follow: &mut Follow, given: &mut Vec<(u64, Vec<u8>)>, count: usize) {
    while given.len() < count {
        match follow.wait_timeout(Duration::from_secs(20)).unwrap() {
            Tailed::Record(record) => given.push((record.lsn.number(), record.payload.to_vec())),
            other => panic!("{} of {count}: {other:?}", given.len()),
        }
    }
}

#[test]
fn a_cursor_that_saw_what_is_gone_is_told_so() {
    let disk = MemStorage::new(8);
    let wal = open(&disk, quiet());
    wal.append(0x80, 1, b"durable").unwrap();
    wal.append_as(0x80, 1, b"written", Durability::Written).unwrap();
    let mut reader = wal.read(Lsn::FIRST).unwrap();
    while reader.next().unwrap().is_some() {}
    let cursor = reader.cursor();
    let image = disk.crash(&CrashPlan::Nothing);
    assert!(matches!(view(&image).follow_from(&cursor), Err(ReadError::Ahead { .. })));
    let wal = open(&image, quiet());
    wal.append(0x80, 1, b"another").unwrap();
    wal.append(0x80, 1, b"and more").unwrap();
    match view(&image).follow_from(&cursor) {
        Err(ReadError::Diverged { read, kept, .. }) => assert_eq!((read, kept), (lsn(2), Lsn::new(1))),
        other => panic!("{other:?}"),
    }
    let another = MemStorage::new(9);
    open(&another, quiet());
    assert!(matches!(view(&another).follow_from(&cursor), Err(ReadError::OtherLog { .. })));
}

#[test]
fn damage_is_told_where_it_lies_and_again() {
    let disk = MemStorage::new(11);
    let wal = open(&disk, tiny());
    for number in 1..=200 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    assert_eq!(drain_until(&mut follow, |number| number == 5).len(), 5);
    let position = wal.seek(lsn(150)).unwrap();
    assert!(disk.flip_bit(&position.segment.file_name(), (position.offset + 50) * 8));
    for number in 201..=210 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    // It lies in a segment that the follower has not begun.
    let mut last = 5;
    let found = loop {
        match follow.wait_timeout(Duration::from_secs(20)) {
            Ok(Tailed::Record(record)) => last = record.lsn.number(),
            Ok(other) => panic!("{other:?}"),
            Err(ReadError::Broken(finding)) => break *finding,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(last, 149, "what lies before the damage comes");
    assert_eq!((found.offset, found.lsn), (position.offset, Lsn::new(150)));
    assert!(matches!(follow.try_next(), Err(ReadError::Broken(_))));
    drop(wal);
    // Accepted, it is a loss, and what lies behind comes.
    planewal::repair(Arc::new(disk.clone())).unwrap();
    open(&disk, tiny()).close().unwrap();
    let told = (0..100).find_map(|_| match follow.wait_timeout(Duration::from_millis(50)) {
        Err(ReadError::Lost { first, last }) => Some((first, last)),
        Err(ReadError::Broken(_)) => {
            std::thread::sleep(Duration::from_millis(5));
            None
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(told, Some((lsn(150), lsn(150))));
    assert_eq!(numbers(&drain(&mut follow)), (151..=210).collect::<Vec<_>>());
}

// The writer goes on behind a frame that a follower has not seen yet, and that does not check.
#[test]
fn damage_at_the_end_of_what_is_known_is_found() {
    let disk = MemStorage::new(12);
    let wal = open(&disk, quiet());
    for number in 1..=5 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    assert_eq!(drain(&mut follow).len(), 4);
    for number in 6..=9 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    let position = wal.seek(lsn(7)).unwrap();
    assert!(disk.flip_bit(&position.segment.file_name(), (position.offset + 50) * 8));
    let mut given = Vec::new();
    let found = loop {
        match follow.wait_timeout(Duration::from_secs(1)) {
            Ok(Tailed::Record(record)) => given.push(record.lsn.number()),
            Ok(Tailed::CaughtUp(due)) => panic!("caught up at {due}"),
            Ok(other) => panic!("{other:?}"),
            Err(ReadError::Broken(finding)) => break *finding,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(given, [5, 6]);
    assert_eq!((found.label, found.lsn), ("records-damaged", Lsn::new(7)));
}

#[test]
fn a_torn_tail_is_waited_at_and_not_called_damage() {
    let disk = MemStorage::new(13);
    let wal = open(&disk, quiet());
    for number in 1..=5 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    let position = wal.seek(lsn(5)).unwrap();
    drop(wal);
    assert!(disk.flip_bit(&position.segment.file_name(), (position.offset + 50) * 8));
    let watched = FaultStorage::new(Arc::new(disk.clone()));
    let mut follow = View::open_on(Arc::new(watched.clone())).unwrap().follow(Lsn::FIRST).unwrap();
    assert_eq!(numbers(&drain(&mut follow)), [1, 2, 3, 4]);
    watched.reset_counts();
    for _ in 0..500 {
        assert_eq!(follow.try_next().unwrap(), Tailed::CaughtUp(lsn(5)));
    }
    assert_eq!(watched.counts().get(Op::List), 0, "nothing lies behind it: that needs no survey");
    let wal = open(&disk, quiet());
    wal.append(0x80, 1, b"another").unwrap();
    wal.append(0x80, 1, b"and more").unwrap();
    let mut given = Vec::new();
    wait_for(&mut follow, &mut given, 1);
    assert_eq!(given, [(5, b"another".to_vec())]);
}

#[test]
fn what_was_retired_before_it_was_read_is_told() {
    let disk = MemStorage::new(14);
    let wal = open(&disk, tiny());
    for number in 1..=1000 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    wal.close().unwrap();
    drop(wal);
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    let mut last = drain_until(&mut follow, |number| number == 3).len() as u64;
    let first = retire_head(&disk, 6);
    let told = loop {
        match follow.wait_timeout(Duration::from_secs(20)) {
            // An open file is still read to its end.
            Ok(Tailed::Record(record)) => last = record.lsn.number(),
            Err(ReadError::Retired { wanted, first }) => break (wanted.number(), first),
            other => panic!("{other:?}"),
        }
    };
    assert!(last < first.number());
    assert_eq!(told, (last + 1, first));
    assert!(matches!(follow.try_next(), Err(ReadError::Retired { .. })), "and again");
    let mut follow = view(&disk).follow(first).unwrap();
    assert_eq!(numbers(&drain(&mut follow)), (first.number()..=1000).collect::<Vec<_>>());
}

#[test]
fn what_a_sieve_dropped_is_told() {
    let disk = MemStorage::new(15);
    let wal = open(&disk, tiny());
    for number in 1..=1000 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    wal.close().unwrap();
    drop(wal);
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    assert_eq!(drain_until(&mut follow, |number| number == 3).len(), 3);
    let stays = sieved_log(&disk, 3, 5, |lsn, _| lsn % 10 == 0);
    let (mut given, mut gone) = (3, 0);
    let mut next = 4;
    while next <= 1000 {
        match follow.wait_timeout(Duration::from_secs(20)) {
            Ok(Tailed::Record(record)) => {
                assert_eq!(record.lsn.number(), next);
                (given, next) = (given + 1, next + 1);
            }
            Err(ReadError::NotKept { first, last }) => {
                assert_eq!(first.number(), next);
                (gone, next) = (gone + last.number() + 1 - next, last.number() + 1);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(given + gone, 1000);
    assert!(gone > 0 && !stays.is_empty());
}

// Everything at once: a writer with its thread and beacons, rotations, syncs, and followers that start anew.
#[test]
fn followers_beside_a_busy_writer_see_what_is_durable_and_all_of_it() {
    let disk = MemStorage::new(16);
    let options = Options {
        segment_bytes: 16 << 10,
        prepare_bytes: 4 << 10,
        beacon_idle: Duration::from_millis(1),
        ..super::small()
    };
    let wal = open(&disk, options);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let followers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
                    let mut next = 1;
                    loop {
                        let over = done.load(Ordering::Acquire);
                        match follow.wait_timeout(Duration::from_millis(1)).unwrap() {
                            Tailed::Record(record) => {
                                // A seal may say it a moment before the writer's mark does.
                                let asked = Instant::now();
                                while wal.durable() < Some(record.lsn) {
                                    assert!(asked.elapsed() < Duration::from_secs(20), "{}", record.lsn);
                                    std::thread::yield_now();
                                }
                                assert_eq!((record.lsn.number(), record.payload), (next, &*payload(1, next)));
                                next += 1;
                            }
                            _ if over && next > 3000 => return follow.proved(),
                            _ => {}
                        }
                        if next % 401 == 0 {
                            follow = view(&disk).follow_from(&follow.cursor()).unwrap();
                        }
                    }
                })
            })
            .collect();
        for number in 1..=3000 {
            let level =
                [Durability::Buffered, Durability::Written, Durability::Synced][(number % 3) as usize];
            wal.append_as(0x80, 1, &payload(1, number), level).unwrap();
        }
        wal.close().unwrap();
        done.store(true, Ordering::Release);
        for follower in followers {
            assert_eq!(follower.join().unwrap(), Lsn::new(3000));
        }
    });
}
