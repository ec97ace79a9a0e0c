//! Small logs whose every record is known: what fuzzers and tests damage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Choices;
use crate::segment::{HeaderPage, SegmentHeader};
use crate::spare::spare_id;
use crate::storage::MemStorage;
use crate::{Batch, Durability, Lsn, Options, SegmentId, Wal, repair};

/// A record as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Its plane.
    pub plane: u8,
    /// Its kind.
    pub kind: u8,
    /// Whether it is the last of its batch.
    pub ends_batch: bool,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A log with what is known of it.
#[derive(Debug)]
pub struct Sample {
    /// The disk, with nobody on it. Fork it before changing it, where it is shared.
    pub storage: MemStorage,
    /// What a reader gets, by the number of its LSN.
    pub records: BTreeMap<u64, Sent>,
    /// Everything that was ever appended, what was given up or dropped since included.
    pub appended: BTreeMap<u64, Sent>,
    /// Whether it was closed cleanly.
    pub closed: bool,
}

/// How a log came to be as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// Three segments, closed.
    Closed,
    /// One segment, closed.
    OneSegment,
    /// Three segments, every record synced, not closed, without a beacon.
    Unclean,
    /// As `Unclean`, with a written tail of two segments that nothing proves.
    Tail,
    /// A run that was not closed, recovered by a second, which was closed.
    TwoRuns,
    /// Damaged in the middle, repaired, continued, closed.
    Repaired,
    /// Closed; the middle two of four segments replaced by a stand-in with some of their records.
    Sieved,
    /// Opened and closed.
    Empty,
    /// Opened.
    Fresh,
}

impl Scene {
    /// All of them.
    pub const ALL: [Scene; 9] = [
        Scene::Closed,
        Scene::OneSegment,
        Scene::Unclean,
        Scene::Tail,
        Scene::TwoRuns,
        Scene::Repaired,
        Scene::Sieved,
        Scene::Empty,
        Scene::Fresh,
    ];
}

/// Options that make a run repeatable: no thread, no beacon, small files.
#[must_use]
pub fn options() -> Options {
    Options {
        io_thread: false,
        beacon_idle: Duration::ZERO,
        segment_bytes: 16 << 10,
        prepare_bytes: 4 << 10,
        label: "sample".to_owned(),
        ..Options::default()
    }
}

/// A log in the making.
struct Run {
    wal: Wal,
    sample: Sample,
}

impl Run {
    fn begin(seed: u64) -> Run {
        let storage = MemStorage::new(seed);
        let wal = Wal::open_on(Arc::new(storage.clone()), options()).unwrap();
        let (records, appended) = (BTreeMap::new(), BTreeMap::new());
        Run { wal, sample: Sample { storage, records, appended, closed: false } }
    }

    /// Appends a batch of records with these payload lengths.
    fn append(&mut self, lengths: &[usize], durability: Durability) {
        let mut batch = Batch::new();
        let first = self.wal.next().number();
        for (lsn, &length) in (first..).zip(lengths) {
            let sent = Sent {
                plane: 0x80 + (lsn % 3) as u8,
                kind: 1 + (lsn % 5) as u8,
                ends_batch: lsn + 1 == first + lengths.len() as u64,
                payload: (0..length).map(|at| (lsn as usize * 31 + at * 7) as u8).collect(),
            };
            batch.push(sent.plane, sent.kind, &sent.payload).unwrap();
            self.sample.records.insert(lsn, sent.clone());
            self.sample.appended.insert(lsn, sent);
        }
        let receipt = self.wal.commit_as(&mut batch, durability).unwrap();
        assert_eq!(receipt.first.number(), first);
    }

    /// A few batches of many shapes.
    fn fill(&mut self, durability: Durability) {
        for lengths in [&[0, 1, 63][..], &[64], &[7, 300], &[20], &[0], &[100, 8, 8, 8]] {
            self.append(lengths, durability);
        }
    }

    fn reopen(self) -> Run {
        let Run { wal, sample } = self;
        drop(wal);
        let wal = Wal::open_on(Arc::new(sample.storage.clone()), options()).unwrap();
        Run { wal, sample }
    }

    fn close(mut self) -> Sample {
        self.wal.close().unwrap();
        self.sample.closed = true;
        self.sample
    }

    fn stop(self) -> Sample {
        drop(self.wal);
        self.sample
    }
}

