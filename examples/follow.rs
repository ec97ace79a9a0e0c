//! A follower in another process: this program starts itself again, and that one follows what this one writes.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use planewal::{Lsn, Options, Tailed, View, Wal};

const RECORDS: u64 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(dir) = std::env::args().nth(1) {
        return follow(Path::new(&dir));
    }
    let dir = std::env::temp_dir().join(format!("planewal-follow-{}", std::process::id()));
    let wal = Wal::open(&dir, Options::default())?;
    let mut follower = Command::new(std::env::current_exe()?).arg(&dir).spawn()?;
    for number in 1..=RECORDS {
        wal.append(0x80, 0x80, format!("price {number}").as_bytes())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("the follower ended: {}", follower.wait()?);
    wal.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Takes no lock and writes nothing. A cursor, kept somewhere, would let it go on after a restart.
fn follow(dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut follow = View::open(dir)?.follow(Lsn::FIRST)?;
    let mut seen = 0;
    while seen < RECORDS {
        match follow.wait_timeout(Duration::from_secs(10))? {
            Tailed::Record(record) => {
                seen = record.lsn.number();
                println!(
                    "process {} saw LSN {seen}: {}",
                    std::process::id(),
                    String::from_utf8_lossy(record.payload)
                );
            }
            _ => return Err("nothing new was proved durable for ten seconds".into()),
        }
    }
    Ok(())
}
