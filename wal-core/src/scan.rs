//! Walking the frames of a segment: the one place where frames are read, by opening, by readers, by
//! the tool and by the fuzzers alike.
//!
//! A [`Walk`] reads a file through a [`Window`] of 256 KiB, which grows only for a frame whose header
//! has checked and whose body lies in the file; so memory is bounded whatever the bytes say. Where a
//! frame does not check, the walk says what lies there and can search for the next frame that does.

use std::io;
use std::sync::Arc;

use crate::frame::{BODY_BYTES_MAX, FrameHeader, FrameKind, HEADER_BYTES, HeaderCheck, Salt, records_check};
use crate::io_util::read_full;
use crate::lsn::Lsn;
use crate::segment::{HEADER_PAGE_BYTES, Link, SEAL_BYTES_MAX, Seal, Sieve};
use crate::storage::StorageFile;
use crate::verdict::Place;
use crate::wire::{len_usize, len64};

/// Bytes that a scan reads at a time.
pub(crate) const SCAN_CHUNK_BYTES: usize = 256 << 10;

/// Bytes that a look-up of one frame reads at a time.
pub(crate) const SEEK_CHUNK_BYTES: usize = 4 << 10;

/// A part of a file in memory.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<dyn StorageFile>,
    limit: u64,
    chunk: usize,
    buffer: Vec<u8>,
    start: u64,
    pub(crate) bytes_read: u64,
}

impl Window {
    /// A window on `file` that never looks at or beyond `limit`.
    pub(crate) fn new(file: Arc<dyn StorageFile>, limit: u64, chunk: usize) -> Window {
        Window { file, limit, chunk, buffer: Vec::new(), start: 0, bytes_read: 0 }
    }

    fn range(&self, offset: u64, count: usize) -> Option<std::ops::Range<usize>> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(count)?;
        (to <= self.buffer.len()).then_some(from..to)
    }

    /// Has `count` bytes at `offset` in the buffer, or as many as the file has.
    fn fill(&mut self, offset: u64, count: usize) -> io::Result<()> {
        let left = len_usize(self.limit.saturating_sub(offset));
        if self.range(offset, count.min(left)).is_some() {
            return Ok(());
        }
        let want = count.max(self.chunk).min(left);
        if self.buffer.capacity() > 2 * self.chunk && want <= self.chunk {
            self.buffer = Vec::new();
        }
        // No byte of the old content is wanted once the read has begun.
        self.start = offset;
        self.buffer.resize(want, 0);
        let count = read_full(&*self.file, offset, &mut self.buffer).inspect_err(|_| self.buffer.clear());
        let count = count?;
        self.buffer.truncate(count);
        self.bytes_read += len64(count);
        Ok(())
    }

    /// The `count` bytes at `offset`; fewer where file or limit end before.
    pub(crate) fn bytes(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        self.fill(offset, count)?;
        let from = offset.checked_sub(self.start).map_or(0, len_usize).min(self.buffer.len());
        let to = from.saturating_add(count).min(self.buffer.len());
        Ok(self.buffer.get(from..to).unwrap_or_default())
    }

    /// Bytes already in the buffer.
    fn held(&self, offset: u64, count: u64) -> &[u8] {
        self.range(offset, len_usize(count)).and_then(|range| self.buffer.get(range)).unwrap_or_default()
    }

    /// Forgets the buffer and looks up to a new limit: what was read may have been written since.
    pub(crate) fn extend(&mut self, limit: u64) {
        self.limit = limit;
        self.buffer.clear();
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

/// A frame that checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameAt {
    pub(crate) offset: u64,
    pub(crate) header: FrameHeader,
}

impl FrameAt {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.header.frame_bytes()
    }
}

/// One step of a walk.
#[derive(Debug)]
pub(crate) enum Step {
    Frame(FrameAt),
    /// Nothing that checks, with the LSN that is due, lies here.
    Stop(Stop),
}

/// Why a walk stopped.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) place: Place,
    /// The durable LSN of a header that checked although its frame did not; 0 if none.
    pub(crate) durable: u64,
    /// How far a header that checked says the frame goes.
    pub(crate) claimed_end: Option<u64>,
    pub(crate) note: String,
}

impl Stop {
    fn new(place: Place, note: impl Into<String>) -> Stop {
        Stop { place, durable: 0, claimed_end: None, note: note.into() }
    }

    fn of(header: &FrameHeader, at: u64, place: Place, note: impl Into<String>) -> Stop {
        Stop {
            durable: header.durable(),
            claimed_end: Some(at.saturating_add(header.frame_bytes())),
            ..Stop::new(place, note)
        }
    }
}

