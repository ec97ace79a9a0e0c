//! A log of many small segments, and a look at what a disk keeps of it.

use std::sync::Arc;

use planewal::storage::{MemStorage, Storage};
use planewal::{Durability, Lsn, OpenError, Options, Verdict, View, Wal};

/// Segments of 16 KiB, no thread, so that a run is the same every time.
pub(crate) fn tiny() -> Options {
    Options {
        segment_bytes: 16 << 10,
        prepare_bytes: 4 << 10,
        group_bytes: 4 << 10,
        io_thread: false,
        ..Options::default()
    }
}

pub(crate) fn lsn(number: u64) -> Lsn {
    Lsn::new(number).unwrap()
}

/// The payload of the record with this LSN: long enough that five fill a segment, and of no other record.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    (0..300).flat_map(|at: u64| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).to_le_bytes()).collect()
}

pub(crate) fn open(storage: Arc<dyn Storage>) -> Wal {
    open_with(storage, &tiny())
}

/// The lock of a dropped handle goes with its last I/O.
pub(crate) fn open_with(storage: Arc<dyn Storage>, options: &Options) -> Wal {
    loop {
        match Wal::open_on(Arc::clone(&storage), options.clone()) {
            Err(OpenError::Locked { .. }) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

/// Appends the records up to `last`, each synced.
pub(crate) fn fill(wal: &Wal, last: u64) {
    for number in wal.next().number()..=last {
        assert_eq!(wal.append_as(0x80, 1, &payload(number), Durability::Synced).unwrap(), lsn(number));
    }
}

/// Reads all that `wal` has and compares; answers the first and the last LSN.
pub(crate) fn check_wal(wal: &Wal) -> (u64, u64) {
    let first = wal.first().number();
    let mut reader = wal.read(wal.first()).unwrap();
    let mut due = first;
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.lsn, lsn(due));
        assert_eq!(record.payload, payload(due), "LSN {due}");
        due += 1;
    }
    (first, due - 1)
}

/// Looks at a disk after a crash, then opens it and goes on: nothing above `from` is missing up to `durable`,
/// nothing is there that was not appended, and what is left over is gone. Answers the first LSN kept.
pub(crate) fn check_disk(disk: &MemStorage, place: &str, from: u64, durable: u64, appended: u64) -> u64 {
    if let Ok(view) = View::open_on(Arc::new(disk.clone())) {
        let report = view.report();
        assert!(matches!(report.verdict, Verdict::Clean | Verdict::TornTail), "{place}: {report:#?}");
        let mut reader = view.read(report.first.unwrap_or(report.next)).unwrap();
        while let Some(record) = reader.next().unwrap_or_else(|error| panic!("{place}: {error}")) {
            assert_eq!(record.payload, payload(record.lsn.number()), "{place}: LSN {}", record.lsn);
        }
    } else {
        assert_eq!(durable, 0, "{place}");
    }
    let wal = Wal::open_on(Arc::new(disk.clone()), tiny()).unwrap_or_else(|error| panic!("{place}: {error}"));
    let (first, last) = check_wal(&wal);
    assert!(first <= from, "{place}: begins with {first}, and {from} was kept");
    assert!((durable..=appended).contains(&last), "{place}: ends with {last}, of {durable} to {appended}");
    let kept = disk.names().iter().filter(|name| name.ends_with(".spare")).count();
    assert!(kept <= 1, "{place}: {:?}", disk.names());
    assert_eq!(wal.recovery().spares as usize, kept, "{place}");
    let head = wal.segments().first().map_or(0, |segment| segment.id.number());
    for name in disk.names().iter().filter(|name| name.ends_with(".wal")) {
        assert!(name.as_str() >= format!("{head:020}.wal").as_str(), "{place}: {name} is left over");
    }
    // It goes on, over reused files too, and closes as clean as ever.
    fill(&wal, last + 12);
    wal.retire_unchecked(lsn(last + 1)).unwrap_or_else(|error| panic!("{place}: {error}"));
    fill(&wal, last + 24);
    wal.close().unwrap();
    let view = View::open_on(Arc::new(disk.clone())).unwrap();
    assert!(
        view.report().closed_cleanly && view.report().findings.is_empty(),
        "{place}: {:?}",
        view.report()
    );
    assert_eq!(view.report().last, Lsn::new(last + 24), "{place}");
    first
}
