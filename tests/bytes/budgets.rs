//! Budgets, as counts: calls, bytes and allocations of an append, a look-up and a recovery.

use std::sync::Arc;
use std::time::Duration;

use planewal::storage::{FaultStorage, MemStorage, Op, OpCounts, Storage};
use planewal::{Batch, Durability, Lsn, Options, View, Wal};

use crate::counting::{allocations, peak};
use crate::support::{groups, segment};

/// A writer in steady state: no thread, no beacon, room ahead.
fn steady() -> Options {
    Options { io_thread: false, beacon_idle: Duration::ZERO, ..Options::default() }
}

/// A log that has written its first group, with the counts set to zero.
fn warm() -> (FaultStorage, Wal) {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(5)));
    let wal = Wal::open_on(Arc::new(storage.clone()), steady()).unwrap();
    wal.append(0x80, 1, b"first").unwrap();
    storage.reset_counts();
    (storage, wal)
}

/// Nothing but these writes and syncs, and these only on the segment.
#[track_caller]
fn only(storage: &FaultStorage, writes: u64, syncs: u64) {
    let counts: OpCounts = storage.counts();
    assert_eq!((counts.get(Op::Write), counts.get(Op::Sync)), (writes, syncs), "{counts:?}");
    assert_eq!(counts.total(), writes + syncs, "no other call on the commit path: {counts:?}");
    assert_eq!(storage.counts_for(|name| name == segment(1)), counts, "and on no other file");
}

// faults: B098
#[test]
fn a_synced_commit_is_one_write_and_one_sync() {
    let (storage, wal) = warm();
    for _ in 0..100 {
        wal.append(0x80, 1, &[7; 100]).unwrap();
    }
    only(&storage, 100, 100);
}

#[test]
fn a_written_commit_is_one_write() {
    let (storage, wal) = warm();
    let mut batch = Batch::new();
    for _ in 0..100 {
        for plane in 0x80..0x90 {
            batch.push(plane, 1, &[7; 100]).unwrap();
        }
        wal.commit_as(&mut batch, Durability::Written).unwrap();
    }
    only(&storage, 100, 0);
    wal.sync().unwrap();
    only(&storage, 100, 1);
}

#[test]
fn buffered_commits_share_one_write_and_one_sync() {
    let (storage, wal) = warm();
    let mut batch = Batch::new();
    for _ in 0..100 {
        batch.push(0x80, 1, &[7; 100]).unwrap();
        wal.commit_as(&mut batch, Durability::Buffered).unwrap();
    }
    only(&storage, 0, 0);
    wal.sync().unwrap();
    only(&storage, 1, 1);
    assert_eq!(wal.durable(), Lsn::new(101));
}

#[test]
fn committers_at_once_cost_at_most_a_write_and_a_sync_each() {
    let (storage, wal) = warm();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    wal.append(0x80, 1, &[7; 100]).unwrap();
                }
            });
        }
    });
    let counts = storage.counts();
    let (writes, syncs) = (counts.get(Op::Write), counts.get(Op::Sync));
    assert!((1..=200).contains(&writes) && syncs <= writes, "{counts:?}");
    only(&storage, writes, syncs);
    assert_eq!(wal.durable(), Lsn::new(201));
}

// faults: B027
#[test]
fn a_record_costs_three_bytes_below_64_and_four_below_8192_and_a_frame_32_and_padding() {
    let storage = MemStorage::new(5);
    let wal = Wal::open_on(Arc::new(storage.clone()), steady()).unwrap();
    let cases = [(0, 3), (1, 3), (63, 3), (64, 4), (65, 4), (8191, 4), (8192, 5), (1 << 20, 6)];
    for (length, _) in cases {
        wal.append(0x80, 1, &vec![7; length]).unwrap();
    }
    let mut batch = Batch::new();
    for (length, _) in cases {
        batch.push(0x80, 1, &vec![7; length]).unwrap();
    }
    wal.commit(&mut batch).unwrap();
    let bytes = storage.read(&segment(1)).unwrap();
    let groups = groups(&bytes);
    let bodies: Vec<usize> = cases.iter().map(|(length, head)| length + head).collect();
    let mut at = 4096 + 32 + 56;
    for (group, body) in groups.iter().zip(bodies.iter().copied().chain([bodies.iter().sum()])) {
        assert_eq!((group.offset, group.body, group.end), (at, body, at + 32 + body.div_ceil(8) * 8));
        at = group.end;
    }
    assert_eq!(groups.len(), cases.len() + 1);
    assert!(bytes[at..].iter().all(|&byte| byte == 0), "and nothing behind it");
}

