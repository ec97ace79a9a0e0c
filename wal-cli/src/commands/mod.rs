//! The commands, one file each.

mod append;
mod backup;
mod bench;
mod demo;
mod dump;
mod explain;
mod info;
mod repair;
mod restore;
mod segments;
mod tail;
mod verify;

use crate::outcome::{Failure, Outcome};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Append(append::Args),
    Dump(dump::Args),
    Tail(tail::Args),
    Info(info::Args),
    Segments(segments::Args),
    Verify(verify::Args),
    Explain(explain::Args),
    Repair(repair::Args),
    Backup(backup::Args),
    Restore(restore::Args),
    Bench(bench::Args),
    Demo(demo::Args),
    #[command(hide = true)]
    DemoChild(demo::ChildArgs),
}

impl Command {
    pub(crate) fn run(&self, json: bool) -> Result<Outcome, Failure> {
        match self {
            Command::Append(args) => append::run(args, json),
            Command::Dump(args) => dump::run(args, json),
            Command::Tail(args) => tail::run(args, json),
            Command::Info(args) => info::run(args, json),
            Command::Segments(args) => segments::run(args, json),
            Command::Verify(args) => verify::run(args, json),
            Command::Explain(args) => explain::run(args, json),
            Command::Repair(args) => repair::run(args, json),
            Command::Backup(args) => backup::run(args, json),
            Command::Restore(args) => restore::run(args, json),
            Command::Bench(args) => bench::run(args, json),
            Command::Demo(args) => demo::run(args, json),
            Command::DemoChild(args) => demo::run_child(args),
        }
    }
}
