//! Step 7 of a survey: the holes, judged by the table, and where the log ends by that.

use std::io;

use super::{Extra, ExtraKind, FINDINGS_MAX, Hole, Piece, Skip, Survey, Surveyor};
use crate::control::{CONTROL_NAME, FileRow, LossRow, lost_ranges};
use crate::lsn::{Lsn, SegmentId};
use crate::verdict::{Action, Evidence, Finding, Next, Place, Proof, Verdict, judge};

impl Surveyor<'_> {
    /// Step 7 and the table.
    pub(super) fn judge(mut self) -> io::Result<Survey> {
        let holes = std::mem::take(&mut self.holes);
        let mut judged = Judged::default();
        self.judge_control(&mut judged);
        for hole in holes {
            self.judge_hole(hole, &mut judged);
        }
        let (verdict, proof) = judged.verdict();
        let (pieces, last) = self.keep(&judged)?;
        let next = (last + 1).max(self.control.as_ref().map_or(1, |control| control.least_next));
        let closed_cleanly = judged.closed
            || (pieces.is_empty()
                && self
                    .control
                    .as_ref()
                    .is_some_and(|control| control.clean.is_some_and(|clean| clean.segment_id == 0)));
        Ok(Survey {
            closed_cleanly: closed_cleanly && judged.refusal.is_none() && !judged.torn,
            slots: self.slots,
            control: self.control,
            log_id: self.log_id,
            chain: pieces,
            extras: self.extras,
            spares: self.spares,
            findings: judged.findings,
            unlisted: judged.unlisted + self.unnoted,
            losses: judged.losses,
            in_the_way: judged.in_the_way,
            verdict,
            proof,
            refusal: judged.refusal,
            durable: self.durable,
            last,
            next,
            epoch: self.epoch,
            highest_id: self.highest_id,
            bytes_read: self.bytes_read,
            records: self.records,
            segment_files: self.members.len(),
            names: self.names,
            foreign: self.foreign,
            strange_mark: self.strange_mark,
        })
    }

    fn judge_hole(&mut self, hole: Hole, judged: &mut Judged) {
        // A stand-in was whole before it had its name: up to the last LSN that it speaks for.
        let sieve = hole.piece.and_then(|at| self.pieces.get(at)?.sieve.as_ref());
        let spoken_for = sieve.map_or(0, |sieve| sieve.last);
        let proved_to = self.durable.max(spoken_for);
        let mark = hole.due != 0 && (hole.proved || proved_to >= hole.due);
        let missing_to = hole.next.map_or(if mark { proved_to } else { 0 }, |next| next - 1);
        let missing = Lsn::new(hole.due).zip(Lsn::new(missing_to)).filter(|(first, last)| first <= last);
        let accepted = hole.accepted || self.is_accepted(&hole, missing);
        let next = match hole.next {
            None => Next::None,
            Some(next) if next == hole.due => Next::At,
            Some(_) => Next::Beyond,
        };
        let evidence =
            Evidence { place: hole.place, next, mark, reused: hole.reused, clean: hole.clean, accepted };
        let row = judge(&evidence);
        let finding = Finding {
            label: row.label,
            verdict: row.verdict,
            proof: row.proof,
            file: hole.name,
            segment: SegmentId::new(hole.row.segment_id),
            offset: hole.offset,
            lsn: Lsn::new(hole.due),
            missing,
            harmless: row.action != Action::Refuse,
            evidence: if mark && proved_to >= hole.due {
                format!("{}; LSN {proved_to} was proved durable", hole.note)
            } else {
                hole.note
            },
        };
        if let Some(piece) =
            hole.piece.and_then(|at| self.pieces.get_mut(at)).filter(|_| row.action != Action::Cut)
        {
            piece.skips.push(Skip {
                offset: hole.offset,
                to: hole.to.unwrap_or(u64::MAX),
                finding: finding.clone(),
            });
        }
        if matches!(hole.place, Place::Alien | Place::Stray) && !accepted {
            judged.in_the_way.push(finding.file.clone());
        } else if row.action == Action::Refuse {
            let last = missing.map_or(hole.due.saturating_sub(1), |(_, last)| last.number());
            judged.losses.push(LossRow {
                segment_id: hole.row.segment_id,
                file_id: hole.row.file_id,
                offset: hole.offset,
                first: hole.due,
                last,
            });
        }
        let before_the_end = hole.place == Place::Seal
            && judged
                .cut_at
                .and_then(|(piece, ..)| self.pieces.get(piece?))
                .is_none_or(|end| hole.row.segment_id < end.id);
        if judged.cut_at.is_some() && row.action != Action::Refuse && !before_the_end {
            // Behind the end nothing is part of the log; only what may have hidden a mark still counts. But
            // the first write of a segment may have been torn behind an end that looks clean.
            if row.verdict == Verdict::TornTail && hole.place == Place::Link && !judged.torn {
                judged.torn = true;
                judged.add(finding, row.action);
            }
            return;
        }
        if row.action == Action::Cut {
            // Without its link nothing of a segment is kept.
            let offset = if hole.place == Place::Link { 0 } else { hole.offset };
            judged.cut_at = Some((hole.piece, offset, hole.due.saturating_sub(1)));
            judged.torn = row.verdict == Verdict::TornTail;
            judged.closed = hole.clean && row.verdict != Verdict::TornTail;
        }
        judged.add(finding, row.action);
    }

    /// Whether `repair` accepted this place, and all that is missing here: a loss that was accepted in
    /// several rows may come to be seen as one.
    fn is_accepted(&self, hole: &Hole, missing: Option<(Lsn, Lsn)>) -> bool {
        let losses = self.control.as_ref().map_or(&[][..], |control| &control.losses);
        let here = losses.iter().any(|row| {
            row.segment_id == hole.row.segment_id
                && row.offset == hole.offset
                && (row.file_id == hole.row.file_id || hole.row.file_id == 0 || row.file_id == 0)
                && (hole.due == 0 || row.first <= hole.due)
        });
        let covered = missing.is_none_or(|(first, last)| {
            let ranges = lost_ranges(losses.iter(), Vec::new());
            let mut next = first.number();
            for (from, to) in ranges {
                if from.number() <= next {
                    next = next.max(to.number() + 1);
                }
            }
            next > last.number()
        });
        here && covered
    }

    /// The control file's own condition.
    fn judge_control(&self, judged: &mut Judged) {
        let finding = |label, verdict, offset, harmless, evidence: &str| Finding {
            label,
            verdict,
            proof: Proof::Unproved,
            file: CONTROL_NAME.to_owned(),
            segment: None,
            offset,
            lsn: None,
            missing: None,
            harmless,
            evidence: evidence.to_owned(),
        };
        match &self.slots {
            None if self.members.is_empty() => {}
            None => judged.add(
                finding(
                    "control-missing",
                    Verdict::Damaged,
                    0,
                    false,
                    "segments, but no control file; `repair` makes one",
                ),
                Action::Refuse,
            ),
            Some(slots) => {
                if let Some(version) = slots.newer_version() {
                    let evidence = format!("a slot of format version {version}");
                    judged.add(
                        finding("control-newer", Verdict::UnknownVersion, 0, false, &evidence),
                        Action::Refuse,
                    );
                } else if slots.newest().is_none() {
                    judged.add(
                        finding(
                            "control-lost",
                            Verdict::Damaged,
                            0,
                            false,
                            "neither slot checks; `repair` makes a new control file",
                        ),
                        Action::Refuse,
                    );
                } else {
                    for slot in slots.invalid() {
                        let offset = u64::from(slot) * crate::control::SLOT_BYTES;
                        judged.add(
                            finding(
                                "control-slot",
                                Verdict::Clean,
                                offset,
                                true,
                                "this slot does not check, the other one does",
                            ),
                            Action::GoOn,
                        );
                    }
                }
            }
        }
    }

    /// The pieces that hold what is kept; the others become extras.
    fn keep(&mut self, judged: &Judged) -> io::Result<(Vec<Piece>, u64)> {
        let mut pieces = std::mem::take(&mut self.pieces);
        if let Some((piece, offset, last)) = judged.cut_at {
            // A hole outside the pieces (a loose file) cuts nothing of them.
            let kept = piece.map_or(pieces.len(), |at| {
                at + usize::from(offset >= pieces.get(at).map_or(0, |piece| piece.start))
            });
            for piece in pieces.drain(kept.min(pieces.len())..) {
                self.extras.push(abandoned(&piece));
            }
            if let Some(newest) = pieces
                .last_mut()
                .filter(|newest| piece == kept.checked_sub(1) && (newest.end > offset || newest.last > last))
            {
                // Frames behind the place where the log ends were counted on the way.
                *newest = newest.cut_at(self.storage, offset, last).map_err(|error| error.source)?;
            }
        }
        if judged.refusal.is_none()
            && pieces.len() > 1
            && pieces.last().is_some_and(|newest| {
                newest.last < newest.base && newest.sieve.is_none() && newest.skips.is_empty()
            })
        {
            self.extras.extend(pieces.pop().as_ref().map(abandoned));
        }
        let last = pieces
            .last()
            .map_or(self.control.as_ref().map_or(0, |control| control.base.saturating_sub(1)), |newest| {
                newest.last
            });
        Ok((pieces, last))
    }
}

