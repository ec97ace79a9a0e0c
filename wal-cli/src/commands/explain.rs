//! `explain`: where one record or segment stands, what is proved about it, and why.

use std::path::PathBuf;

use planewal::{Finding, Lsn, Position, ReadError, Record, SegmentId, SegmentInfo, SurveyReport, View};
use serde_json::{Map, Value};

use crate::outcome::{Failure, Outcome};
use crate::parse::{self, Subject};
use crate::render::{Out, escape, finding_json, or_none, segment_json, yes};

/// Say where a record or a segment stands, what is proved about it, and why
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,

    /// An LSN, segment:N, or the name of a segment file
    #[arg(value_name = "LSN|SEGMENT", value_parser = parse::subject)]
    subject: Subject,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let view = super::look(&args.dir)?.past_damage(true);
    let report = view.report();
    let account = match args.subject {
        Subject::Record(lsn) => of_record(&view, lsn)?,
        Subject::Segment(id) => of_segment(report, id)?,
    };
    let mut out = Out::new();
    if json {
        account.machine(&mut out, report)?
    } else {
        account.human(&mut out, report)?
    }
    out.flush()?;
    Ok(Outcome::of(report))
}

/// What is to be told, in the order of telling.
#[derive(Debug)]
struct Account<'a> {
    fields: Vec<(&'static str, Value)>,
    why: Vec<String>,
    findings: Vec<&'a Finding>,
}

impl<'a> Account<'a> {
    fn new(subject: &'static str, value: impl Into<Value>) -> Account<'a> {
        Account { fields: vec![(subject, value.into())], why: Vec::new(), findings: Vec::new() }
    }

    fn field(&mut self, name: &'static str, value: impl Into<Value>) {
        self.fields.push((name, value.into()));
    }

    fn why(&mut self, reason: impl Into<String>) {
        self.why.push(reason.into());
    }

    fn find(&mut self, report: &'a SurveyReport, concerns: impl Fn(&Finding) -> bool) {
        self.findings = report.findings.iter().filter(|finding| concerns(finding)).collect();
        for finding in &self.findings {
            self.why.push(format!("{}: {}", finding.label, reason(finding.label)));
        }
    }

    fn machine(self, out: &mut Out, report: &SurveyReport) -> Result<(), Failure> {
        let mut object: Map<String, Value> =
            self.fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        object.insert("verdict".to_owned(), report.verdict.to_string().into());
        object.insert("proof".to_owned(), report.proof.to_string().into());
        object.insert("findings".to_owned(), self.findings.into_iter().map(finding_json).collect());
        object.insert("why".to_owned(), self.why.into());
        out.json(&Value::Object(object))
    }

    fn human(self, out: &mut Out, report: &SurveyReport) -> Result<(), Failure> {
        for (name, value) in self.fields.iter().filter(|(_, value)| !value.is_array()) {
            match value {
                Value::String(text) => out.field(name, escape(text.as_bytes()))?,
                Value::Bool(value) => out.field(name, yes(*value))?,
                Value::Null => out.field(name, "none")?,
                other => out.field(name, other)?,
            }
        }
        out.field("log", format_args!("{} ({})", report.verdict, report.proof))?;
        for finding in self.findings {
            out.field("finding", finding)?;
        }
        for reason in self.why {
            out.field("why", reason)?;
        }
        Ok(())
    }
}

fn of_record(view: &View, lsn: Lsn) -> Result<Account<'_>, Failure> {
    let report = view.report();
    let mut account = Account::new("lsn", lsn.number());
    let state = match view.seek(lsn) {
        Ok(position) => {
            let state = look_at(view, lsn, &mut account)?;
            locate(&mut account, report, &position);
            state
        }
        Err(error) => absence(&error, report, lsn, &mut account)?,
    };
    account.fields.insert(1, ("state", state.into()));
    let durable = report.durable.is_some_and(|durable| durable >= lsn);
    account.field("durable", if durable { "proved" } else { "not proved" });
    if durable {
        account.why(format!(
            "a durable mark reaches LSN {}, so this one was on the disk once",
            or_none(report.durable)
        ));
    } else {
        account.why(format!(
            "the highest durable mark is {}: nothing shows that this LSN was ever on the disk",
            or_none(report.durable)
        ));
    }
    let segment = report.segments.iter().find(|segment| holds(segment, lsn)).map(|segment| segment.id);
    account.find(report, |finding| {
        let missing = finding.missing.is_some_and(|(first, last)| first <= lsn && lsn <= last);
        let ends_before =
            finding.missing.is_none() && !finding.harmless && finding.lsn.is_some_and(|due| due <= lsn);
        missing || ends_before || (finding.segment.is_some() && finding.segment == segment)
    });
    Ok(account)
}

