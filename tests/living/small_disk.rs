//! A real file system that is full: a tmpfs of three MiB, in a mount namespace of the test's own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use planewal::{AppendError, Durability, Lsn, NoRoom, OpenError, Options, ReadError, Verdict, View, Wal};

const DIR: &str = "PLANEWAL_SMALL_DISK";
const NAME: &str = "small_disk::a_full_file_system_stops_appends_and_nothing_else";

fn options() -> Options {
    Options { segment_bytes: 256 << 10, prepare_bytes: 64 << 10, ..Options::default() }
}

/// Appends until there is no room; answers with the last LSN.
fn fill(wal: &Wal) -> Lsn {
    loop {
        match wal.append(0x80, 1, &[7; 1000]) {
            Ok(_) => {}
            Err(AppendError::Full(NoRoom::Disk(_))) => return wal.last().unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes every byte that is left.
fn take_all(ballast: &Path) {
    let mut file = File::options().create(true).append(true).open(ballast).unwrap();
    for piece in [64 << 10, 4096, 512, 1] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
}

/// Opens the log that was just dropped: its last I/O may still have the lock.
fn reopen(dir: &Path, options: &Options) -> Wal {
    loop {
        match Wal::open(dir, options.clone()) {
            Err(OpenError::Locked { holder, .. }) if holder == Some(std::process::id()) => {
                std::thread::yield_now();
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Everything is there, in order, and the directory is sound.
fn check(dir: &Path, wal: &Wal, last: Lsn) {
    let mut reader = wal.read(wal.first()).unwrap();
    let mut due = wal.first().number();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.lsn.number(), due);
        due += 1;
    }
    assert_eq!(due, last.number() + 1);
    // A tail that nothing proves is copied before it counts as durable; without room that has to wait.
    assert!(wal.durable() == Some(last) || wal.recovery().copy_pending);
    let view = View::open(dir).unwrap();
    assert!(matches!(view.report().verdict, Verdict::Clean | Verdict::TornTail), "{:?}", view.report());
    assert!(view.report().findings.iter().all(|finding| finding.harmless));
}

fn inside(disk: &Path) {
    let (dir, ballast) = (disk.join("log"), disk.join("ballast"));
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let wal = Wal::open(&dir, options()).unwrap();
    let last = fill(&wal);
    assert!(wal.stats().full.is_some() && last.number() > 500);
    check(&dir, &wal, last);
    // Space is freed: the same handle goes on.
    fs::remove_file(&ballast).unwrap();
    for _ in 0..100 {
        wal.append(0x80, 1, &[7; 1000]).unwrap();
    }
    assert!(wal.stats().full.is_none());
    let last = fill(&wal);
    check(&dir, &wal, last);

    // Not a byte is left, and the process dies with a tail that is only written.
    take_all(&ballast);
    drop(wal);
    // What its thread was about to make ahead is given back only now; and the next open removes what was made.
    take_all(&ballast);
    let wal = reopen(&dir, &options());
    take_all(&ballast);
    assert!(wal.recovery().unclean);
    assert_eq!(wal.last(), Some(last));
    check(&dir, &wal, last);
    assert!(matches!(wal.append(0x80, 1, &[7; 200_000]), Err(AppendError::Full(NoRoom::Disk(_)))));
    assert_eq!(wal.last(), Some(last), "no LSN was given");
    // Retiring needs no room, and makes some: a spare is written again.
    let report = wal.retire_unchecked(last).unwrap();
    assert!(!report.retired.is_empty(), "{report:?}");
    for _ in 0..100 {
        wal.append(0x80, 1, &[7; 1000]).unwrap();
    }
    check(&dir, &wal, wal.last().unwrap());
    assert!(matches!(wal.read(Lsn::FIRST), Err(ReadError::Retired { .. })));
    let last = wal.last().unwrap();

    // Written and not synced, then reopened with no room to copy that tail: readable at once, and appends
    // go on when there is room, without reopening.
    for _ in 0..20 {
        wal.append_as(0x80, 1, &[8; 1000], Durability::Written).unwrap();
    }
    let written = wal.last().unwrap();
    assert_eq!((written.number(), wal.durable()), (last.number() + 20, Some(last)));
    take_all(&ballast);
    drop(wal);
    let wal = reopen(&dir, &Options { spares: 0, ..options() });
    assert_eq!(wal.last(), Some(written));
    let mut reader = wal.read(wal.first()).unwrap();
    let mut read = None;
    while let Some(record) = reader.next().unwrap() {
        read = Some(record.lsn);
    }
    assert_eq!(read, Some(written));
    fs::remove_file(&ballast).unwrap();
    let lsn = wal.append(0x80, 1, b"and on").unwrap();
    assert_eq!(lsn.number(), written.number() + 1);
    check(&dir, &wal, lsn);
    wal.close().unwrap();
    assert!(View::open(&dir).unwrap().report().closed_cleanly);
}

#[test]
fn a_full_file_system_stops_appends_and_nothing_else() {
    if let Some(disk) = std::env::var_os(DIR) {
        return inside(&PathBuf::from(disk));
    }
    let place = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o size=3m tmpfs \"${DIR}\" || exit 77; exec \"$0\" \"$@\"");
    let status = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env(DIR, place.path())
        .status();
    match status {
        Ok(status) if status.success() => {}
        // No namespaces here: `tests/crash` has the same on a simulated disk.
        Ok(status) if matches!(status.code(), Some(1 | 77)) && !may_unshare() => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        other => panic!("{other:?}"),
    }
}

/// Whether a process may have a mount namespace here, and mount in it.
fn may_unshare() -> bool {
    let place = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$1\"";
    Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", mount, "sh"])
        .arg(place.path())
        .status()
        .is_ok_and(|status| status.success())
}
