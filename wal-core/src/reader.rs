//! Reading records in LSN order, from any LSN, up to what is written.
//!
//! A [`Reader`] lends records out of the frame that it has read and checked once; nothing is copied
//! and memory is bounded by one window and the largest group. Where the log does not check, the
//! reader says so and never goes on silently.

use std::io;
use std::sync::Arc;

use crate::chain::{Chain, Segment};
use crate::error::{ReadError, StorageError};
use crate::frame::{FrameKind, RawRecord, RawRecords};
use crate::lsn::{LogId, Lsn, SegmentId};
use crate::scan::{SCAN_CHUNK_BYTES, SEEK_CHUNK_BYTES, Step, Stop, Walk, Window, read_seal};
use crate::segment::IndexRow;
use crate::storage::{Access, Storage, StorageFile};
use crate::verdict::{Finding, Place, Proof, Verdict};
use crate::wire::{Cursor as ByteCursor, Put, crc, len64};

/// A record, lent by its reader until the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Its position in the log.
    pub lsn: Lsn,
    /// Its owner, never 0.
    pub plane: u8,
    /// What it is within its plane, never 0.
    pub kind: u8,
    /// Whether it is the last of its batch.
    pub ends_batch: bool,
    /// Its bytes: none, or up to 1 GiB.
    pub payload: &'a [u8],
}

/// Where a reader stands, to be kept and used again: after a restart too, and in another process.
///
/// It names the log, what was read of it, in which epoch, and from which file; so a log that a power
/// loss took back behind it is recognised and not silently read on, and so is another log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    log_id: [u8; 16],
    /// Number of the last LSN read; 0 if none.
    read: u64,
    epoch: u64,
    file_id: u64,
}

impl Cursor {
    /// The bytes of a cursor, in a form that does not change: log id, last LSN read (0: none), epoch and
    /// file id, little-endian, and the CRC-32C of these 40 bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 44] {
        let mut bytes = Vec::with_capacity(44);
        bytes.put(&self.log_id);
        bytes.put_u64(self.read);
        bytes.put_u64(self.epoch);
        bytes.put_u64(self.file_id);
        let check = crc(0, &bytes);
        bytes.put_u32(check);
        bytes.first_chunk().copied().unwrap_or([0; 44])
    }

    /// Reads [`Cursor::to_bytes`]; `None` for bytes that are no cursor, zeros among them.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Cursor> {
        let mut fields = ByteCursor::new(bytes);
        let log_id = fields.array()?;
        let cursor = Cursor { log_id, read: fields.u64()?, epoch: fields.u64()?, file_id: fields.u64()? };
        let sound = fields.u32()? == crc(0, bytes.get(..40)?) && log_id != [0; 16];
        (sound && fields.remaining() == 0 && cursor.read < Lsn::MAX_NUMBER).then_some(cursor)
    }

    /// The log that it belongs to.
    #[must_use]
    pub fn log_id(self) -> Option<LogId> {
        LogId::new(self.log_id)
    }

    /// The LSN that is read next.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn::new(self.read + 1).unwrap_or(Lsn::FIRST)
    }
}

/// Where a record's frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// The segment.
    pub segment: SegmentId,
    /// Offset of the frame in it, in bytes.
    pub offset: u64,
    /// The LSN of the frame's first record.
    pub first: Lsn,
    /// The LSN of the frame's last record.
    pub last: Lsn,
}

/// Reads records in LSN order.
///
/// It may outlive the [`Wal`](crate::Wal) or [`View`](crate::View) that it came from; it does not hold the
/// writer's lock.
#[derive(Debug)]
pub struct Reader {
    chain: Arc<Chain>,
    past_damage: bool,
    place: Option<PlaceInSegment>,
    /// The LSN that is read next.
    due: u64,
    /// The LSN that the next frame is due to begin with.
    frame_due: u64,
    /// Where the next record begins in the current body, and how many are left there.
    body_at: usize,
    left: u32,
    epoch: u64,
    file_id: u64,
    broken: Option<Finding>,
    /// How to look at the log again, where a writer may have changed it since.
    look_again: Option<LookAgain>,
    /// The LSN at which that was done last.
    looked_at: Option<u64>,
}

