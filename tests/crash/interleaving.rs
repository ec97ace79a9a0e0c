//! A view beside a writer, call by call: the writer gets its turn before any one of the view's calls.
//!
//! A survey is a series of reads and not one moment. Threads would meet the bad moments now and then;
//! here each of them is met every time.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use planewal::storage::{
    Access, Allocation, Entry, LockError, MemStorage, Storage, StorageFile, StorageLock,
};
use planewal::{Durability, Lsn, Verdict, View};

use crate::model::{drain, number, small_options};
use crate::run::{Run, Step};

/// Counts a view's calls, and lets the writer act before each.
struct Turn {
    calls: AtomicU64,
    /// Is told the number of the call, and whether it lists the directory.
    writer: Box<dyn Fn(u64, bool) + Send + Sync>,
}

impl Turn {
    fn call(&self, list: bool) {
        (self.writer)(self.calls.fetch_add(1, Ordering::SeqCst), list);
    }
}

/// A disk for reading, with a writer beside it.
#[derive(Clone)]
struct Beside {
    disk: MemStorage,
    turn: Arc<Turn>,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Beside").field(&self.disk).finish()
    }
}

fn never<T>() -> io::Result<T> {
    Err(io::Error::other("a view changes nothing"))
}

impl Storage for Beside {
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.turn.call(true);
        self.disk.list()
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn StorageFile>> {
        never()
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
        self.turn.call(false);
        let inner = self.disk.open(name, access)?;
        Ok(Box::new(FileBeside { inner, turn: Arc::clone(&self.turn) }))
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        never()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        never()
    }

    fn sync_dir(&self) -> io::Result<()> {
        never()
    }

    fn lock(&self, _: &str) -> Result<Box<dyn StorageLock>, LockError> {
        never().map_err(LockError::Io)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn random(&self, _: &mut [u8]) -> io::Result<()> {
        never()
    }

    fn describe(&self) -> String {
        "memory, beside a writer".to_owned()
    }
}

struct FileBeside {
    inner: Box<dyn StorageFile>,
    turn: Arc<Turn>,
}

impl fmt::Debug for FileBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileBeside").field(&self.inner).finish()
    }
}

impl StorageFile for FileBeside {
    fn len(&self) -> io::Result<u64> {
        self.turn.call(false);
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.turn.call(false);
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
        never()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        never()
    }

    fn allocate(&self, _: u64, _: u64, _: Allocation) -> io::Result<Allocation> {
        never()
    }

    fn sync(&self) -> io::Result<()> {
        never()
    }
}

/// What a writer may do in one turn.
const TURNS: &[(&str, &[Step])] = {
    use Durability::{Synced, Written};
    use Step::{Close, Commit, Drop, Open, Rotate};
    &[
        ("writes a record", &[Commit(Written, &[60])]),
        ("syncs a record", &[Commit(Synced, &[60])]),
        ("syncs two groups", &[Commit(Synced, &[700]), Commit(Synced, &[60])]),
        ("begins a segment", &[Commit(Written, &[6000]), Commit(Written, &[6000])]),
        ("rotates and syncs", &[Rotate, Commit(Synced, &[60])]),
        ("closes", &[Close, Open]),
        ("closes and goes on", &[Close, Open, Commit(Synced, &[60])]),
        ("dies and copies", &[Drop, Open]),
        ("dies, copies and goes on", &[Drop, Open, Commit(Synced, &[60]), Commit(Written, &[6000])]),
    ]
};

/// A log that is in the middle of things.
fn writer() -> Run {
    let mut run = Run::new(small_options());
    run.run(&[
        Step::Open,
        Step::Commit(Durability::Synced, &[10]),
        Step::Commit(Durability::Synced, &[6000]),
        Step::Commit(Durability::Synced, &[6000]),
        Step::Commit(Durability::Written, &[100, 3]),
    ])
    .unwrap();
    run
}

/// Opens and reads a view while the writer does `steps` before each call that `due` chooses. Answers the calls
/// that the view made, or what was wrong with what it saw.
fn view_beside(
    steps: &'static [Step],
    due: impl Fn(u64, bool) -> bool + Send + Sync + 'static,
    read: bool,
) -> Result<u64, String> {
    let run = writer();
    let disk = run.disk.clone();
    let floor = run.model().written;
    let run = std::sync::Mutex::new(run);
    let turn = Arc::new(Turn {
        calls: AtomicU64::new(0),
        writer: Box::new(move |call, list| {
            if due(call, list) {
                run.lock().unwrap().run(steps).unwrap();
            }
        }),
    });
    let view = View::open_on(Arc::new(Beside { disk, turn: Arc::clone(&turn) }))
        .map_err(|error| error.to_string())?;
    let report = view.report();
    if !matches!(report.verdict, Verdict::Clean | Verdict::TornTail) {
        return Err(format!("{}: {:?}", report.verdict, report.findings));
    }
    if number(report.last) < floor {
        return Err(format!("only {:?} of {floor}", report.last));
    }
    if read {
        let (records, error) = drain(view.read(Lsn::FIRST).map_err(|error| error.to_string())?);
        if let Some(error) = error {
            return Err(format!("reading: {error}"));
        }
        if (records.len() as u64) < floor || !records.iter().zip(1..).all(|((lsn, _), due)| *lsn == due) {
            return Err(format!("{} records of {floor}", records.len()));
        }
    }
    Ok(turn.calls.load(Ordering::SeqCst))
}

/// Scenario 16: one turn of the writer, before each call of the view in turn.
// faults: B109, B114
#[test]
fn a_view_is_right_whatever_a_writer_does_between_two_of_its_calls() {
    let mut failed = Vec::new();
    let mut cases = 0;
    for (what, steps) in TURNS {
        // A segment that was copied away under a reader is another matter: it is removed.
        let read = !matches!(steps, [Step::Drop, ..]);
        let calls = view_beside(steps, |_, _| false, read).unwrap();
        assert!(calls > 10);
        for due in 0..calls {
            cases += 1;
            if let Err(found) = view_beside(steps, move |call, _| call == due, read) {
                failed.push(format!("the writer {what} before call {due}: {found}"));
            }
        }
    }
    for failure in &failed {
        println!("{failure}");
    }
    assert!(failed.is_empty(), "{} of {cases}, the first: {}", failed.len(), failed[0]);
}

/// Scenario 16: a writer that hardly rests. A refusal is believed only if a second look repeats it, and if none does,
/// then not at all.
#[test]
fn a_view_believes_no_refusal_that_is_never_repeated() {
    let mut failed = Vec::new();
    for (what, steps) in TURNS {
        for every in [3, 5, 8, 13, 21] {
            if let Err(found) = view_beside(steps, move |call, _| call < 200 && call % every == 0, false) {
                failed.push(format!("the writer {what} before every call of {every}: {found}"));
            }
        }
        // Right between the slots and the list, each time for the first eight looks.
        let looks = AtomicU64::new(0);
        let due = move |_, list: bool| list && looks.fetch_add(1, Ordering::SeqCst) < 8;
        if let Err(found) = view_beside(steps, due, false) {
            failed.push(format!("the writer {what} before every list: {found}"));
        }
    }
    for failure in &failed {
        println!("{failure}");
    }
    assert!(failed.is_empty(), "{}, the first: {}", failed.len(), failed[0]);
}
