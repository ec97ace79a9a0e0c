//! A run of the log under watch: steps, the model that goes along, and a look at every call.

use std::sync::{Arc, Mutex, MutexGuard};

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{AppendError, CloseError, Durability, OpenError, Options, Wal};

use crate::model::{Crash, Model, batch_of, encoded, number};

/// One thing that a user does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Opens the log, if it is not open.
    Open,
    /// Commits a batch of records with these sizes.
    Commit(Durability, &'static [usize]),
    Sync,
    Rotate,
    Close,
    /// Drops the handle without a close.
    Drop,
}

/// Why a step was not done.
#[derive(Debug)]
#[allow(dead_code, reason = "they are shown")]
pub(crate) enum Refusal {
    Open(OpenError),
    Append(AppendError),
    Close(CloseError),
}

/// Mixed levels, batches, empty and large records, rotations, a drop with a tail to copy, clean closes.
pub(crate) const SCRIPT: &[Step] = {
    use Durability::{Buffered, Synced, Written};
    use Step::{Close, Commit, Drop, Open, Rotate, Sync};
    &[
        Open,
        Commit(Synced, &[10]),
        Commit(Buffered, &[0]),
        Commit(Written, &[100, 0, 700]),
        Commit(Buffered, &[30]),
        Commit(Synced, &[600]),
        Commit(Written, &[3000]),
        // Begins the second segment while the first has unsynced records.
        Commit(Written, &[6000]),
        Commit(Synced, &[40, 50, 60]),
        Commit(Buffered, &[2500]),
        Commit(Buffered, &[2500, 1]),
        Sync,
        Rotate,
        Commit(Written, &[10]),
        Commit(Buffered, &[11]),
        // Larger than a segment.
        Commit(Synced, &[20_000, 5]),
        Commit(Written, &[7]),
        Commit(Buffered, &[2]),
        Drop,
        Open,
        Commit(Written, &[300]),
        Commit(Synced, &[300]),
        Commit(Written, &[1200, 1300]),
        Close,
        Open,
        Commit(Synced, &[0]),
        // Two segments with an unproved tail.
        Commit(Written, &[9000]),
        Commit(Written, &[9000, 3]),
        Drop,
        Open,
        Drop,
        Open,
        Commit(Buffered, &[9]),
        Close,
        Open,
        Close,
    ]
};

#[derive(Debug, Default)]
struct Shared {
    model: Model,
    wal: Option<Wal>,
}

/// A log, its model and its disk.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) disk: MemStorage,
    pub(crate) faults: FaultStorage,
    pub(crate) options: Options,
    shared: Arc<Mutex<Shared>>,
    /// Counts opens: the content of records follows from it.
    life: u64,
}

impl Run {
    pub(crate) fn new(options: Options) -> Run {
        Run::on(&MemStorage::new(7), options, Model::default())
    }

