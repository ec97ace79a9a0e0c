//! A storage that counts every call and can make any of them fail.
//!
//! It wraps another storage, so one set of faults serves the file system and the simulated disk. A
//! log that handles every fault at every call is the claim; a storage that fails on demand, at the
//! n-th call, is the way to check it. The counts double as the measure of how many calls an
//! operation costs.
//!
//! Calls are counted first, then the hook of [`FaultStorage::on_call`] runs, then a fault strikes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Access, Allocation, Entry, LockError, Storage, StorageFile, StorageLock};

/// A storage around another one, with counts and faults. Clones share both.
#[derive(Clone)]
pub struct FaultStorage {
    inner: Arc<dyn Storage>,
    control: Arc<Control>,
}

impl FaultStorage {
    /// Wraps `inner`, without a fault so far.
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        Self { inner, control: Arc::new(Control::default()) }
    }

    /// Adds a fault. If several would strike at one call, the one that was added first does; the
    /// others have counted the call all the same.
    pub fn inject(&self, fault: Fault) {
        self.control.faults.lock().push(Armed { fault, calls: 0 });
    }

    /// Takes all faults away. Calls that hang go on hanging; see [`release`](Self::release).
    pub fn clear_faults(&self) {
        self.control.faults.lock().clear();
    }

    /// Calls so far, of all names.
    pub fn counts(&self) -> OpCounts {
        self.counts_for(|_| true)
    }

    /// Calls so far on names that `matches` accepts. A rename counts under its old name; calls that
    /// name no file under the empty name; calls on an open file under the name that it has now, also
    /// if it was renamed after opening.
    pub fn counts_for(&self, matches: impl Fn(&str) -> bool) -> OpCounts {
        let counts = self.control.counts.lock();
        let mut sum = OpCounts::default();
        for (_, counted) in counts.iter().filter(|(name, _)| matches(name)) {
            sum.add(counted);
        }
        sum
    }

    /// Sets all counts to zero, [`mutations`](Self::mutations) too. Faults count on their own and go
    /// on.
    pub fn reset_counts(&self) {
        self.control.counts.lock().clear();
        self.control.mutations.store(0, Ordering::SeqCst);
    }

    /// Mutating calls so far (see [`Op::is_mutating`]), those that failed included. Inside the hook
    /// of [`on_call`](Self::on_call) the call at hand is counted already.
    pub fn mutations(&self) -> u64 {
        self.control.mutations.load(Ordering::SeqCst)
    }

    /// Has `hook` called before each mutating call, with the operation and the file's name (the old
    /// one of a rename, the empty one of `SyncDir`). It replaces an earlier hook. It may look at the
    /// storage underneath: no lock is held.
    pub fn on_call(&self, hook: impl Fn(Op, &str) + Send + Sync + 'static) {
        *self.control.hook.lock() = Some(Arc::new(hook));
    }

    /// Waits until a call hangs; false if none did for half a minute.
    pub fn wait_hung(&self) -> bool {
        let deadline = Instant::now() + HUNG_PATIENCE;
        let mut hangs = self.control.hangs.lock();
        while hangs.waiting == 0 {
            if self.control.changed.wait_until(&mut hangs, deadline).timed_out() {
                return hangs.waiting > 0;
            }
        }
        true
    }

    /// Lets all calls go on that hang now. Later ones hang anew, if their fault is sticky.
    pub fn release(&self) {
        let mut hangs = self.control.hangs.lock();
        hangs.waiting = 0;
        hangs.releases += 1;
        self.control.changed.notify_all();
    }

    fn file(&self, name: &str, inner: Box<dyn StorageFile>) -> Box<dyn StorageFile> {
        let name = Arc::new(Mutex::new(name.to_owned()));
        let mut open_names = self.control.open_names.lock();
        open_names.retain(|open| open.strong_count() > 0);
        open_names.push(Arc::downgrade(&name));
        Box::new(FaultFile { inner, name, control: Arc::clone(&self.control) })
    }
}

