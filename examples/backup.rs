//! A backup beside the writer, and a restore of it: a log of its own, on a new branch.

use std::error::Error;
use std::sync::Arc;

use planewal::{OpenError, Options, Wal, restore, storage::FsStorage};

fn main() -> Result<(), Box<dyn Error>> {
    let home = std::env::temp_dir().join(format!("planewal-backup-{}", std::process::id()));
    let copy = home.join("copy");
    let wal = Wal::open(home.join("log"), Options::default())?;
    for number in 1..=3u32 {
        wal.append(0x80, 0x80, &number.to_le_bytes())?;
    }
    let report = wal.backup_to(&copy)?; // verified when it returns
    println!("copied {} bytes, up to LSN {:?}", report.bytes, report.last);
    wal.append(0x80, 0x80, b"after the backup")?; // the log goes on

    match Wal::open(&copy, Options::default()) {
        Err(OpenError::Backup { .. }) => println!("a backup is not written by mistake"),
        other => return Err(format!("{other:?}").into()),
    }
    let done = restore(Arc::new(FsStorage::new(&copy)))?;
    println!("log {} is a branch of {}", done.log_id, done.ancestor);
    let branch = Wal::open(&copy, Options::default())?;
    println!("the branch goes on with LSN {}, the log with {}", branch.next(), wal.next());
    branch.close()?;
    wal.close()?;
    std::fs::remove_dir_all(&home)?;
    Ok(())
}
