//! A seeded simulation: a random workload with crashes, faults and reopenings, against a plain model.
//!
//! A seed decides everything but the interleaving of threads, of which there is one. `PLANEWAL_SEEDS=n`
//! sets how many seeds run (default 200), `PLANEWAL_SEED=n` runs that one alone and says what it does.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation, missing_docs)]

use std::io;
use std::sync::Arc;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{
    AppendError, Batch, Cursor, Durability, Lsn, OpenError, Options, ReadError, Verdict, View, Wal,
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
            ..Options::default()
        };
        World { dice, loud, disk, fault, options, model: Model::default(), kept: None, opens: 0, torn: 0 }
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
        let mut reader = wal.read(Lsn::FIRST).unwrap();
        let mut seen = 0;
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
            Err(ReadError::Diverged { .. }) => {
                assert!(read > kept, "a cursor that has read {read} diverged although {kept} were kept");
                self.kept = None;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn keep_cursor(&mut self, wal: &Wal) {
        let from = 1 + self.dice.below(self.model.written as u64 + 1);
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
    let (mut opens, mut torn) = (0, 0);
    for seed in 1..=seeds {
        let mut world = World::new(seed, false);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(400)));
        assert!(outcome.is_ok(), "seed {seed}; run it alone with PLANEWAL_SEED={seed}");
        opens += world.opens;
        torn += world.torn;
    }
    println!("{seeds} seeds, {opens} opens, {torn} torn tails cut");
    assert!(torn > 0, "a simulation that never tears a tail proves nothing");
}