/// Makes the log of a scene. Equal seeds make equal logs, byte for byte.
#[must_use]
pub fn sample(scene: Scene, seed: u64) -> Sample {
    let mut run = Run::begin(seed);
    let sample = match scene {
        Scene::Closed | Scene::Unclean | Scene::Repaired => {
            run.fill(Durability::Synced);
            run.wal.rotate().unwrap();
            run.fill(Durability::Synced);
            run.append(&[3000], Durability::Synced);
            run.wal.rotate().unwrap();
            run.fill(Durability::Synced);
            match scene {
                Scene::Unclean => run.stop(),
                Scene::Closed => run.close(),
                _ => repaired(run.close()),
            }
        }
        Scene::OneSegment => {
            run.fill(Durability::Synced);
            run.close()
        }
        Scene::Tail => {
            run.fill(Durability::Synced);
            run.fill(Durability::Written);
            run.wal.rotate().unwrap();
            run.append(&[40], Durability::Written);
            run.append(&[9, 9], Durability::Written);
            run.stop()
        }
        Scene::TwoRuns => {
            run.fill(Durability::Synced);
            run.fill(Durability::Written);
            let mut run = run.reopen();
            run.fill(Durability::Synced);
            run.close()
        }
        Scene::Sieved => {
            for _ in 0..3 {
                run.fill(Durability::Synced);
                run.wal.rotate().unwrap();
            }
            run.fill(Durability::Synced);
            let whole = run.close();
            let kept = super::sieved_log(&whole.storage, 2, 3, |lsn, plane| plane == 0x80 || lsn % 10 == 0);
            let dropped = |lsn: &u64| (13..=36).contains(lsn) && !kept.contains(lsn);
            let records = whole.records.into_iter().filter(|(lsn, _)| !dropped(lsn)).collect();
            Sample { records, ..whole }
        }
        Scene::Empty => run.close(),
        Scene::Fresh => run.stop(),
    };
    set_creation_time(&sample.storage, 1_700_000_000_000_000_000);
    sample
}

/// Damages a frame in the middle segment, repairs, goes on.
fn repaired(whole: Sample) -> Sample {
    let name = SegmentId::new(2).unwrap().file_name();
    whole.storage.flip_bit(&name, 8 * 4200);
    let done = repair(Arc::new(whole.storage.clone())).unwrap();
    let mut run =
        Run { wal: Wal::open_on(Arc::new(whole.storage.clone()), options()).unwrap(), sample: whole };
    run.sample.closed = false;
    for (first, last) in done.lost {
        run.sample.records.retain(|&lsn, _| lsn < first.number() || lsn > last.number());
    }
    run.fill(Durability::Synced);
    run.close()
}

/// A log made by a recipe: what was done is read from `choices`.
pub(super) fn random(choices: &mut Choices<'_>) -> Sample {
    let mut run = Run::begin(u64::from(choices.u8()));
    for _ in 0..choices.u8() % 24 {
        match choices.u8() % 8 {
            0 => run.wal.rotate().unwrap(),
            1 => run = run.reopen(),
            2 => {
                run.wal.close().unwrap();
                run = run.reopen();
            }
            3 => run.wal.sync().unwrap(),
            4 => run.append(&[choices.below(6000) as usize], Durability::Synced),
            5 => run.append(&[choices.u8().into(), choices.u8().into()], Durability::Written),
            6 => run.append(&[choices.u8().into()], Durability::Buffered),
            _ => run.append(&[choices.u8().into()], Durability::Synced),
        }
    }
    let sample = if choices.u8().is_multiple_of(2) { run.close() } else { run.stop() };
    set_creation_time(&sample.storage, 1_700_000_000_000_000_000);
    sample
}

/// Puts a creation time into every segment header that checks, those of spares among them: the one field of a log that does not
/// follow from the seed of its storage.
pub fn set_creation_time(storage: &MemStorage, created_ns: u64) {
    let has_header = |name: &&String| SegmentId::from_file_name(name).is_some() || spare_id(name).is_some();
    for name in storage.names().iter().filter(has_header) {
        let Some(mut bytes) = storage.read(name) else { continue };
        if let HeaderPage::Valid(header) = SegmentHeader::check(&bytes) {
            let page = SegmentHeader { created_ns, ..header }.encode();
            bytes[..page.len()].copy_from_slice(&page);
            storage.write(name, &bytes);
        }
    }
}

impl Sample {
    /// The LSN behind the last record.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.appended.last_key_value().map_or(Lsn::FIRST.number(), |(lsn, _)| lsn + 1)
    }
}
