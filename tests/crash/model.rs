//! A plain model of a log: what was appended, what was promised, and a check of a disk against it.
//!
//! The check knows nothing of the format. It opens the disk as any user would, twice, and demands
//! the promises of the design by number.

use std::sync::Arc;

use planewal::storage::{FaultStorage, MemStorage, Storage};
use planewal::{Batch, Durability, Lsn, OpenError, Options, Proof, ReadError, Reader, Verdict, View, Wal};

/// A record as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rec {
    pub(crate) plane: u8,
    pub(crate) kind: u8,
    pub(crate) payload: Arc<[u8]>,
    pub(crate) ends_batch: bool,
}

/// What took the log down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crash {
    /// The disk keeps what was synced and any choice of the rest.
    Power,
    /// `kill -9`: the page cache lives on.
    Process,
}

/// What was appended and what was promised about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    /// The record with LSN `n` is number `n - 1`. Those at the end may never have got their LSN: their
    /// call is still under way, or answered that the outcome is unknown.
    records: Arc<Vec<Rec>>,
    /// Acknowledged at this level, or published as a mark.
    pub(crate) written: u64,
    pub(crate) durable: u64,
}

impl Model {
    pub(crate) fn len(&self) -> u64 {
        self.records.len() as u64
    }

    pub(crate) fn record(&self, lsn: u64) -> Option<&Rec> {
        self.records.get(lsn as usize - 1)
    }

    /// A batch is about to be appended; answers its first and last LSN.
    pub(crate) fn append(&mut self, batch: impl IntoIterator<Item = Rec>) -> (u64, u64) {
        let first = self.len() + 1;
        Arc::make_mut(&mut self.records).extend(batch);
        (first, self.len())
    }

    /// Only the records up to `last` were kept, or got their LSN at all.
    pub(crate) fn keep(&mut self, last: u64) {
        if last < self.len() {
            Arc::make_mut(&mut self.records).truncate(last as usize);
        }
        self.written = self.written.min(last);
        self.durable = self.durable.min(last);
    }

    /// A commit was acknowledged.
    pub(crate) fn acknowledge(&mut self, level: Durability, last: u64) {
        if level >= Durability::Written {
            self.written = self.written.max(last);
        }
        if level == Durability::Synced {
            self.durable = self.durable.max(last);
        }
    }

    /// Marks were seen. They never go back and never cross.
    pub(crate) fn see_marks(&mut self, wal: &Wal) {
        // In this order: a mark that is read later may be higher.
        let durable = number(wal.durable());
        let written = number(wal.written());
        assert!(durable >= self.durable, "durable() went back from {} to {durable}", self.durable);
        assert!(written >= self.written, "written() went back from {} to {written}", self.written);
        assert!(durable <= written, "durable() {durable} is above written() {written}");
        self.durable = durable;
        self.written = written;
    }

    /// The last LSN that has to survive.
    pub(crate) fn floor(&self, crash: Crash) -> u64 {
        match crash {
            Crash::Power => self.durable,
            Crash::Process => self.written.max(self.durable),
        }
    }