// On the real file system, which allocates nothing of its own for a write.
#[test]
fn a_batch_that_is_used_again_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(dir.path(), steady()).unwrap();
    let mut batch = Batch::new();
    let mut commit = |durability| {
        batch.push(0x80, 1, b"ab").unwrap();
        wal.commit_as(&mut batch, durability).unwrap();
    };
    for _ in 0..2000 {
        commit(Durability::Written);
    }
    let ((), calls) = allocations(|| (0..1000).for_each(|_| commit(Durability::Written)));
    assert_eq!(calls, 0, "1000 commits");
    commit(Durability::Synced);
    let ((), calls) = allocations(|| (0..10).for_each(|_| commit(Durability::Synced)));
    assert_eq!(calls, 0, "10 synced commits");
}

// The sparse index gets a row every 16 KiB, so its table doubles now and then.
#[test]
fn no_record_costs_an_allocation() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { prepare_bytes: 16 << 20, ..steady() };
    let wal = Wal::open(dir.path(), options).unwrap();
    let mut batch = Batch::new();
    let mut commit = || {
        for at in 0..100 {
            batch.push(0x80 + at % 4, 1, &[7; 100]).unwrap();
        }
        wal.commit_as(&mut batch, Durability::Written).unwrap();
    };
    (0..10).for_each(|_| commit());
    let ((), calls) = allocations(|| (0..1000).for_each(|_| commit()));
    assert!(calls <= 12, "{calls} allocations for 100,000 records");
}

/// A segment of 64 MiB and a second one that is still being written, of frames of about 280 bytes.
#[test]
fn a_look_up_reads_less_than_64_kib() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(5)));
    let options = Options { prepare_bytes: 64 << 20, ..steady() };
    let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
    let mut batch = Batch::new();
    let mut last = Lsn::FIRST;
    while wal.segments().len() < 2 || wal.segments()[1].end < 60 << 20 {
        for _ in 0..1000 {
            // Every second record in a frame of its own, others three together.
            let count = if last.number().is_multiple_of(2) { 1 } else { 3 };
            for _ in 0..count {
                batch.push(0x80, 1, &[7; 240]).unwrap();
            }
            last = wal.commit_as(&mut batch, Durability::Written).unwrap().last;
        }
    }
    // Without the I/O thread the first is sealed when the second is left.
    wal.rotate().unwrap();
    let segments = wal.segments();
    assert!(segments[0].sealed && !segments[1].sealed && segments[0].end > 60 << 20);
    let split = segments[1].base.number();
    let view = View::open_on(Arc::new(storage.clone())).unwrap();
    let mut most = 0;
    let wanted = (0..60).map(|step| 1 + step * (last.number() - 1) / 59).chain([split - 1, split, split + 1]);
    for lsn in wanted.filter_map(Lsn::new) {
        for seek in [&(|lsn| wal.seek(lsn)) as &dyn Fn(Lsn) -> _, &|lsn| view.seek(lsn)] {
            storage.reset_counts();
            let position = seek(lsn).unwrap();
            assert!(position.first <= lsn && lsn <= position.last);
            assert_eq!(position.segment.number(), if lsn.number() < split { 1 } else { 2 });
            most = most.max(storage.counts().bytes_read);
        }
    }
    assert!(most > 0 && most < 64 << 10, "{most} bytes read");
}

const MIB: u64 = 1 << 20;

/// P10: 16 MiB and the largest group.
#[track_caller]
fn within(bytes: u64, largest: u64, what: &str) {
    assert!(bytes <= 16 * MIB + largest, "{what}: {bytes} bytes at once, the largest group has {largest}");
}