/// How often a log is looked at again before it is taken as it is.
pub(crate) const LOOKS: u32 = 8;

/// Surveys a log anew.
pub(crate) type LookAgain = fn(&Arc<dyn Storage>) -> Option<Chain>;

#[derive(Debug)]
struct PlaceInSegment {
    segment: Arc<Segment>,
    walk: Walk,
}

impl Reader {
    /// A reader from `start` on; `chain` says what there is.
    pub(crate) fn new(chain: Arc<Chain>, start: Lsn, past_damage: bool) -> Result<Reader, ReadError> {
        let next = chain.next();
        if start.number() > next {
            return Err(ReadError::Ahead { wanted: start, next: Lsn::new(next).unwrap_or(Lsn::FIRST) });
        }
        Reader::waiting(chain, start, past_damage)
    }

    /// As [`new`](Self::new), for one that may stand above everything that is there so far.
    pub(crate) fn waiting(chain: Arc<Chain>, start: Lsn, past_damage: bool) -> Result<Reader, ReadError> {
        let due = start.number();
        // Before the first record there is: retired, given up by repair, or missing.
        let before = chain.first().filter(|&first| due < first);
        let refusal = before.and_then(|_| chain.refusal_at(due));
        if let Some(first) =
            before.filter(|_| refusal.is_none() && chain.lost(due).is_none()).and_then(Lsn::new)
        {
            return Err(ReadError::Retired { wanted: start, first });
        }
        let epoch = chain.epoch;
        let mut reader = Reader {
            chain,
            past_damage,
            place: None,
            due,
            frame_due: due,
            body_at: 0,
            left: 0,
            epoch,
            file_id: 0,
            broken: refusal.filter(|_| !past_damage),
            look_again: None,
            looked_at: None,
        };
        reader.enter(due)?;
        Ok(reader)
    }

    /// A reader from where another one stood.
    pub(crate) fn resume(chain: Arc<Chain>, cursor: &Cursor, past_damage: bool) -> Result<Reader, ReadError> {
        if !chain.is_of(cursor.log_id) {
            return Err(ReadError::OtherLog { cursor: cursor.log_id(), log: LogId::new(chain.log_id()) });
        }
        if let Some((row, read)) =
            chain.diverged(cursor.log_id, cursor.epoch, cursor.read).zip(Lsn::new(cursor.read))
        {
            return Err(ReadError::Diverged {
                read,
                epoch: cursor.epoch,
                later: row.epoch,
                kept: Lsn::new(row.kept),
            });
        }
        let mut reader = Reader::new(chain, cursor.next(), past_damage)?;
        reader.epoch = cursor.epoch.max(reader.epoch);
        reader.file_id = cursor.file_id;
        Ok(reader)
    }

    /// Looks at the log again before what does not check any more is called damage.
    pub(crate) fn looking_again(mut self, look_again: LookAgain) -> Reader {
        self.look_again = Some(look_again);
        self
    }

    /// A reader that goes on from here in the log as it is now. `read` is the last LSN that was read, 0 if
    /// none: below what is due where records are gone, or where nothing was read yet.
    pub(crate) fn moved_to(&self, chain: Arc<Chain>, read: u64) -> Result<Reader, ReadError> {
        let log_id = self.chain.log_id();
        if !chain.is_of(log_id) {
            return Err(ReadError::OtherLog { cursor: LogId::new(log_id), log: LogId::new(chain.log_id()) });
        }
        let epoch = self.epoch;
        let diverged = |read, later, kept| ReadError::Diverged { read, epoch, later, kept: Lsn::new(kept) };
        if let Some((row, read)) = chain.diverged(log_id, epoch, read).zip(Lsn::new(read)) {
            return Err(diverged(read, row.epoch, row.kept));
        }
        let next = chain.next();
        if let Some(read) = Lsn::new(read).filter(|read| read.number() >= next) {
            // Damage behind us is told as such.
            if let Some(finding) = chain.refusal_at(next) {
                return Err(ReadError::Broken(Box::new(finding)));
            }
            return Err(diverged(read, chain.epoch, next - 1));
        }
        let mut reader = Reader::waiting(chain, self.due(), self.past_damage)?;
        reader.epoch = epoch.max(reader.epoch);
        reader.file_id = self.file_id;
        Ok(reader)
    }