    /// Everything from `reader` on is what was appended, in LSN order, batches whole; answers the last LSN.
    fn compare(&self, mut reader: Reader, from: u64) -> Result<u64, String> {
        let mut last = from - 1;
        let mut whole = true;
        loop {
            let record = match reader.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => return Err(format!("P1: behind LSN {last}: {error}")),
            };
            let lsn = record.lsn.number();
            if lsn != last + 1 {
                return Err(format!("P1: LSN {lsn} behind LSN {last}"));
            }
            last = lsn;
            whole = record.ends_batch;
            let Some(appended) = self.record(lsn) else {
                return Err(format!("P3: LSN {lsn} was never appended"));
            };
            let same = appended.plane == record.plane
                && appended.kind == record.kind
                && appended.ends_batch == record.ends_batch
                && *appended.payload == *record.payload;
            if !same {
                return Err(format!(
                    "P3: LSN {lsn} is plane {} kind {} with {} bytes, appended was plane {} kind {} with {}",
                    record.plane,
                    record.kind,
                    record.payload.len(),
                    appended.plane,
                    appended.kind,
                    appended.payload.len(),
                ));
            }
        }
        if whole { Ok(last) } else { Err(format!("P1: LSN {last} is in the middle of a batch")) }
    }

    /// All that a writer has written is there and right, from every start.
    pub(crate) fn compare_wal(&self, wal: &Wal) -> Result<u64, String> {
        let read = |from| wal.read(lsn(from)).map_err(|error| format!("reading from {from}: {error}"));
        let last = self.compare(read(1)?, 1)?;
        let middle = last / 2 + 1;
        self.compare(read(middle)?, middle)?;
        if last != number(wal.written()) {
            return Err(format!("read up to {last}, but written() is {:?}", wal.written()));
        }
        Ok(last)
    }
}

/// An LSN or none as a number.
pub(crate) fn number(lsn: Option<Lsn>) -> u64 {
    lsn.map_or(0, Lsn::number)
}

pub(crate) fn lsn(number: u64) -> Lsn {
    Lsn::new(number).unwrap()
}

/// The options of a check: no thread, so that it is over when it is over.
pub(crate) fn small_options() -> Options {
    Options {
        io_thread: false,
        segment_bytes: 16 << 10,
        prepare_bytes: 4 << 10,
        label: "crash".to_owned(),
        ..Options::default()
    }
}

/// Demands of a disk after a crash all that the model promises; answers the last LSN kept. Consumes
/// the disk: it is written to.
pub(crate) fn check(disk: &MemStorage, model: &Model, crash: Crash) -> Result<u64, String> {
    let floor = model.floor(crash);
    let seen = look(disk, model)?;
    let kept = seen.map_or(0, |seen| seen.last);
    if kept < floor {
        return Err(format!("P2: LSN {} is lost ({crash:?}), only {kept} are there", kept + 1));
    }
    let wal = Wal::open_on(Arc::new(disk.clone()), small_options())
        .map_err(|error| format!("P5: open after a mere crash: {error}"))?;
    recovered(&wal, model, kept, seen)?;
    go_on(disk, wal, model, kept)?;
    Ok(kept)
}

/// What a view saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) last: u64,
    pub(crate) verdict: Verdict,
}

