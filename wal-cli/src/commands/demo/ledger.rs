//! The books: what was acknowledged, against what is there in the end.

use std::collections::BTreeMap;

use planewal::{Lsn, ReadError, Wal};

use super::child::{BATCH_LINES_MAX, KIND, PLANE};
use super::round::Ack;
use super::text::{Text, parse_payload};
use crate::outcome::Failure;
use crate::render::say;

/// Everything acknowledged, with the round that it was acknowledged in.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: Vec<(u32, Ack)>,
    last_line: u64,
}

/// The result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Lines acknowledged.
    pub(super) acknowledged: u64,
    /// Records in the log.
    pub(super) recovered: u64,
    /// Lines acknowledged that are not in the log, at their LSN and from their round.
    pub(super) lost: u64,
    /// Records in the log that no child appended there.
    pub(super) invented: u64,
}

impl Tally {
    pub(super) fn is_well(&self) -> bool {
        self.lost == 0 && self.invented == 0
    }
}

/// A record of the log that is what it claims to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    round: u32,
    line: u64,
}

impl Ledger {
    pub(super) fn acknowledge(&mut self, round: u32, acks: &[Ack]) {
        self.entries.extend(acks.iter().map(|ack| (round, *ack)));
        self.last_line = acks.last().map_or(self.last_line, Ack::last_line);
    }

    /// The last line acknowledged that no recovery has been asked for yet.
    pub(super) fn last_line(&self) -> u64 {
        self.last_line
    }

    /// The next child goes on behind this line.
    pub(super) fn restart(&mut self, line: u64) {
        self.last_line = line;
    }

    /// Reads the whole log and compares.
    pub(super) fn compare(&self, wal: &Wal, text: &Text) -> Result<Tally, Failure> {
        let mut found = Vec::new();
        let mut reader = wal.read(Lsn::FIRST)?;
        let mut before = Found { round: 1, line: 0 };
        loop {
            let record = match reader.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                // What cannot be read is lost, and counted as such.
                Err(ReadError::Broken(finding)) => {
                    say(finding);
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            let dense = u64::try_from(found.len()).is_ok_and(|count| record.lsn.number() == count + 1);
            let own = (record.plane, record.kind) == (PLANE, KIND);
            let this = check(record.payload, text, before).filter(|_| dense && own);
            before = this.unwrap_or(Found { line: before.line + 1, ..before });
            found.push(this);
        }
        Ok(self.settle(&found))
    }

    /// `found` are the records in the order of their LSNs; `None` is one that is not what it claims.
    fn settle(&self, found: &[Option<Found>]) -> Tally {
        let at = |lsn: u64| {
            usize::try_from(lsn.wrapping_sub(1)).ok().and_then(|at| found.get(at).copied().flatten())
        };
        let mut tally =
            Tally { recovered: u64::try_from(found.len()).unwrap_or(u64::MAX), ..Tally::default() };
        let mut known = 0u64;
        for (round, ack) in &self.entries {
            for step in 0..ack.count {
                tally.acknowledged += 1;
                if at(ack.lsn + step) == Some(Found { round: *round, line: ack.line + step }) {
                    known += 1;
                } else {
                    tally.lost += 1;
                }
            }
        }
        tally.invented =
            u64::try_from(found.iter().filter(|record| record.is_none()).count()).unwrap_or(u64::MAX);
        tally.invented += self.more_than_unacknowledged(found);
        debug_assert!(known + tally.invented <= tally.recovered, "nothing is both known and invented");
        tally
    }

    /// A child acknowledges a batch before it begins the next: of each round one batch at most can be
    /// there without an acknowledgement. More than that no child can have appended.
    fn more_than_unacknowledged(&self, found: &[Option<Found>]) -> u64 {
        let mut acknowledged = BTreeMap::new();
        for (round, ack) in &self.entries {
            acknowledged.insert(*round, ack.last_line());
        }
        let mut reaches = BTreeMap::new();
        for record in found.iter().flatten() {
            let (_, last) = reaches.entry(record.round).or_insert((record.line - 1, record.line));
            *last = record.line;
        }
        let surplus = |(round, (before, last)): (u32, (u64, u64))| {
            last.saturating_sub(acknowledged.get(&round).copied().unwrap_or(before) + BATCH_LINES_MAX)
        };
        reaches.into_iter().map(surplus).sum()
    }
}

/// Whether a payload is the line that it claims to be, and the one that is due.
fn check(payload: &[u8], text: &Text, before: Found) -> Option<Found> {
    let (round, line, content) = parse_payload(payload)?;
    let due = line == before.line + 1 && round >= before.round;
    (due && content == text.line(line)).then_some(Found { round, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(acks: &[(u32, u64, u64)]) -> Ledger {
        let mut ledger = Ledger::default();
        for &(round, lsn, count) in acks {
            ledger.acknowledge(round, &[Ack { lsn, count, line: lsn }]);
        }
        ledger
    }

    fn found(records: &[(u32, u64)]) -> Vec<Option<Found>> {
        records.iter().map(|&(round, line)| Some(Found { round, line })).collect()
    }

    #[test]
    fn all_there_is_well() {
        let tally = ledger(&[(1, 1, 2), (2, 3, 1)]).settle(&found(&[(1, 1), (1, 2), (2, 3), (2, 4)]));
        assert_eq!(tally, Tally { acknowledged: 3, recovered: 4, lost: 0, invented: 0 });
        assert!(tally.is_well());
    }

    #[test]
    fn a_line_appended_again_by_a_later_round_does_not_hide_its_loss() {
        let tally = ledger(&[(1, 1, 2), (2, 2, 1)]).settle(&found(&[(1, 1), (2, 2)]));
        assert_eq!((tally.acknowledged, tally.lost, tally.invented), (3, 1, 0));
    }

    #[test]
    fn what_no_child_can_have_appended_is_invented() {
        let tally = ledger(&[(1, 1, 1)]).settle(&found(&[(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)]));
        assert_eq!((tally.lost, tally.invented), (0, 1));
        let mut with_a_stranger = found(&[(1, 1)]);
        with_a_stranger.push(None);
        assert_eq!(ledger(&[(1, 1, 1)]).settle(&with_a_stranger).invented, 1);
    }

    #[test]
    fn a_payload_has_to_be_the_line_that_is_due() {
        let text = Text::new(b"a\nb\n".to_vec()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let before = Found { round: 2, line: 1 };
        assert_eq!(check(b"2.2:b", &text, before), Some(Found { round: 2, line: 2 }));
        for wrong in [&b"2.2:a"[..], b"2.3:a", b"1.2:b", b"2.2", b"b"] {
            assert_eq!(check(wrong, &text, before), None);
        }
    }
}