    /// Goes on in the log as it is now; answers whether that is worth a try.
    fn refresh(&mut self) -> Result<bool, ReadError> {
        let Some(look_again) = self.look_again.filter(|_| self.looked_at != Some(self.due)) else {
            return Ok(false);
        };
        self.looked_at = Some(self.due);
        for _ in 0..LOOKS {
            let Some(chain) = look_again(&self.chain.storage) else { return Ok(false) };
            match self.go_on_in(chain) {
                // Retired between the look and the reading: the next look knows.
                Err(ReadError::Storage(error)) if error.source.kind() == io::ErrorKind::NotFound => {}
                outcome => return outcome.map(|()| true),
            }
        }
        Ok(false)
    }

    fn go_on_in(&mut self, chain: Chain) -> Result<(), ReadError> {
        let read = self.due - 1;
        let log_id = self.chain.log_id();
        if let Some((row, read)) = chain.diverged(log_id, self.epoch, read).zip(Lsn::new(read)) {
            return Err(ReadError::Diverged {
                read,
                epoch: self.epoch,
                later: row.epoch,
                kept: Lsn::new(row.kept),
            });
        }
        self.epoch = self.epoch.max(chain.epoch);
        self.chain = Arc::new(chain);
        self.broken = None;
        self.place = None;
        self.enter(self.due)
    }

