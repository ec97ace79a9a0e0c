//! A seeded simulation: a random workload with crashes, faults and reopenings, against a plain model.
//!
//! A seed decides everything but the interleaving of threads, of which there is one. `PLANEWAL_SEEDS=n`
//! sets how many seeds run (default 200), `PLANEWAL_SEED=n` runs that one alone and says what it does.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation, missing_docs)]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{
    AppendError, Batch, Cursor, Durability, HoldError, HoldKind, Lsn, OpenError, Options, ReadError,
    RetireError, Verdict, View, Wal,
};

/// A small generator of its own, so that a seed means the same for ever.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, PartialEq, Debug)]
struct Row {
    plane: u8,
    payload: Vec<u8>,
    ends_batch: bool,
}

/// What the log has to be.
#[derive(Default)]
struct Model {
    rows: Vec<Row>,
    /// Records below were retired, or may have been.
    retired: usize,
    /// Durable holds, as name and first LSN kept.
    holds: BTreeMap<String, usize>,
    /// Records up to here were handed to the system, or may have been.
    written: usize,
    durable: usize,
}

struct World {
    dice: Dice,
    loud: bool,
    disk: MemStorage,
    fault: FaultStorage,
    options: Options,
    model: Model,
    /// A cursor that somebody keeps, and what it had read.
    kept: Option<(Cursor, usize)>,
    opens: u64,
    torn: u64,
    reused: u64,
}