/// Looks without touching: P1, P3, P5 and P7. `None` where there is no log yet.
pub(crate) fn look(disk: &MemStorage, model: &Model) -> Result<Option<Seen>, String> {
    let storage = FaultStorage::new(Arc::new(disk.clone()));
    let view = match View::open_on(Arc::new(storage.clone())) {
        Ok(view) => view,
        Err(OpenError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(format!("P5: view: {error}")),
    };
    let report = view.report().clone();
    if !matches!(report.verdict, Verdict::Clean | Verdict::TornTail) {
        return Err(format!("P5: {} after a mere crash: {:?}", report.verdict, report.findings));
    }
    let reader = view.read(Lsn::FIRST).map_err(|error| format!("P1: view: {error}"))?;
    let last = model.compare(reader, 1)?;
    if report.next.number() != last + 1 || number(report.last) != last {
        return Err(format!(
            "P4: the view reads up to {last}, says last {:?} next {}",
            report.last, report.next
        ));
    }
    if number(report.durable) > last {
        return Err(format!("P5: durable {:?} is proved, and only {last} are there", report.durable));
    }
    if storage.mutations() != 0 || storage.counts().bytes_written != 0 {
        return Err("P7: looking changed the disk".to_owned());
    }
    Ok(Some(Seen { last, verdict: report.verdict }))
}

/// What a writing open found agrees with what a view saw.
fn recovered(wal: &Wal, model: &Model, kept: u64, seen: Option<Seen>) -> Result<(), String> {
    let report = wal.recovery();
    if report.created != seen.is_none() {
        return Err(format!("P3: created: {}, and a view saw {seen:?}", report.created));
    }
    if let Some(seen) = seen.filter(|seen| seen.verdict != report.survey.verdict) {
        return Err(format!("P5: the view says {}, open says {}", seen.verdict, report.survey.verdict));
    }
    if report.torn_tail.is_some() != (report.survey.verdict == Verdict::TornTail) {
        return Err(format!("P5: {} and a torn tail {:?}", report.survey.verdict, report.torn_tail));
    }
    if report.copy_pending {
        return Err("P9: a copy is pending, and the disk has room".to_owned());
    }
    let last = model.compare_wal(wal)?;
    if last != kept {
        return Err(format!("P1: a view reads {kept} records, open kept {last}"));
    }
    if number(wal.durable()) != kept || number(wal.last()) != kept || wal.next().number() != kept + 1 {
        return Err(format!(
            "P4: {kept} kept, durable {:?}, last {:?}, next {}",
            wal.durable(),
            wal.last(),
            wal.next()
        ));
    }
    Ok(())
}

/// The log goes on: appends, a close that proves itself, and another open that finds all of it.
fn go_on(disk: &MemStorage, wal: Wal, model: &Model, kept: u64) -> Result<(), String> {
    let mut after = model.clone();
    after.keep(kept);
    for (level, sizes) in
        [(Durability::Written, &[3, 0][..]), (Durability::Synced, &[700]), (Durability::Buffered, &[1])]
    {
        let batch: Vec<Rec> = batch_of(0xfe, kept, sizes);
        let (first, last) = after.append(batch.iter().cloned());
        let receipt = wal
            .commit_as(&mut encoded(&batch), level)
            .map_err(|error| format!("appending after recovery: {error}"))?;
        if (receipt.first.number(), receipt.last.number()) != (first, last) {
            return Err(format!("P4: {receipt:?} after recovery, due were {first} to {last}"));
        }
        after.acknowledge(level, last);
    }
    wal.close().map_err(|error| format!("closing after recovery: {error}"))?;
    drop(wal);
    let view = View::open_on(Arc::new(disk.clone())).map_err(|error| format!("after a close: {error}"))?;
    let report = view.report();
    if (report.verdict, report.proof, report.closed_cleanly) != (Verdict::Clean, Proof::Proved, true) {
        return Err(format!("after a close: {} {}, {:?}", report.verdict, report.proof, report.findings));
    }
    if !report.extras.is_empty() {
        return Err(format!("after a close there are files left over: {:?}", report.extras));
    }
    let wal = Wal::open_on(Arc::new(disk.clone()), small_options())
        .map_err(|error| format!("opening after a close: {error}"))?;
    let last = after.compare_wal(&wal)?;
    if last != after.len() || wal.recovery().unclean {
        return Err(format!("after a close: {last} of {} there", after.len()));
    }
    wal.close().map_err(|error| format!("closing again: {error}"))
}

/// A batch with content that follows from its life and place, so that nothing is mistaken for another life's.
pub(crate) fn batch_of(life: u64, from: u64, sizes: &[usize]) -> Vec<Rec> {
    let count = sizes.len();
    let record = |(at, &size): (usize, &usize)| {
        let lsn = from + at as u64 + 1;
        Rec {
            plane: 0x80 + (lsn % 3) as u8,
            kind: 1 + ((lsn + life * 37) % 251) as u8,
            payload: payload(life << 32 | lsn, size),
            ends_batch: at + 1 == count,
        }
    };
    sizes.iter().enumerate().map(record).collect()
}

fn payload(seed: u64, size: usize) -> Arc<[u8]> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

pub(crate) fn encoded(records: &[Rec]) -> Batch {
    let mut batch = Batch::new();
    for record in records {
        batch.push(record.plane, record.kind, &record.payload).unwrap();
    }
    batch
}

/// Every name and byte of a disk, as a number.
pub(crate) fn fingerprint(disk: &MemStorage) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    for name in disk.names() {
        name.bytes().for_each(|byte| mix(u64::from(byte)));
        let bytes = disk.read(&name).unwrap_or_default();
        mix(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        // Most of a log's files are zeros.
        for (at, word) in words.iter().enumerate().filter(|(_, word)| **word != [0; 8]) {
            mix(at as u64);
            mix(u64::from_le_bytes(*word));
        }
        rest.iter().for_each(|byte| mix(u64::from(*byte)));
    }
    hash
}

/// Every name and byte of a disk.
pub(crate) fn content(disk: &MemStorage) -> Vec<(String, Option<Vec<u8>>)> {
    disk.names().into_iter().map(|name| (name.clone(), disk.read(&name))).collect()
}

/// All records of a reader, and the error that ended them.
pub(crate) fn drain(mut reader: Reader) -> (Vec<(u64, Vec<u8>)>, Option<ReadError>) {
    let mut records = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(record)) => records.push((record.lsn.number(), record.payload.to_vec())),
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
        }
    }
}

