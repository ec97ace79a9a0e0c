//! Backups: made beside a writer, cut short, failing, read again, restored.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use planewal::storage::{CrashPlan, Fault, FaultStorage, FsStorage, MemStorage, Op, Storage};
use planewal::{
    BackupError, BackupReport, Create, Cursor, Durability, KeptBecause, Lsn, OpenError, Options, ReadError,
    Reader, RestoreError, Verdict, View, Wal, restore,
};
use planewal_core::fuzzing::{self, Scene};

const CONTROL: &str = "planewal.ctl";
const LOCK: &str = "planewal.lock";

fn on(disk: &MemStorage) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

fn open(disk: &MemStorage) -> Wal {
    Wal::open_on(on(disk), fuzzing::options()).unwrap()
}

fn view(disk: &MemStorage) -> View {
    View::open_on(on(disk)).unwrap()
}

/// Another disk, which draws other random numbers.
fn empty() -> MemStorage {
    MemStorage::new(99)
}

fn append(wal: &Wal, count: u64, level: Durability) {
    for _ in 0..count {
        let lsn = wal.next();
        assert_eq!(wal.append_as(0x80, 1, &payload(lsn.number()), level).unwrap(), lsn);
    }
}

fn payload(lsn: u64) -> Vec<u8> {
    format!("record {lsn}").into_bytes()
}

/// What a reader told: records, and ranges that are lost.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Reading {
    records: BTreeMap<u64, Vec<u8>>,
    lost: Vec<(u64, u64)>,
}