    /// The next record; `None` when everything that is written has been read. A reader of a [`Wal`] can be
    /// asked again later, and goes on when there is more; what is only `Buffered` it does not see. A
    /// reader of a [`View`] ends where the log ended when it last looked.
    ///
    /// [`Wal`]: crate::Wal
    /// [`View`]: crate::View
    ///
    /// # Errors
    /// [`ReadError::Lost`] and [`ReadError::NotKept`] once for each range that is gone, after which the
    /// next call goes on behind it; [`ReadError::Broken`] where the log does not check, again at each
    /// call.
    #[allow(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let in_body = self.left > 0 && self.broken.is_none() && self.at_record();
        Ok(if in_body || self.ready()? { self.lend() } else { None })
    }

    /// Goes to the next record, which [`lend`](Self::lend) then has; answers whether there is one.
    pub(crate) fn ready(&mut self) -> Result<bool, ReadError> {
        if let Some(finding) = &self.broken {
            return Err(ReadError::Broken(Box::new(finding.clone())));
        }
        while !self.at_record() {
            if let Some(gone) = self.pass_over_gone() {
                return Err(gone);
            }
            if self.left > 0 {
                continue;
            }
            match self.next_frame() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // Retired meanwhile: what is missing is told before the first record that is kept.
                Err(ReadError::Retired { .. }) => self.place = None,
                Err(error @ (ReadError::Broken(_) | ReadError::Storage(_))) => {
                    if !self.refresh()? {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The segment in which it reads.
    pub(crate) fn segment_id(&self) -> Option<u64> {
        self.place.as_ref().map(|place| place.segment.id)
    }

    /// Where this reader stands: behind the last record that it lent. That record may not be durable yet; if a
    /// loss of power takes it, whoever resumes from here is told.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        let log_id = self.chain.log_id();
        Cursor { log_id, read: self.due - 1, epoch: self.epoch, file_id: self.file_id }
    }

    /// The LSN that it will read next.
    #[must_use]
    pub fn due(&self) -> Lsn {
        Lsn::new(self.due).unwrap_or(Lsn::FIRST)
    }

    fn body(&self) -> &[u8] {
        self.place.as_ref().map_or(&[], |place| place.walk.body())
    }

    /// Moves over records below the one that is due; answers whether a record that is kept and not
    /// given up comes next in the body.
    fn at_record(&mut self) -> bool {
        while self.left > 0 {
            let body = self.body();
            let mut records = RawRecords::new(body.get(self.body_at..).unwrap_or_default());
            let Some(record) = records.next() else { unreachable!("the frame was checked when it was read") };
            let behind = body.len() - records.remaining();
            let lsn = self.frame_due - u64::from(self.left);
            if lsn >= self.due {
                return !record.is_stub() && self.chain.lost(lsn).is_none();
            }
            self.body_at = behind;
            self.left -= 1;
        }
        false
    }

    /// The record that [`ready`](Self::ready) went to.
    pub(crate) fn lend(&mut self) -> Option<Record<'_>> {
        let lsn = Lsn::new(self.due)?;
        let place = self.place.as_ref()?;
        let body = place.walk.body();
        let mut records = RawRecords::new(body.get(self.body_at..)?);
        let record = records.next()?;
        self.body_at = body.len() - records.remaining();
        self.left -= 1;
        self.due += 1;
        self.file_id = place.segment.file_id;
        // A log that was opened anew while it was surveyed may hold segments of the later epoch.
        self.epoch = self.epoch.max(place.segment.epoch);
        Some(Record {
            lsn,
            plane: record.plane,
            kind: record.kind,
            ends_batch: record.ends_batch,
            payload: record.payload,
        })
    }

    /// What stands in the body and is not to be lent: stubs, and what was given up, which stays given up
    /// even if its bytes come back.
    fn pass_over_gone(&mut self) -> Option<ReadError> {
        if self.left == 0 {
            return None;
        }
        let first = Lsn::new(self.due)?;
        if let Some((_, last)) = self.chain.lost(self.due) {
            self.due = last + 1;
            return Some(ReadError::Lost { first, last: Lsn::new(last)? });
        }
        let records = RawRecords::new(self.body().get(self.body_at..)?);
        let stubs = records.take_while(RawRecord::is_stub).count();
        self.due += len64(stubs);
        Some(ReadError::NotKept { first, last: Lsn::new(self.due - 1)? })
    }

    /// Goes to the frame that holds `due`, or a little before it; what lies below is passed over.
    fn enter(&mut self, due: u64) -> Result<(), ReadError> {
        self.due = due;
        let Some(segment) = self.chain.holding(due) else { return Ok(()) };
        let from = locate(&self.chain, &segment, due)?
            .unwrap_or(IndexRow { lsn: segment.base, offset: segment.start });
        self.frame_due = from.lsn;
        self.left = 0;
        self.place = Some(self.open(segment, from.offset)?);
        Ok(())
    }

    fn open(&self, segment: Arc<Segment>, offset: u64) -> Result<PlaceInSegment, ReadError> {
        let file = open_segment(&self.chain, &segment, self.due)?;
        let (_, end) = segment.reach();
        let window = Window::new(Arc::from(file), end, SCAN_CHUNK_BYTES);
        let mut walk = Walk::new(window, segment.salt, offset);
        walk.sieved = segment.sieved;
        Ok(PlaceInSegment { segment, walk })
    }

    /// Moves to the next frame with records that are due; answers whether there is one.
    fn next_frame(&mut self) -> Result<bool, ReadError> {
        loop {
            let Some(place) = self.place.as_mut() else {
                let Some(first) = self.chain.segments().into_iter().next() else { return Ok(false) };
                let (start, base) = (first.start, first.base);
                self.frame_due = base;
                self.place = Some(self.open(first, start)?);
                let gone = self.chain.lost(self.due).is_some() || self.chain.refusal_at(self.due).is_some();
                if let Some(gone) = gone.then(|| self.miss_up_to(base)).flatten() {
                    return Err(gone);
                }
                continue;
            };
            let offset = place.walk.offset;
            let (_, end) = place.segment.reach();
            if let Some(skip) = place.segment.skips.iter().find(|skip| skip.offset == offset).cloned() {
                if !skip.finding.harmless && !self.past_damage {
                    self.broken = Some(skip.finding.clone());
                    return Err(ReadError::Broken(Box::new(skip.finding)));
                }
                if skip.to > offset && skip.to <= end {
                    place.walk.offset = skip.to;
                    self.frame_due =
                        skip.finding.missing.map_or(self.frame_due, |(_, last)| last.number() + 1);
                    if let Some(gone) = self.miss_up_to(self.frame_due) {
                        return Err(gone);
                    }
                    continue;
                }
                // Nothing more of this segment checks: the next one tells what is missing.
                place.walk.offset = place.walk.offset.max(end);
            }
            if place.walk.offset >= end {
                if !self.next_segment()? {
                    return Ok(false);
                }
                continue;
            }
            if end > place.walk.window.limit() {
                place.walk.window.extend(end);
            }
            match place.walk.step(self.frame_due) {
                Step::Frame(frame) if frame.header.kind == FrameKind::Records => {
                    self.frame_due = frame.header.next_lsn();
                    if self.frame_due <= self.due {
                        continue;
                    }
                    self.body_at = 0;
                    self.left = frame.header.records;
                    let gap = Lsn::new(self.due).zip(Lsn::new(frame.header.first_lsn - 1));
                    self.due = self.due.max(frame.header.first_lsn);
                    return match gap.filter(|(first, last)| first <= last) {
                        Some((first, last)) => Err(ReadError::NotKept { first, last }),
                        None => Ok(true),
                    };
                }
                Step::Frame(_) => {}
                Step::Stop(stop) => return Err(self.broken_at(&stop)),
            }
        }
    }

    /// Records from the one due up to before `next` are gone for good.
    fn miss_up_to(&mut self, next: u64) -> Option<ReadError> {
        let gone = Lsn::new(self.due).zip(Lsn::new(next - 1)).filter(|(first, last)| first <= last);
        self.due = self.due.max(next);
        gone.map(|(first, last)| ReadError::Lost { first, last })
    }

    /// Moves to the segment behind the current one, if there is one with anything in it.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        let Some(place) = &self.place else { return Ok(false) };
        let Some(next) = self.chain.after(place.segment.id) else {
            // What was lost at the end is told before anything follows it.
            let lost = self.chain.lost(self.due);
            return lost.and_then(|(_, last)| self.miss_up_to(last + 1)).map_or(Ok(false), Err);
        };
        // The successor was published after everything in this one: a last look.
        let (last, end) = place.segment.reach();
        if place.walk.offset < end {
            return Ok(true);
        }
        let sieved_to = if place.segment.sieved { last + 1 } else { self.due };
        let (start, base) = (next.start, next.base);
        let due = self.due;
        if base > due
            && sieved_to <= due
            && let Some(finding) = self.chain.refusal_at(due).filter(|_| !self.past_damage)
        {
            self.broken = Some(finding.clone());
            return Err(ReadError::Broken(Box::new(finding)));
        }
        let retired = base > due && self.chain.first() == Some(base) && self.chain.lost(due).is_none();
        self.place = Some(self.open(next, start)?);
        self.frame_due = base;
        match self.miss_up_to(base) {
            Some(ReadError::Lost { first, last }) if retired => Err(ReadError::NotKept { first, last }),
            Some(ReadError::Lost { first, last }) if sieved_to > due => {
                Err(ReadError::NotKept { first, last })
            }
            Some(gone) => Err(gone),
            None => Ok(true),
        }
    }

    /// What was surveyed as sound does not check any more.
    fn broken_at(&mut self, stop: &Stop) -> ReadError {
        let Some(place) = &self.place else { unreachable!("a walk belongs to a place") };
        let (name, offset) = (place.segment.name.clone(), place.walk.offset);
        let unreadable = stop.place == Place::Io;
        let finding = Finding {
            label: if unreadable { "unreadable" } else { "records-damaged" },
            verdict: if unreadable { Verdict::Unreadable } else { Verdict::Damaged },
            proof: if unreadable { Proof::Unproved } else { Proof::Proved },
            file: name,
            segment: SegmentId::new(place.segment.id),
            offset,
            lsn: Lsn::new(self.frame_due),
            missing: None,
            harmless: false,
            evidence: format!("{}; it was whole when the log was opened", stop.note),
        };
        self.broken = Some(finding.clone());
        ReadError::Broken(Box::new(finding))
    }
}

