//! Where a log lives: modes, links, long names, and directories that cannot be synced.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use planewal::storage::{FsStorage, Storage};
use planewal::{Durability, Lsn, OpenError, Options, View, Wal, repair};

fn options() -> Options {
    Options { segment_bytes: 16 << 10, prepare_bytes: 4 << 10, io_thread: false, ..Options::default() }
}

/// Appends so much that the segment is left, and leaves a tail for the next open to copy.
fn fill(wal: &Wal) {
    for size in [10, 6000, 6000, 6000] {
        wal.append(0x80, 1, &vec![7; size]).unwrap();
    }
    wal.append_as(0x80, 1, &[7; 100], Durability::Written).unwrap();
}

fn newest(dir: &Path) -> std::path::PathBuf {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "wal")).max().unwrap()
}

/// Everything that is ever made: segments, a copy, slots, the lock, and what a repair sets aside or makes anew.
// faults: B155
#[test]
fn every_file_is_its_owners_only() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("deep/log");
    let check = |what: &str| {
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, 0o700, "{what}");
        let mut count = 0;
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o600, "{what}: {:?}", entry.file_name());
            count += 1;
        }
        count
    };
    let wal = Wal::open(&dir, options()).unwrap();
    fill(&wal);
    assert!(check("written") >= 4);
    drop(wal);
    let wal = Wal::open(&dir, options()).unwrap();
    assert!(wal.recovery().copied.is_some());
    check("copied");
    wal.close().unwrap();
    drop(wal);
    fs::write(dir.join("planewal.ctl"), [0x99; 1 << 17]).unwrap();
    let done = repair(Arc::new(FsStorage::new(&dir))).unwrap();
    assert_eq!(done.set_aside.len(), 1);
    check("repaired");
}

// faults: B156
#[test]
fn a_directory_may_be_reached_by_a_link_and_the_link_stays() {
    let home = tempfile::tempdir().unwrap();
    // On another file system, where there is one: nothing is ever renamed out of the directory.
    let elsewhere = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (link, target) = (home.path().join("log"), elsewhere.path().join("log"));
    fs::create_dir(&target).unwrap();
    symlink(&target, &link).unwrap();
    for round in 0..3 {
        let wal = Wal::open(&link, options()).unwrap();
        fill(&wal);
        // By either path it is the same log, and it is locked.
        for path in [&link, &target] {
            assert!(matches!(Wal::open(path, options()), Err(OpenError::Locked { .. })));
        }
        if round == 1 {
            wal.close().unwrap();
        }
    }
    assert!(fs::symlink_metadata(&link).unwrap().file_type().is_symlink());
    assert_eq!(View::open(&target).unwrap().report().last, Lsn::new(15));
    // A repair goes by the link too.
    fs::remove_file(newest(&target)).unwrap();
    assert!(matches!(Wal::open(&link, options()), Err(OpenError::Refused { .. })));
    repair(Arc::new(FsStorage::new(&link))).unwrap();
    Wal::open(&link, options()).unwrap().append(0x80, 1, b"on").unwrap();
}

// faults: B156
#[test]
fn a_link_that_leads_nowhere_is_no_place_for_a_log() {
    let home = tempfile::tempdir().unwrap();
    let (link, nowhere) = (home.path().join("log"), home.path().join("nowhere"));
    symlink(&nowhere, &link).unwrap();
    for _ in 0..2 {
        let error = Wal::open(&link, options()).unwrap_err();
        assert!(matches!(error, OpenError::Storage(_)), "{error}");
        assert!(matches!(View::open(&link), Err(OpenError::Missing { .. })));
    }
    assert!(!nowhere.exists() && fs::symlink_metadata(&link).unwrap().file_type().is_symlink());
    // Two links that lead to each other.
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    symlink(&a, &b).unwrap();
    symlink(&b, &a).unwrap();
    assert!(matches!(Wal::open(&a, options()), Err(OpenError::Storage(_))));
}

/// The longest name that a directory can have, and the longest that a file in it gets.
// faults: B154
#[test]
fn names_are_short_enough_for_every_file_system() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("d".repeat(255));
    let wal = Wal::open(&dir, options()).unwrap();
    fill(&wal);
    drop(wal);
    let wal = Wal::open(&dir, options()).unwrap();
    assert!(wal.recovery().copied.is_some());
    wal.close().unwrap();
    drop(wal);
    // A file in the way, under the highest name of all, goes aside under a longer one.
    fs::write(dir.join(format!("{}.wal", u64::MAX)), b"whose is this").unwrap();
    let done = repair(Arc::new(FsStorage::new(&dir))).unwrap();
    assert_eq!(done.set_aside.len(), 1);
    for entry in fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(name.len() <= 64, "{name:?}");
    }
    assert_eq!(View::open(&dir).unwrap().report().last, Lsn::new(5));
}

/// A file system that has no sync for directories says so in one way, and that alone is let pass.
// faults: B158
#[cfg(target_os = "linux")]
#[test]
fn a_directory_without_a_sync_is_told_from_one_whose_sync_fails() {
    let raw = fs::File::open("/proc").unwrap().sync_all().unwrap_err();
    assert_eq!(raw.raw_os_error(), Some(22), "this file system was taken for one that cannot sync");
    FsStorage::new("/proc").sync_dir().unwrap();
    let home = tempfile::tempdir().unwrap();
    assert!(FsStorage::new(home.path().join("gone")).sync_dir().is_err());
}