fn read(mut reader: Reader) -> Reading {
    let mut reading = Reading::default();
    loop {
        match reader.next() {
            Ok(Some(record)) => drop(reading.records.insert(record.lsn.number(), record.payload.to_vec())),
            Ok(None) => return reading,
            Err(ReadError::Lost { first, last }) => reading.lost.push((first.number(), last.number())),
            Err(ReadError::NotKept { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn content(disk: &MemStorage) -> Reading {
    let view = view(disk);
    view.report().first.map_or_else(Reading::default, |_| read(view.read(Lsn::FIRST).unwrap()))
}

/// What of a reading lies at or below the mark.
fn up_to(reading: &Reading, durable: u64) -> Reading {
    let below = |lsn: u64| lsn <= durable;
    Reading {
        records: reading
            .records
            .iter()
            .filter(|(lsn, _)| below(**lsn))
            .map(|(l, p)| (*l, p.clone()))
            .collect(),
        lost: reading.lost.iter().filter(|(_, last)| below(*last)).copied().collect(),
    }
}

/// The files of a disk but for the lock.
fn files(disk: &MemStorage) -> BTreeMap<String, Vec<u8>> {
    let names = disk.names().into_iter().filter(|name| name != LOCK);
    names.map(|name| (name.clone(), disk.read(&name).unwrap())).collect()
}

fn segments(disk: &MemStorage) -> BTreeMap<String, Vec<u8>> {
    files(disk).into_iter().filter(|(name, _)| name.ends_with(".wal")).collect()
}

/// A backup says what it is, checks, is refused to writers, and holds what the log held.
#[track_caller]
fn assert_backup(copy: &MemStorage, report: &BackupReport, expected: &Reading) {
    let found = view(copy);
    let told = found.report();
    assert!(told.backup);
    assert!(told.findings.iter().all(|finding| finding.harmless), "{:?}", told.findings);
    assert!(!matches!(told.verdict, Verdict::TornTail), "{:?}", told.findings);
    assert_eq!((told.log_id, told.first, told.last), (Some(report.log_id), report.first, report.last));
    assert_eq!((told.durable, told.segments.len() as u64), (report.durable, report.segments));
    assert!(told.extras.is_empty(), "{:?}", told.extras);
    let bytes: u64 = segments(copy).values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(bytes, report.bytes);
    let durable = report.durable.map_or(0, Lsn::number);
    assert_eq!(content(copy), up_to(expected, durable));
    let before = files(copy);
    let refused = Wal::open_on(on(copy), fuzzing::options()).unwrap_err();
    assert!(matches!(refused, OpenError::Backup { .. }), "{refused}");
    assert!(refused.to_string().contains("`planewal restore`"), "{refused}");
    assert_eq!(files(copy), before, "a refusal changes nothing");
}

#[test]
fn a_backup_of_a_closed_log_is_the_log() {
    let sample = fuzzing::sample(Scene::Closed, 5);
    let before = files(&sample.storage);
    let copy = empty();
    let report = view(&sample.storage).backup_to_storage(on(&copy)).unwrap();
    let last = sample.records.last_key_value().map(|(lsn, _)| *lsn);
    assert_eq!((report.last.map(Lsn::number), report.durable, report.segments), (last, report.last, 3));
    assert_backup(&copy, &report, &content(&sample.storage));
    assert_eq!(segments(&copy), segments(&sample.storage), "seals and all");
    assert_eq!(files(&sample.storage), before, "the log is only read");
}

/// Torn, copied, repaired and sieved logs, and such as hold nothing: backed up, restored, gone on with.
#[test]
fn every_kind_of_log_comes_back_from_its_backup() {
    for scene in Scene::ALL {
        let sample = fuzzing::sample(scene, 6);
        let looked = view(&sample.storage);
        let expected = content(&sample.storage);
        let copy = empty();
        let report = looked.backup_to_storage(on(&copy)).unwrap_or_else(|e| panic!("{scene:?}: {e}"));
        let durable = report.durable.map_or(0, Lsn::number);
        assert_eq!(durable, looked.report().durable.map_or(0, Lsn::number), "{scene:?}");
        assert_backup(&copy, &report, &expected);
        assert_eq!(view(&copy).report().lost, looked.report().lost, "{scene:?}");
        assert_eq!(view(&copy).report().ancestors, looked.report().ancestors, "{scene:?}");
        for (name, bytes) in segments(&copy) {
            let source = sample.storage.read(&name).unwrap();
            assert!(source.starts_with(&bytes), "{scene:?}: {name} is not byte for byte");
        }

        let before = segments(&copy);
        let done = restore(on(&copy)).unwrap();
        assert_eq!((Some(done.ancestor), done.last), (looked.report().log_id, report.last), "{scene:?}");
        assert_eq!(done.next.number(), durable + 1, "{scene:?}");
        assert_eq!(segments(&copy), before, "{scene:?}: only the control file changes");
        let wal = open(&copy);
        assert_eq!(wal.log_id(), Some(done.log_id));
        assert_eq!(wal.recovery().torn_tail, None);
        append(&wal, 2, Durability::Synced);
        assert_eq!(wal.last().map(Lsn::number), Some(durable + 2), "{scene:?}");
        wal.rotate().unwrap();
        append(&wal, 1, Durability::Synced);
        wal.close().unwrap();
        drop(wal);
        let mut expected = up_to(&expected, durable);
        expected.records.extend((durable + 1..=durable + 3).map(|lsn| (lsn, payload(lsn))));
        assert_eq!(content(&copy), expected, "{scene:?}");
        let again = view(&copy);
        assert!(again.report().closed_cleanly && !again.report().backup, "{scene:?}");
        // And a backup of the branch.
        let second = MemStorage::new(7);
        let report = open(&copy).backup_to_storage(on(&second)).unwrap();
        assert_backup(&second, &report, &expected);
    }
}

#[test]
fn what_is_not_durable_is_not_in_a_backup() {
    let disk = MemStorage::new(1);
    let wal = open(&disk);
    let nothing = empty();
    let report = wal.backup_to_storage(on(&nothing)).unwrap();
    assert_eq!((report.last, report.durable, report.segments, report.bytes), (None, None, 0, 0));
    assert_eq!(files(&nothing).keys().collect::<Vec<_>>(), [CONTROL]);
    assert_backup(&nothing, &report, &Reading::default());

    append(&wal, 3, Durability::Synced);
    append(&wal, 2, Durability::Written);
    let copy = empty();
    let report = wal.backup_to_storage(on(&copy)).unwrap();
    assert_eq!(report.durable.map(Lsn::number), Some(3));
    assert_eq!(report.segments, 1);
    assert_backup(&copy, &report, &read(wal.read(Lsn::FIRST).unwrap()));
    // The rotation syncs what it leaves; what is written behind it is not.
    wal.rotate().unwrap();
    append(&wal, 2, Durability::Written);
    let copy = empty();
    let report = wal.backup_to_storage(on(&copy)).unwrap();
    assert_eq!((report.durable.map(Lsn::number), report.segments), (Some(5), 1));
    assert_backup(&copy, &report, &read(wal.read(Lsn::FIRST).unwrap()));
    wal.sync().unwrap();
    let copy = empty();
    let report = wal.backup_to_storage(on(&copy)).unwrap();
    assert_eq!((report.durable, report.segments), (wal.durable(), 2));
    assert_backup(&copy, &report, &read(wal.read(Lsn::FIRST).unwrap()));
}

/// Stops the writer, also when what goes on beside it fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn backups_are_made_while_records_are_appended_all_the_time() {
    let disk = MemStorage::new(2);
    let options = Options { segment_bytes: 64 << 10, prepare_bytes: 16 << 10, ..Options::default() };
    let wal = Wal::open_on(on(&disk), options).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                append(&wal, 4, Durability::Written);
                append(&wal, 1, Durability::Synced);
                if round % 20 == 0 {
                    wal.rotate().unwrap();
                }
                // A disk in memory outruns every reader.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _end = Stop(&stop);
        let mut before = 0;
        for round in 0..20 {
            let copy = empty();
            let goal = wal.durable().map_or(0, Lsn::number) + 30;
            while wal.durable().map_or(0, Lsn::number) < goal {
                std::thread::yield_now();
            }
            let from = wal.durable().map_or(0, Lsn::number);
            let report = if round % 2 == 0 {
                wal.backup_to_storage(on(&copy)).unwrap()
            } else {
                view(&disk).backup_to_storage(on(&copy)).unwrap()
            };
            let durable = report.durable.map_or(0, Lsn::number);
            // A view knows of marks only what frames say.
            assert!(durable >= if round % 2 == 0 { from } else { before }, "{durable} after {from}");
            let expected = (1..=durable).map(|lsn| (lsn, payload(lsn))).collect();
            assert_backup(&copy, &report, &Reading { records: expected, lost: Vec::new() });
            before = before.max(if round % 2 == 0 { 0 } else { durable });
        }
    });
    assert!(wal.segments().len() > 3);
}

/// A log of four segments with a tail above the mark.
fn log() -> (MemStorage, Wal) {
    let disk = MemStorage::new(3);
    let wal = open(&disk);
    append(&wal, 5, Durability::Synced);
    wal.rotate().unwrap();
    append(&wal, 5, Durability::Synced);
    // More than is written at a time.
    wal.append_as(0x80, 1, &vec![7; 2_500_000], Durability::Synced).unwrap();
    wal.rotate().unwrap();
    append(&wal, 3, Durability::Synced);
    append(&wal, 2, Durability::Written);
    (disk, wal)
}

/// Nobody takes it for a log, or it is the whole backup.
fn nothing_or_all(image: &MemStorage, expected: &Reading) -> Result<bool, String> {
    let options = Options { create: Create::Never, ..fuzzing::options() };
    match Wal::open_on(on(image), options) {
        Err(OpenError::Missing { .. } | OpenError::Refused { .. }) => {
            let restored = restore(on(image));
            if !matches!(restored, Err(RestoreError::Missing { .. } | RestoreError::Refused { .. })) {
                return Err(format!("restored: {restored:?}"));
            }
            Ok(false)
        }
        Err(OpenError::Backup { .. }) => {
            let found = content(image);
            if found != *expected { Err(format!("a backup of {found:?}")) } else { Ok(true) }
        }
        other => Err(format!("{other:?}")),
    }
}

fn plans(disk: &MemStorage, seed: u64) -> Vec<CrashPlan> {
    let pending = disk.pending();
    let window = pending.min(4);
    let mut plans = vec![CrashPlan::Nothing, CrashPlan::Everything];
    for bits in 0..1 << window {
        for others in [true, false] {
            plans.push(CrashPlan::Mask { first: pending - window, bits, others });
        }
    }
    plans.extend((0..4).map(|sample| CrashPlan::Seeded(seed << 8 | sample)));
    plans
}

#[test]
fn the_power_may_go_before_any_call_of_a_backup() {
    let (_disk, wal) = log();
    let expected = up_to(&read(wal.read(Lsn::FIRST).unwrap()), 14);
    let copy = empty();
    let faults = FaultStorage::new(Arc::new(copy.clone()));
    let seen = Arc::new(Mutex::new((0, 0)));
    {
        let (copy, seen, expected, faults) =
            (copy.clone(), Arc::clone(&seen), expected.clone(), faults.clone());
        let counter = faults.clone();
        faults.on_call(move |op, name| {
            let images = plans(&copy, counter.mutations()).into_iter().map(|plan| copy.crash(&plan));
            for image in images.chain([copy.fork_live()]) {
                match nothing_or_all(&image, &expected) {
                    Ok(whole) => {
                        let mut seen = seen.lock().unwrap();
                        seen.0 += u32::from(!whole);
                        seen.1 += u32::from(whole);
                    }
                    Err(wrong) => panic!("before {op:?} {name}: {wrong}"),
                }
            }
        });
    }
    let report = wal.backup_to_storage(Arc::new(faults)).unwrap();
    assert_eq!(report.durable.map(Lsn::number), Some(14));
    assert!(nothing_or_all(&copy.crash(&CrashPlan::Nothing), &expected).unwrap(), "all of it is synced");
    let (nothing, whole) = *seen.lock().unwrap();
    assert!(nothing > 100 && whole > 0, "{nothing} {whole}");
}

#[test]
fn a_backup_that_fails_at_any_call_leaves_nothing_that_passes_for_one() {
    let (_disk, wal) = log();
    let expected = up_to(&read(wal.read(Lsn::FIRST).unwrap()), 14);
    let count = FaultStorage::new(Arc::new(empty()));
    wal.backup_to_storage(Arc::new(count.clone())).unwrap();
    let reads = [Op::List, Op::Open, Op::Read, Op::Lock, Op::Len];
    let calls = (1..=count.mutations()).map(|n| (None, n));
    let calls =
        calls.chain(reads.iter().flat_map(|op| (1..=count.counts().get(*op)).map(|n| (Some(*op), n))));
    for (op, n) in calls.collect::<Vec<_>>() {
        for sticky in [false, true] {
            let copy = empty();
            let faults = FaultStorage::new(Arc::new(copy.clone()));
            let fault = Fault::error(ErrorKind::Other);
            let fault = op.map_or_else(|| fault.clone().at_mutation(n), |op| fault.clone().at(op, n));
            faults.inject(if sticky { fault.sticky() } else { fault });
            let place = format!("{op:?} {n}, sticky {sticky}");
            match wal.backup_to_storage(Arc::new(faults)) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(!matches!(error, BackupError::Source { .. }), "{place}: {text}");
                    if !sticky {
                        assert!(files(&copy).is_empty(), "{place}: {text}: {:?}", copy.names());
                        // The place can be used again.
                        wal.backup_to_storage(on(&copy)).unwrap();
                        continue;
                    }
                }
                // What the lock is asked for does not matter here.
                Ok(report) => panic!("{place}: {report:?}"),
            }
            // Once named and verified it may stay where nothing could be removed any more: then it is whole.
            nothing_or_all(&copy, &expected).unwrap_or_else(|wrong| panic!("{place}: {wrong}"));
        }
    }
}

