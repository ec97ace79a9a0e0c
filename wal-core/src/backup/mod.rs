//! Online backup: a proved prefix of a log, copied beside its writer, and verified from the copy.
//!
//! The durable mark is read first, and then the segments that reach up to it: what lies below the mark
//! does not change any more, so no lock is needed and no writer waits. Files keep their names, ids and
//! bytes; the newest is cut behind the frame that holds the mark. The control file is made last, so that a
//! backup that was interrupted is segments without a control file, which nobody takes for a log. It says
//! *backup*: a writing open refuses, until `restore` begins a branch.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chain::{Chain, Segment};
use crate::control::{BegunRow, CONTROL_NAME, ControlState, FileRow, Slots};
use crate::error::{BackupError, StorageError};
use crate::lsn::{LogId, Lsn};
use crate::storage::{Access, FsStorage, Storage};
use crate::survey::{Piece, Survey};
use crate::verdict::{Finding, Verdict};
use crate::view::View;
use crate::wal::Wal;
use part::Part;
use target::Target;

mod part;
mod target;

/// Looks at slots that are being written, before they are taken for rotten.
const LOOKS: u32 = 64;

/// What a backup holds, as it was read again from there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// The log that it is of; the backup has the same id until it is restored.
    pub log_id: LogId,
    /// The first LSN in it; `None` without records.
    pub first: Option<Lsn>,
    /// The last LSN in it; `None` without records.
    pub last: Option<Lsn>,
    /// The durable mark up to which it was made. `last`, but where `repair` gave up what lay before it.
    pub durable: Option<Lsn>,
    /// Number of segments.
    pub segments: u64,
    /// Bytes copied, without the control file.
    pub bytes: u64,
    /// Time for copying and verifying.
    pub duration: Duration,
}

/// Told after each step of at most 1 MiB: bytes copied so far, and at most to come in all.
type Watch<'a> = &'a mut dyn FnMut(u64, u64);

impl Wal {
    /// Copies everything that is durable now into an empty or a new directory, and verifies the copy.
    ///
    /// Appends, rotations and syncs go on meanwhile, and what they add is not in the copy. The directory is
    /// made with mode 0700, its files with 0600; all of it is synced when this returns. The copy is read
    /// again from the destination, every byte, and has to check and to end with the mark. It opens
    /// as a [`View`], and for writing after [`restore`](crate::restore). Memory is bounded by 2 MiB and the
    /// largest group.
    ///
    /// A crash leaves segments without a control file, which every open refuses, or a complete backup; so
    /// does an error, unless all that was copied could be removed. A log of which nothing is durable
    /// has a backup of a control file alone.
    ///
    /// # Errors
    /// See [`BackupError`]. The log itself is only read, whatever happens.
    pub fn backup_to(&self, dir: impl AsRef<Path>) -> Result<BackupReport, BackupError> {
        let _hold = self.hold_for_backup();
        into_dir(Plan::of_writer(self.chain())?, dir.as_ref(), &mut |_, _| {})
    }

    /// The same, onto a storage that holds nothing.
    ///
    /// # Errors
    /// As [`Wal::backup_to`].
    pub fn backup_to_storage(&self, destination: Arc<dyn Storage>) -> Result<BackupReport, BackupError> {
        let _hold = self.hold_for_backup();
        Plan::of_writer(self.chain())?.run(destination, &mut |_, _| {})
    }
}

impl View {
    /// Copies what was proved durable when the view was opened, as [`Wal::backup_to`] does: without a lock,
    /// and beside a writer in another process.
    ///
    /// # Errors
    /// See [`BackupError`]; [`BackupError::Refused`] where a writing open would refuse the log. A torn tail is
    /// no reason, as it lies above the mark.
    pub fn backup_to(&self, dir: impl AsRef<Path>) -> Result<BackupReport, BackupError> {
        self.backup_to_watched(dir, &mut |_, _| {})
    }

