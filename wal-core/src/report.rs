//! Reports: what a survey found, what a recovery did.

use std::time::Duration;

use crate::chain::{Segment, SegmentInfo};
use crate::control::lost_ranges;
use crate::hold::{HoldInfo, durable_holds};
use crate::lsn::{LogId, Lsn, SegmentId};
use crate::survey::{Extra, Survey};
use crate::verdict::{Finding, Proof, Verdict};

/// What a directory says about its log.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SurveyReport {
    /// The verdict of the log.
    pub verdict: Verdict,
    /// Whether its claim is shown by evidence.
    pub proof: Proof,
    /// The log, if anything says which.
    pub log_id: Option<LogId>,
    /// Number of writing opens so far.
    pub epoch: u64,
    /// The first LSN that is kept; `None` without records.
    pub first: Option<Lsn>,
    /// The last LSN that is kept; `None` without records.
    pub last: Option<Lsn>,
    /// The next LSN to be given out.
    pub next: Lsn,
    /// The highest LSN that is proved durable.
    pub durable: Option<Lsn>,
    /// Whether the last writer closed the log, and all is as it left it.
    pub closed_cleanly: bool,
    /// Whether it is marked as a backup, which is not written until it is restored.
    pub backup: bool,
    /// The segments, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// Every place worth a word, in chain order.
    pub findings: Vec<Finding>,
    /// Findings beyond those listed.
    pub unlisted_findings: u64,
    /// Files that are no part of the log any more.
    pub extras: Vec<ExtraFile>,
    /// Names of the files of retired segments that are kept to be written again.
    pub spares: Vec<String>,
    /// The durable holds, by name. One without a name stands for holds that cannot be read.
    pub holds: Vec<HoldInfo>,
    /// Where the last writer closed the log; `None` if it did not, or has it open. Whether all is still as it
    /// left it, says `closed_cleanly`.
    pub clean_close: Option<CleanClose>,
    /// LSN ranges that `repair` gave up.
    pub lost: Vec<(Lsn, Lsn)>,
    /// The logs that this one branched from, oldest first.
    pub ancestors: Vec<Ancestor>,
    /// Records seen.
    pub records: u64,
    /// Bytes read for this survey.
    pub bytes_read: u64,
}

/// Where a clean close left a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanClose {
    /// The newest segment then; `None` if the log held none.
    pub segment: Option<SegmentId>,
    /// Where its frames ended.
    pub end: u64,
    /// The last LSN; `None` without records.
    pub last: Option<Lsn>,
}

/// A file that is no part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtraFile {
    /// Its name.
    pub name: String,
    /// `temporary`, `unused`, `abandoned`, `leftover` or `spare` (one that is too many or not fit for use).
    pub why: &'static str,
}

/// A log from which a branch was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ancestor {
    /// Its id.
    pub log_id: LogId,
    /// Its files count up to this segment.
    pub last_segment: SegmentId,
    /// Its last LSN.
    pub last: Option<Lsn>,
}

