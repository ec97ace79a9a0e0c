//! Looking ahead of a chain that another process writes: what came since it was surveyed.
//!
//! A scout reads what is new and nothing twice: frames behind the published end of the newest segment,
//! the control slots, and the heads of the segments that may follow it. Each frame and link has to fit
//! exactly what is known; whatever does not is a misfit, which a survey has to explain.
//!
//! A slot counts only if it is of the chain's epoch. A recovery writes its own epoch into both slots
//! before it gives anything up; so a mark of another life never vouches for records that are no more.

use std::io;
use std::sync::Arc;

use crate::chain::{Chain, Segment};
use crate::control::{ControlState, FileRow};
use crate::frame::{FrameHeader, FrameKind};
use crate::lsn::SegmentId;
use crate::scan::{Step, Walk, Window};
use crate::segment::{HeaderPage, Link, SEAL_BYTES_MAX, SegmentHeader, SparseIndex};
use crate::storage::{Access, StorageFile};
use crate::survey::{FirstFrames, read_first_frames, read_header, read_slots};
use crate::verdict::Place;

/// Bytes that a look reads at a time: few, because most looks find nothing.
const LOOK_CHUNK_BYTES: usize = 16 << 10;

/// A look ends when it has gone over this many bytes of frames, so that they can be read meanwhile.
const LOOK_BYTES: u64 = 1 << 20;

/// The successor of a segment is looked for among the next so many ids. A log that leaves more of them
/// unused between two segments is surveyed.
const IDS_AHEAD: u64 = 16;

/// Looks after which a place that does not check is searched behind, doubled each time up to this.
const PATIENCE_LOOKS: u32 = 1024;

/// What a look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// The chain goes further, or more of it is proved.
    More,
    Nothing,
    /// The log was opened anew, or is another one.
    NewEpoch,
    /// Something does not fit what is known of the log.
    Misfit,
}

/// Extends a chain by what another process writes.
#[derive(Debug)]
pub(crate) struct Scout {
    chain: Arc<Chain>,
    /// The highest durable mark seen; 0 if none.
    mark: u64,
    ahead: Option<Ahead>,
    /// Where the walk stands still, looks since, and looks until the next search.
    still: (u64, u32, u32),
}

/// The walk behind the end of the newest segment.
#[derive(Debug)]
struct Ahead {
    segment: Arc<Segment>,
    file: Arc<dyn StorageFile>,
    walk: Walk,
}

impl Scout {
    pub(crate) fn new(chain: Arc<Chain>, mark: u64) -> Scout {
        Scout { chain, mark, ahead: None, still: (0, 0, 2) }
    }

    /// The highest durable mark seen; 0 if none.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Looks once. What cannot be read does not fit.
    pub(crate) fn look(&mut self) -> Sight {
        self.try_look().unwrap_or(Sight::Misfit)
    }

    fn try_look(&mut self) -> io::Result<Sight> {
        let seen = self.walk_newest(u64::MAX)?;
        if seen != Sight::Nothing {
            return Ok(seen);
        }
        let storage = Arc::clone(&self.chain.storage);
        let slots = read_slots(&*storage)?;
        // Both slots may be under way to the disk only if a crash interrupts; a survey tells.
        let Some((_, control)) = slots.as_ref().and_then(|slots| slots.newest()) else {
            return Ok(Sight::Nothing);
        };
        if control.epoch != self.chain.epoch || control.log_id != self.chain.log_id() {
            return Ok(Sight::NewEpoch);
        }
        let raised = self.raise(control.durable) | self.read_seals()?;
        let mut seen = self.find_successor(control)?;
        if seen == Sight::Misfit {
            // Links may have been written while we went from one file to the next.
            seen = self.find_successor(control)?;
        }
        Ok(if seen == Sight::Nothing && raised { Sight::More } else { seen })
    }

    /// Answers whether the mark went up.
    fn raise(&mut self, mark: u64) -> bool {
        let raised = mark > self.mark;
        self.mark = self.mark.max(mark);
        raised
    }

    /// Steps over the frames that came behind the end of the newest segment, up to `limit`.
    fn walk_newest(&mut self, limit: u64) -> io::Result<Sight> {
        let Some(newest) = self.chain.newest() else { return Ok(Sight::Nothing) };
        let mut ahead = match self.ahead.take().filter(|ahead| ahead.segment.file_id == newest.file_id) {
            Some(ahead) => ahead,
            None => Ahead::new(&self.chain, newest)?,
        };
        let result = self.walk(&mut ahead, limit);
        self.ahead = Some(ahead);
        result
    }

