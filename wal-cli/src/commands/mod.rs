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

use std::io;
use std::path::Path;

use planewal::{OpenError, ReadError, View};

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

/// A view of the log in a directory, or what is there instead.
fn look(dir: &Path) -> Result<View, Failure> {
    check_dir(dir)?;
    View::open(dir).map_err(|error| match error {
        OpenError::Missing { .. } => Failure::new(format_args!(
            "{}: there is no log here; name the directory that holds `planewal.ctl` and the segments",
            dir.display()
        )),
        error => error.into(),
    })
}

/// Refuses a path at which no log can be.
fn check_dir(dir: &Path) -> Result<(), Failure> {
    check_no_file(dir)?;
    match std::fs::metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::new(format_args!("{}: there is no log here, and no such directory", dir.display())))
        }
        Err(error) => Err(Failure::new(format_args!("cannot look at {}: {error}", dir.display()))),
        Ok(_) => Ok(()),
    }
}

/// Refuses what is a file, or lies below one.
fn check_no_file(dir: &Path) -> Result<(), Failure> {
    for path in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
            return Err(Failure::new(format_args!(
                "{}: {} is no directory; name the directory of a log, not one of its files",
                dir.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// A failure to read that says which log it was; findings name their file by themselves.
fn unread(dir: &Path, error: &ReadError) -> Failure {
    Failure::new(format_args!("{}: {error}", dir.display()))
}
