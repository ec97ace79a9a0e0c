//! What goes in comes out.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Home, PROGRAM, fed, lines, planewal};

#[test]
fn lines_come_out_as_they_went_in() {
    let home = Home::new();
    let run = fed(["append", &home.dir()], b"a\nb\n").ends(0);
    assert!(run.out.is_empty(), "data alone on standard output");
    assert!(run.err.contains("2 records, LSN 1 to 2") && run.err.contains("durable: 2"), "{}", run.err);
    assert_eq!(planewal(["dump", &home.dir(), "--raw"]).ends(0).out, b"a\nb\n");
    let verified = planewal(["verify", &home.dir(), "--json"]).ends(0).json();
    assert_eq!((verified["verdict"].as_str(), verified["proof"].as_str()), (Some("Clean"), Some("Proved")));
    assert_eq!((verified["last_lsn"].as_u64(), verified["durable_lsn"].as_u64()), (Some(2), Some(2)));
    assert_eq!((verified["records"].as_u64(), verified["readable_records"].as_u64()), (Some(2), Some(2)));
    assert_eq!(
        (verified["segments"].as_array().unwrap().len(), verified["findings"].as_array().unwrap().len()),
        (1, 0)
    );
    assert!(verified["bytes_read"].as_u64().unwrap() > 4096);
}

#[test]
fn any_bytes_make_a_line_and_the_last_needs_no_newline() {
    let home = Home::new();
    let mut input: Vec<u8> = (0..=255u8).filter(|&byte| byte != b'\n').collect();
    input.extend_from_slice(b"\n\n\r\nlast");
    fed(["append", &home.dir(), "--batch", "3", "--plane", "0x91", "--kind", "7"], &input).ends(0);
    input.push(b'\n');
    assert_eq!(planewal(["dump", &home.dir(), "--raw"]).ends(0).out, input);
    let dumped = planewal(["dump", &home.dir(), "--json"]).ends(0);
    let records: Vec<serde_json::Value> =
        dumped.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 4);
    assert!(
        records[0]["payload_hex"].as_str().unwrap().starts_with("000102")
            && records[0].get("payload").is_none()
    );
    assert_eq!(
        records[3],
        serde_json::json!({"lsn": 4, "plane": 0x91, "kind": 7, "ends_batch": true, "payload": "last"})
    );
    assert_eq!(
        records.iter().map(|record| record["ends_batch"].as_bool().unwrap()).collect::<Vec<_>>(),
        [false, false, true, true]
    );
    let human = planewal(["dump", &home.dir()]).ends(0);
    assert!(
        human.out.is_ascii() && human.text().lines().last() == Some("4 0x91 0x07 4 last"),
        "{}",
        human.text()
    );
}

#[test]
fn dump_takes_ranges_planes_and_kinds() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(10)).ends(0);
    fed(["append", &home.dir(), "--plane", "9", "--kind", "2"], b"other\n").ends(0);
    assert_eq!(
        planewal(["dump", &home.dir(), "--raw", "--from", "3", "--to", "4"]).ends(0).text(),
        "line 3\nline 4\n"
    );
    assert_eq!(planewal(["dump", &home.dir(), "--raw", "--plane", "9"]).ends(0).text(), "other\n");
    assert_eq!(planewal(["dump", &home.dir(), "--raw", "--kind", "2"]).ends(0).text(), "other\n");
    assert_eq!(planewal(["dump", &home.dir(), "--from", "12"]).ends(0).text(), "");
    assert!(planewal(["dump", &home.dir(), "--from", "13"]).ends(2).err.contains("LSN 13"));
    planewal(["dump", &home.dir(), "--from", "4", "--to", "3"]).ends(2);
    planewal(["dump", &home.dir(), "--raw", "--json"]).ends(2);
}

