//! `restore`: makes a backup a log of its own, on a new branch.

use std::path::PathBuf;
use std::sync::Arc;

use planewal::storage::FsStorage;
use planewal::{RestoreError, RestoreReport, restore};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::render::{Out, finding_json, lsn_json, or_none, say};

/// Make a backup a log that can be written, in place and on a new branch
///
/// Everything is read and checked first. Only the control file is written: segments stay as they are,
/// byte for byte. The log that the backup is of may go on elsewhere; to keep the backup, restore a copy of
/// its directory. The exit code is 1 if the backup is not whole.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the backup
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    super::check_dir(&args.dir)?;
    let mut out = Out::new();
    let outcome = match restore(Arc::new(FsStorage::new(&args.dir))) {
        Ok(report) => {
            if json {
                machine(&mut out, &report)?
            } else {
                human(&mut out, &report)?
            }
            Outcome::Sound
        }
        Err(error @ RestoreError::Refused { .. }) => {
            say(&error);
            if let (RestoreError::Refused { finding, .. }, true) = (&error, json) {
                let text = error.to_string();
                out.json(&json!({ "restored": false, "error": text, "finding": finding_json(finding) }))?;
            }
            Outcome::Damage
        }
        Err(error) => return Err(error.into()),
    };
    out.flush()?;
    Ok(outcome)
}

fn machine(out: &mut Out, report: &RestoreReport) -> Result<(), Failure> {
    out.json(&json!({
        "restored": true,
        "log_id": report.log_id.to_string(),
        "ancestor": report.ancestor.to_string(),
        "first_lsn": lsn_json(report.first),
        "last_lsn": lsn_json(report.last),
        "next_lsn": report.next.number(),
        "segments": report.segments,
        "holds": report.holds.iter().map(|hold| json!({ "name": hold.name, "lsn": hold.lsn.number() })).collect::<Vec<_>>(),
    }))
}

fn human(out: &mut Out, report: &RestoreReport) -> Result<(), Failure> {
    out.field("new log id", report.log_id)?;
    out.field("branch of", format_args!("{}, up to LSN {}", report.ancestor, or_none(report.last)))?;
    out.field("first LSN", or_none(report.first))?;
    out.field("next LSN", report.next)?;
    out.field("segments", report.segments)?;
    for hold in &report.holds {
        let name = format_args!("{} from LSN {}; release it if nobody follows here", hold.name, hold.lsn);
        out.field("durable hold", name)?;
    }
    Ok(())
}
