//! Following over crashes and recoveries, seen from every moment of them.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use planewal::storage::{
    Access, CrashPlan, Entry, Fault, FaultStorage, LockError, MemStorage, Op, Storage, StorageFile,
    StorageLock,
};
use planewal::{Cursor, Durability, Follow, Lsn, Options, ReadError, View, Wal};

use super::{content, drain, lsn, numbers, open, payload, quiet, tiny, view, wait_for};

/// A storage that can become another one: the disk after a crash, under the same name.
#[derive(Debug, Clone)]
struct Mount {
    inner: Arc<Mutex<Arc<dyn Storage>>>,
    /// How long a list takes, and so a survey.
    list_takes: Duration,
}

impl Mount {
    fn new(disk: &MemStorage) -> Mount {
        Mount { inner: Arc::new(Mutex::new(Arc::new(disk.clone()))), list_takes: Duration::ZERO }
    }

    fn swap(&self, disk: &MemStorage) {
        *self.inner.lock().unwrap() = Arc::new(disk.clone());
    }

    fn now(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.inner.lock().unwrap())
    }
}

impl Storage for Mount {
    fn list(&self) -> io::Result<Vec<Entry>> {
        std::thread::sleep(self.list_takes);
        self.now().list()
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.now().create(name)
    }
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
        self.now().open(name, access)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.now().rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.now().remove(name)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.now().sync_dir()
    }
    fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError> {
        self.now().lock(name)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.now().free_bytes()
    }
    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.now().random(bytes)
    }
    fn describe(&self) -> String {
        self.now().describe()
    }
}

// The process dies, the cache lives on: recovery copies the unproved tail and takes files away.
#[test]
fn a_writer_that_dies_and_comes_back_makes_no_gap_and_no_repeat() {
    let disk = MemStorage::new(6);
    drop(open(&disk, tiny()));
    let mut follow = view(&disk).follow(Lsn::FIRST).unwrap();
    let mut given = Vec::new();
    for life in 1..30 {
        let wal = open(&disk, tiny());
        // Caught up in the middle of a life, behind it, or not at all.
        for step in 0..life * 3 {
            let level = if step % 5 == life % 5 { Durability::Synced } else { Durability::Written };
            wal.append_as(0x80, 1, &payload(life, step), level).unwrap();
            if life % 3 == 0 && step % 2 == 0 {
                given.extend(drain(&mut follow));
            }
        }
        let durable = wal.durable();
        given.extend(if life % 2 == 0 { drain(&mut follow) } else { Vec::new() });
        assert!(given.last().map(|(number, _)| *number) <= durable.map(Lsn::number), "unproved");
        if life % 7 == 0 {
            wal.close().unwrap();
        }
        if life % 5 == 0 {
            // It dies, too, and goes on from what it had kept.
            follow =
                view(&disk).follow_from(&Cursor::from_bytes(&follow.cursor().to_bytes()).unwrap()).unwrap();
        }
    }
    open(&disk, tiny()).close().unwrap();
    wait_for(&mut follow, &mut given, content(&disk).len());
    assert_eq!(given, content(&disk));
}

// A survey in the middle of a recovery, which then cuts the file that it saw: no damage, however short ago
// the survey was.
#[test]
fn a_recovery_that_cuts_what_was_just_surveyed_is_no_damage() {
    let disk = MemStorage::new(19);
    let wal = open(&disk, tiny());
    for step in 0..20 {
        let level = if step < 5 { Durability::Synced } else { Durability::Written };
        wal.append_as(0x80, 1, &payload(1, step), level).unwrap();
    }
    drop(wal);
    let slow = Mount { list_takes: Duration::from_millis(30), ..Mount::new(&disk) };
    let follow = View::open_on(Arc::new(slow)).unwrap().follow(Lsn::FIRST).unwrap();
    let watch = Arc::new(Watch { follow: Mutex::new(follow), given: Mutex::default() });
    watch.look();
    let before = watch.given.lock().unwrap().len();
    assert!(before < 20);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    storage.on_call({
        let watch = Arc::clone(&watch);
        // The slots have the new epoch, and the copy of the tail is begun.
        move |op, name| {
            if op == Op::Create && name.ends_with(".tmp") {
                watch.look();
            }
        }
    });
    let wal = Wal::open_on(Arc::new(storage), tiny()).unwrap();
    assert!(wal.recovery().copied.is_some());
    watch.look();
    wal.close().unwrap();
    watch.compare(&disk);
}

