//! Reading records in LSN order, from any LSN, up to what is written.
//!
//! A [`Reader`] lends records out of the frame that it has read and checked once; nothing is copied
//! and memory is bounded by one window and the largest group. Where the log does not check, the
//! reader says so and never goes on silently.

use std::sync::Arc;

use crate::chain::{Chain, Segment};
use crate::error::{ReadError, StorageError};
use crate::frame::{FrameKind, RawRecords};
use crate::lsn::{Lsn, SegmentId};
use crate::scan::{SCAN_CHUNK_BYTES, SEEK_CHUNK_BYTES, Step, Stop, Walk, Window, read_seal};
use crate::segment::IndexRow;
use crate::storage::Access;
use crate::verdict::{Finding, Place, Proof, Verdict};
use crate::wire::{Cursor as ByteCursor, Put};

/// A record, lent by its reader until the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Its position in the log.
    pub lsn: Lsn,
    /// Its owner.
    pub plane: u8,
    /// What it is within its plane.
    pub kind: u8,
    /// Whether it is the last of its batch.
    pub ends_batch: bool,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Where a reader stands, to be kept and used again: after a restart too, and in another process.
///
/// It names what was read, in which epoch, and from which file, so that a log which a power loss took
/// back behind it is recognised and not silently read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Number of the last LSN read; 0 if none.
    read: u64,
    epoch: u64,
    file_id: u64,
}

impl Cursor {
    /// The bytes of a cursor: 24, in a form that does not change.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = Vec::with_capacity(24);
        bytes.put_u64(self.read);
        bytes.put_u64(self.epoch);
        bytes.put_u64(self.file_id);
        bytes.first_chunk().copied().unwrap_or([0; 24])
    }

    /// Reads [`Cursor::to_bytes`]; `None` for bytes that are no cursor.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Cursor> {
        let mut fields = ByteCursor::new(bytes);
        let cursor = Cursor { read: fields.u64()?, epoch: fields.u64()?, file_id: fields.u64()? };
        (fields.remaining() == 0 && cursor.read < Lsn::MAX_NUMBER).then_some(cursor)
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
#[derive(Debug)]
pub struct Reader {
    chain: Arc<Chain>,
    past_damage: bool,
    place: Option<PlaceInSegment>,
    /// The LSN that is due.
    due: u64,
    /// Where the next record begins in the current body, and how many are left there.
    body_at: usize,
    left: u32,
    epoch: u64,
    file_id: u64,
    broken: Option<Finding>,
}

#[derive(Debug)]
struct PlaceInSegment {
    segment: Arc<Segment>,
    walk: Walk,
}

impl Reader {
    /// A reader from `start` on; `chain` says what there is.
    pub(crate) fn new(chain: Arc<Chain>, start: Lsn, past_damage: bool) -> Result<Reader, ReadError> {
        let due = start.number();
        if let Some(first) = chain.first().filter(|&first| due < first).and_then(Lsn::new) {
            return Err(ReadError::Retired { wanted: start, first });
        }
        let next = chain.next();
        if due > next {
            return Err(ReadError::Ahead { wanted: start, next: Lsn::new(next).unwrap_or(Lsn::FIRST) });
        }
        let epoch = chain.epoch;
        let mut reader = Reader {
            chain,
            past_damage,
            place: None,
            due,
            body_at: 0,
            left: 0,
            epoch,
            file_id: 0,
            broken: None,
        };
        reader.enter(due)?;
        Ok(reader)
    }

