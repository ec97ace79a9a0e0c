//! `repair`: accepts losses, on a new branch of the log.

use std::path::PathBuf;
use std::sync::Arc;

use planewal::RepairPlan;
use planewal::storage::{FsStorage, Storage};
use serde_json::{Value, json};

use crate::outcome::{Failure, Outcome};
use crate::render::{Out, findings_json, ranges_json};

/// Accept what is damaged as lost, and go on behind it
///
/// Segment files stay as they are, byte for byte; what stands in the way is renamed, not removed. What
/// had to be given up is written down, and told to every later reader. With --dry-run nothing is
/// changed, and the exit code is 1 if there is something to accept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,

    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let storage: Arc<dyn Storage> = Arc::new(FsStorage::new(&args.dir));
    super::check_dir(&args.dir)?;
    let plan = if args.dry_run { planewal::plan_repair(&*storage)? } else { planewal::repair(storage)? };
    let mut out = Out::new();
    if json {
        out.json(&machine(&plan, args.dry_run))?
    } else {
        human(&mut out, &plan, args.dry_run)?
    }
    out.flush()?;
    Ok(Outcome::damage_if(args.dry_run && !plan.nothing_to_do))
}

fn machine(plan: &RepairPlan, dry_run: bool) -> Value {
    let set_aside: Value =
        plan.set_aside.iter().map(|(from, to)| json!({ "from": from, "to": to })).collect();
    json!({
        "dry_run": dry_run,
        "nothing_to_do": plan.nothing_to_do,
        "accepted": findings_json(&plan.accepted),
        "lost": ranges_json(&plan.lost),
        "set_aside": set_aside,
        "new_log_id": plan.new_log_id.map(|id| id.to_string()),
        "next_lsn": plan.next.number(),
    })
}

fn human(out: &mut Out, plan: &RepairPlan, dry_run: bool) -> Result<(), Failure> {
    if plan.nothing_to_do {
        return out.line(format_args!("nothing to repair"));
    }
    let (accept, lose, rename) = if dry_run {
        ("would accept", "would lose", "would rename")
    } else {
        ("accepted", "lost", "renamed")
    };
    for finding in &plan.accepted {
        out.field(accept, finding)?;
    }
    for (first, last) in &plan.lost {
        out.field(lose, format_args!("LSN {first} to {last}"))?;
    }
    for (from, to) in &plan.set_aside {
        out.field(rename, format_args!("{from} to {to}"))?;
    }
    if let Some(id) = plan.new_log_id {
        out.field("new log id", id)?;
    }
    out.field("next LSN", plan.next)?;
    if dry_run {
        out.line(format_args!("nothing was changed"))?;
    }
    Ok(())
}
