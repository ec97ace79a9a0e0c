//! A copy is made beside a writer, verified, kept from being written, and restored.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Home, PROGRAM, fed, flip, lines, planewal};

#[test]
fn a_backup_is_made_verified_and_restored() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "5", "--segment-bytes", "16K"], &lines(1500)).ends(0);
    // A writer that has the log open and waits for more.
    let mut writer = Command::new(PROGRAM)
        .args(["append", &home.dir(), "--batch", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(&lines(3)).unwrap();
    let durable = |dir: &str| planewal(["info", dir, "--json"]).ends(0).json()["durable_lsn"].as_u64();
    while durable(&home.dir()) < Some(1503) {
        std::thread::yield_now();
    }
    let copy = Home::new();
    let made = planewal(["backup", &home.dir(), &copy.dir(), "--json"]).ends(0).json();
    assert_eq!((made["made"].as_bool(), made["last_lsn"].as_u64()), (Some(true), Some(1503)));
    assert!(made["segments"].as_u64() > Some(2) && made["bytes"].as_u64() > Some(30_000), "{made}");
    input.write_all(b"later\n").unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success());

    let verified = planewal(["verify", &copy.dir(), "--json"]).ends(0).json();
    assert_eq!((verified["last_lsn"].as_u64(), verified["backup"].as_bool()), (Some(1503), Some(true)));
    assert!(planewal(["info", &copy.dir()]).ends(0).text().contains("a backup"));
    // The lock file has the process id of whoever came last.
    let files = || copy.files().into_iter().filter(|(name, _)| name != "planewal.lock").collect::<Vec<_>>();
    let before = files();
    let refused = fed(["append", &copy.dir()], b"no\n").ends(2);
    assert!(refused.err.contains("`planewal restore`"), "{}", refused.err);
    assert!(files() == before, "a refusal changes nothing");
    // A second one does not go into the same place, nor into the log.
    let full = planewal(["backup", &home.dir(), &copy.dir()]).ends(2);
    assert!(full.err.contains("empty or a new directory"), "{}", full.err);
    let own = planewal(["backup", &home.dir(), &home.dir()]).ends(2);
    assert!(own.err.contains("the log itself"), "{}", own.err);

    let restored = planewal(["restore", &copy.dir(), "--json"]).ends(0).json();
    assert_eq!(
        (restored["ancestor"].as_str(), restored["next_lsn"].as_u64()),
        (made["log_id"].as_str(), Some(1504))
    );
    assert_ne!(restored["log_id"], made["log_id"]);
    let again = planewal(["restore", &copy.dir()]).ends(2);
    assert!(again.err.contains("no backup"), "{}", again.err);
    fed(["append", &copy.dir()], b"on the branch\n").ends(0);
    let dumped = planewal(["dump", &copy.dir(), "--raw"]).ends(0);
    let mut told: Vec<&str> = dumped.text().lines().collect();
    assert_eq!(
        (told.len(), told.pop(), told.pop(), told[0]),
        (1504, Some("on the branch"), Some("line 3"), "line 1")
    );
    let old = planewal(["dump", &home.dir(), "--raw"]).ends(0);
    assert_eq!(old.text().lines().last(), Some("later"), "the log itself goes on by itself");
    planewal(["verify", &copy.dir()]).ends(0);
}

#[test]
fn damage_is_told_by_file_offset_and_lsn() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1"], &lines(30)).ends(0);
    let copy = Home::new();
    planewal(["backup", &home.dir(), &copy.dir()]).ends(0);
    // The backup rots.
    let told = planewal(["explain", &copy.dir(), "10", "--json"]).ends(0).json();
    let offset = told["frame_offset"].as_u64().unwrap();
    flip(&copy.newest().0, offset as usize + 33, 0);
    let refused = planewal(["restore", &copy.dir(), "--json"]).ends(1);
    let finding = refused.json()["finding"].clone();
    assert_eq!((finding["offset"].as_u64(), finding["lsn"].as_u64()), (Some(offset), Some(10)));
    assert!(refused.err.contains(".wal") && refused.err.contains("LSN 10"), "{}", refused.err);
    // The log rots.
    flip(&home.newest().0, offset as usize + 33, 0);
    let other = Home::new();
    let refused = planewal(["backup", &home.dir(), &other.dir(), "--json"]).ends(1);
    assert_eq!(refused.json()["finding"]["lsn"].as_u64(), Some(10));
    assert!(!other.path().exists(), "nothing is made for it");
    // Cut short: segments without a control file.
    fs::remove_file(copy.path().join("planewal.ctl")).unwrap();
    planewal(["restore", &copy.dir()]).ends(1);
    for nothing in ["restore", "verify"] {
        planewal([nothing, &other.dir()]).ends(2);
    }
    planewal(["backup", &other.dir(), &copy.dir()]).ends(2);
}
