//! How long appends take here: `cargo bench --bench append [-- records]`.
//!
//! Plain timing of whole runs, medians of five; a comparison with other logs is work of its own.

use std::error::Error;
use std::time::Instant;

use planewal::{Durability, Lsn, Options, View, Wal};

fn main() -> Result<(), Box<dyn Error>> {
    let records: u64 =
        std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1_000_000);
    let payload = [7_u8; 100];
    let mut rates = Vec::new();
    let mut scans = Vec::new();
    for _ in 0..5 {
        let dir = std::env::temp_dir().join(format!("planewal-bench-{}", std::process::id()));
        let wal = Wal::open(&dir, Options::default())?;
        let begun = Instant::now();
        for _ in 0..records {
            wal.append_as(0x80, 0x80, &payload, Durability::Buffered)?;
        }
        wal.sync()?;
        rates.push(rate(records, begun));
        wal.close()?;
        let view = View::open(&dir)?;
        let begun = Instant::now();
        let mut reader = view.read(Lsn::FIRST)?;
        let mut bytes = 0;
        while let Some(record) = reader.next()? {
            bytes += record.payload.len();
        }
        assert_eq!(bytes as u64, records * payload.len() as u64);
        scans.push(rate(records, begun));
        std::fs::remove_dir_all(&dir)?;
    }
    println!("buffered appends of 100 bytes and one sync: {:.2} M records/s", median(&mut rates));
    println!("verified scan: {:.2} M records/s", median(&mut scans));
    Ok(())
}

fn rate(records: u64, begun: Instant) -> f64 {
    records as f64 / begun.elapsed().as_secs_f64() / 1e6
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
