//! Taking whole segments off the head of the chain, and the durable holds that forbid it.
//!
//! The order is one that a crash may interrupt anywhere: first both control slots say where the log begins
//! now, then the chain in memory, then the files go, then the directory is synced. What is still there after a
//! crash lies below the first kept segment, and the next open removes it. Nothing here needs room.

use std::sync::Arc;

use super::{Gate, without};
use crate::chain::Segment;
use crate::error::{AppendError, HoldError, Poison, RetireError, StorageError};
use crate::hold::{Change, Hold, HoldInfo};
use crate::lsn::{Lsn, SegmentId};
use crate::report::{KeptBecause, RetireReport, RetiredFile, RetiredSegment, StayingSegment};
use crate::spare::{is_fit, spare_name, spares};
use crate::storage::Entry;

/// Why work on files beside the writer was not begun, or was not done.
enum Refused {
    Closed,
    Poisoned(Arc<Poison>),
    Full(StorageError),
}

impl From<Refused> for RetireError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Closed => RetireError::Closed,
            Refused::Poisoned(poison) => RetireError::Poisoned(poison),
            Refused::Full(error) => RetireError::Full(error),
        }
    }
}

impl From<Refused> for HoldError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Closed => HoldError::Closed,
            Refused::Poisoned(poison) => HoldError::Poisoned(poison),
            Refused::Full(error) => HoldError::Full(error),
        }
    }
}

/// The chain and the segments that may still be sealed, at one moment: one that has a successor was left
/// before that, so it is among the latter or its seal is written.
struct Moment {
    segments: Vec<Arc<Segment>>,
    unsealed: Vec<u64>,
}

/// What goes and what does not.
struct Decision {
    /// The first segment that stays, if any goes.
    first_kept: Option<Arc<Segment>>,
    stays: Option<StayingSegment>,
}

impl Gate {
    /// Retires the segments at the head that are finished, not held, and end before `before`.
    pub(crate) fn retire(&self, before: Lsn) -> Result<RetireReport, RetireError> {
        // One at a time: how many spares there are is counted in the directory.
        let _alone = self.retiring.lock();
        let outcome = self.beside_the_writer(|moment| {
            let decision = self.decide(before, moment);
            let retired = match &decision.first_kept {
                Some(first_kept) => {
                    self.move_head(first_kept).inspect_err(|_| self.holds.undecide())?;
                    self.remove_files(self.chain.retire_before(first_kept.id))?
                }
                None => Vec::new(),
            };
            let gone = retired.iter().filter(|segment| !matches!(segment.file, RetiredFile::LeftBehind(_)));
            Ok(RetireReport {
                bytes: gone.map(|segment| segment.bytes).sum(),
                retired,
                first: self
                    .chain
                    .first()
                    .and_then(Lsn::new)
                    .unwrap_or_else(|| Lsn::new(self.chain.next()).unwrap_or(Lsn::FIRST)),
                stays: decision.stays,
            })
        });
        Ok(outcome?)
    }

    /// Holds everything that is there for somebody who reads. Waits for a retirement that is under way: what it
    /// has decided on is still on the chain, and cannot be held any more.
    pub(crate) fn hold_everything(&self, name: &str) -> Option<Hold> {
        let _alone = self.retiring.lock();
        let first = self.chain.first().unwrap_or_else(|| self.chain.next());
        self.holds.take_for_reading(name, Lsn::new(first)?).ok()
    }

    /// Changes a durable hold in both slots before it returns.
    pub(crate) fn change_hold(&self, name: &str, change: Change) -> Result<(), HoldError> {
        let mut refusal = None;
        let outcome = self.beside_the_writer(|_| {
            let mut control = self.control.lock();
            let sections = match self.holds.begin(name, change, &control.state.sections) {
                Ok(sections) => sections,
                Err(error) => {
                    refusal = Some(error);
                    return Ok(());
                }
            };
            let former = std::mem::replace(&mut control.state.sections, sections);
            let written = control.write_both();
            if written.is_err() {
                control.state.sections = former;
            }
            self.holds.settle(name, change, written.is_ok());
            written
        });
        outcome?;
        refusal.map_or(Ok(()), Err)
    }

    /// Does work on files that nobody commits to. A log that is closed or poisoned refuses; one that is being
    /// closed waits for it.
    fn beside_the_writer<T>(
        &self,
        work: impl FnOnce(Moment) -> Result<T, StorageError>,
    ) -> Result<T, Refused> {
        let _telling = self.events.telling();
        let mut state = self.state.lock();
        match self.refusal(&state) {
            Some(AppendError::Poisoned(poison)) => return Err(Refused::Poisoned(poison)),
            Some(_) => return Err(Refused::Closed),
            None => state.busy += 1,
        }
        let moment = Moment {
            unsealed: state.finished.iter().map(|active| active.segment.id).collect(),
            segments: self.chain.segments(),
        };
        let outcome = without(&mut state, || work(moment));
        state.busy -= 1;
        self.ring();
        self.release_if_idle(&state);
        outcome.map_err(|error| match error.is_full() {
            true => Refused::Full(error),
            false => {
                let poison = self.poison(&mut state, &error);
                drop(self.wake(state));
                Refused::Poisoned(poison)
            }
        })
    }

