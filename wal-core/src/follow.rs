//! Following a log that another process writes, by looking again and again.
//!
//! A [`Follow`] shows only what is proved durable: records at or below a mark that a frame, a link, a
//! beacon, a seal or a control slot testifies to. What is written above it may be taken back by a loss
//! of power; what was shown is never taken back, so a follower may act on it. It reads what is new and
//! no more; only where something does not fit what it knows, after a recovery say, is the log surveyed.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::chain::Chain;
use crate::error::{OptionError, ReadError, StorageError};
use crate::lsn::Lsn;
use crate::reader::{Cursor, Reader};
use crate::scout::{Scout, Sight};
use crate::survey::Survey;
use crate::tail::Tailed;

/// Reads a log beside its writer, in this process or another, and goes on when there is more.
///
/// It comes from [`View::follow`](crate::View::follow). It takes no lock and writes no byte. Records come
/// in LSN order, without a gap or a repeat, over rotations, clean closes, crashes of the writer and its
/// recoveries. A record comes when it is proved durable: with the group after it, with a beacon
/// (`beacon_idle` of the writer's options), or when the log is closed. A log without beacons that nobody
/// appends to holds its last group back.
///
/// It never answers [`Tailed::Closed`]: a log that was closed can be opened again.
///
/// Memory is bounded as that of a view is, by 16 MiB and twice the largest group. A look without news reads the control file and less than 64 KiB besides. The log is surveyed,
/// which reads all of it, when its writer opened it anew or when something does not fit; where that
/// changes nothing, surveys take at most a tenth of the time.
///
/// ```
/// use planewal_core::{Lsn, Options, Tailed, View, Wal};
/// use std::time::Duration;
///
/// let dir = std::env::temp_dir().join(format!("planewal-follow-{}", std::process::id()));
/// let wal = Wal::open(&dir, Options::default())?;
/// wal.append(0x80, 0x80, b"one record")?;
/// let mut follow = View::open(&dir)?.follow(Lsn::FIRST)?;
/// match follow.wait_timeout(Duration::from_secs(10))? {
///     Tailed::Record(record) => assert_eq!(record.payload, b"one record"),
///     other => panic!("the beacon proves it: {other:?}"),
/// }
/// # wal.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Follow {
    chain: Arc<Chain>,
    reader: Reader,
    scout: Scout,
    past_damage: bool,
    /// The last LSN that was really read, here or by the cursor that this began with; 0 if none.
    read: u64,
    poll_interval: Duration,
    last_survey: Option<LastSurvey>,
    /// The LSN at which reading failed against all surveys, and in how many calls.
    doubts: (u64, u32),
    /// Segments before this one were read and are forgotten.
    reading: Option<u64>,
}

/// Looks between two sleeps, each of which goes over 1 MiB or so.
const LOOKS: u32 = 64;

/// Surveys before files that go away under each of them are an error.
const SURVEYS: u32 = 8;

/// Calls in which reading fails, where surveys see nothing wrong, before it is told.
const DOUBTS: u32 = 8;

const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_secs(60);
const POLL_DEFAULT: Duration = Duration::from_millis(20);

/// Surveys until one is taken that the directory did not hold still for, if it is sound.
const SETTLING: u32 = 4;

/// What a survey came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surveyed {
    Anew,
    /// The directory did not hold still: to be tried again later.
    NotYet,
    /// It was surveyed a moment ago, and nothing was read since.
    Lately,
}

#[derive(Debug, Clone, Copy)]
struct LastSurvey {
    due: u64,
    /// When the next may be, if nothing is read until then.
    again: Instant,
    outcome: Surveyed,
}

impl Follow {
    /// Follows a chain, whose highest mark is `mark`, on a twin of its own.
    pub(crate) fn new(
        chain: &Chain,
        mark: u64,
        past_damage: bool,
        start: impl FnOnce(Arc<Chain>) -> Result<Reader, ReadError>,
        read: u64,
    ) -> Result<Follow, ReadError> {
        let chain = Arc::new(chain.twin());
        let reader = start(Arc::clone(&chain))?;
        let scout = Scout::new(Arc::clone(&chain), mark);
        Ok(Follow {
            chain,
            reader,
            scout,
            past_damage,
            read,
            poll_interval: POLL_DEFAULT,
            last_survey: None,
            doubts: (0, 0),
            reading: None,
        })
    }

    /// How long [`wait_timeout`](Self::wait_timeout) sleeps between two looks, 1 ms to 60 s. The default is
    /// 20 ms.
    ///
    /// # Errors
    /// If it is out of range.
    pub fn poll_interval(mut self, every: Duration) -> Result<Follow, OptionError> {
        if !(POLL_MIN..=POLL_MAX).contains(&every) {
            return Err(OptionError {
                option: "poll_interval",
                value: format!("{every:?}"),
                range: "1 ms to 60 s".to_owned(),
            });
        }
        self.poll_interval = every;
        Ok(self)
    }