impl SurveyReport {
    pub(crate) fn new(survey: &Survey) -> SurveyReport {
        let segments: Vec<SegmentInfo> =
            survey.chain.iter().filter_map(|piece| Segment::found(piece.clone()).info()).collect();
        let control = survey.control.as_ref();
        let head = survey.chain.first().map_or(1, |piece| piece.base);
        // Where the head is missing, the control file still knows where the log begins.
        let base = control.map_or(head, |control| control.base.min(head));
        SurveyReport {
            verdict: survey.verdict,
            proof: survey.proof,
            log_id: survey.log_id.and_then(LogId::new),
            epoch: survey.epoch,
            first: Lsn::new(base).filter(|_| survey.last >= base && !segments.is_empty()),
            last: Lsn::new(survey.last).filter(|_| survey.last >= base && !segments.is_empty()),
            next: Lsn::new(survey.next).unwrap_or(Lsn::FIRST),
            durable: Lsn::new(survey.durable),
            closed_cleanly: survey.closed_cleanly,
            backup: control.is_some_and(|control| control.backup),
            segments,
            findings: survey.findings.clone(),
            unlisted_findings: survey.unlisted,
            extras: survey.extras.iter().map(ExtraFile::new).collect(),
            spares: survey.spares.iter().map(|entry| entry.name.clone()).collect(),
            holds: control.map_or_else(Vec::new, |control| {
                durable_holds(control, Lsn::new(base).unwrap_or(Lsn::FIRST))
            }),
            clean_close: control.and_then(|control| control.clean).map(|clean| CleanClose {
                segment: SegmentId::new(clean.segment_id),
                end: clean.end,
                last: Lsn::new(clean.last),
            }),
            lost: control.map_or_else(Vec::new, |control| lost_ranges(control.losses.iter(), Vec::new())),
            ancestors: control.map_or_else(Vec::new, |control| {
                control
                    .ancestors
                    .iter()
                    .filter_map(|row| {
                        Some(Ancestor {
                            log_id: LogId::new(row.log_id)?,
                            last_segment: SegmentId::new(row.last_segment_id)?,
                            last: Lsn::new(row.last_lsn),
                        })
                    })
                    .collect()
            }),
            records: survey.records,
            bytes_read: survey.bytes_read,
        }
    }
}

impl ExtraFile {
    pub(crate) fn new(extra: &Extra) -> ExtraFile {
        ExtraFile { name: extra.name.clone(), why: extra.why.name() }
    }
}

/// What opening for writing found and did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// What was found, before anything was changed.
    pub survey: SurveyReport,
    /// Whether the log was made by this open.
    pub created: bool,
    /// Whether the last run left no clean close.
    pub unclean: bool,
    /// The torn tail that was cut.
    pub torn_tail: Option<Finding>,
    /// Records above the durable mark that were copied into a new segment and synced.
    pub copied: Option<(Lsn, Lsn)>,
    /// There was no room for that copy: the log is readable, and appends are answered `Full` until there is.
    pub copy_pending: bool,
    /// Files that were removed.
    pub removed: Vec<ExtraFile>,
    /// Spares that were found and kept.
    pub spares: u32,
    /// Time for the survey.
    pub scan: Duration,
    /// Time for all of opening.
    pub total: Duration,
}

/// What a call to retire did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetireReport {
    /// What went, oldest first.
    pub retired: Vec<RetiredSegment>,
    /// Bytes of the files that were removed or kept as spares.
    pub bytes: u64,
    /// The first LSN that is kept now, or the next one to come if there is none.
    pub first: Lsn,
    /// The first segment that stayed, and why; `None` if the log has no segment.
    pub stays: Option<StayingSegment>,
}

/// A segment that was retired.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetiredSegment {
    /// Its id.
    pub id: SegmentId,
    /// The LSN of its first record.
    pub base: Lsn,
    /// The LSN of its last record; `None` if it had none.
    pub last: Option<Lsn>,
    /// Bytes of its file.
    pub bytes: u64,
    /// What became of its file.
    pub file: RetiredFile,
}

/// What became of the file of a retired segment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetiredFile {
    /// It was removed.
    Removed,
    /// It is kept under this name, to be written again.
    Spare(String),
    /// It could be neither renamed nor removed, for this reason, and is no part of the log all the same. The
    /// next open removes it.
    LeftBehind(String),
}

/// The first segment that stayed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StayingSegment {
    /// Its id.
    pub id: SegmentId,
    /// The LSN of its first record.
    pub base: Lsn,
    /// The LSN of its last record; `None` while it has none.
    pub last: Option<Lsn>,
    /// Bytes of its file.
    pub bytes: u64,
    /// Why it stayed.
    pub why: KeptBecause,
}

/// Why a segment stayed, the first reason that applies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptBecause {
    /// It is the newest: its end is not linked yet.
    Newest,
    /// Its seal is not written, or no record of its successor is durable yet.
    NotFinished,
    /// It holds records at or above the LSN up to which was to be retired.
    NotBefore,
    /// A hold reaches into it: the lowest of all.
    Held(HoldInfo),
}