/// Opens a segment's file. It may have been retired since it was looked up: then the log begins behind it.
fn open_segment(chain: &Chain, segment: &Segment, due: u64) -> Result<Box<dyn StorageFile>, ReadError> {
    chain.storage.open(&segment.name, Access::Read).map_err(|error| {
        let first = chain.first().filter(|_| chain.is_retired(segment)).and_then(Lsn::new);
        match Lsn::new(due).zip(first) {
            Some((wanted, first)) => ReadError::Retired { wanted, first },
            None => StorageError::new("open", &segment.name, error).into(),
        }
    })
}

/// The index row at or before `lsn`, from memory or from the seal.
fn locate(chain: &Chain, segment: &Segment, lsn: u64) -> Result<Option<IndexRow>, ReadError> {
    if segment.sieved || !segment.skips.is_empty() {
        return Ok(None);
    }
    let (sealed, row, end) =
        segment.with_extent(|extent| (extent.sealed, extent.index.find(lsn), extent.end));
    if !sealed {
        return Ok(row);
    }
    let file = open_segment(chain, segment, lsn)?;
    let seal = read_seal(&Arc::from(file), segment.salt, end)
        .map_err(|error| StorageError::new("read", &segment.name, error))?;
    Ok(seal.and_then(|(seal, _)| seal.index.find(lsn)))
}

