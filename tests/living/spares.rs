//! Spares: which files are kept, how they are written again, and that nothing of their former life is read.

use std::io;
use std::sync::Arc;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{Options, RetiredFile, View, Wal};

use crate::retire::is_reused;
use crate::support::{check_wal, fill, lsn, open, open_with, tiny};

fn spares(disk: &MemStorage) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.ends_with(".spare")).collect()
}

fn reused(disk: &MemStorage, wal: &Wal) -> usize {
    wal.segments().iter().filter(|segment| is_reused(disk, &segment.file)).count()
}

// faults: B036
#[test]
fn a_spare_is_written_again_and_only_its_header() {
    let disk = MemStorage::new(1);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let wal = open(Arc::new(storage.clone()));
    fill(&wal, 20);
    wal.retire_unchecked(lsn(12)).unwrap();
    let [spare] = &spares(&disk)[..] else { panic!() };
    let old = disk.read(spare).unwrap();
    storage.reset_counts();
    let newest = wal.segments().last().unwrap().id.number();
    fill(&wal, wal.segments().last().unwrap().last.unwrap().number() + 6);
    let made = format!("{:020}.wal", newest + 1);
    assert!(is_reused(&disk, &made) && spares(&disk).is_empty());
    let preparing = storage.counts_for(|name| name == format!("{made}.tmp"));
    assert_eq!(preparing.bytes_written, 4096, "nothing but the header");
    assert_eq!((preparing.get(Op::Allocate), preparing.get(Op::Create)), (0, 0));
    // Behind what was written so far the former life lies where it lay.
    let now = disk.read(&made).unwrap();
    assert_eq!(now[old.len() - 64..old.len()], old[old.len() - 64..]);
    assert_ne!(now[56..64], old[56..64], "another file id");
    // And it is read, told and closed as any other.
    assert_eq!(check_wal(&wal).1, wal.last().unwrap().number());
    let view = View::open_on(Arc::new(disk.clone())).unwrap();
    assert!(view.report().findings.is_empty(), "{:?}", view.report().findings);
    wal.close().unwrap();
    let view = View::open_on(Arc::new(disk)).unwrap();
    assert!(view.report().closed_cleanly && view.report().findings.is_empty());
}

/// An end before bytes of a former life, at every place where a reused file can end.
// faults: B001, B020, B024, B029
#[test]
fn stale_bytes_are_never_read_and_never_called_damage() {
    let disk = MemStorage::new(2);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 20);
    for number in 21..=60 {
        fill(&wal, number);
        wal.retire_unchecked(lsn(number - 10)).unwrap();
        assert_eq!(wal.seek(lsn(number)).unwrap().last, lsn(number));
        for plan in [CrashPlan::Nothing, CrashPlan::Everything] {
            let image = disk.crash(&plan);
            let view = View::open_on(Arc::new(image.clone())).unwrap();
            assert_eq!(view.report().last, Some(lsn(number)), "{:?}", view.report());
            let wal = open(Arc::new(image));
            assert_eq!(check_wal(&wal).1, number);
            assert!(wal.recovery().torn_tail.is_none());
        }
    }
    assert!(reused(&disk, &wal) > 0);
}

/// A mark that reaches into a reused file makes what does not check damage, as anywhere.
#[test]
fn damage_in_a_reused_file_is_told_by_proof() {
    let disk = MemStorage::new(3);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 20);
    wal.retire_unchecked(lsn(12)).unwrap();
    while reused(&disk, &wal) == 0 || wal.segments().last().unwrap().records < 3 {
        fill(&wal, wal.next().number());
    }
    let segment = wal.segments().last().unwrap().clone();
    assert!(is_reused(&disk, &segment.file));
    // The second record's frame carries the mark of the first: a bit of the first is damage; of the last it
    // is torn, and only that one goes.
    let at = |number| wal.seek(lsn(number)).unwrap().offset;
    let (first, last) = (segment.base.number(), segment.last.unwrap().number());
    for header in [true, false] {
        let image = disk.fork_live();
        let skip = if header { 2 } else { 100 };
        assert!(image.flip_bit(&segment.file, (at(first) + skip) * 8));
        let view = View::open_on(Arc::new(image.clone())).unwrap();
        assert_eq!(view.report().findings[0].label, "records-damaged");
        assert!(Wal::open_on(Arc::new(image), tiny()).is_err());
        let image = disk.fork_live();
        assert!(image.flip_bit(&segment.file, (at(last) + skip) * 8));
        let wal = open(Arc::new(image));
        assert_eq!(check_wal(&wal).1, last - 1);
        assert_eq!(wal.recovery().torn_tail.is_some(), !header, "without its header it is like stale bytes");
    }
}