// A loss of power takes written records back, and others get their LSNs.
#[test]
fn records_that_a_loss_of_power_took_were_never_given() {
    let (mut taken, mut lives) = (0, 0);
    for seed in 0..60 {
        let mut disk = MemStorage::new(seed);
        let mount = Mount::new(&disk);
        drop(open(&disk, tiny()));
        let mut follow = View::open_on(Arc::new(mount.clone())).unwrap().follow(Lsn::FIRST).unwrap();
        let mut given: Vec<(u64, Vec<u8>)> = Vec::new();
        for life in 1..8 {
            let wal = open(&disk, tiny());
            let appended = 10 + (seed * 7 + life * 13) % 60;
            for step in 0..appended {
                let synced = (seed + life * 3 + step) % 11 == 0;
                let level = if synced { Durability::Synced } else { Durability::Written };
                wal.append_as(0x80, 1, &payload(life, step), level).unwrap();
                if (seed + step) % 4 == 0 {
                    given.extend(drain(&mut follow));
                }
            }
            let written = wal.written().unwrap().number();
            let image = disk.crash(&CrashPlan::Seeded(seed * 100 + life));
            drop(wal);
            // The follower sees the image before, during, and behind its recovery.
            mount.swap(&image);
            if life % 2 == 0 {
                given.extend(drain(&mut follow));
            }
            disk = image;
            let wal = open(&disk, tiny());
            taken += written - wal.last().map_or(0, Lsn::number);
            lives += 1;
            given.extend(drain(&mut follow));
        }
        open(&disk, tiny()).close().unwrap();
        let content = content(&disk);
        wait_for(&mut follow, &mut given, content.len());
        assert_eq!(given, content, "seed {seed}");
    }
    assert!(taken > lives, "presence before absence: {taken} records were taken back in {lives} lives");
}