fn abandoned(piece: &Piece) -> Extra {
    Extra {
        name: piece.name.clone(),
        row: Some(FileRow { segment_id: piece.id, file_id: piece.file_id }),
        why: ExtraKind::Abandoned,
    }
}

/// The judgement in the making.
#[derive(Debug, Default)]
struct Judged {
    findings: Vec<Finding>,
    unlisted: u64,
    losses: Vec<LossRow>,
    in_the_way: Vec<String>,
    refusal: Option<Finding>,
    /// Verdict and proof of the end.
    end: Option<(Verdict, Proof)>,
    damaged: bool,
    torn: bool,
    closed: bool,
    /// Piece, offset and last LSN kept at the place where the log ends.
    cut_at: Option<(Option<usize>, u64, u64)>,
}

impl Judged {
    fn add(&mut self, finding: Finding, action: Action) {
        match action {
            Action::Refuse if self.refusal.is_none() => self.refusal = Some(finding.clone()),
            Action::Cut if finding.verdict != Verdict::Damaged => {
                self.end = Some((finding.verdict, finding.proof))
            }
            _ => self.damaged |= finding.verdict == Verdict::Damaged,
        }
        let ordinary_end = action == Action::Cut && finding.verdict == Verdict::Clean;
        if ordinary_end {
            return;
        }
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.unlisted += 1;
        }
    }

    fn verdict(&self) -> (Verdict, Proof) {
        if let Some(refusal) = &self.refusal {
            return (refusal.verdict, refusal.proof);
        }
        if self.damaged {
            return (Verdict::Damaged, Proof::Proved);
        }
        self.end.unwrap_or((Verdict::Clean, if self.closed { Proof::Proved } else { Proof::Unproved }))
    }
}
