//! `bench`: how fast appends are on a disk, at each level of durability.
//!
//! It is for judging a disk, not for comparing logs: one run after the other, one log at a time.

mod latency;
mod place;
mod run;

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanBytes;
use planewal::Histogram;
use serde_json::{Value, json};

use crate::outcome::{Failure, Outcome};
use crate::parse::{self, Level};
use crate::render::Out;
use place::Place;
use run::Measured;

/// Measure how fast appends are on a disk
///
/// Makes a log in a new directory below DIR, appends to it from some threads, one record a call, and removes
/// it again: once for each level of durability. A level ends with its records or its time, whichever comes
/// first. Where DIR is missing it is made, and removed as well. A directory with a log in it is refused.
/// Killed by a signal, it leaves a directory `planewal-bench-*` behind.
///
/// What it measures: the time of each call, as the caller sees it, with 1/32 of error at most; how many
/// records come through; how many calls share one sync; and, from the log's own counts, how long its writes
/// and syncs took and how large its groups were, within a factor of two. `closing sync` is the time of one
/// more sync at the end: what the level has left to do. Payloads are random bytes, so a disk that
/// compresses gains nothing.
///
/// What it does not measure: whether a sync reaches the medium. A disk that lies looks fast. Nor batches,
/// reading, opening, or how a log of many segments fares when the disk fills. `buffered` and `written`
/// show memory and page cache until more is written than these hold. On an idle machine one thread alone may wait longer for the processor
/// to wake than for the disk. Other work on the disk is in the numbers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory on the disk to be measured
    dir: PathBuf,

    /// Most records for each level, 1 to 1000000000
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    records: u64,

    /// Payload of a record, 1 to 16M; all records of a level together 64G at most
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = size)]
    size: u64,

    /// Threads that append, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// How safe a record is when its call returns
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "all")]
    durability: Levels,

    /// Longest time for each level, 1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
}

/// Most payload of one record.
const SIZE_MAX: u64 = 16 << 20;

/// Most payload of one level.
const LEVEL_BYTES_MAX: u64 = 64 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Levels {
    /// In the writer's memory: survives nothing
    Buffered,
    /// Handed to the operating system: survives the death of the process
    Written,
    /// On the disk: survives a loss of power
    Synced,
    /// One after the other
    All,
}

impl Levels {
    fn each(self) -> &'static [Level] {
        match self {
            Levels::Buffered => &[Level::Buffered],
            Levels::Written => &[Level::Written],
            Levels::Synced => &[Level::Synced],
            Levels::All => &[Level::Buffered, Level::Written, Level::Synced],
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse::bytes(text)?;
    if (1..=SIZE_MAX).contains(&size) { Ok(size) } else { Err("a record has 1 to 16M bytes here".to_owned()) }
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if args.records.saturating_mul(args.size) > LEVEL_BYTES_MAX {
        return Err(Failure::new(format_args!(
            "{} records of {} bytes are more than 64G for a level; ask for fewer",
            args.records, args.size
        )));
    }
    super::check_no_file(&args.dir)?;
    let place = Place::new(&args.dir)?;
    let mut levels = Vec::new();
    for &level in args.durability.each() {
        levels.push(run::measure(args, level, &place.log(level.name()))?);
    }
    place.leave()?;
    let mut out = Out::new();
    if json {
        out.json(&machine(args, &levels))?;
    } else {
        human(&mut out, &levels)?;
    }
    out.flush()?;
    Ok(Outcome::Sound)
}

fn machine(args: &Args, levels: &[Measured]) -> Value {
    json!({
        "dir": args.dir.display().to_string(),
        "size": args.size,
        "threads": args.threads,
        "levels": levels.iter().map(level_json).collect::<Value>(),
    })
}

fn level_json(level: &Measured) -> Value {
    let latency = &level.latency;
    json!({
        "durability": level.level.name(),
        "records": level.records(),
        "seconds": level.took.as_secs_f64(),
        "records_per_second": level.records_per_second(),
        "bytes_per_second": level.bytes_per_second(),
        "commits_per_sync": level.commits_per_sync(),
        "call_ns": {
            "p50": latency.of_thousand(500),
            "p90": latency.of_thousand(900),
            "p99": latency.of_thousand(990),
            "p999": latency.of_thousand(999),
            "max": latency.max(),
        },
        "writes": histogram_json(&level.stats.write_ns),
        "syncs": histogram_json(&level.stats.sync_ns),
        "group_bytes": histogram_json(&level.stats.groups),
        "closing_sync_ns": u64::try_from(level.closing_sync.as_nanos()).unwrap_or(u64::MAX),
        "room": format!("{:?}", level.stats.allocation).to_lowercase(),
    })
}

fn histogram_json(histogram: &Histogram) -> Value {
    json!({
        "count": histogram.count(),
        "p50": histogram.quantile(0.5),
        "p99": histogram.quantile(0.99),
        "max": histogram.max(),
    })
}

fn human(out: &mut Out, levels: &[Measured]) -> Result<(), Failure> {
    out.line(format_args!("calls"))?;
    let header =
        ["level", "records", "records/s", "bytes/s", "per sync", "p50", "p90", "p99", "p99.9", "max"];
    let rows = levels.iter().map(|level| {
        let latency = &level.latency;
        vec![
            level.level.name().to_owned(),
            level.records().to_string(),
            format!("{:.0}", level.records_per_second()),
            HumanBytes(level.whole_bytes_per_second()).to_string(),
            level.commits_per_sync().map_or_else(|| "-".to_owned(), |commits| format!("{commits:.1}")),
            time(latency.of_thousand(500)),
            time(latency.of_thousand(900)),
            time(latency.of_thousand(990)),
            time(latency.of_thousand(999)),
            time(latency.max()),
        ]
    });
    out.line(format_args!("{}", table(&header, rows)))?;
    out.line(format_args!("\nthe log's own counts, within a factor of two"))?;
    let header = [
        "level",
        "writes",
        "p50",
        "p99",
        "max",
        "syncs",
        "p50",
        "p99",
        "max",
        "group p50",
        "max",
        "closing sync",
    ];
    let rows = levels.iter().map(|level| {
        let stats = &level.stats;
        let mut row = vec![level.level.name().to_owned()];
        for times in [&stats.write_ns, &stats.sync_ns] {
            row.push(times.count().to_string());
            if times.count() == 0 {
                row.extend(["-", "-", "-"].map(str::to_owned));
            } else {
                row.extend([times.quantile(0.5), times.quantile(0.99), times.max()].map(time));
            }
        }
        row.push(HumanBytes(stats.groups.quantile(0.5)).to_string());
        row.push(HumanBytes(stats.groups.max()).to_string());
        row.push(time(u64::try_from(level.closing_sync.as_nanos()).unwrap_or(u64::MAX)));
        row
    });
    out.line(format_args!("{}", table(&header, rows)))
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A time in the unit that suits it.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}
