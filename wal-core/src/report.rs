//! Reports: what a survey found, what a recovery did.

use std::time::Duration;

use crate::chain::{Segment, SegmentInfo};
use crate::control::lost_ranges;
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
    /// LSN ranges that `repair` gave up.
    pub lost: Vec<(Lsn, Lsn)>,
    /// The logs that this one branched from, oldest first.
    pub ancestors: Vec<Ancestor>,
    /// Records seen.
    pub records: u64,
    /// Bytes read for this survey.
    pub bytes_read: u64,
}

/// A file that is no part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtraFile {
    /// Its name.
    pub name: String,
    /// `temporary`, `unused`, `abandoned` or `leftover`.
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
    /// Time for the survey.
    pub scan: Duration,
    /// Time for all of opening.
    pub total: Duration,
}