fn holds(segment: &SegmentInfo, lsn: Lsn) -> bool {
    segment.base <= lsn && segment.last.is_some_and(|last| lsn <= last)
}

fn locate(account: &mut Account<'_>, report: &SurveyReport, position: &Position) {
    let segment = report.segments.iter().find(|segment| segment.id == position.segment);
    account.field("segment", position.segment.number());
    account
        .field("file", segment.map_or_else(|| position.segment.file_name(), |segment| segment.file.clone()));
    account.field("frame_offset", position.offset);
    account.field("frame_first", position.first.number());
    account.field("frame_last", position.last.number());
    if let Some(segment) = segment {
        account.field("sealed", segment.sealed);
        account.field("epoch", segment.epoch);
    }
}

/// Reads the record itself: its place is known by headers alone.
fn look_at(view: &View, lsn: Lsn, account: &mut Account<'_>) -> Result<&'static str, Failure> {
    let read = match view.read(lsn) {
        Ok(mut reader) => match reader.next() {
            Ok(Some(record)) if record.lsn == lsn => {
                describe(account, &record);
                return Ok("there");
            }
            Ok(_) => return Ok("not there"),
            Err(error) => error,
        },
        Err(error) => error,
    };
    absence(&read, view.report(), lsn, account)
}

fn describe(account: &mut Account<'_>, record: &Record<'_>) {
    account.field("plane", record.plane);
    account.field("kind", record.kind);
    account.field("payload_bytes", record.payload.len());
    account.field("ends_batch", record.ends_batch);
    account.why("its frame checks: header, body, place and file");
}

/// Why a record is not to be had.
fn absence(
    error: &ReadError,
    report: &SurveyReport,
    lsn: Lsn,
    account: &mut Account<'_>,
) -> Result<&'static str, Failure> {
    account.why(match error {
        ReadError::Lost { first, last } if !given_up(report, lsn) => {
            format!("LSN {first} to {last} are lost to damage")
        }
        other => other.to_string(),
    });
    match error {
        ReadError::Ahead { .. } => {
            Ok(if report.last.is_some_and(|last| lsn <= last) { "not there" } else { "not given out yet" })
        }
        ReadError::Retired { .. } | ReadError::NotKept { .. } => Ok("not kept any more"),
        ReadError::Lost { .. } if given_up(report, lsn) => Ok("lost, and given up by repair"),
        ReadError::Lost { .. } | ReadError::Broken(_) => Ok("damaged"),
        other => Err(Failure::new(other)),
    }
}

fn given_up(report: &SurveyReport, lsn: Lsn) -> bool {
    report.lost.iter().any(|(first, last)| *first <= lsn && lsn <= *last)
}

fn of_segment(report: &SurveyReport, id: SegmentId) -> Result<Account<'_>, Failure> {
    let mut account = Account::new("segment", id.number());
    let segment = report.segments.iter().find(|segment| segment.id == id);
    let name = id.file_name();
    let extra = report.extras.iter().find(|extra| extra.name == name);
    let found = report.findings.iter().any(|finding| finding.segment == Some(id));
    match (segment, extra) {
        (Some(segment), _) => describe_segment(&mut account, report, segment),
        (None, Some(extra)) => {
            account.field("state", format!("no part of the log: {}", extra.why));
            account.field("file", name);
            account.why("the next writing open removes it");
        }
        (None, None) if found => {
            account.field("state", "not readable as part of the log");
            account.field("file", name);
        }
        (None, None) => {
            return Err(Failure::new(format_args!(
                "there is no segment {id} in this log; `planewal segments` lists them"
            )));
        }
    }
    account.find(report, |finding| finding.segment == Some(id));
    Ok(account)
}

