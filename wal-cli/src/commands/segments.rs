//! `segments`: the files of a log, oldest first.

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use planewal::SegmentInfo;
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::render::{Out, escape, or_none, segments_json, yes};

/// List the segments, oldest first, with the planes in each
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let view = super::look(&args.dir)?;
    let report = view.report();
    let mut out = Out::new();
    if json {
        out.json(&json!({ "segments": segments_json(&report.segments) }))?;
    } else {
        out.line(format_args!("{}", table(&report.segments)))?;
    }
    out.flush()?;
    Ok(Outcome::of(report))
}

fn table(segments: &[SegmentInfo]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "segment", "first", "last", "records", "end", "bytes", "sealed", "sieved", "epoch", "planes", "label",
    ]);
    for segment in segments {
        table.add_row([
            segment.id.to_string(),
            segment.base.to_string(),
            or_none(segment.last),
            segment.records.to_string(),
            segment.end.to_string(),
            segment.file_bytes.to_string(),
            yes(segment.sealed).to_owned(),
            yes(segment.sieved).to_owned(),
            segment.epoch.to_string(),
            planes(segment),
            escape(segment.label.as_bytes()),
        ]);
    }
    for number in 0..6 {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn planes(segment: &SegmentInfo) -> String {
    let counts: Vec<String> =
        segment.planes.iter().map(|plane| format!("0x{:02x}:{}", plane.plane, plane.records)).collect();
    counts.join(" ")
}
