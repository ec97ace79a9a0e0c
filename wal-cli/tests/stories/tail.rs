//! A process that follows what another one writes, through rotations and kills.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Home, PROGRAM, fed, flip, lines, planewal};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that has to come.
#[track_caller]
fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A `tail --follow` with its output in a file.
struct Follower {
    child: Child,
    out: PathBuf,
}

impl Follower {
    fn start(home: &Home, args: &[&str]) -> Follower {
        let out = home.root().join("followed");
        let child = Command::new(PROGRAM)
            .args(["tail", &home.dir(), "--follow"])
            .args(args)
            .stdout(File::create(&out).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Follower { child, out }
    }

    fn text(&self) -> Vec<u8> {
        fs::read(&self.out).unwrap()
    }

    /// Waits until it has shown so many bytes.
    #[track_caller]
    fn wait_for(&mut self, bytes: usize) {
        let begun = Instant::now();
        while self.text().len() < bytes {
            if self.child.try_wait().unwrap().is_some() || begun.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let mut said = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                let status = self.child.wait().unwrap();
                panic!("{} of {bytes} bytes were shown, {status}: {said}", self.text().len());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Tells it to end, and answers what it said on standard error.
    fn terminate(mut self) -> (Vec<u8>, String) {
        assert_eq!(self.child.try_wait().unwrap(), None, "it follows until it is told to end");
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let text = self.out.clone();
        let output = self.child.wait_with_output().unwrap();
        (fs::read(text).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Feeds numbered lines until the reader is gone.
fn feed(mut input: ChildStdin, life: usize) -> u64 {
    for number in 0.. {
        let length = 20 + number * 31 % 160;
        if writeln!(input, "life {life} line {number} {:.<1$}", "", length as usize).is_err() {
            return number;
        }
    }
    0
}

fn segments(home: &Home) -> usize {
    let names = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".wal")).count()
}

#[test]
fn a_follower_sees_a_log_through_fifty_rotations_and_ten_kills() {
    let home = Home::new();
    fed(["append", &home.dir(), "--segment-bytes", "16K"], &lines(3)).ends(0);
    let mut follower = Follower::start(&home, &["--from", "1"]);
    for life in 0..10 {
        let level = ["written", "synced"][life % 2];
        let mut writer = Command::new(PROGRAM)
            .args(["append", &home.dir(), "--segment-bytes", "16K", "--durability", level])
            .args(["--batch", ["1", "7", "30"][life % 3]])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = writer.stdin.take().unwrap();
        let feeder = thread::spawn(move || feed(input, life));
        let before = segments(&home);
        wait_until("rotations", || segments(&home) > before + 5);
        thread::sleep(Duration::from_micros((life * 7919 % 3000) as u64));
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert!(feeder.join().unwrap() > 0, "it was killed while it wrote");
        if life % 4 == 1 {
            let shown = follower.text().len();
            assert!(shown > 10_000, "it follows while others write: {shown} bytes");
        }
    }
    fed(["append", &home.dir()], b"the end\n").ends(0);
    assert!(segments(&home) > 50, "{}", segments(&home));
    let log = planewal(["dump", &home.dir()]).ends(0).out;
    follower.wait_for(log.len());
    let (shown, said) = follower.terminate();
    assert_eq!(said, "");
    assert!(shown == log, "{} bytes shown, {} in the log", shown.len(), log.len());
}

#[test]
fn what_is_not_proved_is_not_followed() {
    let home = Home::new();
    // As a crash would, it leaves no beacon and no close: nothing proves the last batch.
    fed(["append", &home.dir(), "--no-close", "--batch", "10"], &lines(30)).ends(0);
    let dumped = planewal(["dump", &home.dir(), "--raw"]).ends(0).out;
    assert_eq!(dumped, lines(30));
    let args = ["tail", &home.dir(), "--follow", "--for", "0", "--raw", "--from", "1"];
    let shown = planewal(args).ends(0).out;
    assert_eq!(shown, lines(20));
    fed(["append", &home.dir()], b"more\n").ends(0);
    assert_eq!(planewal(args).ends(0).out, [lines(30), b"more\n".to_vec()].concat());
}

#[test]
fn the_last_records_and_those_from_an_lsn() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(30)).ends(0);
    let of = |first: u64| lines(30)[lines(first - 1).len()..].to_vec();
    assert_eq!(planewal(["tail", &home.dir(), "--raw"]).ends(0).out, of(21));
    assert_eq!(planewal(["tail", &home.dir(), "--raw", "--last", "3"]).ends(0).out, of(28));
    assert_eq!(planewal(["tail", &home.dir(), "--raw", "--last", "99"]).ends(0).out, lines(30));
    assert_eq!(planewal(["tail", &home.dir(), "--last", "0"]).ends(0).out, b"");
    assert_eq!(planewal(["tail", &home.dir(), "--raw", "--from", "5"]).ends(0).out, of(5));
    let followed = planewal(["tail", &home.dir(), "--follow", "--for", "0", "--raw", "--last", "2"]);
    assert_eq!(followed.ends(0).out, of(29));
    let json = planewal(["tail", &home.dir(), "--json", "--last", "1"]).ends(0).json();
    assert_eq!((json["lsn"].as_u64(), json["payload"].as_str()), (Some(30), Some("line 30")));
    assert!(planewal(["tail", &home.dir(), "--follow", "--from", "32"]).ends(2).err.contains("LSN 32"));
    planewal(["tail", &home.dir(), "--for", "1"]).ends(2);
    planewal(["tail", &home.dir(), "--from", "1", "--last", "1"]).ends(2);
    planewal(["tail", &home.dir(), "--raw", "--json"]).ends(2);
}

#[test]
fn a_follower_tells_damage_and_ends() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1"], &lines(9)).ends(0);
    let (segment, _) = home.newest();
    let explained = planewal(["explain", &home.dir(), "6", "--json"]).ends(0).json();
    let offset = explained["frame_offset"].as_u64().unwrap();
    flip(&segment, offset as usize + 40, 1);
    for follow in [&["--follow"][..], &[]] {
        let run = Command::new(PROGRAM)
            .args(["tail", &home.dir(), "--raw", "--from", "1"])
            .args(follow)
            .output()
            .unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!((run.status.code(), run.stdout), (Some(1), lines(5)), "{said}");
        let name = segment.file_name().unwrap().to_str().unwrap();
        for word in [name, &offset.to_string(), "LSN 6"] {
            assert!(said.contains(word), "{word} in: {said}");
        }
    }
}

#[test]
fn a_closed_pipe_ends_a_follower_quietly() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(3)).ends(0);
    let mut child = Command::new(PROGRAM)
        .args(["tail", &home.dir(), "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    fed(["append", &home.dir()], &lines(3)).ends(0);
    wait_until("the end of the follower", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}