    /// The same, telling how far it is: `watch` is called with the bytes that are copied and an upper bound
    /// of all there are, at least once for each MiB. Verifying takes about as long again, and is not told.
    ///
    /// # Errors
    /// As [`View::backup_to`].
    pub fn backup_to_watched(
        &self,
        dir: impl AsRef<Path>,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<BackupReport, BackupError> {
        into_dir(Plan::of_view(self)?, dir.as_ref(), watch)
    }

    /// The same, onto a storage that holds nothing.
    ///
    /// # Errors
    /// As [`View::backup_to`].
    pub fn backup_to_storage(&self, destination: Arc<dyn Storage>) -> Result<BackupReport, BackupError> {
        Plan::of_view(self)?.run(destination, &mut |_, _| {})
    }
}

fn into_dir(plan: Plan, dir: &Path, watch: Watch<'_>) -> Result<BackupReport, BackupError> {
    let storage = FsStorage::new(dir);
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let here = real(Path::new(&plan.chain.storage.describe()));
    if here.is_some() && here == real(dir) {
        return Err(BackupError::SameLog { dir: storage.describe() });
    }
    storage.make_dir().map_err(|error| BackupError::Destination {
        dir: storage.describe(),
        source: StorageError::new("create", storage.describe(), error),
    })?;
    plan.run(Arc::new(storage), watch)
}

/// What is going to be copied: decided before the destination is touched.
struct Plan {
    chain: Arc<Chain>,
    /// The slots of the backup.
    state: ControlState,
    durable: u64,
    parts: Vec<Part>,
}

impl Plan {
    /// The slots first, then the mark, then the segments: sections of the slots may rest on what was durable
    /// before, and the segments reach the mark at least.
    fn of_writer(chain: &Arc<Chain>) -> Result<Plan, BackupError> {
        for _ in 0..LOOKS {
            let state = read_slots(&*chain.storage)?;
            let durable = chain.durable();
            if state.epoch != chain.epoch || state.log_id != chain.log_id() {
                // Another open, or a repair, has the log now: it is not the one of this handle any more.
                break;
            }
            let base = state.base;
            let plan = Plan::new(chain, state, durable);
            // A head that was retired in between: the slots are looked at again.
            let retired = plan.parts.first().is_some_and(|head| head.segment.base > base);
            if !retired || chain.lost(base).is_some() {
                return Ok(plan);
            }
        }
        Err(BackupError::Changed { dir: chain.storage.describe(), file: CONTROL_NAME.to_owned() })
    }

    fn of_view(view: &View) -> Result<Plan, BackupError> {
        let chain = &view.chain;
        let dir = chain.storage.describe();
        if let Some(finding) = chain.refusal() {
            return Err(BackupError::Refused { dir, finding: Box::new(finding.clone()) });
        }
        let Some(state) = view.control.clone() else {
            unreachable!("a log without a control file is refused")
        };
        Ok(Plan::new(chain, state, chain.durable()))
    }

    fn new(chain: &Arc<Chain>, mut state: ControlState, durable: u64) -> Plan {
        let needed = |segment: &Arc<Segment>| segment.base <= durable && segment.id >= state.first_kept;
        let parts: Vec<Part> =
            chain.segments().into_iter().filter(needed).map(|s| Part::new(s, durable)).collect();
        let row = |segment: &Segment| FileRow { segment_id: segment.id, file_id: segment.file_id };
        state.begun = parts
            .last()
            .map(|part| BegunRow { file: row(&part.segment), must_exist: true })
            .into_iter()
            .collect();
        state.abandoned.clear();
        state.clean = None;
        state.backup = true;
        state.durable = durable;
        // What the log gave out above the mark is not in the copy. What it gave up stays given up.
        let lost_to = state.losses.iter().map(|row| row.last).max().unwrap_or(0);
        state.least_next = durable.max(lost_to) + 1;
        Plan { chain: Arc::clone(chain), state, durable, parts }
    }

