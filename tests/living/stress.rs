//! Every call at once, on one log of small segments, with crashes taken from it meanwhile.
//!
//! A record's payload says who appended it, as which of its batches, and nothing of its LSN; so what is read
//! anywhere can be told from what was never appended, and is compared with the receipts at the end.
#![allow(clippy::cast_possible_truncation, reason = "draws from small ranges")]

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use planewal::storage::{CrashPlan, MemStorage};
use planewal::{
    AppendError, Batch, Durability, HoldError, Lsn, NoRoom, Options, ReadError, Reader, Receipt, Record,
    Tail, Tailed, Ticket, Verdict, View, Wal,
};

use crate::support::{lsn, open_with};

const LEVELS: [Durability; 3] = [Durability::Buffered, Durability::Written, Durability::Synced];

const WORKERS: u64 = 8;

/// A log that does nothing for so long has lost a wake-up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same numbers for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn level(&mut self) -> Durability {
        LEVELS[self.below(3) as usize]
    }
}

/// Who appended a record, in which of its batches, as which of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    worker: u64,
    batch: u64,
    at: u64,
    of: u64,
}

impl Identity {
    fn payload(self) -> Vec<u8> {
        let mut draw = Draw(self.worker << 48 ^ self.batch << 8 ^ self.at);
        let length = if draw.below(20) == 0 { draw.below(6000) } else { draw.below(200) };
        let head = [self.worker, self.batch, self.at, self.of];
        let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend((0..length).map(|_| draw.below(256) as u8));
        bytes
    }

    /// The record that this is, byte for byte.
    fn of(record: &Record<'_>) -> Identity {
        let word = |at: usize| u64::from_le_bytes(record.payload[at * 8..at * 8 + 8].try_into().unwrap());
        let found = Identity { worker: word(0), batch: word(1), at: word(2), of: word(3) };
        assert_eq!(record.payload, found.payload(), "P3: LSN {}", record.lsn);
        assert_eq!(
            (u64::from(record.plane), record.kind),
            (0x80 + found.worker, 1),
            "P3: LSN {}",
            record.lsn
        );
        assert_eq!(record.ends_batch, found.at + 1 == found.of, "P1: LSN {}", record.lsn);
        found
    }
}

/// What the threads share.
struct Shared {
    wal: Wal,
    disk: MemStorage,
    options: Options,
    /// Receipts: what was given which LSN.
    ledger: Mutex<BTreeMap<u64, Identity>>,
    /// What images and readers showed, compared with the ledger at the end.
    seen: Mutex<BTreeMap<u64, Identity>>,
    /// The last LSN that was acknowledged at each level.
    acknowledged: [AtomicU64; 3],
    /// Nothing from here on was ever given to be retired.
    retired_before: AtomicU64,
    images: AtomicU64,
    steps: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    fn acknowledge(&self, level: Durability, last: Lsn) {
        let mark = match level {
            Durability::Buffered => self.wal.last(),
            Durability::Written => self.wal.written(),
            Durability::Synced => self.wal.durable(),
        };
        assert!(mark >= Some(last), "{last} is acknowledged at {level:?}, the mark is {mark:?}");
        self.acknowledged[level as usize].fetch_max(last.number(), Ordering::SeqCst);
    }

    fn see(&self, at: u64, identity: Identity) {
        let before = self.seen.lock().unwrap().insert(at, identity);
        assert!(before.is_none_or(|before| before == identity), "P4: LSN {at}: {before:?} {identity:?}");
    }

    /// Reads up to `most` records and checks each; answers the last LSN, and whether its batch ended there.
    fn follow(&self, mut reader: Reader, from: u64, most: u64) -> Result<(u64, bool), ReadError> {
        let (mut last, mut whole) = (from - 1, true);
        while last < from - 1 + most {
            let Some(record) = reader.next()? else { break };
            last += 1;
            assert_eq!(record.lsn.number(), last, "P4: LSNs are dense");
            whole = record.ends_batch;
            self.see(last, Identity::of(&record));
        }
        Ok((last, whole))
    }