impl World {
    fn new(seed: u64, loud: bool) -> World {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let disk = MemStorage::new(seed);
        let fault = FaultStorage::new(Arc::new(disk.clone()));
        let options = Options {
            segment_bytes: [16 << 10, 24 << 10, 64 << 10][dice.below(3) as usize],
            prepare_bytes: [4 << 10, 16 << 10][dice.below(2) as usize],
            group_bytes: [4 << 10, 64 << 10][dice.below(2) as usize],
            io_thread: dice.chance(30),
            beacon_idle: std::time::Duration::from_millis(dice.below(2)),
            spares: dice.below(4) as u32,
            ..Options::default()
        };
        World {
            dice,
            loud,
            disk,
            fault,
            options,
            model: Model::default(),
            kept: None,
            opens: 0,
            torn: 0,
            reused: 0,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.loud {
            eprintln!("{}", what());
        }
    }

    fn open(&mut self) -> Wal {
        let before = View::open_on(Arc::new(self.disk.clone()));
        let wal = self.open_once_free().unwrap_or_else(|error| {
            panic!("after a mere crash a log opens: {error}\n{:?}", self.disk.names())
        });
        self.opens += 1;
        if let Ok(view) = before {
            assert!(
                matches!(view.report().verdict, Verdict::Clean | Verdict::TornTail),
                "{:?}",
                view.report()
            );
        }
        self.torn += u64::from(wal.recovery().torn_tail.is_some());
        let kept = wal.last().map_or(0, |lsn| lsn.number() as usize);
        self.say(|| {
            format!(
                "open: kept {kept} of {}, durable {}, written {}",
                self.model.rows.len(),
                self.model.durable,
                self.model.written
            )
        });
        assert!(kept >= self.model.durable, "P2: {kept} kept, {} were durable", self.model.durable);
        assert!(kept <= self.model.rows.len(), "P3: {kept} kept, {} were appended", self.model.rows.len());
        assert!(kept == 0 || self.model.rows[kept - 1].ends_batch, "P1: a batch was split at {kept}");
        assert_eq!(wal.durable(), wal.last(), "what is kept is durable once the log is open");
        self.model.rows.truncate(kept);
        self.model.written = kept;
        self.model.durable = kept;
        self.compare(&wal);
        self.check_cursor(&wal, kept);
        self.check_holds(&wal);
        wal
    }

    /// The lock of a dropped handle goes with its last I/O, which may still be under way.
    fn open_once_free(&self) -> Result<Wal, OpenError> {
        loop {
            match Wal::open_on(Arc::new(self.fault.clone()), self.options.clone()) {
                Err(OpenError::Locked { .. }) => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    /// Everything written reads back as it was appended.
    fn compare(&self, wal: &Wal) {
        let mut seen = (wal.first().number() as usize - 1).min(self.model.written);
        assert!(seen <= self.model.retired, "begins behind {seen}, and {} may go", self.model.retired);
        let mut reader = wal.read(Lsn::new(seen as u64 + 1).unwrap()).unwrap();
        while let Some(record) = reader.next().unwrap() {
            let row =
                Row { plane: record.plane, payload: record.payload.to_vec(), ends_batch: record.ends_batch };
            assert_eq!(record.lsn.number() as usize, seen + 1, "P4: LSNs are dense");
            assert_eq!(row, self.model.rows[seen], "LSN {}", record.lsn);
            seen += 1;
        }
        assert_eq!(seen, wal.written().map_or(0, |lsn| lsn.number() as usize));
    }

    /// A cursor goes on, or is told that what it had read is gone.
    fn check_cursor(&mut self, wal: &Wal, kept: usize) {
        let Some((cursor, read)) = self.kept else { return };
        match wal.read_from(&cursor) {
            Ok(reader) => {
                assert!(read <= kept, "a cursor that has read {read} went on in a log that kept {kept}");
                assert_eq!(reader.due().number() as usize, read + 1);
            }
            Err(ReadError::Retired { first, .. }) => {
                assert!(read + 1 < first.number() as usize && read < self.model.retired);
                self.kept = None;
            }
            Err(ReadError::Diverged { .. }) => {
                assert!(read > kept, "a cursor that has read {read} diverged although {kept} were kept");
                self.kept = None;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn keep_cursor(&mut self, wal: &Wal) {
        // Without a segment nothing is written, and the first LSN is the next.
        let first = wal.first().number().min(self.model.written as u64 + 1);
        let from = first + self.dice.below(self.model.written as u64 + 2 - first);
        let mut reader = wal.read(Lsn::new(from).unwrap()).unwrap();
        while reader.next().unwrap().is_some() {}
        self.kept = Some((
            Cursor::from_bytes(&reader.cursor().to_bytes()).unwrap(),
            reader.due().number() as usize - 1,
        ));
    }

    fn batch(&mut self) -> (Batch, Vec<Row>) {
        let mut batch = Batch::new();
        let mut rows = Vec::new();
        let count = 1 + self.dice.below(4);
        for at in 0..count {
            let length = match self.dice.below(20) {
                0 => 0,
                1 => 20_000,
                2 => 5_000,
                _ => self.dice.below(300),
            };
            let plane = 0x80 + self.dice.below(3) as u8;
            let fill = self.dice.next() as u8;
            let payload = vec![fill; length as usize];
            batch.push(plane, 1, &payload).unwrap();
            rows.push(Row { plane, payload, ends_batch: at + 1 == count });
        }
        (batch, rows)
    }

    /// One commit; answers whether the log is still usable.
    fn commit(&mut self, wal: &Wal) -> bool {
        let (mut batch, rows) = self.batch();
        let level =
            [Durability::Buffered, Durability::Written, Durability::Synced][self.dice.below(3) as usize];
        let before = self.model.rows.len();
        match wal.commit_as(&mut batch, level) {
            Ok(receipt) => {
                assert_eq!(receipt.first.number() as usize, before + 1);
                self.model.rows.extend(rows);
                assert_eq!(receipt.last.number() as usize, self.model.rows.len());
                self.learn(wal);
                true
            }
            Err(AppendError::Full(_) | AppendError::Storage(_)) => {
                assert!(!batch.is_empty(), "a batch without an LSN is still the caller's");
                assert_eq!(wal.last().map_or(0, |lsn| lsn.number() as usize), before);
                true
            }
            Err(AppendError::Poisoned(_)) => {
                // Outcome unknown: it may be there.
                if batch.is_empty() {
                    self.model.rows.extend(rows);
                }
                assert!(wal.append(0x80, 1, b"x").is_err(), "P6: poison is for ever");
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Retires up to somewhere, holds or not; answers whether the log is still usable.
    fn retire(&mut self, wal: &Wal) -> bool {
        let durable = self.model.durable as u64;
        if durable == 0 {
            return true;
        }
        let pick = |dice: &mut Dice, from: u64| from + dice.below(durable + 2 - from);
        let name = format!("hold {}", self.dice.below(3));
        let first = wal.first().number().min(durable + 1);
        let (change, outcome) = match self.model.holds.get(&name).copied() {
            Some(_) if self.dice.chance(50) => (None, wal.release_durable_hold(&name)),
            Some(at) => {
                let to = pick(&mut self.dice, at as u64);
                (Some(to as usize), wal.advance_durable_hold(&name, Lsn::new(to).unwrap()))
            }
            None => {
                let at = pick(&mut self.dice, first);
                (Some(at as usize), wal.hold_durably(&name, Lsn::new(at).unwrap()))
            }
        };
        match outcome {
            Ok(()) => {
                match change {
                    Some(at) => self.model.holds.insert(name, at),
                    None => self.model.holds.remove(&name),
                };
            }
            Err(HoldError::Full(_)) => {}
            Err(HoldError::Poisoned(_)) => {
                // It is where it was, or where it shall be: the next open tells.
                self.model.holds.remove(&name);
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        let before = pick(&mut self.dice, first);
        let lowest = self.model.holds.values().copied().min().unwrap_or(usize::MAX);
        let memory = self.dice.chance(20).then(|| wal.hold("in memory", wal.first()).unwrap());
        let may_go = lowest.min(before as usize) - 1;
        self.model.retired = self.model.retired.max(may_go);
        match wal.retire_unchecked(Lsn::new(before).unwrap()) {
            Ok(report) => {
                self.say(|| format!("retired {} segments, first {}", report.retired.len(), report.first));
                assert_eq!(report.first, wal.first());
                // A segment without a record can be held by nobody.
                let with_records = report.retired.iter().filter(|gone| gone.last.is_some()).count();
                assert!(memory.is_none() || with_records == 0, "held and gone: {report:?}");
                let last = report.retired.last().and_then(|gone| gone.last).map_or(0, Lsn::number);
                assert!(last as usize <= may_go, "{last} is gone, and {lowest} is held");
                true
            }
            Err(RetireError::Full(_)) => true,
            Err(RetireError::Poisoned(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Durable holds survive; one whose change met an error is at either place.
    fn check_holds(&mut self, wal: &Wal) {
        let there: BTreeMap<String, usize> = wal
            .holds()
            .into_iter()
            .filter(|hold| hold.kind == HoldKind::Durable)
            .map(|hold| (hold.name, hold.lsn.number() as usize))
            .collect();
        for (name, at) in &self.model.holds {
            assert_eq!(there.get(name), Some(at), "{name}: {there:?}");
        }
        self.model.holds = there;
    }

    fn learn(&mut self, wal: &Wal) {
        let number = |lsn: Option<Lsn>| lsn.map_or(0, |lsn| lsn.number() as usize);
        let (written, durable) = (number(wal.written()), number(wal.durable()));
        assert!(durable <= written && written <= self.model.rows.len());
        assert!(durable >= self.model.durable && written >= self.model.written, "marks never go back");
        (self.model.written, self.model.durable) = (written, durable);
    }

    fn restart(&mut self, wal: Wal) -> Wal {
        self.fault.clear_faults();
        match self.dice.below(4) {
            0 => {
                self.say(|| "close".to_owned());
                if wal.close().is_ok() {
                    self.model.durable = self.model.rows.len();
                    let view = View::open_on(Arc::new(self.disk.clone())).unwrap();
                    assert!(view.report().closed_cleanly, "{:?}", view.report());
                }
                drop(wal);
            }
            1 => {
                self.say(|| "drop".to_owned());
                self.learn(&wal);
                let poisoned = wal.poisoned().is_some();
                drop(wal);
                if !poisoned {
                    self.model.written = self.model.rows.len().min(self.model.written);
                }
                self.disk = self.disk.fork_live();
            }
            2 => {
                self.say(|| "kill".to_owned());
                self.learn(&wal);
                self.disk = self.disk.fork_live();
                drop(wal);
                self.need_written();
            }
            _ => {
                let seed = self.dice.next();
                let plan = match self.dice.below(4) {
                    0 => CrashPlan::Nothing,
                    1 => CrashPlan::Everything,
                    _ => CrashPlan::Seeded(seed),
                };
                self.say(|| format!("power loss: {plan:?}"));
                self.learn(&wal);
                self.disk = self.disk.crash(&plan);
                drop(wal);
            }
        }
        self.fault = FaultStorage::new(Arc::new(self.disk.clone()));
        self.crash_inside_recovery();
        self.open()
    }

    /// Death of the process alone: what was written is as good as durable.
    fn need_written(&mut self) {
        self.model.durable = self.model.written;
    }

    /// Every other time recovery itself meets an error, and then the power goes.
    fn crash_inside_recovery(&mut self) {
        if !self.dice.chance(50) {
            return;
        }
        let at = 1 + self.dice.below(12);
        self.fault.inject(Fault::error(io::ErrorKind::Other).at_mutation(at).sticky());
        let outcome = self.open_once_free();
        self.say(|| {
            format!("recovery fails at call {at}: {:?}", outcome.as_ref().err().map(ToString::to_string))
        });
        if let Err(error) = &outcome {
            assert!(!matches!(error, OpenError::Refused { .. }), "{error}");
        }
        drop(outcome);
        self.fault.clear_faults();
        let plan = CrashPlan::Seeded(self.dice.next());
        // Before recovery was done nothing more is durable than before; what was written lives on
        // only in images that keep everything.
        let plan = if self.model.durable == self.model.written && self.dice.chance(50) {
            CrashPlan::Everything
        } else {
            plan
        };
        if self.process_only() {
            self.disk = self.disk.fork_live();
        } else {
            self.disk = self.disk.crash(&plan);
        }
        self.fault = FaultStorage::new(Arc::new(self.disk.clone()));
    }

    /// After a mere kill the second crash has to be one too, or written records may rightly go.
    fn process_only(&self) -> bool {
        self.model.durable == self.model.written
    }

    fn run(&mut self, steps: u64) {
        let mut wal = self.open();
        for _ in 0..steps {
            match self.dice.below(40) {
                0 => wal = self.restart(wal),
                1 => {
                    if self.dice.chance(50) {
                        let _ = wal.rotate();
                    } else {
                        let _ = wal.sync();
                    }
                    self.learn(&wal);
                }
                2 => self.keep_cursor(&wal),
                4 => {
                    if !self.retire(&wal) {
                        self.say(|| "poisoned".to_owned());
                        wal = self.restart(wal);
                    }
                    let reused =
                        |name: &String| self.disk.read(name).is_some_and(|bytes| bytes.get(28) == Some(&1));
                    let files = self.disk.names().into_iter().filter(|name| name.ends_with(".wal"));
                    self.reused += files.filter(reused).count() as u64;
                }
                3 if self.dice.chance(40) => {
                    let at = 1 + self.dice.below(6);
                    let fault = match self.dice.below(4) {
                        0 => Fault::error(io::ErrorKind::StorageFull).at(Op::Write, at),
                        1 => Fault::error(io::ErrorKind::Other).at(Op::Sync, at),
                        2 => Fault::short_write(self.dice.below(500) as usize + 1).at(Op::Write, at),
                        _ => Fault::error(io::ErrorKind::Other).at_mutation(at),
                    };
                    self.say(|| format!("fault: {fault:?}"));
                    self.fault.inject(fault);
                }
                _ => {
                    if !self.commit(&wal) {
                        self.say(|| "poisoned".to_owned());
                        assert!(wal.close().is_err(), "a poisoned log writes no clean close");
                        wal = self.restart(wal);
                    }
                }
            }
            if self.dice.chance(3) {
                self.compare(&wal);
            }
        }
        self.fault.clear_faults();
        let wal = self.restart(wal);
        wal.close().unwrap();
        let view = View::open_on(Arc::new(self.disk.clone())).unwrap();
        assert_eq!(view.report().verdict, Verdict::Clean);
        assert!(view.report().closed_cleanly);
    }
}

#[test]
fn random_workloads_with_crashes_and_faults_keep_the_promises() {
    if let Some(seed) = std::env::var("PLANEWAL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        World::new(seed, true).run(400);
        return;
    }
    let seeds = std::env::var("PLANEWAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let (mut opens, mut torn, mut reused) = (0, 0, 0);
    for seed in 1..=seeds {
        let mut world = World::new(seed, false);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(400)));
        assert!(outcome.is_ok(), "seed {seed}; run it alone with PLANEWAL_SEED={seed}");
        opens += world.opens;
        torn += world.torn;
        reused += world.reused;
    }
    println!("{seeds} seeds, {opens} opens, {torn} torn tails cut, {reused} times a reused file was seen");
    assert!(reused > 0, "a simulation that never writes a file again proves nothing");
    assert!(torn > 0, "a simulation that never tears a tail proves nothing");
}