#[test]
fn a_hard_linked_file_is_never_written_again() {
    let disk = MemStorage::new(4);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 20);
    // Linked before it is retired: it is removed, and its other name keeps it.
    disk.link("00000000000000000001.wal", "backup-1").unwrap();
    let copy = disk.read("backup-1");
    let report = wal.retire_unchecked(wal.segments()[1].base).unwrap();
    assert_eq!(report.retired[0].file, RetiredFile::Removed);
    assert_eq!(disk.read("backup-1"), copy);
    // Linked while it is a spare: it is left alone.
    wal.retire_unchecked(lsn(15)).unwrap();
    let [spare] = &spares(&disk)[..] else { panic!("{:?}", disk.names()) };
    disk.link(spare, "backup-2").unwrap();
    let copy = disk.read("backup-2");
    fill(&wal, 40);
    assert_eq!((reused(&disk, &wal), disk.read("backup-2")), (0, copy.clone()));
    wal.close().unwrap();
    drop(wal);
    // The next open lets it go.
    let wal = open(Arc::new(disk.clone()));
    assert!(wal.recovery().removed.iter().any(|extra| extra.why == "spare" && extra.name == *spare));
    assert!(spares(&disk).is_empty());
    assert_eq!(disk.read("backup-2"), copy);
}

// faults: B023, B032, B033
#[test]
fn a_rename_that_fails_costs_a_new_file_and_nothing_else() {
    for at in 1..=6 {
        for sticky in [false, true] {
            let disk = MemStorage::new(5);
            let storage = FaultStorage::new(Arc::new(disk.clone()));
            let wal = open(Arc::new(storage.clone()));
            fill(&wal, 20);
            let fault = Fault::error(io::ErrorKind::PermissionDenied).at(Op::Rename, at);
            // Sticky on spares alone: new files can be named.
            storage.inject(if sticky { fault.on_name(".spare").sticky() } else { fault });
            let report = wal.retire_unchecked(lsn(12)).unwrap();
            assert!(!report.retired.is_empty());
            for _ in 0..20 {
                // A new file whose name is refused is an error to try again after, as it ever was.
                let _ = wal.append(0x80, 1, &crate::support::payload(wal.next().number()));
            }
            assert!(wal.poisoned().is_none());
            assert_eq!(check_wal(&wal).1, wal.last().unwrap().number());
            assert!(wal.last().unwrap() >= lsn(38));
            wal.close().unwrap();
        }
    }
    // The name that a spare would get is taken by something else.
    let disk = MemStorage::new(6);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 20);
    disk.plant_directory("00000000000000000001.spare");
    disk.plant_directory("00000000000000000007.spare");
    let report = wal.retire_unchecked(lsn(12)).unwrap();
    assert_eq!(report.retired[0].file, RetiredFile::Removed);
    fill(&wal, 40);
    wal.close().unwrap();
    drop(wal);
    let wal = open(Arc::new(disk));
    assert_eq!((check_wal(&wal).1, wal.recovery().spares), (40, 0));
}

// faults: B025, B028, B137
#[test]
fn spares_are_bounded_counted_at_open_and_never_leak() {
    let disk = MemStorage::new(7);
    for round in 0..50_usize {
        let options = Options { spares: [3, 0, 8, 1][round % 4], ..tiny() };
        let fork = disk.fork_live();
        let wal = open_with(Arc::new(disk.clone()), &options);
        assert_eq!(wal.recovery().spares as usize, spares(&disk).len());
        assert!(spares(&disk).len() <= options.spares as usize, "{:?}", spares(&disk));
        fill(&wal, wal.next().number() + 12);
        wal.retire_unchecked(wal.next()).unwrap();
        assert!(spares(&disk).len() <= options.spares as usize);
        // Every other round the process dies in the middle of it.
        if round % 2 == 0 {
            wal.close().unwrap();
        }
        drop(wal);
        drop(fork);
        assert!(disk.names().len() < 20, "{:?}", disk.names());
    }
}

#[test]
fn ids_in_names_of_spares_count_for_the_next_segment() {
    let disk = MemStorage::new(8);
    disk.write("00000000000000000041.spare", b"whatever");
    let wal = open(Arc::new(disk.clone()));
    assert!(wal.recovery().created);
    fill(&wal, 1);
    assert_eq!(wal.segments()[0].id.number(), 42);
    assert!(spares(&disk).is_empty() || wal.recovery().spares == 0);
}

/// What is named as a spare and holds no segment of a known salt is not written over, and goes.
// faults: B020
#[test]
fn a_spare_without_a_header_that_checks_is_not_used() {
    for garbage in [vec![0xaa; 16 << 10], vec![0; 16 << 10]] {
        let disk = MemStorage::new(9);
        disk.write("00000000000000000003.spare", &garbage);
        let wal = open(Arc::new(disk.clone()));
        // Opening looks at names and sizes, as cheap as that is; only use needs more.
        assert_eq!(wal.recovery().spares, 1);
        fill(&wal, 40);
        assert_eq!(reused(&disk, &wal), 0);
        assert!(spares(&disk).is_empty());
        assert_eq!(check_wal(&wal), (1, 40));
    }
}