// faults: B142
#[test]
fn recovery_holds_a_window_and_the_largest_group() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options { segment_bytes: 32 << 20, prepare_bytes: 8 << 20, ..steady() };
    let wal = Wal::open(dir.path(), options()).unwrap();
    let mut batch = Batch::new();
    // 64 MB in groups of a megabyte, 36 MB in small frames; the last of them proved by nothing.
    for _ in 0..64 {
        for _ in 0..60 {
            batch.push(0x80, 1, &[7; 16 << 10]).unwrap();
        }
        wal.commit_as(&mut batch, Durability::Written).unwrap();
    }
    wal.sync().unwrap();
    for _ in 0..120_000 {
        batch.push(0x81, 1, &[7; 256]).unwrap();
        wal.commit_as(&mut batch, Durability::Written).unwrap();
    }
    let last = wal.last();
    drop(wal);
    let (view, bytes) = peak(|| View::open(dir.path()).unwrap());
    within(bytes, MIB, "a view");
    assert_eq!(view.report().last, last);
    let (count, bytes) = peak(|| {
        let mut reader = view.read(Lsn::FIRST).unwrap();
        let mut count = 0;
        while reader.next().unwrap().is_some() {
            count += 1;
        }
        count
    });
    within(bytes, MIB, "a reader");
    assert_eq!(Some(count), last.map(Lsn::number));
    drop(view);
    let (wal, bytes) = peak(|| Wal::open(dir.path(), options()).unwrap());
    within(bytes, MIB, "an open that copies a tail");
    assert!(wal.recovery().copied.is_some() && wal.last() == last);
}

#[test]
fn recovery_of_a_large_record_holds_it_once() {
    let size = 24 * MIB;
    let disk = MemStorage::new(5);
    let storage: Arc<dyn Storage> = Arc::new(Uncounted(disk));
    let options = || Options { segment_bytes: 8 << 20, ..steady() };
    let wal = Wal::open_on(Arc::clone(&storage), options()).unwrap();
    wal.append(0x80, 1, b"before").unwrap();
    let mut batch = Batch::new();
    batch.push(0x80, 1, &vec![7; size as usize]).unwrap();
    wal.commit_as(&mut batch, Durability::Written).unwrap();
    drop(wal);
    let (view, bytes) = peak(|| View::open_on(Arc::clone(&storage)).unwrap());
    within(bytes, size, "a view");
    drop(view);
    let (wal, bytes) = peak(|| Wal::open_on(Arc::clone(&storage), options()).unwrap());
    within(bytes, size, "an open that copies it");
    assert!(wal.recovery().copied.is_some() && wal.last() == Lsn::new(2));
    let (length, bytes) = peak(|| {
        let mut reader = wal.read(Lsn::new(2).unwrap()).unwrap();
        reader.next().unwrap().unwrap().payload.len() as u64
    });
    within(bytes, size, "a reader");
    assert_eq!(length, size);
}

use uncounted::Uncounted;

/// A disk whose own memory is nobody's business.
mod uncounted {
    use std::io;

    use planewal::storage::{
        Access, Allocation, Entry, LockError, MemStorage, Storage, StorageFile, StorageLock,
    };

    use crate::counting::uncounted;

    #[derive(Debug)]
    pub(super) struct Uncounted(pub(super) MemStorage);

    #[derive(Debug)]
    struct UncountedFile(Box<dyn StorageFile>);

    impl Storage for Uncounted {
        fn list(&self) -> io::Result<Vec<Entry>> {
            self.0.list()
        }

        fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
            Ok(Box::new(UncountedFile(uncounted(|| self.0.create(name))?)))
        }

        fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
            Ok(Box::new(UncountedFile(uncounted(|| Storage::open(&self.0, name, access))?)))
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            uncounted(|| self.0.rename(from, to))
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            uncounted(|| self.0.remove(name))
        }

        fn sync_dir(&self) -> io::Result<()> {
            uncounted(|| self.0.sync_dir())
        }

        fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError> {
            uncounted(|| self.0.lock(name))
        }

        fn free_bytes(&self) -> io::Result<u64> {
            self.0.free_bytes()
        }

        fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
            self.0.random(bytes)
        }

        fn describe(&self) -> String {
            self.0.describe()
        }
    }

    impl StorageFile for UncountedFile {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            uncounted(|| self.0.read_at(offset, buffer))
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
            uncounted(|| self.0.write_at(offset, bytes))
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            uncounted(|| self.0.set_len(len))
        }

        fn allocate(&self, offset: u64, len: u64, how: Allocation) -> io::Result<Allocation> {
            uncounted(|| self.0.allocate(offset, len, how))
        }

        fn sync(&self) -> io::Result<()> {
            uncounted(|| self.0.sync())
        }
    }
}
