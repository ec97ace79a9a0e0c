//! What a log is, and what its directory holds.

use std::fs;
use std::process::Command;

use planewal::{Lsn, Options, Wal};
use serde_json::json;

use crate::support::{Home, PROGRAM, fed, lines, planewal};

#[test]
fn info_tells_sizes_by_what_they_are() {
    let home = Home::new();
    let wal = Wal::open(home.path(), Options { segment_bytes: 16 << 10, ..Options::default() }).unwrap();
    for _ in 0..100 {
        wal.append(0x80, 0x80, &[7; 700]).unwrap();
    }
    let before = wal.durable().unwrap();
    assert!(wal.retire_unchecked(before).unwrap().retired.len() > 1);
    wal.append(0x80, 0x80, b"more").unwrap();
    wal.close().unwrap();
    drop(wal);
    fs::write(home.path().join("notes"), [0; 123]).unwrap();
    let told = planewal(["info", &home.dir(), "--json"]).ends(0).json();
    let disk = &told["disk"];
    let of = |name: &str| disk[name].as_u64().unwrap();
    assert!(of("segments") > 0 && of("spares") > 0 && of("control") > 0 && of("others") >= 123, "{disk}");
    let sum: u64 = ["segments", "ahead", "spares", "control", "others"].map(of).iter().sum();
    assert_eq!(of("total"), sum);
    let files = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let files: Vec<u64> = files.collect();
    assert_eq!((of("files"), of("total")), (files.len() as u64, files.iter().sum()));
    assert_eq!(told["clean_close"]["last_lsn"], told["last_lsn"]);
    assert!(told["clean_close"]["segment"].is_u64() && told["epoch"].as_u64() == Some(1));
    let human = planewal(["info", &home.dir()]).ends(0);
    for name in ["on disk", "segments", "ahead", "spares", "control", "others", "last close"] {
        assert!(human.text().contains(name), "{name}: {}", human.text());
    }
}

#[test]
fn info_names_the_durable_holds_and_leaves_them() {
    let home = Home::new();
    let wal = Wal::open(home.path(), Options::default()).unwrap();
    for _ in 0..9 {
        wal.append(0x80, 0x80, b"held").unwrap();
    }
    wal.hold_durably("replica 2", Lsn::new(7).unwrap()).unwrap();
    wal.hold_durably("archive", Lsn::FIRST).unwrap();
    let in_memory = wal.hold("reader", Lsn::FIRST).unwrap();
    let told = planewal(["info", &home.dir(), "--json"]).ends(0).json();
    assert_eq!(
        told["holds"],
        json!([
            { "name": "archive", "lsn": 1, "readable": true },
            { "name": "replica 2", "lsn": 7, "readable": true },
        ])
    );
    assert!(told["clean_close"].is_null(), "it is open");
    let human = planewal(["info", &home.dir()]).ends(0);
    assert!(human.text().contains("replica 2 from LSN 7"), "{}", human.text());
    drop(in_memory);
    wal.close().unwrap();
}

#[test]
fn info_says_that_a_backup_is_one() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(3)).ends(0);
    let copy = Home::new();
    planewal(["backup", &home.dir(), &copy.dir()]).ends(0);
    assert_eq!(planewal(["info", &copy.dir(), "--json"]).ends(0).json()["backup"], true);
    assert!(planewal(["info", &copy.dir()]).ends(0).text().contains("a backup"));
}

#[test]
fn a_demo_that_nobody_listens_to_leaves_nothing() {
    let home = Home::new();
    let mut child = Command::new(PROGRAM)
        .args(["demo", "--kills", "1"])
        .env("TMPDIR", home.root())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    assert_eq!(fs::read_dir(home.root()).unwrap().count(), 0);
}
