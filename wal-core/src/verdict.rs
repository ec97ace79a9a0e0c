//! The verdict: what a place that does not check means, as a table.
//!
//! A torn tail is told apart from damage by proof. Every frame and every control slot carries the
//! durable mark of its moment; a mark that reaches the LSN that is due proves that it was on disk
//! once. The rows below are the rows of `docs/recovery.md`, by the same labels; a test walks every
//! combination of evidence and demands exactly one row.

use std::fmt;

use crate::lsn::{Lsn, SegmentId};

/// What a log, or a place in it, was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing contradicts that this is all of the log.
    Clean,
    /// The last group was not finished when the log stopped; what was cut had been promised to nobody.
    TornTail,
    /// Bytes that were whole once are not any more, or the log contradicts itself.
    Damaged,
    /// A segment that the chain or the control file names is not there.
    MissingSegment,
    /// A file stands where a segment of this log should, and is none.
    ForeignFile,
    /// Written by a later version of planewal.
    UnknownVersion,
    /// The storage answered with an error.
    Unreadable,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Whether a verdict's claim is shown by evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// A durable mark, or a clean close, shows it.
    Proved,
    /// It is the best explanation; nothing shows it.
    Unproved,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One place of a log that is worth a word, with the verdict on it and the evidence for that.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The row of the verdict table, as `docs/recovery.md` calls it.
    pub label: &'static str,
    /// What the place was found to be.
    pub verdict: Verdict,
    /// Whether that is shown.
    pub proof: Proof,
    /// The file, by name.
    pub file: String,
    /// The segment, where the file is or should be one.
    pub segment: Option<SegmentId>,
    /// Byte offset in the file.
    pub offset: u64,
    /// The LSN that was due there.
    pub lsn: Option<Lsn>,
    /// Records that are missing at least: first and last LSN.
    pub missing: Option<(Lsn, Lsn)>,
    /// Whether a writing open goes on in spite of it, losing nothing that was promised.
    pub harmless: bool,
    /// What was seen, in words.
    pub evidence: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, {}): {} at offset {}",
            self.verdict, self.proof, self.label, self.file, self.offset
        )?;
        if let Some(lsn) = self.lsn {
            write!(f, ", LSN {lsn}")?;
        }
        if let Some((first, last)) = self.missing {
            write!(f, ", missing LSN {first} to {last}")?;
        }
        write!(f, ": {}", self.evidence)
    }
}

/// What lies at a place that does not check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Io,
    Alien,
    Newer,
    Absent,
    Header,
    Link,
    Stray,
    Order,
    Body,
    Short,
    Bytes,
    End,
    Seal,
}

impl Place {
    #[cfg(test)]
    const ALL: [Place; 13] = [
        Place::Io,
        Place::Alien,
        Place::Newer,
        Place::Absent,
        Place::Header,
        Place::Link,
        Place::Stray,
        Place::Order,
        Place::Body,
        Place::Short,
        Place::Bytes,
        Place::End,
        Place::Seal,
    ];
}

/// Where the next valid frame starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    None,
    /// Exactly at the LSN that is due: no record is missing.
    At,
    Beyond,
}

/// Everything that the table looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) place: Place,
    pub(crate) next: Next,
    /// Some durable mark reaches the LSN that is due.
    pub(crate) mark: bool,
    /// The file held other bytes in a former life.
    pub(crate) reused: bool,
    /// The clean-close proof names this place as the end.
    pub(crate) clean: bool,
    /// `repair` accepted the loss at this place.
    pub(crate) accepted: bool,
}

/// What opening does about a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Refuse,
    /// Nothing that was due is missing, or its loss was accepted.
    GoOn,
    /// The log ends before it, and whatever lies behind is abandoned.
    Cut,
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) label: &'static str,
    places: &'static [Place],
    next: &'static [Next],
    mark: Option<bool>,
    reused: Option<bool>,
    clean: Option<bool>,
    accepted: Option<bool>,
    pub(crate) verdict: Verdict,
    pub(crate) proof: Proof,
    pub(crate) action: Action,
}

impl Row {
    fn matches(&self, evidence: &Evidence) -> bool {
        self.places.contains(&evidence.place)
            && self.next.contains(&evidence.next)
            && self.mark.is_none_or(|mark| mark == evidence.mark)
            && self.reused.is_none_or(|reused| reused == evidence.reused)
            && self.clean.is_none_or(|clean| clean == evidence.clean)
            && self.accepted.is_none_or(|accepted| accepted == evidence.accepted)
    }
}

/// The row for some evidence.
pub(crate) fn judge(evidence: &Evidence) -> &'static Row {
    let Some(row) = TABLE.iter().find(|row| row.matches(evidence)) else {
        unreachable!("the table has a row for every combination, which a test walks: {evidence:?}")
    };
    row
}

const ANY: &[Next] = &[Next::None, Next::At, Next::Beyond];
const LACKS: &[Next] = &[Next::None, Next::Beyond];
const FRAMES: &[Place] = &[Place::Order, Place::Body, Place::Short, Place::Bytes, Place::End];
const ACCEPTABLE: &[Place] = &[
    Place::Io,
    Place::Alien,
    Place::Absent,
    Place::Header,
    Place::Link,
    Place::Stray,
    Place::Order,
    Place::Body,
    Place::Short,
    Place::Bytes,
    Place::End,
    Place::Seal,
];

/// A row before its conditions are narrowed.
const fn row(
    label: &'static str,
    places: &'static [Place],
    next: &'static [Next],
    verdict: Verdict,
    proof: Proof,
    action: Action,
) -> Row {
    Row {
        label,
        places,
        next,
        mark: None,
        reused: None,
        clean: None,
        accepted: Some(false),
        verdict,
        proof,
        action,
    }
}