/// What a search behind a hole found.
#[derive(Debug, Default)]
pub(crate) struct Sighting {
    pub(crate) frame: Option<FrameAt>,
    /// The highest durable LSN that any header on the way testifies to.
    pub(crate) durable: u64,
    /// Whether any byte on the way was not zero.
    pub(crate) nonzero: bool,
}

/// A walk over the frames of one segment.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) window: Window,
    salt: Salt,
    /// The file begins with a sieve: LSNs may jump between frames, and records may be stubs.
    pub(crate) sieved: bool,
    /// Where the next frame is expected.
    pub(crate) offset: u64,
    current: Option<FrameAt>,
}

impl Walk {
    /// A walk from `offset` on.
    pub(crate) fn new(window: Window, salt: Salt, offset: u64) -> Walk {
        Walk { window, salt, sieved: false, offset, current: None }
    }

    /// Steps over the frame at the current offset, where LSN `due` is expected. A frame's body can be
    /// had by [`body`](Self::body) until the next step. Does not move where it stops.
    pub(crate) fn step(&mut self, due: u64) -> Step {
        self.current = None;
        match self.look(self.offset, due, self.sieved) {
            Ok(frame) => {
                self.offset = frame.end();
                self.current = Some(frame);
                Step::Frame(frame)
            }
            Err(stop) => Step::Stop(stop),
        }
    }

    /// Steps over the frame at the current offset, whatever its LSN.
    pub(crate) fn step_anyhow(&mut self) -> Step {
        match self.frame_at(self.offset) {
            Ok(frame) => {
                self.offset = frame.end();
                Step::Frame(frame)
            }
            Err(stop) => Step::Stop(stop),
        }
    }

    /// The body of the frame that was stepped over last.
    pub(crate) fn body(&self) -> &[u8] {
        self.current.map_or(&[], |frame| {
            self.window.held(frame.offset + HEADER_BYTES as u64, frame.header.body_bytes())
        })
    }

    /// Reads the header at `offset` alone; for finding the way without reading bodies.
    pub(crate) fn peek_header(&mut self, offset: u64) -> io::Result<Option<FrameHeader>> {
        let bytes = self.window.bytes(offset, HEADER_BYTES)?;
        Ok(match bytes.first_chunk().map(|bytes| FrameHeader::check(self.salt, offset, bytes)) {
            Some(HeaderCheck::Valid(header)) => Some(header),
            _ => None,
        })
    }

    fn look(&mut self, offset: u64, due: u64, jumps: bool) -> Result<FrameAt, Stop> {
        let frame = self.check(offset)?;
        let header = frame.header;
        let in_order = header.first_lsn == due || (jumps && header.first_lsn > due);
        if !in_order {
            let note =
                format!("a frame that checks begins with LSN {} where LSN {due} is due", header.first_lsn);
            return Err(Stop::of(&header, offset, Place::Order, note));
        }
        Ok(frame)
    }

    /// The frame at `offset`, whatever its LSN; its body can be had by [`body`](Self::body).
    pub(crate) fn frame_at(&mut self, offset: u64) -> Result<FrameAt, Stop> {
        self.current = None;
        let frame = self.check(offset)?;
        self.current = Some(frame);
        Ok(frame)
    }

