//! What a log did and how it fares, in numbers: counted as it happens, with atomic additions only, and
//! read without stopping anybody. Nothing is decided by them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Poison, StorageError};
use crate::lsn::Lsn;
use crate::storage::Allocation;
use crate::sync::counted::{AtomicU64, Mutex, Ordering};

/// Buckets of a histogram: each holds values below twice the one before.
const BUCKETS: usize = 44;

/// How often values of each order of magnitude (powers of two) occurred.
///
/// For latencies the unit is nanoseconds, for sizes bytes. A quantile is exact to a factor of two, and is
/// the upper end of its bucket: never too good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: u64,
    max: u64,
}

impl Histogram {
    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of the values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value; 0 if there is none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `share` of the values do not exceed (0.5: the median), rounded up to its bucket's end;
    /// 0 if there is none.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "a share of a count is within the count")]
    pub fn quantile(&self, share: f64) -> u64 {
        let count = self.count();
        let wanted = (count as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, &times) in self.buckets.iter().enumerate() {
            seen += times;
            if times > 0 && seen >= wanted {
                return upper_end(bucket).min(self.max);
            }
        }
        0
    }

    /// Upper ends of the buckets that are not empty, with the number of values in each.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets
            .iter()
            .enumerate()
            .filter(|(_, times)| **times > 0)
            .map(|(bucket, &times)| (upper_end(bucket), times))
    }
}

/// The largest value of a bucket; the last one has no end.
fn upper_end(bucket: usize) -> u64 {
    if bucket + 1 == BUCKETS { u64::MAX } else { (1 << bucket) - 1 }
}

/// A histogram that is being filled.
#[derive(Debug)]
pub(crate) struct Recorder {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

impl Recorder {
    pub(crate) fn add(&self, value: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        if let Some(times) = self.buckets.get(bucket.min(BUCKETS - 1)) {
            times.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.max.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn read(&self) -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|at| {
                self.buckets.get(at).map_or(0, |bucket| bucket.load(Ordering::Relaxed))
            }),
            sum: self.sum.load(Ordering::Relaxed),
            max: self.max.load(Ordering::Relaxed),
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A storage operation that has not returned yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// What it is: `write`, `sync`, `allocate`, `prepare` or `seal`.
    pub operation: &'static str,
    /// For how long it has been under way. A `sync` of minutes is a disk that hangs.
    pub age: Duration,
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) records: Counter,
    pub(crate) batches: Counter,
    pub(crate) body_bytes: Counter,
    pub(crate) group_bytes: Recorder,
    pub(crate) write: Recorder,
    pub(crate) sync: Recorder,
    pub(crate) queue: Recorder,
    pub(crate) beacons: Counter,
    pub(crate) rotations: Counter,
    pub(crate) refused_disk: Counter,
    pub(crate) refused_staging: Counter,
    pub(crate) diverged: Counter,
    in_flight: Mutex<Vec<(u64, &'static str, Instant)>>,
    last_flight: AtomicU64,
}

impl Counters {
    /// Notes that an operation is under way until the answer is dropped.
    pub(crate) fn begin(&self, operation: &'static str) -> Flight<'_> {
        let number = self.last_flight.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        self.in_flight.lock().push((number, operation, begun));
        Flight { counters: self, number, begun }
    }

    pub(crate) fn oldest_in_flight(&self) -> Option<InFlight> {
        let flights = self.in_flight.lock();
        let oldest = flights.iter().min_by_key(|(_, _, begun)| *begun);
        oldest.map(|&(_, operation, begun)| InFlight { operation, age: begun.elapsed() })
    }
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    counters: &'a Counters,
    number: u64,
    begun: Instant,
}

impl Flight<'_> {
    /// The operation has returned: counts how long it took.
    pub(crate) fn landed(self, times: &Recorder) {
        times.add_time(self.begun.elapsed());
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.counters.in_flight.lock().retain(|(number, _, _)| *number != self.number);
    }
}

/// The disk had no room, and has not been found to have any since.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FullDisk {
    /// For how long.
    pub since: Duration,
    /// What the storage answered last.
    pub error: Arc<StorageError>,
}

/// How a log fares: [`Wal::stats`](crate::Wal::stats). Counts are of this run, since the log was opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// The last LSN given out.
    pub last: Option<Lsn>,
    /// Everything up to here survives the death of the process.
    pub written: Option<Lsn>,
    /// Everything up to here survives a loss of power.
    pub durable: Option<Lsn>,
    /// Records appended.
    pub records: u64,
    /// Batches appended; a single record is one.
    pub batches: u64,
    /// Bytes appended, heads and payloads of the records.
    pub body_bytes: u64,
    /// Groups written, and their sizes in the file in bytes; each was one write.
    pub groups: Histogram,
    /// Time that each group's write took, in nanoseconds.
    pub write_ns: Histogram,
    /// Time that each sync of records took, in nanoseconds.
    pub sync_ns: Histogram,
    /// Time from a group's first record to its write, in nanoseconds.
    pub queue_ns: Histogram,
    /// Beacons written.
    pub beacons: u64,
    /// Bytes of records in memory that are not written yet.
    pub staged_bytes: u64,
    /// Bytes that permits have reserved.
    pub reserved_bytes: u64,
    /// The operation that has been under way the longest, if there is any.
    pub in_flight: Option<InFlight>,
    /// Segments begun.
    pub rotations: u64,
    /// Segments made from the file of a retired one.
    pub spare_hits: u64,
    /// Segments for which no spare was fit, while the options allow some.
    pub spare_misses: u64,
    /// How room is really made: what the file system could do.
    pub allocation: Allocation,
    /// Set while the disk is full.
    pub full: Option<FullDisk>,
    /// Appends refused because the disk was full.
    pub refused_disk: u64,
    /// Appends refused because staging was full; only those that do not wait are.
    pub refused_staging: u64,
    /// Torn tails that opening cut: 0 or 1.
    pub torn_tails: u64,
    /// Readers that were told that the log had gone back behind them.
    pub diverged_readers: u64,
    /// What stopped the log for good, if anything did.
    pub poison: Option<Arc<Poison>>,
}