#[test]
fn spares_of_another_size_are_not_kept() {
    let disk = MemStorage::new(10);
    let wal = open_with(Arc::new(disk.clone()), &Options { segment_bytes: 64 << 10, ..tiny() });
    // Less than half a segment, then a whole one.
    fill(&wal, 4);
    wal.rotate().unwrap();
    fill(&wal, 80);
    let report = wal.retire_unchecked(wal.segments()[1].base).unwrap();
    assert_eq!(report.retired[0].file, RetiredFile::Removed, "too small");
    let report = wal.retire_unchecked(lsn(60)).unwrap();
    assert!(matches!(report.retired[0].file, RetiredFile::Spare(_)));
    drop(wal);
    // With smaller segments from now on it is too large.
    let wal = open(Arc::new(disk.clone()));
    assert_eq!(wal.recovery().spares, 0);
    assert!(spares(&disk).is_empty());
}

/// The new header would have the salt of the old one, by chance: another file id is drawn.
#[test]
fn a_salt_is_never_used_twice_for_one_file() {
    let disk = MemStorage::new(11);
    let wal = open(Arc::new(disk.clone()));
    fill(&wal, 20);
    wal.retire_unchecked(lsn(12)).unwrap();
    wal.close().unwrap();
    drop(wal);
    let [spare] = &spares(&disk)[..] else { panic!() };
    // What is drawn follows from the seed, so a fork tells which header would be written.
    let go_on = |disk: &MemStorage| {
        let wal = open(Arc::new(disk.clone()));
        fill(&wal, 21);
        let file = wal.segments().last().unwrap().file.clone();
        assert!(is_reused(disk, &file));
        (wal, disk.read(&file).unwrap())
    };
    let (_, drawn) = go_on(&disk.fork_live());
    let mut planted = disk.read(spare).unwrap();
    planted[..4096].copy_from_slice(&drawn[..4096]);
    disk.write(spare, &planted);
    let (wal, now) = go_on(&disk);
    assert_eq!(now[32..56], drawn[32..56], "the same log and segment");
    assert_ne!(now[56..64], drawn[56..64]);
    assert_eq!(check_wal(&wal).1, 21);
}

/// On a real file system, where links and lengths are what they are.
#[test]
fn files_of_a_directory_are_retired_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let wal = Wal::open(dir.path(), tiny()).unwrap();
    fill(&wal, 20);
    std::fs::hard_link(path("00000000000000000001.wal"), path("backup")).unwrap();
    let backup = std::fs::read(path("backup")).unwrap();
    let report = wal.retire_unchecked(lsn(12)).unwrap();
    let files: Vec<_> = report.retired.iter().map(|gone| &gone.file).collect();
    assert_eq!(files[0], &RetiredFile::Removed, "somebody else has a name for it");
    let RetiredFile::Spare(spare) = files[1] else { panic!("{report:?}") };
    assert!(path(spare).exists());
    fill(&wal, 40);
    let reused = |segment: &planewal::SegmentInfo| std::fs::read(path(&segment.file)).unwrap()[28] == 1;
    assert!(!path(spare).exists() && wal.segments().iter().any(reused));
    assert_eq!(std::fs::read(path("backup")).unwrap(), backup);
    wal.close().unwrap();
    drop(wal);
    let view = View::open(dir.path()).unwrap();
    assert!(view.report().closed_cleanly && view.report().findings.is_empty(), "{:?}", view.report());
    assert_eq!(check_wal(&Wal::open(dir.path(), tiny()).unwrap()).1, 40);
}

/// The sync behind a seal fails: the seal that a survey then finds, and the cut behind it, may be in the page
/// cache only. Relied on, the next power loss would bring back what was cut off, behind a segment that later
/// seals say has one.
// faults: B095, B096
#[test]
fn a_seal_that_only_the_page_cache_has_is_written_anew() {
    let disk = MemStorage::new(12);
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let wal = open(Arc::new(storage.clone()));
    fill(&wal, 20);
    wal.retire_unchecked(lsn(12)).unwrap();
    // A reused file is left with bytes behind its end; its seal is due when the next one is left.
    while reused(&disk, &wal) == 0 {
        fill(&wal, wal.next().number());
    }
    let left = wal.segments().last().unwrap().file.clone();
    while wal.segments().last().unwrap().file == left {
        fill(&wal, wal.next().number());
    }
    storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Sync, 1).on_name(&left));
    let synced = wal.last().unwrap().number();
    for _ in 0..20 {
        let _ = wal.append(0x80, 1, &crate::support::payload(wal.next().number()));
    }
    assert!(wal.poisoned().is_some());
    drop(wal);
    let wal = open(Arc::new(disk.clone()));
    assert!(wal.last().unwrap() >= lsn(synced));
    fill(&wal, wal.next().number() + 15);
    let last = wal.last().unwrap().number();
    for plan in [CrashPlan::Nothing, CrashPlan::Everything] {
        let image = disk.crash(&plan);
        let view = View::open_on(Arc::new(image.clone())).unwrap();
        assert!(view.report().findings.is_empty(), "{plan:?}: {:?}", view.report().findings);
        assert_eq!(check_wal(&open(Arc::new(image))).1, last);
    }
}