/// The frame that holds `lsn`, found by index and headers alone: in a segment of up to 64 MiB this
/// reads less than 64 KiB.
pub(crate) fn seek(chain: &Arc<Chain>, lsn: Lsn) -> Result<Position, ReadError> {
    let wanted = lsn.number();
    if wanted > chain.written() {
        return Err(ReadError::Ahead { wanted: lsn, next: Lsn::new(chain.next()).unwrap_or(Lsn::FIRST) });
    }
    let retired =
        || ReadError::Retired { wanted: lsn, first: chain.first().and_then(Lsn::new).unwrap_or(Lsn::FIRST) };
    let Some(segment) = chain.holding(wanted) else {
        let missing = chain.refusal_at(wanted).map(|finding| ReadError::Broken(Box::new(finding)));
        return Err(missing.unwrap_or_else(retired));
    };
    let from =
        locate(chain, &segment, wanted)?.unwrap_or(IndexRow { lsn: segment.base, offset: segment.start });
    let file = open_segment(chain, &segment, wanted)?;
    let (_, end) = segment.reach();
    let mut walk = Walk::new(Window::new(Arc::from(file), end, SEEK_CHUNK_BYTES), segment.salt, from.offset);
    let mut offset = from.offset;
    while offset < end {
        if let Some(skip) = segment.skips.iter().find(|skip| skip.offset == offset && skip.to > offset) {
            offset = skip.to;
            continue;
        }
        let header =
            walk.peek_header(offset).map_err(|error| StorageError::new("read", &segment.name, error))?;
        let Some(header) = header else { break };
        let last = header.next_lsn() - 1;
        if header.kind == FrameKind::Records && last >= wanted && header.first_lsn <= wanted {
            return match (SegmentId::new(segment.id), Lsn::new(header.first_lsn), Lsn::new(last)) {
                (Some(segment), Some(first), Some(last)) => Ok(Position { segment, offset, first, last }),
                _ => unreachable!("headers that check hold LSNs"),
            };
        }
        if header.kind == FrameKind::Records && header.first_lsn > wanted {
            break;
        }
        offset += header.frame_bytes();
    }
    let (first, last) = chain
        .lost(wanted)
        .and_then(|(first, last)| Lsn::new(first).zip(Lsn::new(last)))
        .unwrap_or((lsn, lsn));
    if chain.lost(wanted).is_some() {
        return Err(ReadError::Lost { first, last });
    }
    if segment.sieved {
        return Err(ReadError::NotKept { first, last });
    }
    Err(ReadError::Broken(Box::new(Finding {
        label: "records-damaged",
        verdict: Verdict::Damaged,
        proof: Proof::Proved,
        file: segment.name.clone(),
        segment: SegmentId::new(segment.id),
        offset,
        lsn: Some(lsn),
        missing: None,
        harmless: false,
        evidence: format!("no frame header that checks on the way to it, from offset {} on", from.offset),
    })))
}
