//! The survey: everything that a directory says about its log, read without writing a byte.
//!
//! It follows `docs/recovery.md`: slots, headers, the chain backwards by links, then the frames
//! forwards with the LSN that is due. Places that do not check are noted as holes and judged at the
//! end, when the highest durable mark is known. Opening, read-only views, the tool and `repair` all
//! act on the same survey, so that they cannot disagree.

use std::io;
use std::sync::Arc;

use crate::control::{CONTROL_NAME, ControlState, FileRow, LossRow, Slots};
use crate::frame::Salt;
use crate::lsn::SegmentId;
use crate::scan::{FrameAt, SCAN_CHUNK_BYTES, Walk, Window};
use crate::segment::{HEADER_PAGE_BYTES, Link, Sieve};
use crate::spare::{spare_id, spares};
use crate::storage::{Access, Entry, EntryKind, Storage, StorageFile};
use crate::verdict::{Finding, Place, Proof, Verdict};
use heads::{Head, Member};

pub(crate) use heads::{FirstFrames, read_first_frames, read_header};
pub(crate) use piece::{Piece, Shown, Skip};

mod heads;
mod judge;
mod order;
mod piece;
mod settled;
mod walk;

/// Most findings that a survey lists; what is more is counted.
pub(crate) const FINDINGS_MAX: usize = 1000;

/// Most holes that are kept for judgement; behind them only such as miss records, and as many of those
/// again. So memory is bounded, and the first that decides is always among them.
const HOLES_MAX: usize = 4096;

/// A file that is not part of the log any more, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) name: String,
    pub(crate) row: Option<FileRow>,
    pub(crate) why: ExtraKind,
}

/// Why a file is no part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtraKind {
    /// Under construction when its maker stopped.
    Temporary,
    /// Prepared and never used.
    Unused,
    /// Held only what recovery gave up or copied.
    Abandoned,
    /// Retired, or inside the run of a stand-in.
    Leftover,
    /// A spare that is too many, or not fit to be written again.
    Spare,
}

/// What a directory says about its log.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) slots: Option<Slots>,
    pub(crate) control: Option<ControlState>,
    pub(crate) log_id: Option<[u8; 16]>,
    /// Oldest first, ending with the piece that holds the last record kept.
    pub(crate) chain: Vec<Piece>,
    pub(crate) extras: Vec<Extra>,
    /// Files that are named as spares, whatever they are, oldest first.
    pub(crate) spares: Vec<Entry>,
    pub(crate) findings: Vec<Finding>,
    /// Findings beyond those listed.
    pub(crate) unlisted: u64,
    /// Losses at the findings, as rows that `repair` would write.
    pub(crate) losses: Vec<LossRow>,
    /// Foreign and stray files that stand in the way.
    pub(crate) in_the_way: Vec<String>,
    pub(crate) verdict: Verdict,
    pub(crate) proof: Proof,
    /// The first finding that a writing open refuses.
    pub(crate) refusal: Option<Finding>,
    /// The highest durable mark seen; 0 if none.
    pub(crate) durable: u64,
    /// The last LSN kept; 0 if none.
    pub(crate) last: u64,
    /// The next LSN to give out.
    pub(crate) next: u64,
    pub(crate) closed_cleanly: bool,
    pub(crate) epoch: u64,
    pub(crate) highest_id: u64,
    pub(crate) bytes_read: u64,
    pub(crate) records: u64,
    pub(crate) segment_files: usize,
    /// Segment files of another log.
    foreign: usize,
    /// The highest LSN that a file of this log told of which the control file does not know.
    pub(crate) strange_mark: u64,
    /// The names in the directory, sorted.
    pub(crate) names: Vec<String>,
}

impl Survey {
    /// Reads the directory.
    pub(crate) fn new(storage: &dyn Storage) -> io::Result<Survey> {
        // The slots before the list: beside a live writer a file may be listed that the slots do not know
        // yet, but hardly one be known that the list does not show.
        let early = read_slots(storage);
        let entries = storage.list()?;
        let slots = match entries.iter().find(|entry| entry.name == CONTROL_NAME) {
            Some(entry) if entry.kind != EntryKind::File => Some(Slots::lost()),
            Some(_) if matches!(early, Ok(None)) => read_slots(storage)?,
            _ => early?,
        };
        let mut surveyor = Surveyor::new(storage, entries, slots);
        surveyor.read_heads();
        let elements = surveyor.order();
        surveyor.walk(&elements);
        surveyor.judge()
    }

