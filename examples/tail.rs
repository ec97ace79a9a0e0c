//! A tail in the writer's process: each record once it is durable, in order.

use std::error::Error;
use std::thread;

use planewal::{Lsn, Options, ReadError, Wal};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-tail-{}", std::process::id()));
    let wal = Wal::open(&dir, Options::default())?;
    let mut tail = wal.tail(Lsn::FIRST)?;
    let shipper = thread::spawn(move || -> Result<u32, ReadError> {
        let mut shipped = 0;
        while let Some(record) = tail.next().wait()? {
            println!("shipped LSN {}: {}", record.lsn, String::from_utf8_lossy(record.payload));
            shipped += 1;
        }
        Ok(shipped) // the log was closed, and everything was shown
    });
    for number in 1..=5 {
        wal.append(0x80, 0x80, format!("order {number}").as_bytes())?;
    }
    wal.close()?;
    println!("{} records shipped", shipper.join().map_err(|_| "the tail panicked")??);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