/// A number of [`Stats`] under the name that it has in a metrics system.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Metric<'a> {
    /// A number that only grows while the log is open.
    Counter(u64),
    /// A number that goes up and down.
    Gauge(f64),
    /// A distribution; times are in nanoseconds.
    Histogram(&'a Histogram),
}

impl Stats {
    pub(crate) fn new(torn_tails: u64) -> Stats {
        let none = Recorder::default().read();
        Stats {
            last: None,
            written: None,
            durable: None,
            records: 0,
            batches: 0,
            body_bytes: 0,
            groups: none.clone(),
            write_ns: none.clone(),
            sync_ns: none.clone(),
            queue_ns: none,
            beacons: 0,
            staged_bytes: 0,
            reserved_bytes: 0,
            in_flight: None,
            rotations: 0,
            spare_hits: 0,
            spare_misses: 0,
            allocation: Allocation::default(),
            full: None,
            refused_disk: 0,
            refused_staging: 0,
            torn_tails,
            diverged_readers: 0,
            poison: None,
        }
    }

    /// Shows every number under its name, for an exporter. The names stay; `docs/operations.md` lists them.
    pub fn visit(&self, mut see: impl FnMut(&'static str, Metric<'_>)) {
        use Metric::{Counter, Gauge, Histogram};
        let lsn = |lsn: Option<Lsn>| Counter(lsn.map_or(0, Lsn::number));
        see("planewal_last_lsn", lsn(self.last));
        see("planewal_written_lsn", lsn(self.written));
        see("planewal_durable_lsn", lsn(self.durable));
        see("planewal_records_total", Counter(self.records));
        see("planewal_batches_total", Counter(self.batches));
        see("planewal_body_bytes_total", Counter(self.body_bytes));
        see("planewal_group_bytes", Histogram(&self.groups));
        see("planewal_write_ns", Histogram(&self.write_ns));
        see("planewal_sync_ns", Histogram(&self.sync_ns));
        see("planewal_queue_ns", Histogram(&self.queue_ns));
        see("planewal_beacons_total", Counter(self.beacons));
        see("planewal_staged_bytes", Gauge(self.staged_bytes as f64));
        see("planewal_reserved_bytes", Gauge(self.reserved_bytes as f64));
        let age = self.in_flight.map_or(0.0, |flight| flight.age.as_secs_f64());
        see("planewal_in_flight_seconds", Gauge(age));
        see("planewal_rotations_total", Counter(self.rotations));
        see("planewal_spare_hits_total", Counter(self.spare_hits));
        see("planewal_spare_misses_total", Counter(self.spare_misses));
        see("planewal_full", Gauge(if self.full.is_some() { 1.0 } else { 0.0 }));
        see("planewal_refused_disk_total", Counter(self.refused_disk));
        see("planewal_refused_staging_total", Counter(self.refused_staging));
        see("planewal_torn_tails_total", Counter(self.torn_tails));
        see("planewal_diverged_readers_total", Counter(self.diverged_readers));
        see("planewal_poisoned", Gauge(if self.poison.is_some() { 1.0 } else { 0.0 }));
    }

    pub(crate) fn count(&mut self, counters: &Counters) {
        self.records = counters.records.get();
        self.batches = counters.batches.get();
        self.body_bytes = counters.body_bytes.get();
        self.groups = counters.group_bytes.read();
        self.write_ns = counters.write.read();
        self.sync_ns = counters.sync.read();
        self.queue_ns = counters.queue.read();
        self.beacons = counters.beacons.get();
        self.in_flight = counters.oldest_in_flight();
        self.rotations = counters.rotations.get();
        self.refused_disk = counters.refused_disk.get();
        self.refused_staging = counters.refused_staging.get();
        self.diverged_readers = counters.diverged.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_never_too_good() {
        let recorder = Recorder::default();
        for value in [0, 1, 5, 100, 1000] {
            recorder.add(value);
        }
        let histogram = recorder.read();
        assert_eq!((histogram.count(), histogram.sum(), histogram.max()), (5, 1106, 1000));
        assert_eq!(histogram.quantile(0.0), 0);
        assert_eq!(histogram.quantile(0.5), 7, "the bucket of 4 to 7");
        assert_eq!(histogram.quantile(0.8), 127);
        assert_eq!(histogram.quantile(1.0), 1000);
        let ends: Vec<_> = histogram.buckets().collect();
        assert_eq!(ends, [(0, 1), (1, 1), (7, 1), (127, 1), (1023, 1)]);
    }

    #[test]
    fn the_oldest_operation_is_shown_until_it_lands() {
        let counters = Counters::default();
        assert_eq!(counters.oldest_in_flight(), None);
        let sync = counters.begin("sync");
        let write = counters.begin("write");
        assert_eq!(counters.oldest_in_flight().unwrap().operation, "sync");
        sync.landed(&counters.sync);
        assert_eq!(counters.oldest_in_flight().unwrap().operation, "write");
        drop(write);
        assert_eq!(counters.oldest_in_flight(), None);
        assert_eq!((counters.sync.read().count(), counters.write.read().count()), (1, 0));
    }
}
