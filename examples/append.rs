//! The least that a log does: append, come back, read.

use std::error::Error;

use planewal::{Lsn, Options, Wal};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-append-{}", std::process::id()));
    let wal = Wal::open(&dir, Options::default())?;
    for text in ["one", "two", "three"] {
        println!("appended LSN {}: {text}", wal.append(0x80, 0x80, text.as_bytes())?);
    }
    drop(wal); // no close: the next open finds out by itself

    let wal = Wal::open(&dir, Options::default())?;
    println!("opened again; the last stop was clean: {}", !wal.recovery().unclean);
    let mut reader = wal.read(Lsn::FIRST)?;
    while let Some(record) = reader.next()? {
        println!("read LSN {}: {}", record.lsn, String::from_utf8_lossy(record.payload));
    }
    wal.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