fn describe_segment(account: &mut Account<'_>, report: &SurveyReport, segment: &SegmentInfo) {
    account.field("state", "part of the log");
    if let Value::Object(fields) = segment_json(segment) {
        for name in [
            "file",
            "base_lsn",
            "last_lsn",
            "records",
            "end",
            "file_bytes",
            "sealed",
            "sieved",
            "epoch",
            "label",
            "planes",
        ] {
            account.field(name, fields.get(name).cloned().unwrap_or(Value::Null));
        }
    }
    let durable = match (segment.last, report.durable) {
        (None, _) => "holds no record",
        (Some(last), Some(durable)) if last <= durable => "proved",
        (Some(_), Some(durable)) if segment.base <= durable => "proved in part",
        _ => "not proved",
    };
    account.field("durable", durable);
    account.why(format!("the highest durable mark of the log is {}", or_none(report.durable)));
    if segment.sealed {
        account.why("a seal that checks ends it");
    } else if report.segments.last().is_some_and(|last| last.id == segment.id) {
        account.why(if report.closed_cleanly {
            "it is the newest, and a clean close names its end"
        } else {
            "it is the newest, and no clean close names its end"
        });
    } else {
        account.why("it has no seal; the link of its successor says where it ends");
    }
    if segment.sieved {
        account.why("it stands for older segments, with the records that were still needed");
    }
}

/// What a row of the verdict table means; the rows are in `docs/recovery.md`.
fn reason(label: &str) -> &'static str {
    match label {
        "accepted-loss" => "repair gave up what is missing here, and reading goes on behind it",
        "unreadable" => "the storage answered with an error",
        "newer-version" => "it checks, but a later version of planewal wrote it",
        "foreign-file" => "the file is no segment of this log",
        "stray-segment" => "no rule explains how this file came here",
        "missing-proved" => "the log names the segment, and a durable mark shows that it held records",
        "missing-unproved" => {
            "the log names the segment: it was there before it got its name, so no crash took it"
        }
        "header-proved" => {
            "the header does not check, and a durable mark shows that the segment held records"
        }
        "header-unproved" => {
            "the header does not check; it was synced before the file got its name, so no crash did this"
        }
        "link-damaged" => "the link does not check, and a durable mark reaches into the segment",
        "link-torn" => {
            "the link does not check, and no durable mark reaches into the segment: its first write was never finished"
        }
        "seal-damaged" => {
            "a clean close wrote a seal here that does not check any more; it holds no record, so nothing is lost"
        }
        "seal-damaged-within" => {
            "the segment was sealed here and its seal does not check any more; it holds no record, so nothing is lost"
        }
        "seal-contradicted" => "a seal does not check, and a durable mark shows that more records were here",
        "seal-overrun" => "a clean close sealed the log here, and frames lie behind it",
        "filler-damaged" => {
            "something without records does not check; the next frame continues exactly, so nothing is lost"
        }
        "filler-torn" => "something without records was never finished; the next frame continues exactly",
        "order-proved" => {
            "a frame contradicts the order of the log, and a durable mark shows that records are missing"
        }
        "order-unproved" => "a frame checks but contradicts the order of the log, which no torn write does",
        "records-damaged" => {
            "a durable mark shows that records were whole on the disk here, and they are not any more"
        }
        "torn-body" | "torn-bytes" => {
            "the last write was never finished, and no durable mark reaches it: it was promised to nobody"
        }
        "torn-hole" => {
            "writes that were never synced reached the disk out of order; no durable mark reaches what is missing"
        }
        "stale-bytes" => "bytes of the file's former life; nothing of this log was here",
        "closed-bytes" => "a clean close names this place as the end",
        "clean-end" => "nothing shows that there was ever more",
        "clean-close" => "a clean close names exactly this end",
        "control-missing" => "there are segments and no control file; repair makes one",
        "control-lost" => "neither slot of the control file checks; repair makes a new one",
        "control-newer" => "a later version of planewal wrote the control file",
        "control-slot" => {
            "one slot of the control file does not check; the other one is enough, and the next writing open writes both"
        }
        _ => "see the verdict table in docs/recovery.md",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the page that the labels come from.
    const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recovery.md"));

    #[test]
    fn every_row_of_the_verdict_table_has_a_reason() {
        let labels =
            PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(label, _)| label);
        let mut count = 0;
        for label in labels {
            assert_ne!(reason(label), reason(""), "{label}");
            count += 1;
        }
        assert!(count > 20, "the table was not found");
    }
}
