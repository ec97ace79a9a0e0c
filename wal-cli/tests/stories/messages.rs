//! What cannot run names what stands in the way, and what to do.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{Home, PROGRAM, fed, flip, lines, planewal};

const READERS: [&str; 5] = ["dump", "tail", "info", "segments", "verify"];

#[test]
fn a_file_is_told_from_a_directory_without_a_log() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(3)).ends(0);
    let segment = home.newest().0;
    let segment = segment.to_str().unwrap();
    let below = format!("{segment}/log");
    let before = home.files();
    for command in READERS.iter().chain(&["repair", "restore", "append", "bench"]) {
        for path in [segment, &below] {
            let run = planewal([command, path]).ends(2);
            assert!(run.out.is_empty() && run.err.lines().count() == 1, "{command}: {}", run.err);
            assert!(run.err.contains("name the directory of a log"), "{command}: {}", run.err);
        }
    }
    assert_eq!(home.files(), before);
    let empty = home.root().join("empty");
    fs::create_dir(&empty).unwrap();
    for command in READERS {
        let run = planewal([command, empty.to_str().unwrap()]).ends(2);
        assert!(run.err.contains("planewal.ctl") && run.err.contains("empty"), "{command}: {}", run.err);
        let run = planewal([command, home.root().join("nowhere").to_str().unwrap()]).ends(2);
        assert!(run.err.contains("no such directory"), "{command}: {}", run.err);
    }
}

#[test]
fn an_lsn_that_is_not_there_names_the_log_or_the_range() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(3)).ends(0);
    for command in ["dump", "tail"] {
        let run = planewal([command, &home.dir(), "--from", "5"]).ends(2);
        assert!(run.err.contains(&home.dir()) && run.err.contains("next is 4"), "{}", run.err);
        for wrong in ["0", "x", "9223372036854775808", "99999999999999999999"] {
            let run = planewal([command, &home.dir(), "--from", wrong]).ends(2);
            assert!(run.err.contains("LSNs are 1 to 9223372036854775807"), "{wrong}: {}", run.err);
        }
    }
    assert!(planewal(["explain", &home.dir(), "5"]).ends(0).text().contains("not given out yet"));
}

#[test]
fn whoever_closes_the_output_changes_no_verdict() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1"], &lines(30)).ends(0);
    let twin = home.twin();
    let told = planewal(["explain", &twin.dir(), "10", "--json"]).ends(0).json();
    flip(&twin.newest().0, told["frame_offset"].as_u64().unwrap() as usize + 33, 0);
    for command in READERS {
        let mut child = Command::new(PROGRAM)
            .args([command, &home.dir()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.as_ref()), (Some(0), ""), "{command}");
        let run = planewal([command, &twin.dir()]).ends(1);
        let shown = !run.out.is_empty() || run.err.contains("Damaged");
        assert!(shown, "{command} shows what it can of a damaged log");
    }
}
