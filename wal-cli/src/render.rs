//! What all commands print in the same way: for humans, and as JSON.
//!
//! Bytes of a log may be anything, so nothing of them reaches a terminal unescaped. JSON keeps the
//! order in which its fields are written here.

use std::fmt::{self, Display, Write as _};
use std::io::{self, BufWriter, StdoutLock, Write};

use indicatif::{ProgressBar, ProgressStyle};
use planewal::{Ancestor, ExtraFile, Finding, Lsn, PlaneCount, Record, SegmentInfo, SurveyReport};
use serde_json::{Value, json};

use crate::outcome::Failure;

/// How records are printed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// The payload as it is, and a newline.
    Raw,
    Human,
    Json,
}

impl Form {
    pub(crate) fn of(raw: bool, json: bool) -> Result<Form, Failure> {
        match (raw, json) {
            (true, true) => Err(Failure::new("--raw and --json exclude each other")),
            (true, false) => Ok(Form::Raw),
            (false, true) => Ok(Form::Json),
            (false, false) => Ok(Form::Human),
        }
    }
}

/// Standard output, buffered. A reader that went away ends the command quietly.
#[derive(Debug)]
pub(crate) struct Out {
    writer: BufWriter<StdoutLock<'static>>,
    /// The line in the making: lines are handed on whole, so that a signal cuts none that the buffer holds.
    line: Vec<u8>,
}

impl Out {
    pub(crate) fn new() -> Out {
        Out { writer: BufWriter::with_capacity(64 << 10, io::stdout().lock()), line: Vec::new() }
    }

    pub(crate) fn line(&mut self, line: fmt::Arguments<'_>) -> Result<(), Failure> {
        self.line.clear();
        told(self.line.write_fmt(line))?;
        self.end_line()
    }

    /// Bytes as they are, and a newline.
    fn raw_line(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.line.clear();
        self.line.extend_from_slice(bytes);
        self.end_line()
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        self.line.push(b'\n');
        told(self.writer.write_all(&self.line))
    }

    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        self.line(format_args!("{value}"))
    }

    pub(crate) fn record(&mut self, form: Form, record: &Record<'_>) -> Result<(), Failure> {
        let payload = record.payload;
        match form {
            Form::Raw => self.raw_line(payload),
            Form::Human => self.line(format_args!(
                "{} 0x{:02x} 0x{:02x} {} {}",
                record.lsn,
                record.plane,
                record.kind,
                payload.len(),
                escape(payload)
            )),
            Form::Json => {
                let (name, text) = match std::str::from_utf8(payload) {
                    Ok(text) => ("payload", serde_json::to_string(text)?),
                    Err(_) => ("payload_hex", format!("\"{}\"", hex(payload))),
                };
                let (lsn, plane, kind, ends) = (record.lsn, record.plane, record.kind, record.ends_batch);
                self.line(format_args!(
                    r#"{{"lsn":{lsn},"plane":{plane},"kind":{kind},"ends_batch":{ends},"{name}":{text}}}"#
                ))
            }
        }
    }

    /// A name and its value, aligned with others.
    pub(crate) fn field(&mut self, name: &str, value: impl Display) -> Result<(), Failure> {
        self.line(format_args!("{name:<14} {value}"))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        told(self.writer.flush())
    }
}

fn told(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputGone),
        Err(error) => Err(Failure::new(format_args!("cannot write standard output: {error}"))),
    }
}

/// Says something about the work on standard error. Nobody listening is no failure.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "planewal: {line}");
}

/// A bar on standard error, if that is a terminal and the work is long.
pub(crate) fn progress(length: u64, shown: bool) -> ProgressBar {
    if !shown {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} records, {eta} left");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The same for bytes, whose number is told later.
pub(crate) fn progress_bytes() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Bytes as text on one line that no terminal takes for a command.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' || character.is_control() || is_invisible(character) {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Characters that turn text around or break lines without being control characters.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An LSN, or that there is none.
pub(crate) fn or_none(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "none".to_owned(), |lsn| lsn.to_string())
}