    /// Whether every segment file is of another log than the control file.
    pub(crate) fn is_of_two_logs(&self) -> bool {
        self.control.is_some()
            && self.chain.is_empty()
            && self.foreign == self.segment_files
            && self.foreign > 0
    }

    /// Whether there is nothing of a log here at all, by names alone: what [`is_blank`](Self::is_blank) says of a
    /// survey, before one is worth making.
    pub(crate) fn finds_nothing(storage: &dyn Storage) -> io::Result<bool> {
        let of_a_log =
            |entry: &Entry| entry.name == CONTROL_NAME || SegmentId::from_file_name(&entry.name).is_some();
        Ok(!storage.list()?.iter().any(of_a_log))
    }

    /// Whether there is nothing of a log here at all.
    pub(crate) fn is_blank(&self) -> bool {
        self.slots.is_none() && self.segment_files == 0
    }
}

/// An element of the chain, before its frames are read.
#[derive(Debug, Clone, Copy)]
enum Element {
    Present { member: usize, file_id: u64 },
    Absent(FileRow),
}

impl Element {
    fn member(&self) -> Option<usize> {
        match self {
            Element::Present { member, .. } => Some(*member),
            Element::Absent(_) => None,
        }
    }
}

/// A place that does not check.
#[derive(Debug)]
struct Hole {
    name: String,
    row: FileRow,
    piece: Option<usize>,
    place: Place,
    offset: u64,
    /// Where reading goes on in the same piece.
    to: Option<u64>,
    due: u64,
    next: Option<u64>,
    reused: bool,
    clean: bool,
    /// The log itself says that nothing is due here.
    accepted: bool,
    /// What lies here shows by itself that it was whole once.
    proved: bool,
    note: String,
}

