//! `info`: what a log is, on one page.

use std::path::PathBuf;

use indicatif::HumanBytes;
use planewal::{CleanClose, DiskUsage, HoldInfo, HoldKind, SurveyReport};
use serde_json::{Value, json};

use crate::outcome::{Failure, Outcome};
use crate::render::{self, Out, ancestors_json, escape, extras_json, lsn_json, or_none, ranges_json, yes};

/// Show what a log is: its id, how far it goes, its verdict, and what its directory holds
///
/// Sizes are lengths of files. `segments` is what is written, `ahead` room for what comes next, `spares`
/// retired files that are kept to be written again, `others` everything that is not the log's, or not any
/// more. Holds are the durable ones: those of a running process are not on the disk.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let view = super::look(&args.dir)?;
    let report = view.report();
    let usage = view.disk_usage()?;
    let mut out = Out::new();
    if json {
        machine(&mut out, report, &usage)?
    } else {
        human(&mut out, report, &usage)?
    }
    out.flush()?;
    Ok(Outcome::of(report))
}

fn file_bytes(report: &SurveyReport) -> u64 {
    report.segments.iter().map(|segment| segment.file_bytes).sum()
}

fn hold_json(hold: &HoldInfo) -> Value {
    let readable = hold.kind != HoldKind::Unreadable;
    json!({ "name": readable.then_some(&hold.name), "lsn": hold.lsn.number(), "readable": readable })
}

fn close_json(close: &CleanClose) -> Value {
    json!({
        "segment": close.segment.map(|segment| segment.number()),
        "end": close.end,
        "last_lsn": lsn_json(close.last),
    })
}

fn machine(out: &mut Out, report: &SurveyReport, usage: &DiskUsage) -> Result<(), Failure> {
    out.json(&json!({
        "log_id": report.log_id.map(|id| id.to_string()),
        "epoch": report.epoch,
        "verdict": report.verdict.to_string(),
        "proof": report.proof.to_string(),
        "closed_cleanly": report.closed_cleanly,
        "clean_close": report.clean_close.as_ref().map(close_json),
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
        "holds": report.holds.iter().map(hold_json).collect::<Value>(),
        "disk": {
            "segments": usage.segments,
            "ahead": usage.ahead,
            "spares": usage.spares,
            "control": usage.control,
            "others": usage.others,
            "total": usage.total(),
            "files": usage.files,
        },
        "ancestors": ancestors_json(&report.ancestors),
    }))
}

fn human(out: &mut Out, report: &SurveyReport, usage: &DiskUsage) -> Result<(), Failure> {
    out.field("log id", report.log_id.map_or_else(|| "unknown".to_owned(), |id| id.to_string()))?;
    out.field("epoch", report.epoch)?;
    out.field("verdict", format_args!("{} ({})", report.verdict, report.proof))?;
    out.field("closed cleanly", yes(report.closed_cleanly))?;
    if let Some(CleanClose { segment: Some(segment), end, last, .. }) = report.clean_close {
        let last = or_none(last);
        out.field("last close", format_args!("segment {segment} at offset {end}, last LSN {last}"))?;
    }
    if report.backup {
        out.field("marked as", "a backup, not to be written before it is restored")?;
    }
    out.field("first LSN", or_none(report.first))?;
    out.field("last LSN", or_none(report.last))?;
    out.field("next LSN", report.next)?;
    out.field("durable LSN", or_none(report.durable))?;
    out.field("records", report.records)?;
    out.field("segments", report.segments.len())?;
    out.field("on disk", format_args!("{} in {} files", HumanBytes(usage.total()), usage.files))?;
    for (name, bytes) in [
        ("  segments", usage.segments),
        ("  ahead", usage.ahead),
        ("  spares", usage.spares),
        ("  control", usage.control),
        ("  others", usage.others),
    ] {
        out.field(name, HumanBytes(bytes))?;
    }
    for hold in &report.holds {
        if hold.kind == HoldKind::Unreadable {
            out.field("hold", "cannot be read, so everything is held; a later version wrote it, perhaps")?;
        } else {
            out.field("hold", format_args!("{} from LSN {}", escape(hold.name.as_bytes()), hold.lsn))?;
        }
    }
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