impl fmt::Debug for FaultStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FaultStorage")
            .field("inner", &self.inner)
            .field("faults", &self.control.faults.lock().len())
            .field("mutations", &self.mutations())
            .finish_non_exhaustive()
    }
}

impl Storage for FaultStorage {
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.control.enter(Op::List, &[""])?;
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.control.enter(Op::Create, &[name])?;
        Ok(self.file(name, self.inner.create(name)?))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
        self.control.enter(Op::Open, &[name])?;
        Ok(self.file(name, self.inner.open(name, access)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if let Some(Effect::Lie) = self.control.enter(Op::Rename, &[from, to])? {
            return Ok(());
        }
        self.inner.rename(from, to)?;
        self.control.rename_open(from, to);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.control.enter(Op::Remove, &[name])? {
            Some(Effect::Lie) => Ok(()),
            _ => self.inner.remove(name),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        match self.control.enter(Op::SyncDir, &[""])? {
            Some(Effect::Lie) => Ok(()),
            _ => self.inner.sync_dir(),
        }
    }

    fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError> {
        self.control.enter(Op::Lock, &[name])?;
        self.inner.lock(name)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.control.enter(Op::FreeBytes, &[""])?;
        self.inner.free_bytes()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.control.enter(Op::Random, &[""])?;
        self.inner.random(bytes)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of that name")]
pub enum Op {
    List,
    Create,
    Open,
    Rename,
    Remove,
    SyncDir,
    Lock,
    FreeBytes,
    Random,
    Len,
    Read,
    Write,
    SetLen,
    Allocate,
    Sync,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 15] = [
        Op::List,
        Op::Create,
        Op::Open,
        Op::Rename,
        Op::Remove,
        Op::SyncDir,
        Op::Lock,
        Op::FreeBytes,
        Op::Random,
        Op::Len,
        Op::Read,
        Op::Write,
        Op::SetLen,
        Op::Allocate,
        Op::Sync,
    ];

    /// Whether the call changes what is on the disk, or what of it is durable.
    pub fn is_mutating(self) -> bool {
        match self {
            Op::Create
            | Op::Rename
            | Op::Remove
            | Op::SyncDir
            | Op::Write
            | Op::SetLen
            | Op::Allocate
            | Op::Sync => true,
            Op::List | Op::Open | Op::Lock | Op::FreeBytes | Op::Random | Op::Len | Op::Read => false,
        }
    }
}

/// How often each kind of call was made. Subtracting an earlier count gives what came since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OpCounts {
    calls: [u64; Op::ALL.len()],
    /// Bytes that reads returned.
    pub bytes_read: u64,
    /// Bytes that writes passed on to the storage underneath. Bytes of `allocate` are not among them.
    pub bytes_written: u64,
}

impl OpCounts {
    /// Calls of one kind, those that failed included.
    pub fn get(&self, op: Op) -> u64 {
        self.calls.get(op as usize).copied().unwrap_or(0)
    }

    /// Calls of all kinds.
    pub fn total(&self) -> u64 {
        self.calls.iter().sum()
    }

    fn count(&mut self, op: Op) {
        if let Some(calls) = self.calls.get_mut(op as usize) {
            *calls += 1;
        }
    }

    fn add(&mut self, other: &OpCounts) {
        for (sum, calls) in self.calls.iter_mut().zip(other.calls) {
            *sum += calls;
        }
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

impl Sub for OpCounts {
    type Output = OpCounts;

    fn sub(mut self, earlier: OpCounts) -> OpCounts {
        for (calls, before) in self.calls.iter_mut().zip(earlier.calls) {
            *calls = calls.saturating_sub(before);
        }
        self.bytes_read = self.bytes_read.saturating_sub(earlier.bytes_read);
        self.bytes_written = self.bytes_written.saturating_sub(earlier.bytes_written);
        self
    }
}

/// What goes wrong, and when.
///
/// Made by what goes wrong, then told when: at the first mutating call, unless
/// [`at`](Self::at) or [`at_mutation`](Self::at_mutation) says otherwise; once, unless it is
/// [`sticky`](Self::sticky). Calls are counted from 1, beginning when the fault is injected, and with
/// [`on_name`](Self::on_name) only those on such names.
///
/// A fault that means nothing to the call that it strikes (a short write to a sync) lets it pass.
#[derive(Debug, Clone)]
pub struct Fault {
    effect: Effect,
    /// `None` is any mutating call.
    op: Option<Op>,
    call: u64,
    name: Option<String>,
    sticky: bool,
}

impl Fault {
    /// The call fails with an error of this kind and does nothing.
    pub fn error(kind: io::ErrorKind) -> Self {
        Self::of(Effect::Error(Failure::Kind(kind)))
    }

    /// The call fails with this error code of the operating system and does nothing.
    pub fn raw_error(code: i32) -> Self {
        Self::of(Effect::Error(Failure::Code(code)))
    }

    /// A write writes at most `len` bytes and says so.
    pub fn short_write(len: usize) -> Self {
        Self::of(Effect::ShortWrite(len))
    }

    /// A write writes at most `len` bytes and then fails with an error of this kind.
    pub fn torn_write(len: usize, kind: io::ErrorKind) -> Self {
        Self::of(Effect::TornWrite(len, kind))
    }

    /// A read reads at most `len` bytes and says so; with 0 it looks like the end of the file.
    pub fn short_read(len: usize) -> Self {
        Self::of(Effect::ShortRead(len))
    }

    /// A write, `set_len`, allocation, sync, rename or removal says Ok and does nothing.
    pub fn lie() -> Self {
        Self::of(Effect::Lie)
    }

    /// One bit of what is read or written is wrong, counted from the front, low bit of a byte first,
    /// and modulo the number of bits that there are.
    pub fn bit_flip(bit: u64) -> Self {
        Self::of(Effect::BitFlip(bit))
    }

    /// The call waits for [`FaultStorage::release`] and is then carried out.
    pub fn hang() -> Self {
        Self::of(Effect::Hang)
    }

    /// At the `n`-th mutating call (see [`Op::is_mutating`]).
    #[must_use]
    pub fn at_mutation(self, n: u64) -> Self {
        Self { op: None, call: n, ..self }
    }

    /// At the `n`-th call of this kind.
    #[must_use]
    pub fn at(self, op: Op, n: u64) -> Self {
        Self { op: Some(op), call: n, ..self }
    }

    /// Only calls on names that contain `text` strike and count. Renames have both names.
    #[must_use]
    pub fn on_name(self, text: &str) -> Self {
        Self { name: Some(text.to_owned()), ..self }
    }

    /// From that call on, at each.
    #[must_use]
    pub fn sticky(self) -> Self {
        Self { sticky: true, ..self }
    }

    fn of(effect: Effect) -> Self {
        Self { effect, op: None, call: 1, name: None, sticky: false }
    }

    fn concerns(&self, op: Op, names: &[&str]) -> bool {
        let kind_fits = self.op.map_or(op.is_mutating(), |wanted| wanted == op);
        kind_fits && self.name.as_ref().is_none_or(|text| names.iter().any(|name| name.contains(text)))
    }
}

/// An open file of a [`FaultStorage`].
struct FaultFile {
    inner: Box<dyn StorageFile>,
    name: OpenName,
    control: Arc<Control>,
}

impl FaultFile {
    fn enter(&self, op: Op) -> io::Result<Option<Effect>> {
        let name = self.name.lock().clone();
        self.control.enter(op, &[&name])
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write_at(offset, bytes)?;
        self.control.count_bytes(&self.name.lock(), |counts| &mut counts.bytes_written, written);
        Ok(written)
    }

    fn write_whole(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut position = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.write(position, rest)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            position += written as u64;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read_at(offset, buffer)?;
        self.control.count_bytes(&self.name.lock(), |counts| &mut counts.bytes_read, read);
        Ok(read)
    }
}

impl fmt::Debug for FaultFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FaultFile")
            .field("name", &*self.name.lock())
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl StorageFile for FaultFile {
    fn len(&self) -> io::Result<u64> {
        self.enter(Op::Len)?;
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.enter(Op::Read)? {
            Some(Effect::ShortRead(len)) => self.read(offset, head_mut(buffer, len)),
            Some(Effect::BitFlip(bit)) => {
                let read = self.read(offset, buffer)?;
                flip(head_mut(buffer, read), bit);
                Ok(read)
            }
            _ => self.read(offset, buffer),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        match self.enter(Op::Write)? {
            Some(Effect::Lie) => Ok(bytes.len()),
            Some(Effect::ShortWrite(len)) => self.write(offset, head(bytes, len)),
            Some(Effect::TornWrite(len, kind)) => {
                self.write_whole(offset, head(bytes, len))?;
                Err(kind.into())
            }
            Some(Effect::BitFlip(bit)) => {
                let mut wrong = bytes.to_vec();
                flip(&mut wrong, bit);
                self.write(offset, &wrong)
            }
            _ => self.write(offset, bytes),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.enter(Op::SetLen)? {
            Some(Effect::Lie) => Ok(()),
            _ => self.inner.set_len(len),
        }
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> io::Result<Allocation> {
        match self.enter(Op::Allocate)? {
            Some(Effect::Lie) => Ok(how),
            _ => self.inner.allocate(offset, len, how),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self.enter(Op::Sync)? {
            Some(Effect::Lie) => Ok(()),
            _ => self.inner.sync(),
        }
    }
}

/// What all clones and open files share.
#[derive(Default)]
struct Control {
    /// By name.
    counts: Mutex<BTreeMap<String, OpCounts>>,
    mutations: AtomicU64,
    faults: Mutex<Vec<Armed>>,
    hook: Mutex<Option<Hook>>,
    hangs: Mutex<Hangs>,
    changed: Condvar,
    /// Names of the open files, so that they follow renames: the log makes a file under one name and
    /// uses it under another.
    open_names: Mutex<Vec<Weak<Mutex<String>>>>,
}

impl Control {
    /// Counts the call, runs the hook and lets a fault strike: an error fails the call here, a hang
    /// is waited out here, any other effect is for the caller.
    fn enter(&self, op: Op, names: &[&str]) -> io::Result<Option<Effect>> {
        let name = names.first().copied().unwrap_or_default();
        self.count(name, |counts| counts.count(op));
        if op.is_mutating() {
            self.mutations.fetch_add(1, Ordering::SeqCst);
            let hook = self.hook.lock().clone();
            if let Some(hook) = hook {
                hook(op, name);
            }
        }
        match self.strike(op, names) {
            Some(Effect::Error(failure)) => Err(failure.into_error()),
            Some(Effect::Hang) => {
                self.wait_for_release();
                Ok(None)
            }
            effect => Ok(effect),
        }
    }

    fn strike(&self, op: Op, names: &[&str]) -> Option<Effect> {
        let mut faults = self.faults.lock();
        let mut struck = None;
        faults.retain_mut(|armed| {
            if !armed.fault.concerns(op, names) {
                return true;
            }
            armed.calls += 1;
            let due = armed.calls == armed.fault.call || armed.fault.sticky && armed.calls > armed.fault.call;
            if !due {
                return true;
            }
            if struck.is_none() {
                struck = Some(armed.fault.effect);
            }
            armed.fault.sticky
        });
        struck
    }

    fn wait_for_release(&self) {
        let mut hangs = self.hangs.lock();
        let releases = hangs.releases;
        hangs.waiting += 1;
        self.changed.notify_all();
        while hangs.releases == releases {
            self.changed.wait(&mut hangs);
        }
    }

    fn count(&self, name: &str, by: impl FnOnce(&mut OpCounts)) {
        let mut counts = self.counts.lock();
        match counts.get_mut(name) {
            Some(counted) => by(counted),
            None => by(counts.entry(name.to_owned()).or_default()),
        }
    }

    fn count_bytes(&self, name: &str, which: impl FnOnce(&mut OpCounts) -> &mut u64, len: usize) {
        self.count(name, |counts| *which(counts) += len as u64);
    }

    fn rename_open(&self, from: &str, to: &str) {
        for open in self.open_names.lock().iter().filter_map(Weak::upgrade) {
            let mut name = open.lock();
            if *name == from {
                to.clone_into(&mut name);
            }
        }
    }
}

/// A fault, and how many of the calls that concern it were made.
struct Armed {
    fault: Fault,
    calls: u64,
}

/// Calls that hang, and how often hanging calls were let go.
#[derive(Default)]
struct Hangs {
    waiting: usize,
    releases: u64,
}

#[derive(Debug, Clone, Copy)]
enum Effect {
    Error(Failure),
    ShortWrite(usize),
    TornWrite(usize, io::ErrorKind),
    ShortRead(usize),
    Lie,
    BitFlip(u64),
    Hang,
}

#[derive(Debug, Clone, Copy)]
enum Failure {
    Kind(io::ErrorKind),
    Code(i32),
}

impl Failure {
    fn into_error(self) -> io::Error {
        match self {
            Self::Kind(kind) => io::Error::new(kind, "injected fault"),
            Self::Code(code) => io::Error::from_raw_os_error(code),
        }
    }
}

type Hook = Arc<dyn Fn(Op, &str) + Send + Sync>;
type OpenName = Arc<Mutex<String>>;

fn head(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(..len).unwrap_or(bytes)
}

fn head_mut(bytes: &mut [u8], len: usize) -> &mut [u8] {
    let len = len.min(bytes.len());
    bytes.get_mut(..len).unwrap_or_default()
}

fn flip(bytes: &mut [u8], bit: u64) {
    let Some(bit) = bit.checked_rem(bytes.len() as u64 * 8) else {
        return;
    };
    let place = usize::try_from(bit / 8).unwrap_or(usize::MAX);
    if let Some(byte) = bytes.get_mut(place) {
        *byte ^= 1 << (bit % 8);
    }
}

const HUNG_PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::storage::{CrashPlan, MemStorage, suite};

    fn storage() -> (MemStorage, FaultStorage) {
        let disk = MemStorage::new(1);
        let storage = FaultStorage::new(Arc::new(disk.clone()));
        (disk, storage)
    }

    fn kind<T: fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn keeps_the_contract_without_faults() {
        suite::check(|| Arc::new(storage().1)).unwrap();
    }

    #[test]
    fn all_lists_all() {
        for (number, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number);
        }
    }

    #[test]
    fn every_call_is_counted() {
        let (_disk, storage) = storage();
        let file = storage.create("a").unwrap();
        file.write_at(0, b"abc").unwrap();
        file.read_at(0, &mut [0; 8]).unwrap();
        file.len().unwrap();
        file.set_len(10).unwrap();
        file.allocate(0, 20, Allocation::Zeros).unwrap();
        file.sync().unwrap();
        storage.open("a", Access::Read).unwrap();
        storage.rename("a", "b").unwrap();
        storage.remove("b").unwrap();
        storage.sync_dir().unwrap();
        storage.list().unwrap();
        storage.lock("lock").unwrap();
        storage.free_bytes().unwrap();
        storage.random(&mut [0; 4]).unwrap();
        let counts = storage.counts();
        assert!(Op::ALL.into_iter().all(|op| counts.get(op) == 1), "{counts:?}");
        assert_eq!((counts.total(), counts.bytes_read, counts.bytes_written), (15, 3, 3));
        assert_eq!(storage.mutations(), 8);

        storage.list().unwrap();
        let since = storage.counts() - counts;
        assert_eq!((since.get(Op::List), since.total()), (1, 1));
        storage.reset_counts();
        assert_eq!((storage.counts(), storage.mutations()), (OpCounts::default(), 0));
    }

    #[test]
    fn names_follow_renames() {
        let (_disk, storage) = storage();
        let file = storage.create("tmp").unwrap();
        file.write_at(0, b"abc").unwrap();
        storage.rename("tmp", "a").unwrap();
        file.sync().unwrap();
        assert_eq!(storage.counts_for(|name| name == "tmp").bytes_written, 3);
        assert_eq!(storage.counts_for(|name| name == "a").get(Op::Sync), 1);
        storage.inject(Fault::error(io::ErrorKind::Other).on_name("a"));
        assert_eq!(kind(file.sync()), io::ErrorKind::Other);
    }

    #[test]
    fn an_error_strikes_once_at_its_call() {
        let (disk, storage) = storage();
        let file = storage.create("a").unwrap();
        storage.inject(Fault::error(io::ErrorKind::StorageFull).at(Op::Write, 2));
        file.write_at(0, b"a").unwrap();
        assert_eq!(kind(file.write_at(0, b"b")), io::ErrorKind::StorageFull);
        assert_eq!(disk.read("a").unwrap(), b"a");
        file.write_at(0, b"c").unwrap();
        storage.inject(Fault::raw_error(5).at_mutation(2));
        file.sync().unwrap();
        file.len().unwrap();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        file.sync().unwrap();
    }

    #[test]
    fn every_call_can_fail() {
        let (_disk, storage) = storage();
        let file = storage.create("a").unwrap();
        let fail = || Fault::error(io::ErrorKind::TimedOut);
        for op in Op::ALL {
            storage.inject(fail().at(op, 1));
            let result = match op {
                Op::List => storage.list().map(drop),
                Op::Create => storage.create("b").map(drop),
                Op::Open => storage.open("a", Access::Read).map(drop),
                Op::Rename => storage.rename("a", "b"),
                Op::Remove => storage.remove("a"),
                Op::SyncDir => storage.sync_dir(),
                Op::Lock => match storage.lock("lock") {
                    Err(LockError::Io(error)) => Err(error),
                    other => panic!("{other:?}"),
                },
                Op::FreeBytes => storage.free_bytes().map(drop),
                Op::Random => storage.random(&mut [0; 1]),
                Op::Len => file.len().map(drop),
                Op::Read => file.read_at(0, &mut [0; 1]).map(drop),
                Op::Write => file.write_at(0, b"a").map(drop),
                Op::SetLen => file.set_len(1),
                Op::Allocate => file.allocate(0, 1, Allocation::Zeros).map(drop),
                Op::Sync => file.sync(),
            };
            assert_eq!(kind(result), io::ErrorKind::TimedOut, "{op:?}");
        }
        assert_eq!(storage.inner.list().unwrap().len(), 1);
        assert_eq!(file.len().unwrap(), 0);
    }

    #[test]
    fn a_sticky_fault_stays_until_it_is_cleared() {
        let (_disk, storage) = storage();
        let file = storage.create("a").unwrap();
        storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Sync, 2).sticky());
        file.sync().unwrap();
        assert!(file.sync().is_err());
        assert!(file.sync().is_err());
        storage.clear_faults();
        file.sync().unwrap();
    }

    #[test]
    fn only_names_that_contain_the_text() {
        let (_disk, storage) = storage();
        let wal = storage.create("1.wal").unwrap();
        let control = storage.create("control").unwrap();
        storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Write, 1).on_name(".wal"));
        control.write_at(0, b"a").unwrap();
        assert!(wal.write_at(0, b"a").is_err());
        storage.inject(Fault::error(io::ErrorKind::Other).at(Op::Rename, 1).on_name("2.wal"));
        assert!(storage.rename("control", "2.wal").is_err());
    }

    #[test]
    fn writes_fall_short() {
        let (disk, storage) = storage();
        let file = storage.create("a").unwrap();
        storage.inject(Fault::short_write(2));
        assert_eq!(file.write_at(0, b"abcd").unwrap(), 2);
        assert_eq!(disk.read("a").unwrap(), b"ab");
        storage.inject(Fault::torn_write(3, io::ErrorKind::StorageFull));
        assert_eq!(kind(file.write_at(0, b"wxyz")), io::ErrorKind::StorageFull);
        assert_eq!(disk.read("a").unwrap(), b"wxy");
        assert_eq!(storage.counts().bytes_written, 5);
        // It means nothing to a sync.
        storage.inject(Fault::short_write(2));
        file.sync().unwrap();
        assert_eq!(file.write_at(0, b"abcd").unwrap(), 4);
    }

    #[test]
    fn reads_fall_short() {
        let (disk, storage) = storage();
        disk.write("a", b"abcd");
        let file = storage.open("a", Access::Read).unwrap();
        storage.inject(Fault::short_read(2).at(Op::Read, 1));
        let mut buffer = [0; 4];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 2);
        assert_eq!(buffer, *b"ab\0\0");
        storage.inject(Fault::short_read(0).at(Op::Read, 1));
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 0);
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 4);
    }

    #[test]
    fn a_lie_does_nothing() {
        let (disk, storage) = storage();
        let file = storage.create("a").unwrap();
        storage.sync_dir().unwrap();
        storage.inject(Fault::lie().sticky());
        assert_eq!(file.write_at(0, b"abc").unwrap(), 3);
        file.set_len(10).unwrap();
        assert_eq!(file.allocate(0, 9, Allocation::Reserve).unwrap(), Allocation::Reserve);
        storage.rename("a", "b").unwrap();
        storage.remove("a").unwrap();
        assert_eq!((disk.names(), disk.len("a")), (vec!["a".to_owned()], Some(0)));
        storage.clear_faults();

        file.write_at(0, b"abc").unwrap();
        storage.create("b").unwrap();
        storage.inject(Fault::lie().at(Op::Sync, 1));
        storage.inject(Fault::lie().at(Op::SyncDir, 1));
        file.sync().unwrap();
        storage.sync_dir().unwrap();
        let image = disk.crash(&CrashPlan::Nothing);
        assert_eq!((image.names(), image.len("a")), (vec!["a".to_owned()], Some(0)));
    }

    #[test]
    fn a_bit_is_wrong() {
        let (disk, storage) = storage();
        let file = storage.create("a").unwrap();
        storage.inject(Fault::bit_flip(9));
        assert_eq!(file.write_at(0, &[0; 4]).unwrap(), 4);
        assert_eq!(disk.read("a").unwrap(), [0, 2, 0, 0]);
        storage.inject(Fault::bit_flip(32).at(Op::Read, 1));
        let mut buffer = [0; 9];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 4);
        assert_eq!(buffer, [1, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(disk.read("a").unwrap(), [0, 2, 0, 0]);
        storage.inject(Fault::bit_flip(0));
        assert_eq!(file.write_at(0, &[]).unwrap(), 0);
    }

    #[test]
    fn a_hang_lasts_until_released() {
        let (disk, storage) = storage();
        let file = storage.create("a").unwrap();
        storage.inject(Fault::hang().at(Op::Write, 1));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_at(0, b"abc").unwrap());
            assert!(storage.wait_hung());
            assert_eq!(disk.len("a"), Some(0));
            assert!(!writer.is_finished());
            storage.release();
            assert_eq!(writer.join().unwrap(), 3);
        });
        assert_eq!(disk.len("a"), Some(3));
    }

    #[test]
    fn the_hook_sees_the_disk_before_each_mutation() {
        let (disk, storage) = storage();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let images = Arc::clone(&seen);
        let (below, counter) = (disk.clone(), storage.clone());
        storage.on_call(move |op, name| {
            let len = below.fork_live().len("a");
            images.lock().push((counter.mutations(), op, name.to_owned(), len));
        });
        let file = storage.create("a").unwrap();
        file.write_at(0, b"abc").unwrap();
        file.len().unwrap();
        storage.sync_dir().unwrap();
        let expected = [
            (1, Op::Create, "a".to_owned(), None),
            (2, Op::Write, "a".to_owned(), Some(0)),
            (3, Op::SyncDir, String::new(), Some(3)),
        ];
        assert_eq!(*seen.lock(), expected);
    }
}
