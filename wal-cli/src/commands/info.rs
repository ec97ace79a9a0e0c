//! `info`: what a log is, on one page.

use std::path::PathBuf;

use indicatif::HumanBytes;
use planewal::{SurveyReport, View};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::render::{self, Out, ancestors_json, extras_json, lsn_json, or_none, ranges_json, yes};

/// Show what a log is: its id, how far it goes, and its verdict
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let view = View::open(&args.dir)?;
    let report = view.report();
    let mut out = Out::new();
    if json {
        machine(&mut out, report)?
    } else {
        human(&mut out, report)?
    }
    out.flush()?;
    Ok(Outcome::of(report))
}

fn file_bytes(report: &SurveyReport) -> u64 {
    report.segments.iter().map(|segment| segment.file_bytes).sum()
}

fn machine(out: &mut Out, report: &SurveyReport) -> Result<(), Failure> {
    out.json(&json!({
        "log_id": report.log_id.map(|id| id.to_string()),
        "epoch": report.epoch,
        "verdict": report.verdict.to_string(),
        "proof": report.proof.to_string(),
        "closed_cleanly": report.closed_cleanly,
        "backup": report.backup,
        "first_lsn": lsn_json(report.first),
        "last_lsn": lsn_json(report.last),
        "next_lsn": report.next.number(),
        "durable_lsn": lsn_json(report.durable),
        "records": report.records,
        "segments": report.segments.len(),
        "bytes": file_bytes(report),
        "findings": report.findings.len(),
        "unlisted_findings": report.unlisted_findings,
        "lost": ranges_json(&report.lost),
        "extras": extras_json(&report.extras),
        "spares": report.spares,
        "ancestors": ancestors_json(&report.ancestors),
    }))
}

fn human(out: &mut Out, report: &SurveyReport) -> Result<(), Failure> {
    out.field("log id", report.log_id.map_or_else(|| "unknown".to_owned(), |id| id.to_string()))?;
    out.field("epoch", report.epoch)?;
    out.field("verdict", format_args!("{} ({})", report.verdict, report.proof))?;
    out.field("closed cleanly", yes(report.closed_cleanly))?;
    if report.backup {
        out.field("marked as", "a backup, not to be written before it is restored")?;
    }
    out.field("first LSN", or_none(report.first))?;
    out.field("last LSN", or_none(report.last))?;
    out.field("next LSN", report.next)?;
    out.field("durable LSN", or_none(report.durable))?;
    out.field("records", report.records)?;
    out.field("segments", report.segments.len())?;
    out.field("size", HumanBytes(file_bytes(report)))?;
    for ancestor in &report.ancestors {
        out.field("branch of", format_args!("{}, up to LSN {}", ancestor.log_id, or_none(ancestor.last)))?;
    }
    for extra in &report.extras {
        out.field("no part of it", format_args!("{}: {}", extra.name, extra.why))?;
    }
    for spare in &report.spares {
        out.field("spare", spare)?;
    }
    render::lost(out, &report.lost)?;
    render::findings(out, report)
}