    /// A crash now: with the page cache or without. Everything acknowledged is there, nothing else is.
    fn crash(&self, draw: &mut Draw) {
        let process = draw.below(2) == 0;
        let floor = if process {
            // What is durable is written.
            let written = self.acknowledged[1].load(Ordering::SeqCst);
            written.max(self.wal.written().map_or(0, Lsn::number))
        } else {
            let durable = self.acknowledged[2].load(Ordering::SeqCst);
            durable.max(self.wal.durable().map_or(0, Lsn::number))
        };
        let image = match draw.below(3) {
            _ if process => self.disk.fork_live(),
            0 => self.disk.crash(&CrashPlan::Nothing),
            _ => self.disk.crash(&CrashPlan::Seeded(draw.below(u64::MAX))),
        };
        let retired = self.retired_before.load(Ordering::SeqCst);
        let view = View::open_on(Arc::new(image.clone())).unwrap();
        let report = view.report();
        assert!(matches!(report.verdict, Verdict::Clean | Verdict::TornTail), "P5: {report:#?}");
        let first = report.first.unwrap_or(report.next).number();
        assert!(first <= retired, "P1: begins with {first}, and only those before {retired} may go");
        let (last, whole) = self.follow(view.read(lsn(first)).unwrap(), first, u64::MAX / 2).unwrap();
        assert!(whole, "P1: LSN {last} is in the middle of a batch");
        assert!(last >= floor, "P2: {floor} was acknowledged, {last} is the last (process: {process})");
        drop(view);
        let options = Options { io_thread: false, ..self.options.clone() };
        let wal = Wal::open_on(Arc::new(image.clone()), options).unwrap();
        assert_eq!(wal.last().map_or(0, Lsn::number), last);
        let next = wal.append(0x80, 2, b"goes on").unwrap();
        assert_eq!(next.number(), last + 1, "P4: the next LSN");
        wal.close().unwrap();
        assert!(View::open_on(Arc::new(image)).unwrap().report().closed_cleanly);
        self.images.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stops the others, also in a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Tells in a panic how to have the same again, as far as threads are the same again.
struct Seed(u64, u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("worker {} with the seed {:#x}", self.0, self.1);
        }
    }
}

/// One of those who do everything.
struct Worker<'a> {
    shared: &'a Shared,
    number: u64,
    batches: u64,
    draw: Draw,
    tickets: Vec<Ticket>,
    /// Its durable hold, if it has one.
    hold: Option<u64>,
}