const fn marked(mark: bool, row: Row) -> Row {
    Row { mark: Some(mark), ..row }
}

use Action::{Cut, GoOn, Refuse};
use Proof::{Proved, Unproved};
use Verdict::{Clean, Damaged, ForeignFile, MissingSegment, TornTail, UnknownVersion, Unreadable};

/// The verdict table.
pub(crate) static TABLE: [Row; 27] = [
    Row { accepted: Some(true), ..row("accepted-loss", ACCEPTABLE, ANY, Clean, Proved, GoOn) },
    row("unreadable", &[Place::Io], ANY, Unreadable, Unproved, Refuse),
    Row { accepted: None, ..row("newer-version", &[Place::Newer], ANY, UnknownVersion, Unproved, Refuse) },
    row("foreign-file", &[Place::Alien], ANY, ForeignFile, Unproved, Refuse),
    row("stray-segment", &[Place::Stray], ANY, ForeignFile, Unproved, Refuse),
    marked(true, row("missing-proved", &[Place::Absent], ANY, MissingSegment, Proved, Refuse)),
    marked(false, row("missing-unproved", &[Place::Absent], ANY, MissingSegment, Unproved, Refuse)),
    marked(true, row("header-proved", &[Place::Header], ANY, Damaged, Proved, Refuse)),
    marked(false, row("header-unproved", &[Place::Header], ANY, Damaged, Unproved, Refuse)),
    marked(true, row("link-damaged", &[Place::Link], ANY, Damaged, Proved, Refuse)),
    marked(false, row("link-torn", &[Place::Link], ANY, TornTail, Unproved, Cut)),
    marked(false, row("seal-damaged", &[Place::Seal], &[Next::None], Damaged, Proved, Cut)),
    row("seal-damaged-within", &[Place::Seal], &[Next::At], Damaged, Proved, GoOn),
    marked(true, row("seal-contradicted", &[Place::Seal], &[Next::None], Damaged, Proved, Refuse)),
    row("seal-overrun", &[Place::Seal], &[Next::Beyond], Damaged, Unproved, Refuse),
    marked(true, row("filler-damaged", FRAMES, &[Next::At], Damaged, Proved, GoOn)),
    marked(false, row("filler-torn", FRAMES, &[Next::At], Clean, Unproved, GoOn)),
    marked(true, row("order-proved", &[Place::Order], LACKS, Damaged, Proved, Refuse)),
    marked(false, row("order-unproved", &[Place::Order], LACKS, Damaged, Unproved, Refuse)),
    marked(
        true,
        row(
            "records-damaged",
            &[Place::Body, Place::Short, Place::Bytes, Place::End],
            LACKS,
            Damaged,
            Proved,
            Refuse,
        ),
    ),
    marked(false, row("torn-body", &[Place::Body, Place::Short], LACKS, TornTail, Unproved, Cut)),
    marked(false, row("torn-hole", &[Place::Bytes, Place::End], &[Next::Beyond], TornTail, Unproved, Cut)),
    marked(
        false,
        Row {
            reused: Some(false),
            clean: Some(false),
            ..row("torn-bytes", &[Place::Bytes], &[Next::None], TornTail, Unproved, Cut)
        },
    ),
    marked(
        false,
        Row {
            reused: Some(true),
            clean: Some(false),
            ..row("stale-bytes", &[Place::Bytes], &[Next::None], Clean, Unproved, Cut)
        },
    ),
    marked(
        false,
        Row { clean: Some(true), ..row("closed-bytes", &[Place::Bytes], &[Next::None], Clean, Proved, Cut) },
    ),
    marked(
        false,
        Row { clean: Some(false), ..row("clean-end", &[Place::End], &[Next::None], Clean, Unproved, Cut) },
    ),
    marked(
        false,
        Row { clean: Some(true), ..row("clean-close", &[Place::End], &[Next::None], Clean, Proved, Cut) },
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn combinations() -> impl Iterator<Item = Evidence> {
        let flags = [false, true];
        Place::ALL.into_iter().flat_map(move |place| {
            [Next::None, Next::At, Next::Beyond].into_iter().flat_map(move |next| {
                (0..16_u8).map(move |bits| {
                    let [mark, reused, clean, accepted] = [0, 1, 2, 3]
                        .map(|bit| flags.contains(&(bits >> bit & 1 == 1)) && bits >> bit & 1 == 1);
                    Evidence { place, next, mark, reused, clean, accepted }
                })
            })
        })
    }

    #[test]
    fn every_combination_finds_exactly_one_row() {
        let mut seen = 0;
        for evidence in combinations() {
            let rows: Vec<_> =
                TABLE.iter().filter(|row| row.matches(&evidence)).map(|row| row.label).collect();
            assert_eq!(rows.len(), 1, "{evidence:?} finds {rows:?}");
            seen += 1;
        }
        assert_eq!(seen, 13 * 3 * 16);
    }

    #[test]
    fn every_row_is_found() {
        for row in &TABLE {
            assert!(combinations().any(|evidence| row.matches(&evidence)), "{}", row.label);
        }
    }

    #[test]
    fn what_a_mark_reaches_is_never_cut() {
        for evidence in combinations().filter(|evidence| evidence.mark) {
            assert_ne!(judge(&evidence).action, Cut, "{evidence:?}");
        }
    }

    #[test]
    fn the_page_has_the_same_rows() {
        let page = include_str!("../../docs/recovery.md");
        let documented: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let coded: Vec<&str> = TABLE.iter().map(|row| row.label).collect();
        assert_eq!(documented, coded);
    }
}