    /// The next record that is proved durable, or [`Tailed::CaughtUp`] with the LSN that is due. Looks at
    /// the files, and does not wait.
    ///
    /// # Errors
    /// [`ReadError::Lost`] and [`ReadError::NotKept`] once for each range that is gone, after which the next
    /// call goes on behind it. The others come again at each call, which looks anew:
    /// [`ReadError::Broken`] where the log does not check, if a second look repeats it;
    /// [`ReadError::Retired`] if what is due was retired before it was read; [`ReadError::Diverged`] if the
    /// log went back behind what was read; [`ReadError::OtherLog`] if another one lies here now;
    /// [`ReadError::Storage`].
    pub fn try_next(&mut self) -> Result<Tailed<'_>, ReadError> {
        if self.advance()? {
            return Ok(self.lend());
        }
        Ok(Tailed::CaughtUp(self.reader.due()))
    }

    /// As [`try_next`](Self::try_next), and waits up to `limit` for a record.
    ///
    /// # Errors
    /// As [`try_next`](Self::try_next).
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<Tailed<'_>, ReadError> {
        let begun = Instant::now();
        loop {
            if self.advance()? {
                return Ok(self.lend());
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(Tailed::CaughtUp(self.reader.due()));
            }
            thread::sleep(left.min(self.poll_interval));
        }
    }

    /// Where this follower stands: for [`View::follow_from`](crate::View::follow_from) after a restart.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.reader.cursor()
    }

    /// The highest LSN that is proved durable by what lay on the disk at the last look.
    #[must_use]
    pub fn proved(&self) -> Option<Lsn> {
        Lsn::new(self.scout.mark())
    }

    fn lend(&mut self) -> Tailed<'_> {
        let due = self.reader.due();
        debug_assert!(due.number() <= self.scout.mark(), "only what is proved is lent");
        self.read = due.number();
        self.reader.lend().map_or(Tailed::CaughtUp(due), Tailed::Record)
    }

    /// Goes to the next record that may be lent; answers whether there is one.
    fn advance(&mut self) -> Result<bool, ReadError> {
        let mut surveys = 0;
        for _ in 0..LOOKS {
            let mut new_epoch = false;
            let stopped = match self.ready() {
                Ok(true) => {
                    self.forget_what_was_read();
                    return Ok(true);
                }
                Ok(false) => {
                    match self.scout.look() {
                        Sight::More => continue,
                        Sight::Nothing if self.reader.due().number() > self.scout.mark() => return Ok(false),
                        Sight::NewEpoch => new_epoch = true,
                        // What is due is proved, and not where it should be.
                        Sight::Nothing | Sight::Misfit => {}
                    }
                    None
                }
                Err(error @ (ReadError::Broken(_) | ReadError::Storage(_))) => Some(error),
                Err(error) => return Err(error),
            };
            // What the chain's own survey found is believed. What it found whole may be cut since, by a
            // recovery under way, and is looked at again at once.
            let doubtful = stopped.is_some() && !self.chain.is_refused();
            surveys += 1;
            let survey = if surveys > 2 { Surveyed::Lately } else { self.survey(new_epoch || doubtful)? };
            match (survey, stopped) {
                (Surveyed::Anew, _) => {}
                (Surveyed::Lately, Some(error)) if !doubtful || self.doubted_enough() => return Err(error),
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Whether the reader has a record that may be lent, or has something to tell.
    fn ready(&mut self) -> Result<bool, ReadError> {
        let due = self.reader.due().number();
        if due <= self.scout.mark() || self.chain.lost(due).is_some() {
            return self.reader.ready();
        }
        match self.chain.refusal_at(due).filter(|_| !self.past_damage) {
            Some(finding) => Err(ReadError::Broken(Box::new(finding))),
            None => Ok(false),
        }
    }

    /// Counts calls that ended where surveys see nothing wrong and reading fails all the same.
    fn doubted_enough(&mut self) -> bool {
        let due = self.reader.due().number();
        self.doubts = if self.doubts.0 == due { (due, self.doubts.1 + 1) } else { (due, 1) };
        self.doubts.1 >= DOUBTS
    }

    fn forget_what_was_read(&mut self) {
        let reading = self.reader.segment_id();
        if reading != self.reading {
            drop(self.chain.retire_before(reading.unwrap_or(0)));
            self.reading = reading;
        }
    }

    /// Surveys the log and goes on in it as it is now. What changes nothing is not done again at once.
    fn survey(&mut self, at_once: bool) -> Result<Surveyed, ReadError> {
        let due = self.reader.due().number();
        let begun = Instant::now();
        if let Some(last) = self.last_survey.filter(|last| last.due == due && begun < last.again) {
            match last.outcome {
                Surveyed::Anew if at_once => {}
                Surveyed::Anew => return Ok(Surveyed::Lately),
                outcome => return Ok(outcome),
            }
        }
        let mut tries = 1;
        let outcome = loop {
            match self.try_survey() {
                // A file that went away between a survey and its use: so the log has changed.
                Err(ReadError::Storage(error))
                    if error.source.kind() == io::ErrorKind::NotFound && tries < SURVEYS =>
                {
                    tries += 1;
                }
                outcome => break outcome?,
            }
        };
        self.last_survey = Some(LastSurvey { due, again: begun + 11 * begun.elapsed(), outcome });
        Ok(outcome)
    }

    fn try_survey(&mut self) -> Result<Surveyed, ReadError> {
        let storage = Arc::clone(&self.chain.storage);
        let (survey, still) = Survey::looked(&*storage, SETTLING)
            .map_err(|error| StorageError::new("read", storage.describe(), error))?;
        // What was not seen twice is no reason to stop, and no reason to believe in another epoch.
        let of_one_epoch = survey.control.as_ref().is_some_and(|control| control.epoch == survey.epoch);
        if !still && (survey.refusal.is_some() || !of_one_epoch) {
            return Ok(Surveyed::NotYet);
        }
        if let Some(finding) = survey.refusal.as_ref().filter(|_| survey.control.is_none()) {
            return Err(ReadError::Broken(Box::new(finding.clone())));
        }
        let mark = survey.durable;
        let chain = Arc::new(Chain::surveyed(storage, survey));
        match self.reader.moved_to(Arc::clone(&chain), self.read) {
            Ok(reader) => self.reader = reader,
            Err(_) if !still => return Ok(Surveyed::NotYet),
            Err(error) => return Err(error),
        }
        self.scout = Scout::new(Arc::clone(&chain), mark);
        self.chain = chain;
        self.reading = None;
        Ok(Surveyed::Anew)
    }
}