    /// Checks the frame at `offset`, F1 to F8; the bytes stay in the window.
    fn check(&mut self, offset: u64) -> Result<FrameAt, Stop> {
        let limit = self.window.limit();
        let bytes = self.window.bytes(offset, HEADER_BYTES).map_err(|error| unreadable(&error))?;
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let zero = bytes.iter().all(|&byte| byte == 0);
            return Err(if zero {
                Stop::new(Place::End, "the file ends here")
            } else {
                Stop::new(Place::Bytes, "the file ends within a frame's header")
            });
        };
        let header = match FrameHeader::check(self.salt, offset, bytes) {
            HeaderCheck::Valid(header) => header,
            HeaderCheck::Newer => {
                return Err(Stop::new(
                    Place::Newer,
                    "a frame of a kind or with flags that this version does not know",
                ));
            }
            HeaderCheck::Contradictory => {
                return Err(Stop::new(Place::Order, "a frame header that checks and contradicts itself"));
            }
            HeaderCheck::Invalid => return Err(Stop::new(Place::Bytes, "no frame header that checks")),
        };
        if header.frame_bytes() > limit.saturating_sub(offset) {
            let note = format!(
                "a frame of {} bytes, of which the file has {}",
                header.frame_bytes(),
                limit.saturating_sub(offset)
            );
            return Err(Stop::of(&header, offset, Place::Short, note));
        }
        debug_assert!(header.body_bytes() <= BODY_BYTES_MAX);
        let length = len_usize(header.frame_bytes());
        let frame = self.window.bytes(offset, length).map_err(|error| unreadable(&error))?;
        if frame.len() < length {
            return Err(Stop::of(&header, offset, Place::Short, "the file became shorter than it said"));
        }
        let body = frame.get(HEADER_BYTES..).unwrap_or_default();
        if !header.body_checks(self.salt, body) {
            return Err(Stop::of(
                &header,
                offset,
                Place::Body,
                format!("the header of a frame with LSN {} checks, its body does not", header.first_lsn),
            ));
        }
        let body = body.get(..len_usize(header.body_bytes())).unwrap_or_default();
        if !body_parses(&header, body, offset, self.sieved) {
            return Err(Stop::of(
                &header,
                offset,
                Place::Order,
                "the body has the right CRC and contradicts its header",
            ));
        }
        Ok(FrameAt { offset, header })
    }

    /// Looks for the next valid frame at an 8-byte boundary from `from` on with first LSN `due` or
    /// higher. Evidence only: nothing is ever returned as a record for it.
    pub(crate) fn search(&mut self, from: u64, due: u64) -> io::Result<Sighting> {
        let mut sighting = Sighting::default();
        let mut offset = from.next_multiple_of(8);
        while offset < self.window.limit() {
            let bytes = self.window.bytes(offset, SCAN_CHUNK_BYTES)?;
            if bytes.is_empty() {
                break;
            }
            sighting.nonzero = sighting.nonzero || bytes.iter().any(|&byte| byte != 0);
            let (checked, candidate) = self.first_header(offset);
            let Some(at) = candidate else {
                offset = checked;
                continue;
            };
            match self.check(at) {
                Ok(frame) => {
                    sighting.durable = sighting.durable.max(frame.header.durable());
                    if frame.header.first_lsn >= due {
                        sighting.frame = Some(frame);
                        return Ok(sighting);
                    }
                }
                Err(stop) => sighting.durable = sighting.durable.max(stop.durable),
            }
            offset = at + 8;
        }
        Ok(sighting)
    }

    /// The first position from `offset` on, in the window, where a header checks; and where to go on
    /// if there is none.
    fn first_header(&self, offset: u64) -> (u64, Option<u64>) {
        let held = offset
            .checked_sub(self.window.start)
            .map_or(&[][..], |from| self.window.buffer.get(len_usize(from)..).unwrap_or_default());
        let mut at = 0;
        while let Some(bytes) = held.get(at..).and_then(|rest| rest.first_chunk::<HEADER_BYTES>()) {
            // An LSN is not zero: most of what is not a frame is dismissed by that.
            let [_, _, _, _, _, _, _, _, lsn @ ..] = bytes;
            let lsn = lsn.first_chunk().map_or(0, |lsn| u64::from_le_bytes(*lsn));
            let position = offset + len64(at);
            if lsn != 0
                && lsn <= Lsn::MAX_NUMBER
                && matches!(FrameHeader::check(self.salt, position, bytes), HeaderCheck::Valid(_))
            {
                return (position, Some(position));
            }
            at += 8;
        }
        // The last 24 bytes may hold the beginning of a header.
        let reached = offset + len64(at);
        let at_end = self.window.start + len64(self.window.buffer.len()) >= self.window.limit();
        (if at == 0 || at_end { self.window.limit().max(reached) } else { reached }, None)
    }
}

fn unreadable(error: &io::Error) -> Stop {
    Stop::new(Place::Io, error.to_string())
}

/// F7 and the drawings of the other bodies.
fn body_parses(header: &FrameHeader, body: &[u8], offset: u64, stubs: bool) -> bool {
    match header.kind {
        FrameKind::Records => records_check(body, header.records, stubs),
        FrameKind::Link => Link::parse(body).is_some(),
        FrameKind::Seal => Seal::parse(body, offset).is_some(),
        FrameKind::Sieve => offset == HEADER_PAGE_BYTES && Sieve::parse(body).is_some(),
        FrameKind::Beacon => body.is_empty(),
        FrameKind::Pad | FrameKind::Ancillary(_) => true,
    }
}

/// Reads the seal of a segment that is known to end at `end`, if there is one that checks, and the durable
/// mark that its frame testifies to. Reads the seal alone.
pub(crate) fn read_seal(
    file: &Arc<dyn StorageFile>,
    salt: Salt,
    end: u64,
) -> io::Result<Option<(Seal, u64)>> {
    let length = file.len()?;
    let window =
        Window::new(Arc::clone(file), length.min(end.saturating_add(SEAL_BYTES_MAX)), SEEK_CHUNK_BYTES);
    let mut walk = Walk::new(window, salt, end);
    match walk.frame_at(end) {
        Ok(frame) if frame.header.kind == FrameKind::Seal => {
            let seal = Seal::parse(walk.body(), end).filter(|seal| seal.last + 1 == frame.header.first_lsn);
            Ok(seal.map(|seal| (seal, frame.header.durable())))
        }
        _ => Ok(None),
    }
}