#[test]
fn segments_rotate_and_are_listed() {
    let home = Home::new();
    fed(
        ["append", &home.dir(), "--batch", "10", "--segment-bytes", "16K", "--label", "shard 7"],
        &lines(3000),
    )
    .ends(0);
    let listed = planewal(["segments", &home.dir(), "--json"]).ends(0).json();
    let segments = listed["segments"].as_array().unwrap();
    assert!(segments.len() > 1);
    let mut next = 1;
    for segment in segments {
        assert_eq!(
            (segment["base_lsn"].as_u64(), segment["label"].as_str(), segment["sealed"].as_bool()),
            (Some(next), Some("shard 7"), Some(true)),
            "{segment}"
        );
        assert_eq!(segment["planes"][0]["plane"].as_u64(), Some(0x80));
        next = segment["last_lsn"].as_u64().unwrap() + 1;
    }
    assert_eq!(next, 3001);
    let table = planewal(["segments", &home.dir()]).ends(0);
    assert_eq!(table.text().lines().count(), segments.len() + 1);
    let info = planewal(["info", &home.dir(), "--json"]).ends(0).json();
    assert_eq!(
        (info["records"].as_u64(), info["closed_cleanly"].as_bool(), info["segments"].as_u64()),
        (Some(3000), Some(true), Some(segments.len() as u64))
    );
    assert_eq!(info["log_id"].as_str().unwrap().len(), 32);
    assert!(planewal(["info", &home.dir()]).ends(0).text().contains("Clean (Proved)"));
}

#[test]
fn an_empty_input_makes_an_empty_log() {
    let home = Home::new();
    let appended = planewal(["append", &home.dir(), "--json"]).ends(0).json();
    assert_eq!((appended["records"].as_u64(), appended["created"].as_bool()), (Some(0), Some(true)));
    assert!(appended["first_lsn"].is_null() && appended["durable_lsn"].is_null());
    let verified = planewal(["verify", &home.dir(), "--json"]).ends(0).json();
    assert!(verified["last_lsn"].is_null() && verified["durable_lsn"].is_null());
    assert_eq!(planewal(["dump", &home.dir()]).ends(0).out, b"");
}

#[test]
fn reading_changes_nothing() {
    let home = Home::new();
    fed(["append", &home.dir(), "--no-close"], &lines(20)).ends(0);
    let before = home.files();
    for command in ["dump", "tail", "info", "segments", "verify"] {
        planewal([command, &home.dir()]).ends(0);
    }
    planewal(["tail", &home.dir(), "--follow", "--for", "0"]).ends(0);
    planewal(["explain", &home.dir(), "7"]).ends(0);
    planewal(["repair", "--dry-run", &home.dir()]).ends(0);
    assert_eq!(home.files(), before);
}

#[test]
fn what_cannot_run_says_why_in_one_line() {
    let home = Home::new();
    for command in ["dump", "tail", "info", "segments", "verify", "repair"] {
        let run = planewal([command, &home.dir()]).ends(2);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
        assert!(run.err.contains(&home.dir()) && run.out.is_empty(), "{}", run.err);
    }
    assert!(!home.path().exists(), "looking makes no log");
    planewal(["explain", &home.dir(), "1"]).ends(2);
    for (option, value) in [
        ("--plane", "0"),
        ("--kind", "0x00"),
        ("--plane", "256"),
        ("--batch", "0"),
        ("--durability", "perhaps"),
        ("--segment-bytes", "1K"),
        ("--segment-bytes", "2G"),
    ] {
        fed(["append", &home.dir(), option, value], b"a\n").ends(2);
    }
    assert!(planewal(["append", &home.dir(), "--plane", "0"]).err.contains("zero is never valid"));
    fed(["append", &home.dir(), "--label", &"x".repeat(64)], b"a\n").ends(2);
    assert!(!home.path().exists(), "a wrong option makes no log");
    planewal(["dance", &home.dir()]).ends(2);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(50_000)).ends(0);
    let mut child = Command::new(PROGRAM)
        .args(["dump", &home.dir(), "--raw"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn one_process_writes_and_others_may_look() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(5)).ends(0);
    let mut writer = Command::new(PROGRAM)
        .args(["append", &home.dir()])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let asked = Instant::now();
    // The lock file tells who holds the lock, and stays as it is when nobody does.
    let holder = || std::fs::read_to_string(home.path().join("planewal.lock")).unwrap_or_default();
    while holder().trim() != writer.id().to_string() {
        assert!(asked.elapsed() < Duration::from_secs(20), "the writer never took the lock");
        std::thread::yield_now();
    }
    let refused = fed(["append", &home.dir()], b"never\n").ends(2);
    assert!(refused.err.contains(&writer.id().to_string()), "{}", refused.err);
    assert_eq!(planewal(["dump", &home.dir(), "--raw"]).ends(0).out, lines(5));
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    fed(["append", &home.dir()], b"six\n").ends(0);
}
