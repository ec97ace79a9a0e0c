//! `verify`: reads everything, and says what it found.
//!
//! The log is read twice, by the two ways that there are: the survey, which judges places that do
//! not check, and the reader, which is what a host would use. They have to agree.

use std::path::PathBuf;

use indicatif::HumanBytes;
use planewal::{Finding, ReadError, SurveyReport, View};
use serde_json::{Value, json};

use crate::outcome::{Failure, Outcome, is_damage};
use crate::render::{
    self, Out, extras_json, finding_json, lsn_json, or_none, progress, ranges_json, say, segments_json, yes,
};

/// Read everything and give the verdict
///
/// Exit code 1 if anything is damaged, with each place that does not check: file, offset, LSN, the row
/// of the verdict table, and what was seen.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let view = super::look(&args.dir)?.past_damage(true);
    let report = view.report();
    let reading = read_all(&view)?;
    let mut out = Out::new();
    if json {
        machine(&mut out, report, &reading)?
    } else {
        human(&mut out, report, &reading)?
    }
    out.flush()?;
    Ok(Outcome::of(report)
        .and(Outcome::damage_if(reading.broken.as_ref().is_some_and(|finding| is_damage(finding.verdict)))))
}

/// What the reader came to see.
#[derive(Debug, Default)]
struct Reading {
    records: u64,
    payload_bytes: u64,
    /// Where the reader could not go on although the survey could.
    broken: Option<Finding>,
}

fn read_all(view: &View) -> Result<Reading, Failure> {
    let report = view.report();
    let mut reading = Reading::default();
    let Some(first) = report.first else { return Ok(reading) };
    let bar = progress(report.records, true);
    let mut reader = match view.read(first) {
        Ok(reader) => reader,
        Err(ReadError::Broken(finding)) => return Ok(Reading { broken: Some(*finding), ..reading }),
        Err(error) => return Err(error.into()),
    };
    loop {
        match reader.next() {
            Ok(Some(record)) => {
                reading.records += 1;
                reading.payload_bytes += u64::try_from(record.payload.len()).unwrap_or(u64::MAX);
                if reading.records.is_multiple_of(4096) {
                    bar.set_position(reading.records);
                }
            }
            Ok(None) => break,
            // Both are in the report: as a finding, or as a range that is known to be gone.
            Err(ReadError::Lost { .. } | ReadError::NotKept { .. }) => {}
            Err(ReadError::Broken(finding)) => {
                reading.broken = Some(*finding);
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    bar.finish_and_clear();
    Ok(reading)
}

/// The findings of the survey, and of the reader if it met one of its own.
fn all_findings(report: &SurveyReport, reading: &Reading) -> Vec<Value> {
    let own = reading.broken.iter().filter(|finding| !report.findings.contains(finding));
    report.findings.iter().chain(own).map(finding_json).collect()
}

fn machine(out: &mut Out, report: &SurveyReport, reading: &Reading) -> Result<(), Failure> {
    out.json(&json!({
        "verdict": report.verdict.to_string(),
        "proof": report.proof.to_string(),
        "log_id": report.log_id.map(|id| id.to_string()),
        "epoch": report.epoch,
        "closed_cleanly": report.closed_cleanly,
        "backup": report.backup,
        "first_lsn": lsn_json(report.first),
        "last_lsn": lsn_json(report.last),
        "next_lsn": report.next.number(),
        "durable_lsn": lsn_json(report.durable),
        "records": report.records,
        "readable_records": reading.records,
        "payload_bytes": reading.payload_bytes,
        "bytes_read": report.bytes_read,
        "segments": segments_json(&report.segments),
        "findings": all_findings(report, reading),
        "unlisted_findings": report.unlisted_findings,
        "lost": ranges_json(&report.lost),
        "extras": extras_json(&report.extras),
    }))
}

fn human(out: &mut Out, report: &SurveyReport, reading: &Reading) -> Result<(), Failure> {
    out.field("verdict", format_args!("{} ({})", report.verdict, report.proof))?;
    out.field("closed cleanly", yes(report.closed_cleanly))?;
    out.field("first LSN", or_none(report.first))?;
    out.field("last LSN", or_none(report.last))?;
    out.field("durable LSN", or_none(report.durable))?;
    out.field(
        "records",
        format_args!("{}, {} of payload", reading.records, HumanBytes(reading.payload_bytes)),
    )?;
    out.field("segments", report.segments.len())?;
    out.field("checked", HumanBytes(report.bytes_read))?;
    render::lost(out, &report.lost)?;
    render::findings(out, report)?;
    if let Some(finding) = reading.broken.as_ref().filter(|finding| !report.findings.contains(finding)) {
        out.flush()?;
        say(format_args!("the survey found no fault here, the reader did: {finding}"));
    }
    Ok(())
}
