//! `dump`: the records, to standard output.

use std::io::IsTerminal;
use std::path::PathBuf;

use planewal::{Lsn, ReadError, Reader, Record, SurveyReport, Verdict, View};

use crate::outcome::{Failure, Outcome};
use crate::parse;
use crate::render::{Form, Out, progress, say};

/// Print records
///
/// One line each: LSN, plane, kind, length in bytes, and the payload with everything escaped that is
/// not plain text. Records that are not there any more are told on standard error. Where the log is
/// damaged, what lies before the damage is printed, and the exit code is 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,

    /// First LSN to print
    #[arg(long, value_name = "LSN", value_parser = parse::lsn)]
    from: Option<Lsn>,

    /// Last LSN to print
    #[arg(long, value_name = "LSN", value_parser = parse::lsn)]
    to: Option<Lsn>,

    /// Only records of this plane
    #[arg(long, value_name = "N", value_parser = parse::tag)]
    plane: Option<u8>,

    /// Only records of this kind
    #[arg(long, value_name = "N", value_parser = parse::tag)]
    kind: Option<u8>,

    /// Print each payload as it is, and a newline
    #[arg(long)]
    raw: bool,

    /// Go on behind damage, with whatever still checks there
    #[arg(long)]
    past_damage: bool,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let form = Form::of(args.raw, json)?;
    if args.from.zip(args.to).is_some_and(|(from, to)| from > to) {
        return Err(Failure::new("--from lies behind --to; swap them"));
    }
    let view = super::look(&args.dir)?.past_damage(args.past_damage);
    let report = view.report();
    let found = Outcome::of(report);
    let mut out = Out::new();
    let printed = print(args, &view, form, &mut out).and_then(|printed| out.flush().map(|()| printed));
    if report.verdict == Verdict::TornTail {
        report.findings.iter().for_each(|finding| say(format_args!("not printed: {finding}")));
    }
    match printed {
        Ok(outcome) => Ok(outcome.and(found)),
        Err(Failure::OutputGone) => Ok(found),
        Err(failure) => Err(failure),
    }
}

fn print(args: &Args, view: &View, form: Form, out: &mut Out) -> Result<Outcome, Failure> {
    let report = view.report();
    let mut reader = match start(args, view) {
        Ok(reader) => reader,
        Err(ReadError::Broken(finding)) => {
            say(finding);
            return Ok(Outcome::Damage);
        }
        Err(error) => return Err(super::unread(&args.dir, &error)),
    };
    let last = args.to.or(report.last).map_or(0, Lsn::number);
    let shown = !std::io::stdout().is_terminal();
    let bar = progress((last + 1).saturating_sub(reader.due().number()), shown);
    let mut done = 0u64;
    loop {
        match reader.next() {
            Ok(Some(record)) if args.to.is_none_or(|to| record.lsn <= to) => {
                if args.wants(&record) {
                    out.record(form, &record)?;
                }
                done += 1;
                if done.is_multiple_of(4096) {
                    bar.set_position(done);
                }
            }
            Ok(_) => break,
            Err(ReadError::Broken(finding)) => {
                // What stands in the buffer comes before what is said about it.
                out.flush()?;
                bar.suspend(|| say(finding));
                return Ok(Outcome::Damage);
            }
            Err(error @ (ReadError::Lost { .. } | ReadError::NotKept { .. })) => {
                out.flush()?;
                bar.suspend(|| say(gap(&error, report)));
            }
            Err(error) => return Err(super::unread(&args.dir, &error)),
        }
    }
    bar.finish_and_clear();
    Ok(Outcome::Sound)
}

/// A reader from where the user wants, or from the first record that is kept.
fn start(args: &Args, view: &View) -> Result<Reader, ReadError> {
    let report = view.report();
    let from = args.from.unwrap_or_else(|| report.first.unwrap_or(report.next));
    match view.read(from) {
        Err(error @ ReadError::Retired { first, .. }) => {
            if args.from.is_some() {
                say(error);
            }
            view.read(first)
        }
        other => other,
    }
}

impl Args {
    fn wants(&self, record: &Record<'_>) -> bool {
        self.plane.is_none_or(|plane| plane == record.plane)
            && self.kind.is_none_or(|kind| kind == record.kind)
    }
}

/// Lost records are either given up by `repair`, or what lies behind damage that is read past.
fn gap(error: &ReadError, report: &SurveyReport) -> String {
    match error {
        ReadError::Lost { first, last }
            if !report.lost.iter().any(|(from, to)| from <= first && last <= to) =>
        {
            format!("LSN {first} to {last} are lost to damage")
        }
        other => other.to_string(),
    }
}