/// Reads both slots, if there is a control file.
pub(crate) fn read_slots(storage: &dyn Storage) -> io::Result<Option<Slots>> {
    match storage.open(CONTROL_NAME, Access::Read) {
        Ok(file) => Slots::read(&*file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names of some entries, sorted.
fn sorted_names(entries: &[Entry]) -> Vec<String> {
    let mut names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    names.sort_unstable();
    names
}

impl Hole {
    /// A hole at the beginning of a file, outside the pieces.
    fn new(name: String, row: FileRow, place: Place, note: String) -> Hole {
        Hole {
            name,
            row,
            piece: None,
            place,
            offset: 0,
            to: None,
            due: 0,
            next: None,
            reused: false,
            clean: false,
            accepted: false,
            proved: false,
            note,
        }
    }
}

struct Surveyor<'a> {
    storage: &'a dyn Storage,
    slots: Option<Slots>,
    control: Option<ControlState>,
    log_id: Option<[u8; 16]>,
    members: Vec<Member>,
    pieces: Vec<Piece>,
    holes: Vec<Hole>,
    /// The highest id on the chain of links.
    top: u64,
    /// Holes that were too many to note.
    unnoted: u64,
    /// The holes behind which no valid frame was seen yet.
    open_holes: Vec<usize>,
    extras: Vec<Extra>,
    spares: Vec<Entry>,
    due: u64,
    durable: u64,
    epoch: u64,
    highest_id: u64,
    bytes_read: u64,
    records: u64,
    names: Vec<String>,
    foreign: usize,
    strange_mark: u64,
}

impl<'a> Surveyor<'a> {
    fn new(storage: &'a dyn Storage, entries: Vec<Entry>, slots: Option<Slots>) -> Self {
        let control = slots.as_ref().and_then(Slots::newest).map(|(_, state)| state.clone());
        let mut surveyor = Surveyor {
            storage,
            log_id: control.as_ref().map(|state| state.log_id),
            durable: control.as_ref().map_or(0, |state| state.durable),
            epoch: control.as_ref().map_or(0, |state| state.epoch),
            highest_id: control.as_ref().map_or(0, |state| state.next_segment_id - 1),
            slots,
            control,
            members: Vec::new(),
            pieces: Vec::new(),
            holes: Vec::new(),
            top: 0,
            unnoted: 0,
            open_holes: Vec::new(),
            extras: Vec::new(),
            spares: spares(&entries).into_iter().cloned().collect(),
            due: 1,
            bytes_read: 0,
            records: 0,
            names: sorted_names(&entries),
            foreign: 0,
            strange_mark: 0,
        };
        for entry in entries {
            surveyor.sort_entry(entry);
        }
        surveyor.members.sort_by_key(|member| member.id);
        surveyor
    }

    fn sort_entry(&mut self, entry: Entry) {
        if let Some(id) = SegmentId::from_file_name(&entry.name) {
            let head = match entry.kind {
                _ if !self.count_id(id) => Head::Alien("its number is out of range".to_owned()),
                EntryKind::File => Head::Rotten(None),
                kind => Head::Alien(format!("not a regular file but a {}", kind_name(kind))),
            };
            self.members.push(Member { id: id.number(), name: entry.name, bytes: entry.len, head });
        } else if let Some(base) = entry.name.strip_suffix(".tmp") {
            if let Some(id) = SegmentId::from_file_name(base) {
                self.count_id(id);
            } else if base != CONTROL_NAME {
                return;
            }
            if entry.kind == EntryKind::File {
                self.extras.push(Extra { name: entry.name, row: None, why: ExtraKind::Temporary });
            }
        } else if let Some(id) = spare_id(&entry.name) {
            self.count_id(id);
        } else if let Some(id) =
            entry.name.split_once(".aside-").and_then(|(base, _)| SegmentId::from_file_name(base))
        {
            self.count_id(id);
        }
    }

    /// Counts an id in a name; answers whether it is in range.
    fn count_id(&mut self, id: SegmentId) -> bool {
        let in_range = id.number() <= SegmentId::MAX_NUMBER;
        if in_range {
            self.highest_id = self.highest_id.max(id.number());
        }
        in_range
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::from(self.storage.open(name, Access::Read)?))
    }

    fn first_frames(&self, at: usize) -> Option<&FirstFrames> {
        match &self.members.get(at)?.head {
            Head::Ours { first, .. } | Head::Rotten(Some((_, first))) => Some(first),
            _ => None,
        }
    }

    fn link(&self, at: usize) -> Option<&Link> {
        self.first_frames(at)?.link.as_ref()
    }

    fn sieve(&self, at: usize) -> Option<&Sieve> {
        self.first_frames(at)?.sieve.as_ref()
    }

    fn id(&self, at: usize) -> u64 {
        self.members.get(at).map_or(0, |member| member.id)
    }

    fn file_id(&self, at: usize) -> u64 {
        match self.members.get(at).map(|member| &member.head) {
            Some(Head::Ours { header, .. }) => header.file_id,
            Some(Head::Rotten(Some((file_id, _)))) => *file_id,
            _ => 0,
        }
    }

    /// Searches a whole file for frames: the first that checks, and whether any byte is not zero.
    fn sight(&mut self, at: usize, salt: Salt, due: u64) -> Option<(Option<FrameAt>, bool)> {
        let member = self.members.get(at)?;
        let file = self.open(&member.name).ok()?;
        let mut walk = Walk::new(Window::new(file, member.bytes, SCAN_CHUNK_BYTES), salt, HEADER_PAGE_BYTES);
        let sighting = walk.search(HEADER_PAGE_BYTES, due).ok()?;
        self.bytes_read += walk.window.bytes_read;
        self.durable = self.durable.max(sighting.durable);
        Some((sighting.frame, sighting.nonzero))
    }

    fn note(&mut self, hole: Hole) {
        let misses = hole.next != Some(hole.due);
        if self.holes.len() < HOLES_MAX || (misses && self.holes.len() < 2 * HOLES_MAX) {
            self.holes.push(hole);
        } else {
            self.unnoted += 1;
        }
    }

    /// Notes a hole behind which no valid frame was seen yet.
    fn note_open(&mut self, hole: Hole) {
        let before = self.holes.len();
        self.note(hole);
        self.open_holes.extend((self.holes.len() > before).then_some(before));
    }

    fn note_file(&mut self, at: usize, place: Place, note: String) {
        let Some(member) = self.members.get(at) else { return };
        let row = FileRow { segment_id: member.id, file_id: self.file_id(at) };
        let hole = Hole::new(member.name.clone(), row, place, note);
        self.note(hole);
    }
}

fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Link => "symbolic link",
        EntryKind::Other => "special file",
    }
}

impl ExtraKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ExtraKind::Temporary => "temporary",
            ExtraKind::Unused => "unused",
            ExtraKind::Abandoned => "abandoned",
            ExtraKind::Leftover => "leftover",
            ExtraKind::Spare => "spare",
        }
    }
}
