//! A queue that survives a crash, in a few lines: pushes and pops are records, the state is what they
//! fold into, and replay is the same fold.

use std::collections::VecDeque;
use std::error::Error;

use planewal::{Lsn, Options, Wal};

const QUEUE: u8 = 0x80;
const PUSH: u8 = 0x80;
const POP: u8 = 0x81;

#[derive(Default)]
struct Queue {
    entries: VecDeque<Vec<u8>>,
}

impl Queue {
    /// The only way to change the state, live and at replay.
    fn fold(&mut self, kind: u8, payload: &[u8]) {
        match kind {
            PUSH => self.entries.push_back(payload.to_vec()),
            POP => {
                self.entries.pop_front();
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-queue-{}", std::process::id()));
    for run in 1..=3 {
        let wal = Wal::open(&dir, Options::default())?;
        let mut queue = Queue::default();
        let mut reader = wal.read(Lsn::FIRST)?;
        while let Some(record) = reader.next()? {
            if record.plane == QUEUE {
                queue.fold(record.kind, record.payload);
            }
        }
        println!("run {run}: {} entries", queue.entries.len());
        for (kind, payload) in
            [(PUSH, format!("first of run {run}")), (PUSH, "second".into()), (POP, String::new())]
        {
            wal.append(QUEUE, kind, payload.as_bytes())?;
            queue.fold(kind, payload.as_bytes());
        }
        // No close: the next run recovers, as after a crash.
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