// A copy is believed when it was read again, not when it was written.
#[test]
fn what_goes_wrong_on_the_way_is_found_in_the_copy() {
    let (_disk, wal) = log();
    let count = FaultStorage::new(Arc::new(empty()));
    wal.backup_to_storage(Arc::new(count.clone())).unwrap();
    for n in 1..=count.counts().get(Op::Write) {
        let mut faults = vec![Fault::lie()];
        faults.extend([0, 77, 8 * 4100 + 3, 8 * 4200, 9_999_991].map(Fault::bit_flip));
        for fault in faults {
            let copy = empty();
            let storage = FaultStorage::new(Arc::new(copy.clone()));
            storage.inject(fault.clone().at(Op::Write, n));
            match wal.backup_to_storage(Arc::new(storage)) {
                Err(BackupError::CopyDamaged { finding, .. }) => {
                    assert!(!finding.file.is_empty() && files(&copy).is_empty(), "{finding}");
                }
                Err(BackupError::CopyDiffers { .. }) => assert!(files(&copy).is_empty()),
                // Behind the used length of a slot nothing is looked at.
                Ok(_) if n + 2 > count.counts().get(Op::Write) => {}
                other => panic!("write {n}, {fault:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_destination_without_room_is_told_with_the_file() {
    let (_disk, wal) = log();
    for capacity in [0, 4096, 200_000, 2_520_000, 2_600_000] {
        let copy = empty().with_capacity(capacity);
        match wal.backup_to_storage(on(&copy)) {
            Err(error @ BackupError::Full { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("no room") && (text.contains(".wal") || text.contains(CONTROL)),
                    "{text}"
                );
            }
            other => panic!("{capacity}: {other:?}"),
        }
        assert!(files(&copy).is_empty(), "what was copied is gone: {:?}", copy.names());
        copy.set_capacity(None);
        wal.backup_to_storage(on(&copy)).unwrap();
    }
}

#[test]
fn of_a_damaged_log_there_is_no_backup() {
    // Rot that came after the log was opened is met where it lies.
    for (name, offset, label) in [
        ("00000000000000000001.wal", 100, "header-proved"),
        ("00000000000000000001.wal", 4100, "records-damaged"),
        ("00000000000000000002.wal", 4300, "records-damaged"),
        ("00000000000000000003.wal", 2_000_000, "records-damaged"),
        ("00000000000000000004.wal", 4200, "records-damaged"),
    ] {
        let (disk, wal) = log();
        assert!(disk.flip_bit(name, 8 * offset));
        let copy = empty();
        match wal.backup_to_storage(on(&copy)) {
            Err(BackupError::Refused { finding, .. }) => {
                assert_eq!((finding.file.as_str(), finding.label), (name, label), "{finding}");
                assert!(finding.offset <= offset && finding.lsn.is_some(), "{finding}");
            }
            other => panic!("{name} {offset}: {other:?}"),
        }
        assert!(files(&copy).is_empty());
    }
    // What a view has seen already is refused before the destination is touched.
    let sample = fuzzing::sample(Scene::Closed, 5);
    sample.storage.flip_bit("00000000000000000002.wal", 8 * 4200);
    let copy = FaultStorage::new(Arc::new(empty()));
    let refused = view(&sample.storage).backup_to_storage(Arc::new(copy.clone())).unwrap_err();
    assert!(
        matches!(&refused, BackupError::Refused { finding, .. } if finding.segment.is_some()),
        "{refused}"
    );
    assert_eq!(copy.counts().total(), 0);
}

#[test]
fn a_file_that_is_taken_away_or_replaced_is_told() {
    let name = "00000000000000000002.wal";
    let (disk, wal) = log();
    let view = view(&disk);
    let whole = disk.read(name).unwrap();
    disk.remove_file(name);
    let told = |result: Result<BackupReport, BackupError>| match result {
        Err(BackupError::Changed { file, .. }) => assert_eq!(file, name),
        other => panic!("{other:?}"),
    };
    let copy = empty();
    told(wal.backup_to_storage(on(&copy)));
    told(view.backup_to_storage(on(&copy)));
    // Another file under that name, sound in itself.
    let mut other = fuzzing::sample(Scene::Closed, 8).storage.read(name).unwrap();
    disk.write(name, &other);
    told(wal.backup_to_storage(on(&copy)));
    other.truncate(100);
    disk.write(name, &other);
    assert!(matches!(wal.backup_to_storage(on(&copy)), Err(BackupError::Refused { .. })));
    assert!(files(&copy).is_empty());
    disk.write(name, &whole);
    wal.backup_to_storage(on(&copy)).unwrap();
}

#[test]
fn a_backup_goes_into_an_empty_place_only() {
    let (disk, wal) = log();
    let source = on(&disk);
    let own = View::open_on(Arc::clone(&source)).unwrap();
    assert!(matches!(own.backup_to_storage(source), Err(BackupError::SameLog { .. })));
    let before = files(&disk);
    assert!(matches!(wal.backup_to_storage(on(&disk)), Err(BackupError::NotEmpty { .. })));
    assert_eq!(files(&disk), before);
    let copy = empty();
    copy.write("notes", b"mine");
    match wal.backup_to_storage(on(&copy)) {
        Err(BackupError::NotEmpty { file, .. }) => assert_eq!(file, "notes"),
        other => panic!("{other:?}"),
    }
    assert_eq!(copy.names(), ["notes"], "no lock is left among other people's files");
    copy.remove_file("notes");
    wal.backup_to_storage(on(&copy)).unwrap();
    match wal.backup_to_storage(on(&copy)) {
        Err(BackupError::NotEmpty { .. }) => {}
        other => panic!("{other:?}"),
    }
    // Another backup is on its way there.
    let copy = empty();
    let _lock = copy.lock(LOCK).unwrap();
    assert!(matches!(wal.backup_to_storage(on(&copy)), Err(BackupError::Locked { .. })));
}

#[test]
fn directories_are_private_and_the_log_itself_is_known_by_any_name() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("log");
    let wal = Wal::open(&dir, fuzzing::options()).unwrap();
    append(&wal, 3, Durability::Synced);
    for own in [dir.clone(), root.path().join("log/../log/.")] {
        assert!(matches!(wal.backup_to(&own), Err(BackupError::SameLog { .. })));
    }
    let destination = root.path().join("not/there/yet");
    let report = wal.backup_to(&destination).unwrap();
    assert_eq!(report.last, wal.durable());
    assert_eq!(View::open(&destination).unwrap().report().last, wal.durable());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::os::unix::fs::symlink(&dir, root.path().join("link")).unwrap();
        assert!(matches!(wal.backup_to(root.path().join("link")), Err(BackupError::SameLog { .. })));
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&destination), 0o700);
        for entry in std::fs::read_dir(&destination).unwrap().map(Result::unwrap) {
            if entry.file_name() != LOCK {
                assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.file_name());
            }
        }
    }
    let mut steps = Vec::new();
    let other = root.path().join("other");
    let report =
        View::open(&dir).unwrap().backup_to_watched(&other, &mut |done, most| steps.push((done, most)));
    let bytes = report.unwrap().bytes;
    assert_eq!(steps.last(), Some(&(bytes, bytes)));
    assert!(steps.iter().all(|(done, most)| done <= most));
    restore(Arc::new(FsStorage::new(&destination))).unwrap();
    let branch = Wal::open(&destination, fuzzing::options()).unwrap();
    append(&branch, 2, Durability::Synced);
    branch.close().unwrap();
}

