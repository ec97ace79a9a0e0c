//! An exporter: every number of a log, in the text form that metrics systems scrape.

use std::error::Error;

use planewal::{Metric, Options, Wal};

fn export(wal: &Wal) {
    wal.stats().visit(|name, metric| match metric {
        Metric::Counter(value) => println!("{name} {value}"),
        Metric::Gauge(value) => println!("{name} {value}"),
        Metric::Histogram(histogram) => {
            let mut below = 0;
            for (end, times) in histogram.buckets() {
                below += times;
                println!("{name}_bucket{{le=\"{end}\"}} {below}");
            }
            println!("{name}_bucket{{le=\"+Inf\"}} {below}");
            println!("{name}_sum {}\n{name}_count {}", histogram.sum(), histogram.count());
        }
        _ => {}
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-stats-{}", std::process::id()));
    let wal = Wal::open(&dir, Options::default())?;
    for number in 0..100u32 {
        wal.append(0x80, 0x80, &number.to_le_bytes())?;
    }
    export(&wal);
    wal.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
