//! Ten thousand tickets, polled by the smallest executor, in a process that is killed in between.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use planewal::{Durability, Lsn, Options, Ticket, Wal};

use crate::{batch, run, small};

const DIR: &str = "PLANEWAL_KILLED_DIR";
const NAME: &str = "killed::what_polled_tickets_acknowledged_survives_a_kill";

/// Submits, polls, and says what is acknowledged.
fn writer(dir: &std::ffi::OsStr) {
    let wal = Wal::open(dir, small()).unwrap();
    let levels = [Durability::Written, Durability::Synced];
    let mut out = std::io::stdout();
    for round in 0..100 {
        let tickets: Vec<Ticket> = (0..100_u64)
            .map(|n| wal.submit_as(&mut batch(round * 100 + n), levels[(n % 2) as usize]).unwrap())
            .collect();
        let acknowledged = run(tickets).into_iter().map(|outcome| outcome.unwrap()).max().unwrap();
        // One write, so that a line is whole or absent.
        out.write_all(format!("acknowledged {acknowledged}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
    out.write_all(b"all\n").unwrap();
    std::thread::park();
}

#[test]
fn what_polled_tickets_acknowledged_survives_a_kill() {
    if let Some(dir) = std::env::var_os(DIR) {
        return writer(&dir);
    }
    // Killed after so many rounds; the last one lives until all are acknowledged.
    for rounds in [1, 7, 23, 100] {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(DIR, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let told = |line: String| line.strip_prefix("acknowledged ").and_then(|lsn| lsn.parse::<u64>().ok());
        let mut acknowledged = 0;
        for lsn in lines.filter_map(told).take(rounds) {
            acknowledged = lsn;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(acknowledged >= rounds as u64 * 100);
        let wal = Wal::open(place.path(), Options::default()).unwrap();
        assert!(wal.last() >= Lsn::new(acknowledged), "{acknowledged} were acknowledged");
        let mut reader = wal.read(Lsn::FIRST).unwrap();
        let mut read = 0_u64;
        while let Some(record) = reader.next().unwrap() {
            assert_eq!(record.payload, read.to_le_bytes(), "LSN {}", record.lsn);
            read += 1;
        }
        assert_eq!(Lsn::new(read), wal.last());
    }
}