/// A backup of a log of 14 records, and the log.
fn backup() -> (MemStorage, MemStorage, Wal) {
    let (disk, wal) = log();
    let copy = empty();
    wal.backup_to_storage(on(&copy)).unwrap();
    (copy, disk, wal)
}

/// The backup that it was, or restored.
fn backup_or_restored(image: &MemStorage, expected: &Reading) -> bool {
    assert_eq!(content(image), *expected);
    let restored = match Wal::open_on(on(image), fuzzing::options()) {
        Ok(wal) => {
            assert_eq!(wal.next().number(), 15);
            append(&wal, 1, Durability::Synced);
            wal.close().unwrap();
            assert_eq!(view(image).report().ancestors.len(), 1);
            true
        }
        Err(OpenError::Backup { .. }) => {
            restore(on(image)).unwrap();
            append(&open(image), 1, Durability::Synced);
            false
        }
        Err(error) => panic!("{error}"),
    };
    assert!(view(image).report().verdict != Verdict::Damaged);
    restored
}

#[test]
fn the_power_may_go_before_any_call_of_a_restore() {
    let (copy, _disk, _wal) = backup();
    let expected = content(&copy);
    let faults = FaultStorage::new(Arc::new(copy.clone()));
    let seen = Arc::new(Mutex::new((0, 0)));
    {
        let (copy, seen, expected, counter) =
            (copy.clone(), Arc::clone(&seen), expected.clone(), faults.clone());
        faults.on_call(move |_, _| {
            let images = plans(&copy, counter.mutations()).into_iter().map(|plan| copy.crash(&plan));
            for image in images.chain([copy.fork_live()]) {
                let restored = backup_or_restored(&image, &expected);
                let mut seen = seen.lock().unwrap();
                seen.0 += u32::from(!restored);
                seen.1 += u32::from(restored);
            }
        });
    }
    restore(Arc::new(faults)).unwrap();
    assert!(backup_or_restored(&copy.crash(&CrashPlan::Nothing), &expected), "it is synced");
    let (before, after) = *seen.lock().unwrap();
    assert!(before > 20 && after > 10, "{before} {after}");
}