    /// A run that goes on with a disk that holds what `model` says.
    pub(crate) fn on(disk: &MemStorage, options: Options, model: Model) -> Run {
        Run {
            disk: disk.clone(),
            faults: FaultStorage::new(Arc::new(disk.clone())),
            options,
            // Another life than that of any record in the model.
            life: 1 + model.len() % 97,
            shared: Arc::new(Mutex::new(Shared { model, wal: None })),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    pub(crate) fn model(&self) -> Model {
        self.shared().model.clone()
    }

    pub(crate) fn wal(&self) -> Option<Wal> {
        self.shared().wal.clone()
    }

    /// Has `look` called before every mutating call of the log.
    pub(crate) fn watch(&self, look: impl Fn(&Moment<'_>) + Send + Sync + 'static) {
        let shared = Arc::clone(&self.shared);
        let disk = self.disk.clone();
        let faults = self.faults.clone();
        self.faults.on_call(move |op, name| {
            let (written, durable) = {
                let shared = shared.lock().unwrap();
                let durable = shared.wal.as_ref().map_or(0, |wal| number(wal.durable()));
                let written = shared.wal.as_ref().map_or(0, |wal| number(wal.written()));
                (written.max(shared.model.written), durable.max(shared.model.durable))
            };
            look(&Moment {
                op,
                name,
                number: faults.mutations(),
                disk: &disk,
                written,
                durable,
                shared: &shared,
            });
        });
    }

    pub(crate) fn run(&mut self, steps: &[Step]) -> Result<(), (usize, Refusal)> {
        for (at, step) in steps.iter().enumerate() {
            self.step(*step).map_err(|refusal| (at, refusal))?;
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, step: Step) -> Result<(), Refusal> {
        match step {
            Step::Open => self.open().map_err(Refusal::Open),
            Step::Commit(level, sizes) => self.commit(level, sizes).map_err(Refusal::Append),
            Step::Sync => {
                let wal = self.wal().unwrap();
                let last = number(wal.last());
                wal.sync().map_err(Refusal::Append)?;
                let mut shared = self.shared();
                shared.model.acknowledge(Durability::Synced, last);
                shared.model.acknowledge(Durability::Written, last);
                shared.model.see_marks(&wal);
                Ok(())
            }
            Step::Rotate => self.wal().unwrap().rotate().map_err(Refusal::Append),
            Step::Close => {
                let Some(wal) = self.wal() else { return Ok(()) };
                wal.close().map_err(Refusal::Close)?;
                let mut shared = self.shared();
                shared.model.see_marks(&wal);
                assert_eq!(shared.model.durable, shared.model.len(), "a close makes everything durable");
                shared.wal = None;
                Ok(())
            }
            Step::Drop => {
                self.let_go();
                Ok(())
            }
        }
    }

    /// Drops the handle, outside the lock: it may write.
    pub(crate) fn let_go(&mut self) {
        let wal = self.shared().wal.take();
        drop(wal);
    }

    pub(crate) fn open(&mut self) -> Result<(), OpenError> {
        if self.shared().wal.is_some() {
            return Ok(());
        }
        let wal = loop {
            match Wal::open_on(Arc::new(self.faults.clone()), self.options.clone()) {
                // The I/O thread of the handle before still holds it.
                Err(OpenError::Locked { .. }) if self.options.io_thread => std::thread::yield_now(),
                other => break other?,
            }
        };
        self.life += 1;
        let mut shared = self.shared();
        let kept = number(wal.last());
        let floor = shared.model.floor(Crash::Process);
        assert!(kept >= floor, "a process opens the log again and finds {kept} records of {floor}");
        shared.model.keep(kept);
        shared.model.see_marks(&wal);
        shared.model.compare_wal(&wal).unwrap();
        shared.wal = Some(wal);
        Ok(())
    }

    pub(crate) fn commit(&mut self, level: Durability, sizes: &[usize]) -> Result<(), AppendError> {
        let wal = self.wal().unwrap();
        let due = number(wal.last());
        let records = batch_of(self.life, due, sizes);
        let mut batch = encoded(&records);
        let (first, last) = {
            let mut shared = self.shared();
            shared.model.keep(due);
            shared.model.append(records)
        };
        let result = wal.commit_as(&mut batch, level);
        let mut shared = self.shared();
        let given = number(wal.last()) >= last;
        match &result {
            Ok(receipt) => {
                assert_eq!((receipt.first.number(), receipt.last.number()), (first, last));
                shared.model.acknowledge(level, last);
            }
            Err(AppendError::Poisoned(_)) => {}
            Err(error) => {
                assert!(!given, "{error}, but LSNs were given");
                assert_eq!(batch.records() as usize, sizes.len(), "{error}, but the batch is gone");
            }
        }
        if !given {
            shared.model.keep(due);
        }
        shared.model.see_marks(&wal);
        drop(shared);
        result.map(|_| ())
    }

    /// The process is dead from here on: nothing it tries reaches the disk. Its handle is gone then.
    pub(crate) fn die(&mut self) {
        self.faults.inject(Fault::error(std::io::ErrorKind::Other).sticky());
        self.let_go();
        self.faults.clear_faults();
    }
}

/// The log right before one of its calls.
#[derive(Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) op: Op,
    pub(crate) name: &'a str,
    pub(crate) number: u64,
    pub(crate) disk: &'a MemStorage,
    /// Marks published before; what is published or appended from now on does not count.
    written: u64,
    durable: u64,
    shared: &'a Mutex<Shared>,
}

impl Moment<'_> {
    /// The disk, had the power gone now.
    pub(crate) fn crash(&self, plan: &CrashPlan) -> MemStorage {
        self.disk.crash(plan)
    }

    /// What was promised at this moment. To be asked for after the images were taken: another thread may
    /// append meanwhile.
    pub(crate) fn model(&self) -> Model {
        let mut model = self.shared.lock().unwrap().model.clone();
        model.written = self.written;
        model.durable = self.durable;
        model
    }
}

impl std::fmt::Display for Moment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "before call {} ({:?} {})", self.number, self.op, self.name)
    }
}
