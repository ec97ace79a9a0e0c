//! `tail`: the last records, and with `--follow` those to come.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use planewal::{Follow, Lsn, ReadError, Tailed, View};

use crate::outcome::{Failure, Outcome};
use crate::parse;
use crate::render::{Form, Out, say};

/// Print the last records, and follow the log
///
/// Lines are those of `dump`. With --follow it prints what is proved durable and nothing else, goes on
/// beside the writer, through its crashes and recoveries, and ends with --for, when its output is closed (noticed at the next record),
/// or by a signal. What it printed is never taken back. Records that are gone are told on standard error.
/// Where the log is damaged it ends, and the exit code is 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,

    /// First LSN to print
    #[arg(long, value_name = "LSN", value_parser = parse::lsn, conflicts_with = "last")]
    from: Option<Lsn>,

    /// How many of the last LSNs to begin with
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: u64,

    /// Go on with the records to come
    #[arg(long)]
    follow: bool,

    /// Follow for so many seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "follow")]
    seconds: Option<u32>,

    /// Print each payload as it is, and a newline
    #[arg(long)]
    raw: bool,
}

/// Longest wait for one record, after which the wait begins again.
const WAIT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let form = Form::of(args.raw, json)?;
    let begun = Instant::now();
    let view = super::look(&args.dir)?;
    let found = Outcome::of(view.report());
    let mut out = Out::new();
    let printed = if args.follow {
        let end = args.seconds.map(|seconds| begun + Duration::from_secs(seconds.into()));
        follow(args, start(args, &view, |from| view.follow(from)), end, form, &mut out)
    } else {
        print(args, &view, form, &mut out)
    };
    match printed.and_then(|outcome| out.flush().map(|()| outcome)) {
        Ok(outcome) => Ok(outcome.and(found)),
        Err(Failure::OutputGone) => Ok(found),
        Err(failure) => Err(failure),
    }
}

/// Begins where the user wants: so many before the end, and not before the first record that is kept.
fn start<T>(args: &Args, view: &View, begin: impl Fn(Lsn) -> Result<T, ReadError>) -> Result<T, ReadError> {
    let report = view.report();
    let end = if args.follow { report.durable.min(report.last) } else { report.last };
    let first = report.first.unwrap_or(report.next);
    let from = args.from.unwrap_or_else(|| {
        let from = (end.map_or(0, Lsn::number) + 1).saturating_sub(args.last);
        Lsn::new(from).map_or(first, |from| from.max(first))
    });
    match begin(from) {
        Err(error @ ReadError::Retired { first, .. }) => {
            say(error);
            begin(first)
        }
        other => other,
    }
}

fn print(args: &Args, view: &View, form: Form, out: &mut Out) -> Result<Outcome, Failure> {
    let mut reader = match start(args, view, |from| view.read(from)) {
        Ok(reader) => reader,
        Err(error) => return told(error, &args.dir, out),
    };
    loop {
        match reader.next() {
            Ok(Some(record)) => out.record(form, &record)?,
            Ok(None) => return Ok(Outcome::Sound),
            Err(error) => {
                if told(error, &args.dir, out)? == Outcome::Damage {
                    return Ok(Outcome::Damage);
                }
            }
        }
    }
}

fn follow(
    args: &Args,
    begun: Result<Follow, ReadError>,
    end: Option<Instant>,
    form: Form,
    out: &mut Out,
) -> Result<Outcome, Failure> {
    let mut follow = match begun {
        Ok(follow) => follow,
        Err(error) => return told(error, &args.dir, out),
    };
    loop {
        let next = match follow.try_next() {
            Ok(Tailed::CaughtUp(_)) => {
                // Whoever reads along sees all that there is before we sleep.
                out.flush()?;
                let left = end.map_or(WAIT, |end| end.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Ok(Outcome::Sound);
                }
                follow.wait_timeout(left.min(WAIT))
            }
            next => next,
        };
        match next {
            Ok(Tailed::Record(record)) => out.record(form, &record)?,
            Ok(_) => {}
            Err(error) => {
                if told(error, &args.dir, out)? == Outcome::Damage {
                    return Ok(Outcome::Damage);
                }
            }
        }
    }
}

/// Says what stands in the way; answers `Sound` where it goes on behind it. What stands in the buffer
/// comes before what is said about it.
fn told(error: ReadError, dir: &Path, out: &mut Out) -> Result<Outcome, Failure> {
    out.flush()?;
    match error {
        ReadError::Broken(finding) => {
            say(finding);
            Ok(Outcome::Damage)
        }
        error @ (ReadError::Lost { .. } | ReadError::NotKept { .. }) => {
            say(error);
            Ok(Outcome::Sound)
        }
        error => Err(super::unread(dir, &error)),
    }
}