impl Worker<'_> {
    fn wal(&self) -> &Wal {
        &self.shared.wal
    }

    fn batch(&mut self, most: u64) -> (Batch, Vec<Identity>) {
        self.batches += 1;
        let of = 1 + self.draw.below(most);
        let identities: Vec<Identity> =
            (0..of).map(|at| Identity { worker: self.number, batch: self.batches, at, of }).collect();
        let mut batch = Batch::new();
        for identity in &identities {
            batch.push(0x80 + self.number as u8, 1, &identity.payload()).unwrap();
        }
        (batch, identities)
    }

    /// Writes down what got which LSN.
    fn note(&self, receipt: Receipt, identities: &[Identity]) {
        let lsns = receipt.first.number()..=receipt.last.number();
        assert_eq!(lsns.clone().count(), identities.len());
        let mut ledger = self.shared.ledger.lock().unwrap();
        for (at, identity) in lsns.zip(identities) {
            assert_eq!(ledger.insert(at, *identity), None, "P4: LSN {at} is given twice");
        }
    }

    fn keep(&mut self, ticket: Ticket, identities: &[Identity]) {
        self.note(ticket.receipt(), identities);
        self.tickets.push(ticket);
    }

    /// Waits for a ticket, or polls it, or does not.
    fn redeem(&mut self, ticket: Ticket) {
        let (level, receipt) = (ticket.durability(), ticket.receipt());
        let outcome = match self.draw.below(4) {
            0 => None,
            1 => Some(ticket.wait().unwrap()),
            2 => ticket.wait_timeout(Duration::from_micros(self.draw.below(300))).unwrap(),
            _ => match pin!(ticket).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => Some(outcome.unwrap()),
                Poll::Pending => None,
            },
        };
        if let Some(done) = outcome {
            assert_eq!(done, receipt);
            self.shared.acknowledge(level, receipt.last);
        }
    }

    fn append(&mut self) {
        let level = self.draw.level();
        match self.draw.below(4) {
            0 => {
                self.batches += 1;
                let identity = Identity { worker: self.number, batch: self.batches, at: 0, of: 1 };
                let plane = 0x80 + self.number as u8;
                let at = self.wal().append_as(plane, 1, &identity.payload(), level).unwrap();
                assert_eq!(self.shared.ledger.lock().unwrap().insert(at.number(), identity), None);
                self.shared.acknowledge(level, at);
            }
            1 => {
                let (mut batch, identities) = self.batch(4);
                let receipt = self.wal().commit_as(&mut batch, level).unwrap();
                self.note(receipt, &identities);
                self.shared.acknowledge(level, receipt.last);
            }
            2 => {
                let (mut batch, identities) = self.batch(4);
                let ticket = self.wal().submit_as(&mut batch, level).unwrap();
                self.keep(ticket, &identities);
            }
            _ => self.append_or_not(level),
        }
    }

    /// The calls that do not wait for a place.
    fn append_or_not(&mut self, level: Durability) {
        let (mut batch, identities) = self.batch(4);
        let refused = if self.draw.below(2) == 0 {
            match self.wal().try_commit(&mut batch, level) {
                Ok(receipt) => {
                    self.note(receipt, &identities);
                    return self.shared.acknowledge(level, receipt.last);
                }
                Err(error) => error,
            }
        } else {
            match self.wal().try_submit(&mut batch, level) {
                Ok(ticket) => return self.keep(ticket, &identities),
                Err(error) => error,
            }
        };
        assert!(matches!(refused, AppendError::Full(NoRoom::Staging { .. })), "{refused}");
        assert_eq!(u64::from(batch.records()), identities.len() as u64);
    }

    fn reserve(&mut self) {
        let (mut batch, identities) = self.batch(3);
        let bytes = batch.encoded_bytes() + self.draw.below(8000);
        let permit = if self.draw.below(2) == 0 {
            self.wal().reserve(bytes).unwrap()
        } else {
            match self.wal().try_reserve(bytes) {
                Ok(permit) => permit,
                Err(AppendError::Full(NoRoom::Staging { .. })) => return,
                Err(error) => panic!("{error}"),
            }
        };
        let level = self.draw.level();
        match self.draw.below(3) {
            0 => drop(permit),
            1 => {
                let receipt = permit.commit_as(&mut batch, level).unwrap();
                self.note(receipt, &identities);
                self.shared.acknowledge(level, receipt.last);
            }
            _ => {
                let ticket = permit.submit_as(&mut batch, level).unwrap();
                self.keep(ticket, &identities);
            }
        }
    }

    fn wait(&mut self) {
        let Some(last) = self.wal().last() else { return };
        let at = lsn(1 + self.draw.below(last.number()));
        match self.draw.below(3) {
            0 => {
                self.wal().sync().unwrap();
                self.shared.acknowledge(Durability::Synced, last);
            }
            1 => {
                self.wal().wait_durable(at).unwrap();
                self.shared.acknowledge(Durability::Synced, at);
            }
            _ => {
                self.wal().wait_written(at).unwrap();
                self.shared.acknowledge(Durability::Written, at);
            }
        }
        let behind = lsn(self.wal().next().number() + 1_000_000);
        assert!(matches!(self.wal().wait_written(behind), Err(AppendError::NotYetAppended { .. })));
    }

    fn read(&mut self) {
        let (first, written) = (self.wal().first(), self.wal().written().map_or(0, Lsn::number));
        let from = lsn(first.number() + self.draw.below((written + 1).saturating_sub(first.number()).max(1)));
        let outcome = match self.draw.below(3) {
            0 => self.wal().seek(from).map(drop),
            1 => self.wal().read(from).and_then(|reader| {
                self.shared.follow(reader, from.number(), 40)?;
                Ok(())
            }),
            _ => self.wal().tail(from).and_then(|tail| {
                let mut tail = if self.draw.below(2) == 0 { tail } else { tail.of_written() };
                for _ in 0..5 {
                    match tail.next().wait_timeout(Duration::from_micros(200))? {
                        Tailed::Record(record) => {
                            self.shared.see(record.lsn.number(), Identity::of(&record));
                        }
                        Tailed::CaughtUp(_) => break,
                        other => panic!("{other:?}"),
                    }
                }
                let cursor = tail.cursor();
                self.wal().tail_from(&cursor).map(drop)
            }),
        };
        match outcome {
            // Above what is written, or retired since.
            Ok(()) | Err(ReadError::Ahead { .. } | ReadError::Retired { .. } | ReadError::NotKept { .. }) => {
            }
            Err(error) => panic!("reading from {from}: {error}"),
        }
    }

    fn hold(&mut self) {
        let first = self.wal().first();
        let Ok(hold) = self.wal().hold("worker", first) else { return };
        let durable = self.wal().durable().map_or(0, Lsn::number);
        // Whatever was decided before the hold is none of its business; it is kept from now on.
        self.retire();
        assert!(self.wal().first() <= first, "held at {first}, and begins with {}", self.wal().first());
        hold.advance(lsn(durable.max(first.number()))).unwrap();
        let reader = self.wal().read(hold.lsn()).unwrap();
        self.shared.follow(reader, hold.lsn().number(), 20).unwrap();
    }

    fn hold_durably(&mut self) {
        let name = format!("worker {}", self.number);
        let durable = lsn(self.wal().durable().map_or(1, Lsn::number));
        match self.hold {
            None => match self.wal().hold_durably(&name, durable) {
                Ok(()) => self.hold = Some(durable.number()),
                Err(HoldError::Retired { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            Some(at) => {
                assert!(self.wal().first().number() <= at, "a durable hold at {at} keeps it");
                if self.draw.below(2) == 0 {
                    self.wal().release_durable_hold(&name).unwrap();
                    self.hold = None;
                } else {
                    self.wal().advance_durable_hold(&name, durable).unwrap();
                    self.hold = Some(durable.number());
                }
            }
        }
    }

    fn retire(&mut self) {
        let durable = self.wal().durable().map_or(0, Lsn::number);
        let before = durable.saturating_sub(self.draw.below(200)).max(1);
        self.shared.retired_before.fetch_max(before, Ordering::SeqCst);
        let report = self.wal().retire_unchecked(lsn(before)).unwrap();
        assert!(report.retired.iter().all(|segment| segment.last < Lsn::new(before)));
    }

    fn back_up(&mut self) {
        let copy = MemStorage::new(self.draw.below(u64::MAX));
        let durable = self.wal().durable();
        self.wal().backup_to_storage(Arc::new(copy.clone())).unwrap();
        let view = View::open_on(Arc::new(copy)).unwrap();
        assert!(view.report().last >= durable, "P2: the copy is a durable prefix");
        let first = view.report().first.unwrap_or(view.report().next);
        self.shared.follow(view.read(first).unwrap(), first.number(), u64::MAX / 2).unwrap();
    }

    fn look(&mut self) {
        let stats = self.wal().stats();
        assert!(stats.durable <= stats.written && stats.written <= stats.last);
        assert!(stats.poison.is_none() && stats.full.is_none());
        let segments = self.wal().segments();
        assert!(segments.windows(2).all(|pair| pair[0].id < pair[1].id && pair[0].last < Some(pair[1].base)));
        self.wal().disk_usage().unwrap();
        assert!(self.wal().holds().len() < 100);
    }

    fn step(&mut self) {
        match self.draw.below(100) {
            0..55 => self.append(),
            55..68 => self.reserve(),
            68..74 => self.wait(),
            74..84 => self.read(),
            84..87 => self.hold(),
            87..89 => self.hold_durably(),
            89..92 => self.retire(),
            92..94 => self.wal().rotate().unwrap(),
            94 => self.back_up(),
            _ => self.look(),
        }
        while self.tickets.len() > 6 {
            let ticket = self.tickets.swap_remove(self.draw.below(6) as usize);
            self.redeem(ticket);
        }
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
    }
}

fn work(shared: &Shared, number: u64, seed: u64, steps: u64) {
    let _seed = Seed(number, seed);
    let draw = Draw(seed);
    let mut worker = Worker { shared, number, batches: 0, draw, tickets: Vec::new(), hold: None };
    for _ in 0..steps {
        worker.step();
    }
    for ticket in std::mem::take(&mut worker.tickets) {
        worker.redeem(ticket);
    }
}

/// Reads a tail from the first record to the end, which misses none; answers how many it showed.
fn read_tail(shared: &Shared, mut tail: Tail, level: Durability) -> u64 {
    let mut last = 0;
    loop {
        let Some(record) = tail.next().wait().unwrap() else { return last };
        last += 1;
        assert_eq!(record.lsn.number(), last);
        let mark = if level == Durability::Written { shared.wal.written() } else { shared.wal.durable() };
        assert!(Some(record.lsn) <= mark, "a tail is above its mark");
        shared.see(last, Identity::of(&record));
    }
}

/// Looks at the files as another process does: with one view after the other, and a follower.
fn look_from_outside(shared: &Shared) {
    let open = || View::open_on(Arc::new(shared.disk.clone())).unwrap();
    let first = |view: &View| view.report().first.unwrap_or(view.report().next);
    let follow_anew = || {
        loop {
            let view = open();
            match view.follow(first(&view)) {
                Ok(follow) => break follow,
                Err(ReadError::Retired { .. }) => {}
                Err(error) => panic!("a follower: {error}"),
            }
        }
    };
    let mut follow = follow_anew();
    while !shared.over.load(Ordering::SeqCst) {
        let view = open();
        let from = first(&view);
        match view.read(from).and_then(|reader| shared.follow(reader, from.number(), 200)) {
            Ok(_) | Err(ReadError::Retired { .. } | ReadError::NotKept { .. }) => {}
            Err(error) => panic!("a view from {from}: {error}"),
        }
        for _ in 0..200 {
            match follow.try_next() {
                Ok(Tailed::Record(record)) => shared.see(record.lsn.number(), Identity::of(&record)),
                Ok(_) | Err(ReadError::NotKept { .. }) => break,
                Err(ReadError::Retired { .. }) => {
                    follow = follow_anew();
                    break;
                }
                Err(error) => panic!("a follower: {error}"),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends everything if nobody gets on, as threads that wait for ever cannot be told to.
fn watch(shared: &Shared, seed: u64) {
    let (mut steps, mut since) = (0, Instant::now());
    while !shared.over.load(Ordering::SeqCst) {
        let now = shared.steps.load(Ordering::Relaxed);
        if now != steps {
            (steps, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            eprintln!("nobody gets on, with the seed {seed:#x}: {:#?}", shared.wal.stats());
            std::process::exit(1);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What was given out is dense; nothing was seen that was not given out; each worker's batches are in order.
fn check_ledger(shared: &Shared) -> u64 {
    let ledger = shared.ledger.lock().unwrap();
    let last = ledger.len() as u64;
    assert!(ledger.keys().copied().eq(1..=last), "P4: LSNs are dense");
    for (at, identity) in shared.seen.lock().unwrap().iter() {
        assert_eq!(ledger.get(at), Some(identity), "P3: LSN {at}");
    }
    let mut former: HashMap<u64, Identity> = HashMap::new();
    for identity in ledger.values() {
        if let Some(former) = former.insert(identity.worker, *identity) {
            let next = former.batch == identity.batch && former.at + 1 == identity.at;
            assert!(next || (former.batch < identity.batch && identity.at == 0), "{former:?} {identity:?}");
        }
    }
    last
}

fn stress(io_thread: bool, seed: u64) {
    let long = std::env::var_os("PLANEWAL_LONG").is_some();
    let steps = if long { 10_000 } else { 1000 };
    let options = Options {
        segment_bytes: 32 << 10,
        prepare_bytes: 8 << 10,
        group_bytes: 8 << 10,
        staging_bytes: 64 << 10,
        spares: 2,
        beacon_idle: Duration::from_millis(1),
        io_thread,
        ..Options::default()
    };
    let disk = MemStorage::new(seed);
    let wal = Wal::open_on(Arc::new(disk.clone()), options.clone()).unwrap();
    let shared = Shared {
        wal,
        disk,
        options,
        ledger: Mutex::default(),
        seen: Mutex::default(),
        acknowledged: [0; 3].map(AtomicU64::new),
        retired_before: AtomicU64::new(1),
        images: AtomicU64::new(0),
        steps: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let shared = &shared;
    std::thread::scope(|scope| {
        // Before anything can be retired.
        let tails = [Durability::Written, Durability::Synced].map(|level| {
            let tail = shared.wal.tail(Lsn::FIRST).unwrap();
            let tail = if level == Durability::Written { tail.of_written() } else { tail };
            scope.spawn(move || read_tail(shared, tail, level))
        });
        scope.spawn(|| watch(shared, seed));
        scope.spawn(|| look_from_outside(shared));
        scope.spawn(|| {
            let mut draw = Draw(!seed);
            let _seed = Seed(WORKERS, !seed);
            while !shared.over.load(Ordering::SeqCst) {
                shared.crash(&mut draw);
            }
        });
        let over = Over(&shared.over);
        // The log is closed in a panic, too, as the tails wait for it.
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| scope.spawn(move || work(shared, number, seed ^ number << 32, steps)))
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        drop(over);
        let closed = shared.wal.close();
        let shown = tails.map(std::thread::ScopedJoinHandle::join);
        assert!(outcomes.iter().all(Result::is_ok), "the seed is {seed:#x}");
        closed.unwrap();
        let last = shared.ledger.lock().unwrap().len() as u64;
        for shown in shown {
            assert_eq!(shown.unwrap(), last, "a tail shows every record");
        }
    });
    let last = check_ledger(shared);
    let wal = open_with(Arc::new(shared.disk.clone()), &shared.options);
    assert!(wal.recovery().survey.closed_cleanly);
    let first = wal.first().number();
    assert!(first <= shared.retired_before.load(Ordering::SeqCst));
    let (end, _) = shared.follow(wal.read(wal.first()).unwrap(), first, u64::MAX / 2).unwrap();
    assert_eq!(end, last, "everything is there");
    check_ledger(shared);
    assert!(first > 1, "segments were retired");
    assert!(shared.images.load(Ordering::Relaxed) >= 5, "crashes were looked at");
}

// faults: B162
#[test]
fn every_call_at_once_with_the_thread() {
    stress(true, 0x5eed_0001);
}

// faults: B162
#[test]
fn every_call_at_once_without_the_thread() {
    stress(false, 0x5eed_0002);
}