    /// Chooses what goes, under the lock that holds are taken with: no hold below the first LSN kept is let in
    /// from here on.
    fn decide(&self, before: Lsn, moment: Moment) -> Decision {
        let Moment { segments, unsealed } = moment;
        let durable = self.chain.durable();
        self.holds.decide(|lowest| {
            let why = |at: usize, segment: &Segment| {
                let successor = segments.get(at + 1).map(|next| next.base);
                why_kept(segment, successor, durable, &unsealed, before, lowest)
            };
            let first = segments.iter().enumerate().find_map(|(at, one)| Some((at, one, why(at, one)?)));
            let kept = first.as_ref().filter(|(at, ..)| *at > 0).map(|(_, segment, _)| Arc::clone(segment));
            let base = kept.as_ref().map(|segment| segment.base);
            let stays = first.and_then(|(_, segment, why)| staying(segment, why));
            (Decision { first_kept: kept, stays }, base)
        })
    }

    /// Both slots: where the log begins. In place, so it needs no room.
    fn move_head(&self, first_kept: &Segment) -> Result<(), StorageError> {
        let mut control = self.control.lock();
        let former = (control.state.first_kept, control.state.base);
        (control.state.first_kept, control.state.base) = (first_kept.id, first_kept.base);
        // Their successors' links are durable, so nobody asks for these rows any more.
        control.state.begun.retain(|begun| begun.file.segment_id >= first_kept.id);
        control.state.durable = control.state.durable.max(self.chain.durable());
        control.write_both().inspect_err(|_| (control.state.first_kept, control.state.base) = former)
    }

    /// Removes the files of retired segments, or keeps them as spares, and makes that durable.
    fn remove_files(&self, retired: Vec<Arc<Segment>>) -> Result<Vec<RetiredSegment>, StorageError> {
        let storage = &self.chain.storage;
        let mut entries =
            if self.options.spares > 0 { storage.list().unwrap_or_default() } else { Vec::new() };
        let mut gone = Vec::new();
        for segment in retired {
            let Some((id, base)) = SegmentId::new(segment.id).zip(Lsn::new(segment.base)) else { continue };
            let (last, _) = segment.reach();
            let bytes = segment.with_extent(|extent| extent.file_bytes);
            let spare = self.keep_as_spare(segment, &mut entries);
            let name = id.file_name();
            let file = match spare {
                Some(spare) => RetiredFile::Spare(spare),
                None => match storage.remove(&name) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        RetiredFile::LeftBehind(error.to_string())
                    }
                    _ => RetiredFile::Removed,
                },
            };
            let last = Lsn::new(last).filter(|last| *last >= base);
            gone.push(RetiredSegment { id, base, last, bytes, file });
        }
        storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
        Ok(gone)
    }

    /// Gives a retired file the name of a spare, if one is wanted and it is fit. A rename that fails is as good
    /// as none.
    fn keep_as_spare(&self, segment: Arc<Segment>, entries: &mut [Entry]) -> Option<String> {
        let spare = spare_name(segment.id);
        let enough = spares(entries).len() >= usize::try_from(self.options.spares).unwrap_or(usize::MAX);
        let entry = entries.iter_mut().find(|entry| entry.name == segment.name)?;
        // Bytes behind its end would be of a life that nobody remembers the salt of.
        let cut = segment.with_extent(|extent| extent.sealed || extent.file_bytes == extent.end);
        let whole = cut && segment.skips.is_empty() && !segment.sieved;
        if enough || !whole || !is_fit(entry, self.options.segment_bytes) {
            return None;
        }
        // A reader that is in it goes on with what it has open, so nobody may write to that.
        Arc::into_inner(segment)?;
        self.chain.storage.rename(&entry.name, &spare).ok()?;
        entry.name.clone_from(&spare);
        Some(spare)
    }
}

/// The first reason for which a segment stays.
fn why_kept(
    segment: &Segment,
    successor: Option<u64>,
    durable: u64,
    unsealed: &[u64],
    before: Lsn,
    lowest: Option<&HoldInfo>,
) -> Option<KeptBecause> {
    let Some(successor) = successor else { return Some(KeptBecause::Newest) };
    // A record of the successor is durable only if this one's closing sync has returned.
    if successor > durable || unsealed.contains(&segment.id) {
        return Some(KeptBecause::NotFinished);
    }
    let (last, _) = segment.reach();
    if last >= before.number() {
        return Some(KeptBecause::NotBefore);
    }
    let held = lowest.filter(|hold| last >= hold.lsn.number());
    held.map(|hold| KeptBecause::Held(hold.clone()))
}

fn staying(segment: &Segment, why: KeptBecause) -> Option<StayingSegment> {
    let (id, base) = SegmentId::new(segment.id).zip(Lsn::new(segment.base))?;
    let (last, _) = segment.reach();
    let last = Lsn::new(last).filter(|last| *last >= base);
    Some(StayingSegment { id, base, last, bytes: segment.with_extent(|extent| extent.file_bytes), why })
}
