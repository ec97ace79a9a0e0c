//! The process that is killed: opens the log, which recovers it, and appends until it dies.
//!
//! It talks to its parent in lines: `open LINE TORN MICROSECONDS` when the log is open, then `ack LSN
//! COUNT LINE` for each batch whose commit has returned, never before.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use planewal::{Batch, Wal};

use super::random::Random;
use super::round::{Ack, Opened};
use super::text::{Text, parse_payload, put_payload};
use crate::outcome::{Failure, Outcome};
use crate::parse::{self, Level};

/// What the demo's parent tells its child; the text comes on standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    dir: PathBuf,
    #[arg(long)]
    round: u32,
    #[arg(long, value_enum)]
    durability: Level,
    #[arg(long, value_parser = parse::bytes)]
    segment_bytes: u64,
    #[arg(long)]
    seed: u64,
    /// Come to rest after a few lines
    #[arg(long)]
    rests: bool,
}

/// A child that comes to rest does so after this many bytes: fewer than the log stages before it writes.
const REST_AFTER_BYTES: u64 = 64 << 10;

/// It does not wait for ever to be killed.
const REST: Duration = Duration::from_secs(60);

/// Plane and kind of the demo's records.
pub(super) const PLANE: u8 = 0x80;
pub(super) const KIND: u8 = 0x01;

/// Most lines in a batch. One batch at most is committed and not yet acknowledged when the child dies.
pub(super) const BATCH_LINES_MAX: u64 = 4;

pub(crate) fn run_child(args: &ChildArgs) -> Result<Outcome, Failure> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(format_args!("cannot read the text: {error}")))?;
    let text = Text::new(bytes)?;
    let wal = Wal::open(&args.dir, super::options(args.durability, args.segment_bytes))?;
    let opened = look(&wal)?;
    // Standard output flushes at each newline: an acknowledgement is out when its line is.
    let mut out = io::stdout().lock();
    let gone = |error: io::Error| Failure::new(format_args!("the parent is gone: {error}"));
    writeln!(out, "{}", opened.to_line()).map_err(gone)?;
    let mut random = Random::new(args.seed);
    let mut batch = Batch::new();
    let mut payload = Vec::new();
    let mut line = opened.line + 1;
    let mut bytes = 0;
    loop {
        let count = 1 + random.below(BATCH_LINES_MAX);
        for number in line..line + count {
            put_payload(&mut payload, args.round, number, text.line(number));
            batch.push(PLANE, KIND, &payload)?;
        }
        bytes += batch.payload_bytes();
        let receipt = wal.commit(&mut batch)?;
        let ack = Ack { lsn: receipt.first.number(), count, line };
        out.write_all(ack.to_line().as_bytes()).map_err(gone)?;
        line += count;
        if args.rests && bytes >= REST_AFTER_BYTES {
            std::thread::sleep(REST);
            return Ok(Outcome::Sound);
        }
    }
}

/// What the recovered log says about itself: its last line first of all.
pub(super) fn look(wal: &Wal) -> Result<Opened, Failure> {
    let report = wal.recovery();
    let line = match wal.last() {
        None => 0,
        Some(last) => {
            let mut reader = wal.read(last)?;
            let record = reader.next()?.ok_or_else(|| {
                Failure::new(format_args!("LSN {last} is the last one, and cannot be read"))
            })?;
            let parsed = parse_payload(record.payload)
                .ok_or_else(|| Failure::new(format_args!("LSN {last} is no line of this demo")))?;
            parsed.1
        }
    };
    Ok(Opened { line, torn: report.torn_tail.is_some(), took: report.total.max(Duration::from_micros(1)) })
}
