//! `append`: each line of standard input becomes a record.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use planewal::{Batch, Finding, Lsn, Options, Wal};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::parse::{self, Level};
use crate::render::{Out, finding_json, findings_json, lsn_json, or_none, say};

/// Append each line of standard input as a record
///
/// A record is the line without its newline, and may hold any other bytes; a last line without a
/// newline counts too. Lines are committed together, N at a time, and what is left at the end of
/// the input. The log is made if it is missing, and closed cleanly at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,

    /// Plane of the records, 1 to 255
    #[arg(long, value_name = "N", default_value = "0x80", value_parser = parse::tag)]
    plane: u8,

    /// Kind of the records, 1 to 255
    #[arg(long, value_name = "N", default_value = "0x80", value_parser = parse::tag)]
    kind: u8,

    /// How safe a batch is when the next one begins
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "synced")]
    durability: Level,

    /// Lines in a batch; fewer where they exceed 64 MiB
    #[arg(long, value_name = "N", default_value = "1000")]
    batch: NonZeroU32,

    /// End without a clean close and without a beacon, as a crash does
    #[arg(long)]
    no_close: bool,

    /// A name for the host's use in the header of each new segment, at most 63 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,

    /// Size of a segment, 16K to 1G
    #[arg(long, value_name = "BYTES", value_parser = parse::bytes)]
    segment_bytes: Option<u64>,
}

/// Longest line: what one record may hold.
const LINE_BYTES_MAX: u64 = 1 << 30;

/// A batch is committed before it holds more than this, unless one line alone does.
const BATCH_BYTES_MAX: u64 = 64 << 20;

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    super::check_no_file(&args.dir)?;
    let wal = Wal::open(&args.dir, args.options())?;
    let mut tally = Tally::default();
    if let Err(failure) = feed(&wal, args, &mut tally) {
        if !args.no_close {
            // What came before the failure stays as durable as it can be made.
            let _ = wal.close();
        }
        return Err(match failure {
            Failure::CouldNotRun(message) if tally.records > 0 => {
                Failure::new(format_args!("{message} (before that, {tally} were appended)"))
            }
            failure => failure,
        });
    }
    if !args.no_close {
        wal.close()?;
    }
    let outcome = Outcome::of(&wal.recovery().survey);
    tally.report(&wal, !args.no_close, json)?;
    if args.no_close {
        // As a crash does: no destructor runs, nothing more is written.
        std::process::exit(i32::from(outcome.code()));
    }
    Ok(outcome)
}

impl Args {
    fn options(&self) -> Options {
        let defaults = Options::default();
        Options {
            durability: self.durability.durability(),
            label: self.label.clone(),
            segment_bytes: self.segment_bytes.unwrap_or(defaults.segment_bytes),
            record_bytes_max: LINE_BYTES_MAX,
            beacon_idle: if self.no_close { Duration::ZERO } else { defaults.beacon_idle },
            ..defaults
        }
    }
}

/// Reads lines to the end of the input and commits them.
fn feed(wal: &Wal, args: &Args, tally: &mut Tally) -> Result<(), Failure> {
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    let mut batch = Batch::new();
    let mut count = 0u64;
    while next_line(&mut input, &mut line, count + 1)? {
        count += 1;
        let bytes = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if !batch.is_empty() && batch.payload_bytes() + bytes > BATCH_BYTES_MAX {
            tally.commit(wal, &mut batch)?;
        }
        batch.push(args.plane, args.kind, &line)?;
        if batch.records() >= args.batch.get() {
            tally.commit(wal, &mut batch)?;
        }
    }
    if !batch.is_empty() {
        tally.commit(wal, &mut batch)?;
    }
    Ok(())
}

/// Reads one line without its newline; answers whether there was one.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>, number: u64) -> Result<bool, Failure> {
    line.clear();
    let read = input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', line);
    let read = read.map_err(|error| {
        Failure::new(format_args!("cannot read line {number} of standard input: {error}"))
    })?;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if u64::try_from(line.len()).is_ok_and(|bytes| bytes > LINE_BYTES_MAX) {
        return Err(Failure::new(format_args!(
            "line {number} of standard input is longer than a record's {LINE_BYTES_MAX} bytes"
        )));
    }
    Ok(read > 0)
}

/// What was appended so far.
#[derive(Debug, Default)]
struct Tally {
    records: u64,
    first: Option<Lsn>,
    last: Option<Lsn>,
}

impl Tally {
    fn commit(&mut self, wal: &Wal, batch: &mut Batch) -> Result<(), Failure> {
        let records = u64::from(batch.records());
        let receipt = wal.commit(batch)?;
        self.records += records;
        self.first = self.first.or(Some(receipt.first));
        self.last = Some(receipt.last);
        Ok(())
    }

    fn report(&self, wal: &Wal, closed: bool, json: bool) -> Result<(), Failure> {
        let recovery = wal.recovery();
        let durable = wal.durable();
        if json {
            let mut out = Out::new();
            out.json(&json!({
                "records": self.records,
                "first_lsn": lsn_json(self.first),
                "last_lsn": lsn_json(self.last),
                "durable_lsn": lsn_json(durable),
                "created": recovery.created,
                "closed": closed,
                "torn_tail": recovery.torn_tail.as_ref().map(finding_json),
                "findings": findings_json(&recovery.survey.findings),
            }))?;
            return out.flush();
        }
        // The torn tail is told below, and what repair gave up is told to whoever reads it.
        let news = |finding: &&Finding| {
            Some(*finding) != recovery.torn_tail.as_ref() && finding.label != "accepted-loss"
        };
        for finding in recovery.survey.findings.iter().filter(news) {
            say(format_args!("found at open: {finding}"));
        }
        let torn = recovery
            .torn_tail
            .as_ref()
            .map_or_else(String::new, |finding| format!("; cut at open: {finding}"));
        say(format_args!("appended {self}; durable: {}{torn}", or_none(durable)));
        Ok(())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.records == 1 { "record" } else { "records" };
        write!(f, "{} {noun}", self.records)?;
        match self.first.zip(self.last) {
            Some((first, last)) => write!(f, ", LSN {first} to {last}"),
            None => Ok(()),
        }
    }
}