    fn walk(&mut self, ahead: &mut Ahead, limit: u64) -> io::Result<Sight> {
        let from = ahead.walk.offset;
        let limit = limit.min(ahead.file.len()?);
        if limit <= from {
            return Ok(Sight::Nothing);
        }
        ahead.walk.window.extend(limit);
        let mark = self.mark;
        loop {
            let (last, _) = ahead.segment.reach();
            let offset = ahead.walk.offset;
            if offset >= limit || offset - from >= LOOK_BYTES {
                break;
            }
            match ahead.walk.step(last + 1) {
                Step::Frame(frame) => {
                    self.raise(frame.header.durable());
                    match frame.header.kind {
                        FrameKind::Seal => {
                            ahead.walk.offset = offset;
                            finish(&ahead.segment);
                            break;
                        }
                        FrameKind::Link | FrameKind::Sieve => return Ok(Sight::Misfit),
                        _ => publish(&ahead.segment, &frame.header, offset, ahead.walk.offset),
                    }
                }
                Step::Stop(stop) if matches!(stop.place, Place::Order | Place::Newer | Place::Io) => {
                    return Ok(Sight::Misfit);
                }
                Step::Stop(stop) => {
                    // A header that checks was written by us, whatever became of its body.
                    if !self.raise(stop.durable) && offset == from && self.mark == mark {
                        return self.stand_still(ahead, limit);
                    }
                    break;
                }
            }
        }
        if ahead.walk.offset > from {
            self.publish_written(&ahead.segment);
        }
        let moved = ahead.walk.offset > from || self.mark > mark;
        Ok(if moved { Sight::More } else { Sight::Nothing })
    }

    /// Nothing that checks lies here yet. Mostly nothing was written; but if the writer went on behind it,
    /// that has to be explained. A search reads the rest of the file, so it is done ever more rarely.
    fn stand_still(&mut self, ahead: &mut Ahead, limit: u64) -> io::Result<Sight> {
        let offset = ahead.walk.offset;
        let (at, looks, until) = self.still;
        if at != offset {
            self.still = (offset, 1, 2);
            return Ok(Sight::Nothing);
        }
        if looks + 1 < until {
            self.still.1 += 1;
            return Ok(Sight::Nothing);
        }
        self.still = (offset, 0, (until * 2).min(PATIENCE_LOOKS));
        let due = ahead.segment.reach().0 + 1;
        let behind = ahead.walk.search(offset + 8, due)?;
        if behind.frame.is_none() {
            return Ok(Sight::Nothing);
        }
        // It may have been written while we searched, and what lies before it, too.
        ahead.walk.window.extend(limit);
        Ok(if ahead.walk.frame_at(offset).is_ok() { Sight::Nothing } else { Sight::Misfit })
    }

    fn publish_written(&self, segment: &Segment) {
        let (last, _) = segment.reach();
        self.chain.publish_written(last.max(self.chain.written()));
        self.chain.publish_next((last + 1).max(self.chain.next()));
    }