pub(crate) fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

pub(crate) fn lsn_json(lsn: Option<Lsn>) -> Value {
    lsn.map_or(Value::Null, |lsn| lsn.number().into())
}

pub(crate) fn range_json(range: &(Lsn, Lsn)) -> Value {
    json!({ "first": range.0.number(), "last": range.1.number() })
}

pub(crate) fn ranges_json(ranges: &[(Lsn, Lsn)]) -> Value {
    ranges.iter().map(range_json).collect()
}

pub(crate) fn finding_json(finding: &Finding) -> Value {
    json!({
        "segment": finding.segment.map(|segment| segment.number()),
        "file": finding.file,
        "offset": finding.offset,
        "lsn": lsn_json(finding.lsn),
        "label": finding.label,
        "verdict": finding.verdict.to_string(),
        "proof": finding.proof.to_string(),
        "missing": finding.missing.as_ref().map(range_json),
        "harmless": finding.harmless,
        "evidence": finding.evidence,
    })
}

pub(crate) fn findings_json(findings: &[Finding]) -> Value {
    findings.iter().map(finding_json).collect()
}

fn plane_json(plane: &PlaneCount) -> Value {
    json!({
        "plane": plane.plane,
        "records": plane.records,
        "first_lsn": plane.first.number(),
        "last_lsn": plane.last.number(),
    })
}

pub(crate) fn segment_json(segment: &SegmentInfo) -> Value {
    json!({
        "segment": segment.id.number(),
        "file": segment.file,
        "base_lsn": segment.base.number(),
        "last_lsn": lsn_json(segment.last),
        "records": segment.records,
        "end": segment.end,
        "file_bytes": segment.file_bytes,
        "sealed": segment.sealed,
        "sieved": segment.sieved,
        "epoch": segment.epoch,
        "label": segment.label,
        "planes": segment.planes.iter().map(plane_json).collect::<Value>(),
    })
}

pub(crate) fn segments_json(segments: &[SegmentInfo]) -> Value {
    segments.iter().map(segment_json).collect()
}

fn extra_json(extra: &ExtraFile) -> Value {
    json!({ "file": extra.name, "why": extra.why })
}

pub(crate) fn extras_json(extras: &[ExtraFile]) -> Value {
    extras.iter().map(extra_json).collect()
}

pub(crate) fn ancestors_json(ancestors: &[Ancestor]) -> Value {
    ancestors
        .iter()
        .map(|ancestor| json!({ "log_id": ancestor.log_id.to_string(), "last_lsn": lsn_json(ancestor.last) }))
        .collect()
}

/// Findings, one a line, and how many are not listed.
pub(crate) fn findings(out: &mut Out, report: &SurveyReport) -> Result<(), Failure> {
    for finding in &report.findings {
        out.field("finding", finding)?;
    }
    if report.unlisted_findings > 0 {
        out.field("", format_args!("and {} more that are not listed", report.unlisted_findings))?;
    }
    Ok(())
}

pub(crate) fn lost(out: &mut Out, ranges: &[(Lsn, Lsn)]) -> Result<(), Failure> {
    for (first, last) in ranges {
        out.field("lost", format_args!("LSN {first} to {last}, given up by repair"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_unescaped() {
        assert_eq!(escape("plain, grüße".as_bytes()), "plain, grüße");
        assert_eq!(escape(b"a\nb\x1b[2J\\"), "a\\nb\\u{1b}[2J\\\\");
        assert_eq!(escape(b"\xff\x00"), "\\xff\\u{0}");
        assert_eq!(escape("\u{202e}\u{9b}".as_bytes()), "\\u{202e}\\u{9b}");
        assert_eq!(hex(b"\x00\xff"), "00ff");
    }
}