#[test]
fn a_restore_that_fails_at_any_call_leaves_a_backup_or_a_log() {
    let (copy, _disk, _wal) = backup();
    let expected = content(&copy);
    let count = FaultStorage::new(Arc::new(copy.fork_live()));
    restore(Arc::new(count.clone())).unwrap();
    for n in 1..=count.mutations() {
        for torn in [false, true] {
            let image = copy.fork_live();
            let faults = FaultStorage::new(Arc::new(image.clone()));
            let (cut, failed) = (Fault::torn_write(200, ErrorKind::Other), Fault::error(ErrorKind::Other));
            faults.inject(if torn { cut } else { failed }.at_mutation(n));
            // Only writes are torn.
            assert!(restore(Arc::new(faults)).is_err() || torn);
            backup_or_restored(&image, &expected);
        }
    }
}

#[test]
fn only_a_whole_backup_is_restored_and_only_once() {
    let (copy, disk, wal) = backup();
    let lonely = disk.fork_live();
    assert!(matches!(restore(on(&lonely)), Err(RestoreError::NotABackup { .. })));
    assert!(matches!(restore(on(&empty())), Err(RestoreError::Missing { .. })));
    assert!(matches!(
        restore(Arc::new(FsStorage::new("/nowhere/at/all"))),
        Err(RestoreError::Missing { .. })
    ));
    // Cut short: segments without a control file.
    let half = copy.fork_live();
    half.remove_file(CONTROL);
    match restore(on(&half)) {
        Err(RestoreError::Refused { finding, .. }) => assert_eq!(finding.label, "control-missing"),
        other => panic!("{other:?}"),
    }
    // Rotten, short, or without one of its files.
    let last = "00000000000000000004.wal";
    let length = copy.len(last).unwrap();
    let changes: [&dyn Fn(&MemStorage); 4] = [
        &|disk| assert!(disk.flip_bit("00000000000000000001.wal", 8 * 4200)),
        &|disk| assert!(disk.truncate(last, length - 8)),
        &|disk| assert!(disk.remove_file(last)),
        &|disk| {
            // Something behind the end, where a backup has nothing.
            let mut bytes = disk.read(last).unwrap();
            bytes.extend([1; 64]);
            disk.write(last, &bytes);
        },
    ];
    for change in changes {
        let bad = copy.fork_live();
        change(&bad);
        let before = files(&bad);
        match restore(on(&bad)) {
            Err(error @ RestoreError::Refused { .. }) => {
                assert!(error.to_string().contains(".wal"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(files(&bad), before);
    }
    let locked = copy.fork_live();
    let guard = locked.lock(LOCK).unwrap();
    assert!(matches!(restore(on(&locked)), Err(RestoreError::Locked { .. })));
    drop(guard);
    let before = segments(&copy);
    let done = restore(on(&copy)).unwrap();
    assert_eq!(segments(&copy), before);
    assert_ne!(Some(done.log_id), wal.log_id());
    assert!(matches!(restore(on(&copy)), Err(RestoreError::NotABackup { .. })));
    // One rotten slot afterwards: the other says the same.
    for slot in [0, 1] {
        let rotten = copy.fork_live();
        assert!(rotten.flip_bit(CONTROL, 8 * (65_536 * slot + 50)));
        assert_eq!(open(&rotten).log_id(), Some(done.log_id));
    }
}

/// A repaired backup can be restored: it says what it lost.
#[test]
fn a_damaged_backup_is_repaired_and_then_restored() {
    let (copy, _disk, _wal) = backup();
    copy.flip_bit("00000000000000000001.wal", 8 * 4200);
    let plan = planewal::repair(on(&copy)).unwrap();
    assert!(matches!(Wal::open_on(on(&copy), fuzzing::options()), Err(OpenError::Backup { .. })));
    restore(on(&copy)).unwrap();
    let wal = open(&copy);
    assert_eq!(wal.next().number(), 15);
    let lost: Vec<_> = plan.lost.iter().map(|(first, last)| (first.number(), last.number())).collect();
    assert!(!lost.is_empty());
    assert_eq!(read(wal.read(Lsn::FIRST).unwrap()).lost, lost);
}

fn cursor_at(reader: Reader, last: u64) -> Cursor {
    let mut reader = reader;
    while reader.due().number() <= last {
        reader.next().unwrap().unwrap();
    }
    reader.cursor()
}

#[test]
fn cursors_of_the_old_log_go_on_in_the_branch_as_far_as_they_share_it() {
    let (copy, disk, wal) = backup();
    let early = cursor_at(wal.read(Lsn::FIRST).unwrap(), 9);
    let at_the_mark = cursor_at(wal.read(Lsn::FIRST).unwrap(), 14);
    let beyond = cursor_at(wal.read(Lsn::FIRST).unwrap(), 16);
    // The old log goes on by itself, through two more opens.
    wal.close().unwrap();
    drop(wal);
    drop(open(&disk));
    let wal = open(&disk);
    append(&wal, 5, Durability::Synced);
    let much_later = cursor_at(wal.read(Lsn::FIRST).unwrap(), 19);
    let late_but_low = cursor_at(wal.read(Lsn::FIRST).unwrap(), 12);

    restore(on(&copy)).unwrap();
    let branch = open(&copy);
    append(&branch, 20, Durability::Synced);
    for (cursor, next) in [(early, 10), (at_the_mark, 15), (late_but_low, 13)] {
        let mut reader = branch.read_from(&cursor).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().lsn.number(), next);
        assert_eq!(view(&copy).read_from(&cursor).unwrap().due().number(), next);
    }
    for cursor in [beyond, much_later] {
        match branch.read_from(&cursor) {
            Err(ReadError::Diverged { kept, .. }) => assert_eq!(kept.map(Lsn::number), Some(14)),
            other => panic!("{other:?}"),
        }
    }
    // And one of the branch is nothing to the old log.
    let of_the_branch = cursor_at(branch.read(Lsn::FIRST).unwrap(), 16);
    assert!(matches!(wal.read_from(&of_the_branch), Err(ReadError::OtherLog { .. })));
}

/// A poisoned or closed handle still has what was durable.
#[test]
fn a_poisoned_log_is_backed_up_as_far_as_it_is_durable() {
    let disk = MemStorage::new(4);
    let faults = FaultStorage::new(Arc::new(disk.clone()));
    let wal = Wal::open_on(Arc::new(faults.clone()), fuzzing::options()).unwrap();
    append(&wal, 4, Durability::Synced);
    faults.inject(Fault::error(ErrorKind::Other).at(Op::Sync, 1));
    wal.append(0x80, 1, b"lost in a sync").unwrap_err();
    let copy = empty();
    let report = wal.backup_to_storage(on(&copy)).unwrap();
    assert_eq!(report.durable.map(Lsn::number), Some(4));
    faults.clear_faults();
    drop(wal);
    // Another open has the log: the old handle is of the past.
    let wal = open(&disk);
    wal.close().unwrap();
    let later = open(&disk);
    assert!(matches!(wal.backup_to_storage(on(&empty())), Err(BackupError::Changed { .. })));
    append(&later, 1, Durability::Synced);
}

// faults: B134
#[test]
fn a_backup_holds_what_it_has_not_copied() {
    let disk = MemStorage::new(41);
    let source = FaultStorage::new(on(&disk));
    let wal = Wal::open_on(Arc::new(source.clone()), fuzzing::options()).unwrap();
    for _ in 0..4 {
        append(&wal, 5, Durability::Synced);
        wal.rotate().unwrap();
    }
    append(&wal, 1, Durability::Synced);
    // The seals of what was left are written.
    while wal.segments().iter().filter(|segment| segment.sealed).count() < 4 {
        std::thread::yield_now();
    }
    let copy = empty();
    source.inject(Fault::hang().at(Op::Read, 1).on_name("2.wal"));
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| wal.backup_to_storage(on(&copy)));
        assert!(source.wait_hung());
        let report = wal.retire_unchecked(wal.next()).unwrap();
        let Some(KeptBecause::Held(hold)) = report.stays.map(|stays| stays.why) else { panic!("not held") };
        assert_eq!((report.retired.len(), hold.name.as_str()), (0, "backup"));
        source.release();
        backup.join().unwrap().unwrap();
    });
    assert_eq!(content(&copy), content(&disk));
    assert_eq!(wal.retire_unchecked(wal.next()).unwrap().retired.len(), 4, "held no longer");
}