/// A disk as some storage.
pub(crate) fn on(disk: &MemStorage) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

/// Whether the longer variants run.
pub(crate) fn long() -> bool {
    std::env::var_os("PLANEWAL_LONG").is_some()
}

/// The checker itself is checked: it has to catch what it exists to catch.
mod tests {
    use super::*;
    use planewal::storage::CrashPlan;

    /// A log with one synced batch of two and one buffered record.
    fn log() -> (MemStorage, Wal, Model) {
        let disk = MemStorage::new(1);
        let wal = Wal::open_on(on(&disk), small_options()).unwrap();
        let mut model = Model::default();
        for (level, sizes) in [(Durability::Synced, &[10, 20][..]), (Durability::Buffered, &[30])] {
            let batch = batch_of(1, model.len(), sizes);
            let (_, last) = model.append(batch.iter().cloned());
            wal.commit_as(&mut encoded(&batch), level).unwrap();
            model.acknowledge(level, last);
        }
        (disk, wal, model)
    }

    #[test]
    fn the_checker_accepts_what_was_promised() {
        let (disk, _wal, model) = log();
        assert_eq!(check(&disk.crash(&CrashPlan::Nothing), &model, Crash::Power), Ok(2));
        assert_eq!(check(&disk.fork_live(), &model, Crash::Process), Ok(2));
    }

    #[test]
    fn the_checker_catches_a_loss() {
        let (disk, _wal, mut model) = log();
        model.acknowledge(Durability::Synced, 3);
        for crash in [Crash::Power, Crash::Process] {
            let found = check(&disk.crash(&CrashPlan::Nothing), &model, crash).unwrap_err();
            assert!(found.starts_with("P2"), "{found}");
        }
    }

    #[test]
    fn the_checker_catches_an_invention() {
        let (disk, _wal, mut model) = log();
        model.keep(1);
        let found = check(&disk.fork_live(), &model, Crash::Process).unwrap_err();
        assert!(found.starts_with("P3"), "{found}");
        let (_, _, mut model) = log();
        model.keep(0);
        model.append(batch_of(2, 0, &[10, 20]));
        let found = check(&disk.fork_live(), &model, Crash::Process).unwrap_err();
        assert!(found.starts_with("P3"), "{found}");
    }

    #[test]
    fn the_checker_catches_a_broken_log() {
        let (disk, _wal, model) = log();
        let name = "00000000000000000001.wal";
        for bit in [8 * 100, 8 * 4100] {
            let image = disk.fork_live();
            assert!(image.flip_bit(name, bit));
            // The first group has no mark above it yet; the header's rot is never a crash's work.
            let found = check(&image, &model, Crash::Process).unwrap_err();
            assert!(found.starts_with("P5") || found.starts_with("P2"), "{found}");
        }
        let image = disk.fork_live();
        image.remove_file(name);
        let found = check(&image, &model, Crash::Process).unwrap_err();
        assert!(found.starts_with("P5"), "{found}");
    }
}