// A directory restored from a copy of yesterday, under a follower.
#[test]
fn a_log_that_went_back_behind_a_follower_is_diverged() {
    let disk = MemStorage::new(10);
    let mount = Mount::new(&disk);
    let wal = open(&disk, quiet());
    wal.append(0x80, 1, b"one").unwrap();
    let yesterday = disk.fork_live();
    let mut follow = View::open_on(Arc::new(mount.clone())).unwrap().follow(Lsn::FIRST).unwrap();
    for number in 2..20 {
        wal.append(0x80, 1, &payload(1, number)).unwrap();
    }
    assert_eq!(numbers(&drain(&mut follow)), (1..19).collect::<Vec<_>>());
    let cursor = follow.cursor();
    mount.swap(&yesterday);
    let wal = open(&yesterday, quiet());
    for _ in 0..3 {
        match follow.wait_timeout(Duration::from_secs(20)) {
            Err(ReadError::Diverged { read, kept, .. }) => assert_eq!((read, kept), (lsn(18), Lsn::new(1))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(follow.cursor(), cursor, "an error moves nobody");
    drop(wal);
}

/// A follower that looks whenever the writer is about to call its storage.
#[derive(Debug)]
struct Watch {
    follow: Mutex<Follow>,
    given: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Watch {
    fn look(&self) {
        let given = drain(&mut self.follow.lock().unwrap());
        self.given.lock().unwrap().extend(given);
    }

    /// What was given is exactly the log, after its clean close.
    fn compare(&self, disk: &MemStorage) {
        let content = content(disk);
        let mut given = self.given.lock().unwrap();
        wait_for(&mut self.follow.lock().unwrap(), &mut given, content.len());
        assert_eq!(*given, content);
    }
}

/// Lives with and without clean closes, syncs, rotations, and unproved tails over two segments; to the
/// first error, which is the end of the machine.
fn lives(storage: &FaultStorage, from: u64, options: &Options) -> Result<(), Box<dyn Error>> {
    for life in from..from + 4 {
        let wal = Wal::open_on(Arc::new(storage.clone()), options.clone())?;
        for step in 0..6 + life * 5 % 17 {
            let level = if (life + step) % 5 == 0 { Durability::Synced } else { Durability::Written };
            let long = if step % 4 == 3 { 3000 } else { 0 };
            let mut bytes = payload(life, step);
            bytes.resize(bytes.len() + long, b'+');
            wal.append_as(0x80, 1, &bytes, level)?;
        }
        match life % 4 {
            0 => wal.close()?,
            1 => wal.sync()?,
            _ => {}
        }
    }
    Ok(())
}

fn close(disk: &MemStorage) {
    open(disk, tiny()).close().unwrap();
}

// A recovery takes files away, cuts and renames; a look between any two of its calls is right.
#[test]
fn a_look_between_any_two_calls_of_the_writer_is_right() {
    for first_life in [1, 2, 3] {
        let disk = MemStorage::new(17);
        drop(open(&disk, tiny()));
        let follow = view(&disk).follow(Lsn::FIRST).unwrap();
        let watch = Arc::new(Watch { follow: Mutex::new(follow), given: Mutex::default() });
        let storage = FaultStorage::new(Arc::new(disk.clone()));
        storage.on_call({
            let watch = Arc::clone(&watch);
            move |_, _| watch.look()
        });
        lives(&storage, first_life, &tiny()).unwrap();
        assert!(storage.mutations() > 200 && !watch.given.lock().unwrap().is_empty());
        close(&disk);
        watch.compare(&disk);
    }
}

// The power fails before any call of the writer, and the follower watches the recovery of what is left.
#[test]
fn a_loss_of_power_at_any_moment_takes_nothing_that_was_given() {
    let mut crash_at = 1;
    let (mut crashes, mut given) = (0, 0);
    loop {
        let disk = MemStorage::new(18);
        drop(open(&disk, tiny()));
        let mount = Mount::new(&disk);
        let follow = View::open_on(Arc::new(mount.clone())).unwrap().follow(Lsn::FIRST).unwrap();
        let watch = Arc::new(Watch { follow: Mutex::new(follow), given: Mutex::default() });
        let image = Arc::new(Mutex::new(None));
        let storage = FaultStorage::new(Arc::new(disk.clone()));
        storage.on_call({
            let (watch, image, disk) = (Arc::clone(&watch), Arc::clone(&image), disk.clone());
            let storage = storage.clone();
            move |_, _| {
                let mut image = image.lock().unwrap();
                if image.is_none() {
                    watch.look();
                    *image =
                        (storage.mutations() == crash_at).then(|| disk.crash(&CrashPlan::Seeded(crash_at)));
                }
            }
        });
        storage.inject(Fault::error(io::ErrorKind::Other).at_mutation(crash_at).sticky());
        let over = lives(&storage, 1, &tiny());
        let Some(image) = image.lock().unwrap().take() else { break over.unwrap() };
        (crashes, given) = (crashes + 1, given + watch.given.lock().unwrap().len());
        mount.swap(&image);
        let storage = FaultStorage::new(Arc::new(image.clone()));
        storage.on_call({
            let watch = Arc::clone(&watch);
            move |_, _| watch.look()
        });
        lives(&storage, 11, &tiny()).unwrap();
        close(&image);
        watch.compare(&image);
        crash_at += 3;
    }
    assert!(crashes > 50 && given > 10 * crashes, "{crashes} crashes, {given} records given before them");
}