    fn run(self, destination: Arc<dyn Storage>, watch: Watch<'_>) -> Result<BackupReport, BackupError> {
        let begun = Instant::now();
        let source = &*self.chain.storage;
        let mut target = Target::take(source, destination)?;
        let (mut bytes, most) = (0, self.parts.iter().map(Part::bytes_at_most).sum());
        let mut sealed = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let mut file = target.create(&part.segment.name)?;
            let has_seal = part.read(source, self.durable, &mut |piece| {
                file.put(piece)?;
                bytes += crate::wire::len64(piece.len());
                watch(bytes, most);
                Ok(())
            })?;
            file.finish()?;
            sealed.push(has_seal);
        }
        target.finish(self.state.clone())?;
        let last = self.verify(&target, &sealed)?;
        target.keep();
        watch(bytes, bytes);
        let base = self.parts.first().map_or(last + 1, |part| part.segment.base);
        let Some(log_id) = LogId::new(self.state.log_id) else {
            unreachable!("the id of a slot that checks is not zero")
        };
        Ok(BackupReport {
            log_id,
            first: Lsn::new(base).filter(|_| last >= base),
            last: Lsn::new(last).filter(|_| last >= base),
            durable: Lsn::new(self.durable),
            segments: u64::try_from(self.parts.len()).unwrap_or(u64::MAX),
            bytes,
            duration: begun.elapsed(),
        })
    }

    /// Reads the copy again: it has to check, and to be all of what was copied. Answers its last LSN.
    fn verify(&self, target: &Target, sealed: &[bool]) -> Result<u64, BackupError> {
        let copy = Survey::new(target.storage()).map_err(|error| BackupError::Destination {
            dir: target.dir(),
            source: StorageError::new("read again", target.dir(), error),
        })?;
        let bad = copy.refusal.as_ref().or_else(|| copy.findings.iter().find(|found| !self.is_known(found)));
        if let Some(finding) = bad {
            return Err(BackupError::CopyDamaged { dir: target.dir(), finding: Box::new(finding.clone()) });
        }
        // Marks of frames that were given up may lie above the last record that is kept.
        let proved = copy.durable == self.durable || !self.state.losses.is_empty();
        if copy.last != self.durable || !proved || copy.control.as_ref() != Some(&self.state) {
            let difference = format!(
                "LSN {} of {} is its last, LSN {} is proved durable",
                copy.last, self.durable, copy.durable
            );
            return Err(target.differs(CONTROL_NAME, difference));
        }
        let mut found = copy.chain.iter();
        for (part, sealed) in self.parts.iter().zip(sealed) {
            let same = |piece: &Piece| piece.name == part.segment.name && piece.sealed == *sealed;
            if !found.next().is_some_and(same) {
                return Err(target.differs(&part.segment.name, "its seal cannot be read".to_owned()));
            }
        }
        Ok(copy.last)
    }

    /// Whether the log itself has this finding, and goes on in spite of it.
    fn is_known(&self, finding: &Finding) -> bool {
        let of_the_log = |part: &Part| {
            let mut skips = part.segment.skips.iter().map(|skip| skip.offset);
            part.segment.name == finding.file && skips.any(|offset| offset == finding.offset)
        };
        let accepted = finding.label == "accepted-loss" && !self.state.losses.is_empty();
        finding.verdict != Verdict::TornTail && (accepted || self.parts.iter().any(of_the_log))
    }
}

/// The slots of a log that may be written at the moment: one of them is whole at any instant, but not the
/// same while both are read.
fn read_slots(storage: &dyn Storage) -> Result<ControlState, BackupError> {
    let failed = |operation| {
        let dir = storage.describe();
        move |error| BackupError::Source { dir, source: StorageError::new(operation, CONTROL_NAME, error) }
    };
    for _ in 0..LOOKS {
        let file = storage.open(CONTROL_NAME, Access::Read).map_err(failed("open"))?;
        let slots = Slots::read(&*file).map_err(failed("read"))?;
        if let Some((_, state)) = slots.newest() {
            return Ok(state.clone());
        }
    }
    Err(failed("read")(io::Error::new(io::ErrorKind::InvalidData, "neither slot checks")))
}
