//! `backup`: copies a proved prefix of a log, beside its writer, and verifies the copy.

use std::path::PathBuf;

use indicatif::HumanBytes;
use planewal::{BackupError, BackupReport, Finding};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::render::{Out, finding_json, lsn_json, or_none, progress_bytes, say};

/// Copy what is proved durable into an empty directory, and verify the copy
///
/// Runs beside a live writer and changes nothing of the log. Files keep their names and bytes; the newest
/// is cut behind the durable mark. The copy is marked as a backup: everything reads it, and `restore`
/// makes it a log of its own. If anything goes wrong, what was copied is removed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,

    /// Directory of the backup: empty, or to be made
    destination: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let view = super::look(&args.dir)?;
    let bar = progress_bytes();
    let made = view.backup_to_watched(&args.destination, &mut |done, most| {
        bar.set_length(most);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let mut out = Out::new();
    let outcome = match made {
        Ok(report) => {
            if json {
                machine(&mut out, &report)?
            } else {
                human(&mut out, &report)?
            }
            Outcome::Sound
        }
        Err(error) => {
            let finding = finding_of(&error).ok_or_else(|| Failure::new(&error))?;
            say(&error);
            if json {
                out.json(
                    &json!({ "made": false, "error": error.to_string(), "finding": finding_json(finding) }),
                )?;
            }
            Outcome::Damage
        }
    };
    out.flush()?;
    Ok(outcome)
}

/// What does not check, of the log or of its copy.
fn finding_of(error: &BackupError) -> Option<&Finding> {
    match error {
        BackupError::Refused { finding, .. } | BackupError::CopyDamaged { finding, .. } => Some(finding),
        _ => None,
    }
}

fn machine(out: &mut Out, report: &BackupReport) -> Result<(), Failure> {
    out.json(&json!({
        "made": true,
        "log_id": report.log_id.to_string(),
        "first_lsn": lsn_json(report.first),
        "last_lsn": lsn_json(report.last),
        "durable_lsn": lsn_json(report.durable),
        "segments": report.segments,
        "bytes": report.bytes,
        "ms": u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX),
    }))
}

fn human(out: &mut Out, report: &BackupReport) -> Result<(), Failure> {
    out.field("log id", report.log_id)?;
    out.field("first LSN", or_none(report.first))?;
    out.field("last LSN", or_none(report.last))?;
    out.field("durable LSN", or_none(report.durable))?;
    out.field("segments", report.segments)?;
    out.field("copied", HumanBytes(report.bytes))?;
    out.field("took", format_args!("{} ms, verified", report.duration.as_millis()))
}