    /// A reader from where another one stood.
    pub(crate) fn resume(chain: Arc<Chain>, cursor: &Cursor, past_damage: bool) -> Result<Reader, ReadError> {
        if let Some((row, read)) = chain.diverged(cursor.epoch, cursor.read).zip(Lsn::new(cursor.read)) {
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

    /// The next record; `None` when everything that is written has been read. The reader can be asked
    /// again later, and goes on when there is more.
    ///
    /// # Errors
    /// [`ReadError::Lost`] and [`ReadError::NotKept`] once for each range that is gone, after which the next call
    /// goes on behind it; [`ReadError::Broken`] where the log does not check, again at each call.
    // A lending reader cannot be an `Iterator`.
    #[allow(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if let Some(finding) = &self.broken {
            return Err(ReadError::Broken(Box::new(finding.clone())));
        }
        loop {
            if self.left > 0 {
                if let Some((first, last)) = self.chain.lost(self.due) {
                    return Err(self.pass_over_lost(first, last));
                }
                if self.take_head() {
                    break;
                }
                continue;
            }
            if self.left == 0 && !self.next_frame()? {
                return Ok(None);
            }
        }
        Ok(self.lend())
    }

    /// Where this reader stands.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor { read: self.due - 1, epoch: self.epoch, file_id: self.file_id }
    }

    /// The LSN that it will read next.
    #[must_use]
    pub fn due(&self) -> Lsn {
        Lsn::new(self.due).unwrap_or(Lsn::FIRST)
    }

    /// Moves to the next record in the body; answers whether it is one to lend (a stub is not).
    fn take_head(&mut self) -> bool {
        let body = self.place.as_ref().map_or(&[][..], |place| place.walk.body());
        let mut records = RawRecords::new(body.get(self.body_at..).unwrap_or_default());
        let Some(record) = records.next() else { unreachable!("the frame was checked when it was read") };
        if record.is_stub() {
            self.body_at = body.len() - records.remaining();
            self.left -= 1;
            self.due += 1;
            return false;
        }
        true
    }

    fn lend(&mut self) -> Option<Record<'_>> {
        let place = self.place.as_ref()?;
        let body = place.walk.body();
        let mut records = RawRecords::new(body.get(self.body_at..)?);
        let record = records.next()?;
        self.body_at = body.len() - records.remaining();
        self.left -= 1;
        let lsn = Lsn::new(self.due)?;
        self.due += 1;
        self.file_id = place.segment.file_id;
        self.epoch = self.epoch.max(place.segment.epoch);
        Some(Record {
            lsn,
            plane: record.plane,
            kind: record.kind,
            ends_batch: record.ends_batch,
            payload: record.payload,
        })
    }

    fn pass_over_lost(&mut self, first: u64, last: u64) -> ReadError {
        let from = self.due.max(first);
        self.enter_body(last + 1);
        match Lsn::new(from).zip(Lsn::new(last)) {
            Some((first, last)) => ReadError::Lost { first, last },
            None => unreachable!("lost ranges are LSNs"),
        }
    }

    /// Drops the records of the current body below `due`.
    fn enter_body(&mut self, due: u64) {
        let body = self.place.as_ref().map_or(&[][..], |place| place.walk.body());
        let mut records = RawRecords::new(body.get(self.body_at..).unwrap_or_default());
        while self.due < due && self.left > 0 && records.next().is_some() {
            self.due += 1;
            self.left -= 1;
        }
        self.body_at = body.len() - records.remaining();
        self.due = self.due.max(due);
    }

    /// Finds the frame that holds `due`, or the place where it will be.
    fn enter(&mut self, due: u64) -> Result<(), ReadError> {
        let Some(segment) = self.chain.holding(due) else { return Ok(()) };
        let at = locate(&self.chain, &segment, due)?;
        let from = at.unwrap_or(IndexRow { lsn: segment.base, offset: segment.start });
        self.place = Some(self.open(segment, from.offset)?);
        self.due = from.lsn;
        while self.due < due {
            if self.left == 0 {
                match self.next_frame() {
                    Ok(true) => {}
                    Ok(false) => break,
                    // What is gone before the start is no news.
                    Err(ReadError::Lost { .. } | ReadError::NotKept { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            self.enter_body(due);
        }
        self.due = self.due.max(due);
        Ok(())
    }

    fn open(&self, segment: Arc<Segment>, offset: u64) -> Result<PlaceInSegment, ReadError> {
        let file = self
            .chain
            .storage
            .open(&segment.name, Access::Read)
            .map_err(|error| StorageError::new("open", &segment.name, error))?;
        let (_, end) = segment.reach();
        let mut walk = Walk::new(Window::new(Arc::from(file), end, SCAN_CHUNK_BYTES), segment.salt, offset);
        walk.sieved = segment.sieved;
        Ok(PlaceInSegment { segment, walk })
    }

    /// Moves to the next frame with records; answers whether there is one.
    fn next_frame(&mut self) -> Result<bool, ReadError> {
        loop {
            let Some(place) = self.place.as_mut() else {
                let Some(first) = self.chain.segments().into_iter().next() else { return Ok(false) };
                let start = first.start;
                self.place = Some(self.open(first, start)?);
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
                    if let Some((first, last)) = skip.finding.missing {
                        self.due = self.due.max(last.number() + 1);
                        return Err(ReadError::Lost { first, last });
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
                if self.left > 0 {
                    return Ok(true);
                }
                continue;
            }
            if end > place.walk.window.limit() {
                place.walk.window.extend(end);
            }
            match place.walk.step(self.due) {
                Step::Frame(frame) if frame.header.kind == FrameKind::Records => {
                    self.body_at = 0;
                    self.left = frame.header.records;
                    let gap = Lsn::new(self.due)
                        .zip(Lsn::new(frame.header.first_lsn - 1))
                        .filter(|(first, last)| first <= last);
                    self.due = frame.header.first_lsn;
                    if let Some((first, last)) = gap {
                        return Err(ReadError::NotKept { first, last });
                    }
                    return Ok(true);
                }
                Step::Frame(_) => {}
                Step::Stop(stop) => return Err(self.broken_at(&stop)),
            }
        }
    }

    /// Moves to the segment behind the current one, if there is one with anything in it.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        let Some(place) = &self.place else { return Ok(false) };
        let Some(next) = self.chain.after(place.segment.id) else { return Ok(false) };
        // The successor was published after everything in this one: a last look.
        let (last, end) = place.segment.reach();
        if place.walk.offset < end {
            return Ok(true);
        }
        let sieved_to = if place.segment.sieved { last + 1 } else { self.due };
        let start = next.start;
        let base = next.base;
        let due = self.due;
        if base < due {
            // A copy of a tail whose first records this reader has read from the original.
            self.place = None;
            self.enter(due)?;
            return Ok(self.place.as_ref().is_some_and(|place| place.walk.offset < place.segment.reach().1)
                || self.left > 0);
        }
        self.place = Some(self.open(next, start)?);
        self.due = self.due.max(base);
        match Lsn::new(due).zip(Lsn::new(base - 1)).filter(|(first, last)| first <= last) {
            Some((first, last)) if sieved_to > due => Err(ReadError::NotKept { first, last }),
            Some((first, last)) => match self.chain.refusal_at(due).filter(|_| !self.past_damage) {
                Some(finding) => {
                    self.broken = Some(finding.clone());
                    Err(ReadError::Broken(Box::new(finding)))
                }
                None => Err(ReadError::Lost { first, last }),
            },
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
            lsn: Lsn::new(self.due),
            missing: None,
            harmless: false,
            evidence: format!("{}; it was whole when the log was opened", stop.note),
        };
        self.broken = Some(finding.clone());
        ReadError::Broken(Box::new(finding))
    }
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
    let file = chain
        .storage
        .open(&segment.name, Access::Read)
        .map_err(|error| StorageError::new("open", &segment.name, error))?;
    let seal = read_seal(&Arc::from(file), segment.salt, end)
        .map_err(|error| StorageError::new("read", &segment.name, error))?;
    Ok(seal.and_then(|seal| seal.index.find(lsn)))
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
    let segment = chain.holding(wanted).ok_or_else(retired)?;
    let from =
        locate(chain, &segment, wanted)?.unwrap_or(IndexRow { lsn: segment.base, offset: segment.start });
    let file = chain
        .storage
        .open(&segment.name, Access::Read)
        .map_err(|error| StorageError::new("open", &segment.name, error))?;
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
