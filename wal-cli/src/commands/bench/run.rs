//! One measurement: a fresh log, some threads, one level.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use planewal::{AppendError, Durability, Lsn, Options, Stats, Wal};

use super::Args;
use super::latency::Latency;
use crate::outcome::Failure;
use crate::parse::Level;
use crate::render::progress;

/// What was measured at one level.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) level: Level,
    size: u64,
    /// From the first call to the return of the last.
    pub(super) took: Duration,
    pub(super) latency: Latency,
    /// Of the log, before the closing sync.
    pub(super) stats: Stats,
    pub(super) closing_sync: Duration,
}

impl Measured {
    pub(super) fn records(&self) -> u64 {
        self.latency.count()
    }

    pub(super) fn records_per_second(&self) -> f64 {
        self.records() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    pub(super) fn bytes_per_second(&self) -> f64 {
        self.records_per_second() * self.size as f64
    }

    pub(super) fn whole_bytes_per_second(&self) -> u64 {
        let bytes = u128::from(self.records()) * u128::from(self.size) * 1_000_000_000;
        u64::try_from(bytes / self.took.as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// Calls for each sync of records; none where nothing was synced.
    pub(super) fn commits_per_sync(&self) -> Option<f64> {
        let syncs = self.stats.sync_ns.count();
        (syncs > 0).then(|| self.records() as f64 / syncs as f64)
    }
}

/// Payloads begin at any place within so many random bytes: more than a compressor looks back.
const NOISE_BYTES: usize = 1 << 20;

/// Steps of the place where a payload begins; shares no factor with `NOISE_BYTES`.
const NOISE_STEP: usize = 40_503;

/// How often the bar moves.
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn measure(args: &Args, level: Level, dir: &Path) -> Result<Measured, Failure> {
    let options = Options { record_bytes_max: args.size, label: "bench".to_owned(), ..Options::default() };
    let wal = Wal::open(dir, options)?;
    let size = usize::try_from(args.size)?;
    let noise = noise(NOISE_BYTES + size);
    let threads = usize::from(args.threads);
    let job = Job {
        wal: &wal,
        durability: level.durability(),
        noise: &noise,
        size,
        limit: Duration::from_secs(args.seconds.into()),
        start: Barrier::new(threads),
        stop: AtomicBool::new(false),
    };
    let outcomes: Vec<Result<Ran, AppendError>> = thread::scope(|scope| {
        let share = |thread: u64| {
            let threads = u64::from(args.threads);
            args.records / threads + u64::from(thread < args.records % threads)
        };
        let running: Vec<ScopedJoinHandle<'_, _>> = (0..u64::from(args.threads))
            .map(|thread| {
                let (job, records) = (&job, share(thread));
                scope.spawn(move || job.run(thread, records))
            })
            .collect();
        let bar = progress(args.records, true);
        while !running.iter().all(ScopedJoinHandle::is_finished) {
            bar.set_position(wal.last().map_or(0, Lsn::number));
            thread::sleep(LOOK);
        }
        bar.finish_and_clear();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let stats = wal.stats();
    let mut latency = Latency::new();
    let mut span: Option<(Instant, Instant)> = None;
    for ran in outcomes {
        let ran = ran.map_err(|error| Failure::new(format_args!("{}: {error}", dir.display())))?;
        latency.merge(&ran.latency);
        let (begun, ended) = span.unwrap_or((ran.begun, ran.ended));
        span = Some((begun.min(ran.begun), ended.max(ran.ended)));
    }
    let begun = Instant::now();
    wal.sync()?;
    let closing_sync = begun.elapsed();
    wal.close()?;
    drop(wal);
    // Its room is the next level's.
    std::fs::remove_dir_all(dir)
        .map_err(|error| Failure::new(format_args!("cannot remove {}: {error}", dir.display())))?;
    let took = span.map_or(Duration::ZERO, |(begun, ended)| ended.duration_since(begun));
    Ok(Measured { level, size: args.size, took, latency, stats, closing_sync })
}

/// What all threads do.
struct Job<'a> {
    wal: &'a Wal,
    durability: Durability,
    noise: &'a [u8],
    size: usize,
    limit: Duration,
    start: Barrier,
    /// One of them failed.
    stop: AtomicBool,
}

/// What one thread did.
struct Ran {
    begun: Instant,
    ended: Instant,
    latency: Latency,
}

impl Job<'_> {
    fn run(&self, thread: u64, records: u64) -> Result<Ran, AppendError> {
        let mut latency = Latency::new();
        let mut place = usize::try_from(thread).unwrap_or(0) * (NOISE_BYTES / 256);
        self.start.wait();
        let begun = Instant::now();
        let mut before = begun;
        for _ in 0..records {
            if before.duration_since(begun) >= self.limit || self.stop.load(Ordering::Relaxed) {
                break;
            }
            place = (place + NOISE_STEP) % NOISE_BYTES;
            let payload = self.noise.get(place..place + self.size).unwrap_or_default();
            if let Err(error) = self.wal.append_as(0x80, 0x80, payload, self.durability) {
                self.stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
            // The end of one call is the beginning of the next: one look at the clock for each.
            let now = Instant::now();
            latency.add(now.duration_since(before));
            before = now;
        }
        Ok(Ran { begun, ended: before, latency })
    }
}

/// Bytes without a pattern, the same in every run.
fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = Vec::with_capacity(bytes + 8);
    let mut state = 0u64;
    while noise.len() < bytes {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        noise.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}