    /// A segment before the newest may have got its seal meanwhile, which says that all of it is durable.
    fn read_seals(&mut self) -> io::Result<bool> {
        let segments = self.chain.segments();
        let older = segments.len().saturating_sub(1);
        let mark = self.mark;
        for segment in segments.iter().take(older).rev() {
            let (last, end) = segment.reach();
            if last <= self.mark {
                break;
            }
            let file = match self.chain.storage.open(&segment.name, Access::Read) {
                Ok(file) => Arc::from(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let Some(header) = seal_at(&file, segment, end)? {
                self.raise(header.durable());
            }
        }
        Ok(self.mark > mark)
    }

    /// Looks for the segment whose link names the newest one exactly.
    fn find_successor(&mut self, control: &ControlState) -> io::Result<Sight> {
        let begun = control.begun.iter().map(|row| row.file);
        let closed =
            control.clean.map(|clean| FileRow { segment_id: clean.segment_id, file_id: clean.file_id });
        let known: Vec<FileRow> = begun.chain(closed).collect();
        let top = known.iter().map(|row| row.segment_id).max().unwrap_or(0);
        let newest = self.chain.newest().map_or(0, |newest| newest.id);
        let mut linked = false;
        let ids = (newest + 1..=top.min(newest + IDS_AHEAD))
            .chain(known.iter().map(|row| row.segment_id).filter(|&id| id > newest + IDS_AHEAD));
        for id in ids {
            let Some(found) = self.candidate(id, control, &known)? else { continue };
            if found.link.predecessor_id == newest {
                return self.adopt(found);
            }
            linked = true;
        }
        // A segment that follows something else: the one between is not where it should be.
        Ok(if linked { Sight::Misfit } else { Sight::Nothing })
    }

    /// A segment file of this log with its link; `None` if it is not there, or only prepared.
    fn candidate(&self, id: u64, control: &ControlState, known: &[FileRow]) -> io::Result<Option<Candidate>> {
        let Some(name) = SegmentId::new(id).map(SegmentId::file_name) else { return Ok(None) };
        let file: Arc<dyn StorageFile> = match self.chain.storage.open(&name, Access::Read) {
            Ok(file) => Arc::from(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let HeaderPage::Valid(header) = read_header(&file)? else { return Ok(None) };
        let row = FileRow { segment_id: id, file_id: header.file_id };
        let contested = known.iter().any(|other| other.segment_id == id && *other != row);
        if header.segment_id != id
            || header.log_id != control.log_id
            || contested
            || control.abandoned.contains(&row)
        {
            return Ok(None);
        }
        let first = read_first_frames(Arc::clone(&file), header.salt())?;
        let Some(link) = first.link else { return Ok(None) };
        Ok(Some(Candidate { file, header, first, link }))
    }

    /// Takes the successor into the chain, if it fits. Its link was written after everything in the segment
    /// before, so that one is looked at once more first.
    fn adopt(&mut self, found: Candidate) -> io::Result<Sight> {
        let Candidate { file, header, first, link } = found;
        let Some(newest) = self.chain.newest() else { return Ok(Sight::Misfit) };
        while newest.reach().1 < link.predecessor_end
            && self.walk_newest(link.predecessor_end)? == Sight::More
        {}
        let fits = !newest.sieved
            && first.sieve.is_none()
            && header.epoch == self.chain.epoch
            && (link.predecessor_file_id, link.predecessor_last, link.predecessor_end)
                == (newest.file_id, newest.reach().0, newest.reach().1)
            && link.base == newest.reach().0 + 1;
        if !fits {
            return Ok(Sight::Misfit);
        }
        let segment = Arc::new(Segment::begin(&header, link.base, first.start, file.len()?));
        self.raise(first.durable);
        self.ahead = Some(Ahead::over(file, Arc::clone(&segment)));
        self.chain.push(segment);
        Ok(Sight::More)
    }
}

#[derive(Debug)]
struct Candidate {
    file: Arc<dyn StorageFile>,
    header: SegmentHeader,
    first: FirstFrames,
    link: Link,
}

impl Ahead {
    fn new(chain: &Chain, segment: Arc<Segment>) -> io::Result<Ahead> {
        let file = Arc::from(chain.storage.open(&segment.name, Access::Read)?);
        Ok(Ahead::over(file, segment))
    }

    fn over(file: Arc<dyn StorageFile>, segment: Arc<Segment>) -> Ahead {
        let (_, end) = segment.reach();
        let mut walk = Walk::new(Window::new(Arc::clone(&file), end, LOOK_CHUNK_BYTES), segment.salt, end);
        walk.sieved = segment.sieved;
        Ahead { segment, file, walk }
    }
}

/// A frame of the newest segment was found at `offset`.
fn publish(segment: &Segment, header: &FrameHeader, offset: u64, end: u64) {
    segment.with_extent(|extent| {
        if header.kind == FrameKind::Records {
            extent.last = header.next_lsn() - 1;
            extent.index.add(header.first_lsn, offset);
        }
        extent.end = end;
        extent.file_bytes = extent.file_bytes.max(end);
    });
}

/// The seal has the index; so memory does not grow with the number of segments.
fn finish(segment: &Segment) {
    segment.with_extent(|extent| {
        extent.sealed = true;
        extent.index = SparseIndex::default();
    });
}

/// The header of the seal at `end`, if there is one that checks.
fn seal_at(file: &Arc<dyn StorageFile>, segment: &Segment, end: u64) -> io::Result<Option<FrameHeader>> {
    let limit = file.len()?.min(end.saturating_add(SEAL_BYTES_MAX));
    let window = Window::new(Arc::clone(file), limit, LOOK_CHUNK_BYTES);
    let mut walk = Walk::new(window, segment.salt, end);
    Ok(walk.frame_at(end).ok().map(|frame| frame.header).filter(|header| header.kind == FrameKind::Seal))
}
