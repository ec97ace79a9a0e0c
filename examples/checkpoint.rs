//! A checkpoint: the state goes to a file of its own, and what it covers leaves the log.
//!
//! The order matters: durable in the log first, then the file, then the log lets go. The file tells where
//! the log goes on.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use planewal::{Lsn, Options, Wal};

/// What is kept: the sum of all records, and the last one in it.
#[derive(Default)]
struct Sum {
    total: u64,
    at: Option<Lsn>,
}

fn load(file: &Path) -> Result<Sum, Box<dyn Error>> {
    let Ok(text) = fs::read_to_string(file) else { return Ok(Sum::default()) };
    let (at, total) = text.trim().split_once(' ').ok_or("no checkpoint")?;
    Ok(Sum { total: total.parse()?, at: Lsn::new(at.parse()?) })
}

/// Writes the checkpoint durably, under its name only once it is whole.
fn save(file: &Path, sum: &Sum, at: Lsn) -> std::io::Result<()> {
    let fresh = file.with_extension("new");
    let mut out = File::create(&fresh)?;
    writeln!(out, "{at} {}", sum.total)?;
    out.sync_all()?;
    fs::rename(&fresh, file)?;
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let file = dir.join("checkpoint");
    fs::create_dir_all(dir)?;
    let options = Options { segment_bytes: 16 << 10, spares: 0, ..Options::default() };
    let wal = Wal::open(dir.join("log"), options)?;
    let mut sum = load(&file)?;
    // Behind the checkpoint comes what the log has since.
    let mut reader = wal.read(sum.at.map_or(wal.first(), Lsn::next))?;
    let mut replayed = 0;
    while let Some(record) = reader.next()? {
        sum.total += u64::from(record.payload.first().copied().unwrap_or(0));
        sum.at = Some(record.lsn);
        replayed += 1;
    }
    for _ in 0..100 {
        sum.at = Some(wal.append(0x80, 1, &[1; 500])?);
        sum.total += 1;
    }
    let at = sum.at.ok_or("nothing to keep")?;
    wal.wait_durable(at)?;
    save(&file, &sum, at)?;
    let gone = wal.retire_unchecked(at.next())?;
    println!("replayed {replayed}, total {}, {} bytes retired", sum.total, gone.bytes);
    wal.close()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-checkpoint-{}", std::process::id()));
    let outcome = (0..3).try_for_each(|_| run(&dir));
    fs::remove_dir_all(&dir)?;
    outcome
}
