//! The survey: everything that a directory says about its log, read without writing a byte.
//!
//! It follows `docs/recovery.md`: slots, headers, the chain backwards by links, then the frames
//! forwards with the LSN that is due. Places that do not check are noted as holes and judged at the
//! end, when the highest durable mark is known. Opening, read-only views, the tool and `repair` all
//! act on the same survey, so that they cannot disagree.

use std::io;
use std::sync::Arc;

use crate::control::{CONTROL_NAME, ControlState, FileRow, LossRow, Slots};
use crate::frame::{FrameKind, RawRecords, Salt};
use crate::lsn::{Lsn, SegmentId};
use crate::scan::{FrameAt, SCAN_CHUNK_BYTES, Step, Stop, Walk, Window, read_seal};
use crate::segment::{HEADER_PAGE_BYTES, HeaderPage, Link, PlaneTable, SegmentHeader, Sieve, SparseIndex};
use crate::storage::{Access, Entry, EntryKind, Storage, StorageFile};
use crate::verdict::{Action, Evidence, Finding, Next, Place, Proof, Verdict, judge};
use crate::wire::len_usize;

/// Most findings that a survey lists; what is more is counted.
pub(crate) const FINDINGS_MAX: usize = 1000;

/// A segment of the chain, as far as the log is believed to go.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) id: u64,
    pub(crate) file_id: u64,
    pub(crate) name: String,
    pub(crate) salt: Salt,
    pub(crate) header: Option<SegmentHeader>,
    pub(crate) link: Option<Link>,
    pub(crate) sieve: Option<Sieve>,
    pub(crate) file_bytes: u64,
    /// Offset of the first frame behind the link.
    pub(crate) start: u64,
    pub(crate) base: u64,
    /// Base - 1 if it holds no record.
    pub(crate) last: u64,
    /// Offset behind the last frame, before the seal.
    pub(crate) end: u64,
    pub(crate) sealed: bool,
    pub(crate) planes: PlaneTable,
    pub(crate) index: SparseIndex,
    /// Places that a reader steps over.
    pub(crate) skips: Vec<Skip>,
}

/// A place that does not check and behind which reading goes on.
#[derive(Debug, Clone)]
pub(crate) struct Skip {
    pub(crate) offset: u64,
    /// Where to go on; the end of the piece if nothing more of it checks.
    pub(crate) to: u64,
    pub(crate) finding: Finding,
}

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
    pub(crate) torn: bool,
    pub(crate) epoch: u64,
    pub(crate) highest_id: u64,
    pub(crate) bytes_read: u64,
    pub(crate) records: u64,
    pub(crate) segment_files: usize,
}

impl Survey {
    /// Reads the directory.
    pub(crate) fn new(storage: &dyn Storage) -> io::Result<Survey> {
        let entries = storage.list()?;
        let slots = match entries.iter().find(|entry| entry.name == CONTROL_NAME) {
            Some(entry) if entry.kind == EntryKind::File => Some(Slots::read(&*storage.open(CONTROL_NAME, Access::Read)?)?),
            Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{CONTROL_NAME} is not a regular file"))),
            None => None,
        };
        let mut surveyor = Surveyor::new(storage, entries, slots);
        surveyor.read_heads();
        let elements = surveyor.order();
        surveyor.walk(&elements);
        Ok(surveyor.judge())
    }

    /// Whether there is nothing of a log here at all.
    pub(crate) fn is_blank(&self) -> bool {
        self.slots.is_none() && self.segment_files == 0
    }
}

/// A segment file with what its head says.
#[derive(Debug)]
struct Member {
    id: u64,
    name: String,
    bytes: u64,
    head: Head,
}

#[derive(Debug)]
enum Head {
    Ours { header: SegmentHeader, first: FirstFrames },
    /// The header does not check; a link or the control file may know the file id.
    Rotten,
    Newer(u32),
    Alien(String),
    Unreadable(String),
}

/// The frames before the records.
#[derive(Debug, Default)]
struct FirstFrames {
    sieve: Option<Sieve>,
    link: Option<Link>,
    start: u64,
    durable: u64,
    note: String,
}

/// An element of the chain, before its frames are read.
#[derive(Debug, Clone, Copy)]
enum Element {
    Present { member: usize, file_id: u64 },
    Absent(FileRow),
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
    note: String,
}

struct Surveyor<'a> {
    storage: &'a dyn Storage,
    slots: Option<Slots>,
    control: Option<ControlState>,
    log_id: Option<[u8; 16]>,
    members: Vec<Member>,
    pieces: Vec<Piece>,
    holes: Vec<Hole>,
    /// The hole behind which no valid frame was seen yet.
    open_hole: Option<usize>,
    extras: Vec<Extra>,
    due: u64,
    durable: u64,
    epoch: u64,
    highest_id: u64,
    bytes_read: u64,
    records: u64,
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
            open_hole: None,
            extras: Vec::new(),
            due: 1,
            bytes_read: 0,
            records: 0,
        };
        for entry in entries {
            surveyor.sort_entry(entry);
        }
        surveyor.members.sort_by_key(|member| member.id);
        surveyor
    }

    fn sort_entry(&mut self, entry: Entry) {
        if let Some(id) = SegmentId::from_file_name(&entry.name) {
            self.highest_id = self.highest_id.max(id.number());
            let head = match entry.kind {
                EntryKind::File => Head::Rotten,
                kind => Head::Alien(format!("not a regular file but a {}", kind_name(kind))),
            };
            self.members.push(Member { id: id.number(), name: entry.name, bytes: entry.len, head });
        } else if let Some(base) = entry.name.strip_suffix(".tmp") {
            if let Some(id) = SegmentId::from_file_name(base) {
                self.highest_id = self.highest_id.max(id.number());
            } else if base != CONTROL_NAME {
                return;
            }
            if entry.kind == EntryKind::File {
                self.extras.push(Extra { name: entry.name, row: None, why: ExtraKind::Temporary });
            }
        } else if let Some(id) = entry.name.split_once(".aside-").and_then(|(base, _)| SegmentId::from_file_name(base)) {
            self.highest_id = self.highest_id.max(id.number());
        }
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::from(self.storage.open(name, Access::Read)?))
    }

    /// Step 2: headers and first frames.
    fn read_heads(&mut self) {
        if self.log_id.is_none() {
            self.log_id = self.guess_log_id();
        }
        for at in 0..self.members.len() {
            let Some(member) = self.members.get(at) else { break };
            if matches!(member.head, Head::Alien(_)) {
                continue;
            }
            let (name, id) = (member.name.clone(), member.id);
            let head = self.read_head(&name, id).unwrap_or_else(|error| Head::Unreadable(error.to_string()));
            if let Head::Ours { header, .. } = &head {
                self.epoch = self.epoch.max(header.epoch);
            }
            if let Some(member) = self.members.get_mut(at) {
                member.head = head;
            }
        }
    }

    /// Without a control file: the log that the newest sound header belongs to.
    fn guess_log_id(&self) -> Option<[u8; 16]> {
        let header = |member: &Member| {
            let file = self.open(&member.name).ok()?;
            match read_header(&file).ok()? {
                HeaderPage::Valid(header) if header.segment_id == member.id => Some(header),
                _ => None,
            }
        };
        self.members.iter().filter(|member| !matches!(member.head, Head::Alien(_))).filter_map(header).max_by_key(|header| header.epoch).map(|header| header.log_id)
    }

    fn read_head(&mut self, name: &str, id: u64) -> io::Result<Head> {
        let file = self.open(name)?;
        self.bytes_read += HEADER_PAGE_BYTES;
        let header = match read_header(&file)? {
            HeaderPage::Valid(header) => header,
            HeaderPage::Newer { version } => return Ok(Head::Newer(version)),
            HeaderPage::Invalid => return Ok(Head::Rotten),
        };
        if header.segment_id != id {
            return Ok(Head::Alien(format!("its header says segment {}", header.segment_id)));
        }
        if !self.is_ours(&header) {
            let id = crate::lsn::LogId::new(header.log_id).map_or_else(String::new, |id| id.to_string());
            return Ok(Head::Alien(format!("it belongs to the log {id}")));
        }
        let first = read_first_frames(file, header.salt())?;
        Ok(Head::Ours { header, first })
    }

    fn is_ours(&self, header: &SegmentHeader) -> bool {
        let ancestors = self.control.as_ref().map_or(&[][..], |control| &control.ancestors);
        Some(header.log_id) == self.log_id || ancestors.iter().any(|row| row.log_id == header.log_id && header.segment_id <= row.last_segment_id)
    }

    fn link(&self, at: usize) -> Option<&Link> {
        match &self.members.get(at)?.head {
            Head::Ours { first, .. } => first.link.as_ref(),
            _ => None,
        }
    }

    fn sieve(&self, at: usize) -> Option<&Sieve> {
        match &self.members.get(at)?.head {
            Head::Ours { first, .. } => first.sieve.as_ref(),
            _ => None,
        }
    }

    fn id(&self, at: usize) -> u64 {
        self.members.get(at).map_or(0, |member| member.id)
    }

    fn file_id(&self, at: usize) -> u64 {
        match self.members.get(at).map(|member| &member.head) {
            Some(Head::Ours { header, .. }) => header.file_id,
            _ => 0,
        }
    }

    fn first_kept(&self) -> u64 {
        self.control.as_ref().map_or(0, |control| control.first_kept)
    }

    /// Whether nothing before this segment belongs to the log.
    fn is_head(&self, at: usize) -> bool {
        let covered = self.sieve(at).is_some_and(|sieve| sieve.run.iter().any(|row| row.segment_id == self.first_kept()));
        self.id(at) == self.first_kept() || covered || self.link(at).is_some_and(|link| link.predecessor_id == 0)
    }

    /// The newest member below `id` whose link checks.
    fn linked_below(&self, id: u64) -> Option<usize> {
        (0..self.members.len()).rev().find(|&at| self.id(at) < id && self.link(at).is_some() && !self.is_listed_as_abandoned(at))
    }

    fn is_listed_as_abandoned(&self, at: usize) -> bool {
        let row = FileRow { segment_id: self.id(at), file_id: self.file_id(at) };
        self.control.as_ref().is_some_and(|control| control.abandoned.contains(&row))
    }

    /// Steps 3 and 4: the chain, oldest first; what is not on it is sorted out.
    fn order(&mut self) -> Vec<Element> {
        let mut elements = Vec::new();
        self.dismiss_strangers();
        let mut cursor = self.linked_below(u64::MAX).map(|at| (at, self.file_id(at)));
        while let Some((at, file_id)) = cursor {
            elements.push(Element::Present { member: at, file_id });
            cursor = if self.is_head(at) { None } else { self.predecessor(at, &mut elements) };
        }
        elements.reverse();
        self.due = self.first_due(&elements);
        let on_chain: Vec<usize> = elements.iter().filter_map(|element| if let Element::Present { member, .. } = element { Some(*member) } else { None }).collect();
        let top = on_chain.iter().map(|&at| self.id(at)).max().unwrap_or(0);
        for at in 0..self.members.len() {
            if !on_chain.contains(&at) && self.id(at) < top {
                self.sort_out(at, &on_chain);
            }
        }
        elements
    }

    /// Files with frames above everything that the control file names: of a copied directory that
    /// went on by itself, say. Their links may fit, and still they are not of this log.
    fn dismiss_strangers(&mut self) {
        let Some(control) = &self.control else { return };
        let named = |row: FileRow| {
            let closed = control.clean.is_some_and(|clean| clean.segment_id == row.segment_id && clean.file_id == row.file_id);
            closed || control.begun.iter().any(|begun| begun.file == row)
        };
        let top = control.begun.iter().map(|begun| begun.file.segment_id).chain(control.clean.map(|clean| clean.segment_id)).max().unwrap_or(0);
        let strangers: Vec<usize> = (0..self.members.len())
            .filter(|&at| {
                let row = FileRow { segment_id: self.id(at), file_id: self.file_id(at) };
                let contested = control.begun.iter().any(|begun| begun.file.segment_id == row.segment_id) || row.segment_id > top;
                self.link(at).is_some() && contested && !named(row)
            })
            .collect();
        for at in strangers {
            if let Some(member) = self.members.get_mut(at) {
                member.head = Head::Alien("no control slot knows it: it was not begun by this log".to_owned());
            }
        }
    }

    fn predecessor(&self, at: usize, elements: &mut Vec<Element>) -> Option<(usize, u64)> {
        let Some(link) = self.link(at) else {
            return self.linked_below(self.id(at)).map(|below| (below, self.file_id(below)));
        };
        let named = FileRow { segment_id: link.predecessor_id, file_id: link.predecessor_file_id };
        let found = (0..self.members.len()).find(|&other| self.id(other) == named.segment_id && named.segment_id < self.id(at));
        match found.and_then(|other| Some((other, &self.members.get(other)?.head))) {
            Some((other, Head::Ours { header, first })) => {
                let original = first.sieve.as_ref().and_then(|sieve| sieve.run.last()).map_or(header.file_id, |row| row.file_id);
                if original == named.file_id {
                    return Some((other, header.file_id));
                }
            }
            Some((other, Head::Rotten | Head::Unreadable(_) | Head::Newer(_))) => return Some((other, named.file_id)),
            _ => {}
        }
        elements.push(Element::Absent(named));
        self.linked_below(named.segment_id).map(|below| (below, self.file_id(below)))
    }

    /// The LSN that is due at the beginning of the chain.
    fn first_due(&self, elements: &[Element]) -> u64 {
        let base = self.control.as_ref().map_or(1, |control| control.base);
        match elements.first() {
            Some(Element::Present { member, .. }) => match self.link(*member) {
                Some(link) => link.base,
                None => base,
            },
            _ => base,
        }
    }

    /// A file below the newest segment that is not on the chain.
    fn sort_out(&mut self, at: usize, on_chain: &[usize]) {
        let Some(member) = self.members.get(at) else { return };
        let (id, name) = (member.id, member.name.clone());
        let row = FileRow { segment_id: id, file_id: self.file_id(at) };
        let in_run = on_chain.iter().any(|&other| self.sieve(other).is_some_and(|sieve| sieve.run.iter().any(|run| run.segment_id == id)));
        let listed = self.is_listed_as_abandoned(at);
        // Recovery began a newer segment at or below its base: it held what was copied or given up.
        let superseded = self.link(at).is_some_and(|link| {
            let mut newer = on_chain.iter().filter(|&&other| self.id(other) > id).filter_map(|&other| self.link(other));
            newer.any(|newer| newer.kept.is_some() && newer.base <= link.base)
        });
        let frameless = self.link(at).is_none() && !self.holds_frames(at);
        let Some(member) = self.members.get(at) else { return };
        let why = match member.head {
            Head::Ours { .. } if listed || superseded => ExtraKind::Abandoned,
            Head::Ours { .. } if id < self.first_kept() || in_run => ExtraKind::Leftover,
            Head::Ours { .. } if frameless => ExtraKind::Unused,
            Head::Alien(ref note) => return self.note_file(at, Place::Alien, note.clone()),
            Head::Newer(version) => return self.note_file(at, Place::Newer, format!("format version {version}")),
            Head::Unreadable(ref note) => return self.note_file(at, Place::Io, note.clone()),
            Head::Rotten => return self.note_file(at, Place::Header, "the header page does not check".to_owned()),
            Head::Ours { .. } => return self.note_file(at, Place::Stray, "no link and no control slot says why it is here".to_owned()),
        };
        self.extras.push(Extra { name, row: Some(row), why });
    }

    /// Whether any frame in a file checks.
    fn holds_frames(&mut self, at: usize) -> bool {
        let salt = match self.members.get(at).map(|member| &member.head) {
            Some(Head::Ours { header, .. }) => header.salt(),
            _ => return true,
        };
        self.sight(at, salt, 1).is_none_or(|(frame, nonzero)| frame.is_some() || nonzero)
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

    fn note_file(&mut self, at: usize, place: Place, note: String) {
        let Some(member) = self.members.get(at) else { return };
        let row = FileRow { segment_id: member.id, file_id: self.file_id(at) };
        let hole = Hole { name: member.name.clone(), row, piece: None, place, offset: 0, to: None, due: 0, next: None, reused: false, clean: false, accepted: false, note };
        self.holes.push(hole);
    }

    /// Step 5 and 6: the frames, forwards.
    fn walk(&mut self, elements: &[Element]) {
        for (at, element) in elements.iter().enumerate() {
            let successor = elements.get(at + 1).and_then(|next| match next {
                Element::Present { member, .. } => self.link(*member).copied(),
                Element::Absent(_) => None,
            });
            match *element {
                Element::Absent(row) => self.note_absent(row),
                Element::Present { member, file_id } => self.walk_member(member, file_id, successor, at + 1 == elements.len()),
            }
        }
        self.look_at_loose_files();
        self.look_for_begun_files();
    }

    fn note_absent(&mut self, row: FileRow) {
        let name = SegmentId::new(row.segment_id).map_or_else(String::new, SegmentId::file_name);
        let note = "the file is not there, or another one has its name".to_owned();
        let hole = Hole { name, row, piece: None, place: Place::Absent, offset: 0, to: None, due: self.due, next: None, reused: false, clean: false, accepted: false, note };
        self.open_hole = Some(self.holes.len());
        self.holes.push(hole);
    }

    /// A valid frame with first LSN `lsn` follows: that is what lies behind an open hole.
    fn arrive(&mut self, lsn: u64) {
        if let Some(hole) = self.open_hole.take().and_then(|at| self.holes.get_mut(at)) {
            hole.next = Some(lsn);
            self.due = lsn;
        }
    }

    fn walk_member(&mut self, at: usize, file_id: u64, successor: Option<Link>, newest: bool) {
        let Some(member) = self.members.get(at) else { return };
        let (name, id, bytes) = (member.name.clone(), member.id, member.bytes);
        let row = FileRow { segment_id: id, file_id };
        let bad = |place: Place, note: String, due: u64| Hole { name: name.clone(), row, piece: None, place, offset: 0, to: None, due, next: None, reused: false, clean: false, accepted: false, note };
        let (header, first) = match &member.head {
            Head::Ours { header, first } => (Some(header.clone()), FirstFrames { sieve: first.sieve.clone(), link: first.link, note: first.note.clone(), ..*first }),
            Head::Rotten => {
                let hole = bad(Place::Header, "the header page does not check".to_owned(), self.due);
                self.holes.push(Hole { next: Some(self.due), ..hole });
                let first = self.open(&name).and_then(|file| read_first_frames(file, self.salt(id, file_id))).unwrap_or_default();
                (None, first)
            }
            Head::Newer(version) => {
                let note = format!("format version {version}");
                self.open_hole = Some(self.holes.len());
                return self.holes.push(bad(Place::Newer, note, self.due));
            }
            Head::Unreadable(note) | Head::Alien(note) => {
                let note = note.clone();
                self.open_hole = Some(self.holes.len());
                return self.holes.push(bad(Place::Io, note, self.due));
            }
        };
        let salt = header.as_ref().map_or_else(|| self.salt(id, file_id), SegmentHeader::salt);
        let file = match self.open(&name) {
            Ok(file) => file,
            Err(error) => {
                self.open_hole = Some(self.holes.len());
                return self.holes.push(bad(Place::Io, error.to_string(), self.due));
            }
        };
        self.durable = self.durable.max(first.durable);
        let piece = Piece {
            id,
            file_id,
            name,
            salt,
            header,
            link: first.link,
            file_bytes: bytes,
            start: first.start,
            base: self.due,
            last: self.due.saturating_sub(1),
            end: first.start,
            sealed: false,
            planes: PlaneTable::default(),
            index: SparseIndex::default(),
            skips: Vec::new(),
            sieve: first.sieve,
        };
        self.pieces.push(piece);
        PieceWalk { surveyor: self, file, successor, newest, note: first.note }.run();
    }

    fn salt(&self, id: u64, file_id: u64) -> Salt {
        // Files of an ancestor count up to its last; ancestors are listed oldest first.
        let ancestors = self.control.as_ref().map_or(&[][..], |control| &control.ancestors);
        let log_id = ancestors.iter().find(|row| id <= row.last_segment_id).map(|row| row.log_id).or(self.log_id);
        Salt::new(log_id.unwrap_or_default(), id, file_id)
    }

    /// Files above the newest linked segment: prepared, torn at their first write, or damaged.
    fn look_at_loose_files(&mut self) {
        let top = self.pieces.iter().map(|piece| piece.id).max().unwrap_or(0);
        for at in 0..self.members.len() {
            let Some(member) = self.members.get(at).filter(|member| member.id > top) else { continue };
            let (id, name) = (member.id, member.name.clone());
            match &member.head {
                Head::Ours { header, first } => {
                    let (row, salt, note) = (FileRow { segment_id: id, file_id: header.file_id }, header.salt(), first.note.clone());
                    let reused = header.reused;
                    self.look_at_loose_file(at, row, salt, reused, &name, note);
                }
                Head::Rotten => self.note_file(at, Place::Header, "the header page does not check".to_owned()),
                Head::Newer(version) => self.note_file(at, Place::Newer, format!("format version {version}")),
                Head::Alien(note) => self.note_file(at, Place::Alien, note.clone()),
                Head::Unreadable(note) => self.note_file(at, Place::Io, note.clone()),
            }
        }
    }

    fn look_at_loose_file(&mut self, at: usize, row: FileRow, salt: Salt, reused: bool, name: &str, note: String) {
        let name = name.to_owned();
        let due = self.due;
        let hole = |place, note| Hole { name: name.clone(), row, piece: None, place, offset: HEADER_PAGE_BYTES, to: None, due, next: None, reused: false, clean: false, accepted: false, note };
        match self.sight(at, salt, 1) {
            None => self.holes.push(hole(Place::Io, "cannot be read".to_owned())),
            Some((Some(_), _)) => {
                self.holes.push(hole(Place::Link, note));
                self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Abandoned });
            }
            Some((None, true)) if !reused => {
                self.holes.push(hole(Place::Link, note));
                self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Abandoned });
            }
            Some((None, _)) => self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Unused }),
        }
    }

    /// Segments that the control file says were begun, newer than all that are there.
    fn look_for_begun_files(&mut self) {
        let Some(control) = &self.control else { return };
        let top = self.pieces.iter().map(|piece| piece.id).max().unwrap_or(0);
        let must = control.begun.iter().filter(|row| row.must_exist).map(|row| row.file);
        let gone: Vec<FileRow> = must.filter(|row| row.segment_id > top && !control.abandoned.contains(row) && !self.members.iter().any(|member| member.id == row.segment_id)).collect();
        for row in gone {
            let name = SegmentId::new(row.segment_id).map_or_else(String::new, SegmentId::file_name);
            let note = "the control file says that it was begun".to_owned();
            self.holes.push(Hole { name, row, piece: None, place: Place::Absent, offset: 0, to: None, due: self.due, next: None, reused: false, clean: false, accepted: false, note });
        }
        let first_kept = self.first_kept();
        let clean = self.control.as_ref().and_then(|control| control.clean).filter(|clean| clean.segment_id != 0);
        if let Some(clean) = clean.filter(|clean| self.pieces.is_empty() && clean.segment_id >= first_kept) {
            let row = FileRow { segment_id: clean.segment_id, file_id: clean.file_id };
            if !self.holes.iter().any(|hole| hole.row.segment_id == row.segment_id) {
                self.note_absent(row);
            }
        }
    }

    /// Step 7 and the table.
    fn judge(mut self) -> Survey {
        let holes = std::mem::take(&mut self.holes);
        let mut judged = Judged::default();
        for hole in holes {
            self.judge_hole(hole, &mut judged);
        }
        self.judge_control(&mut judged);
        if self.pieces.is_empty() && self.durable >= self.due && judged.refusal.is_none() {
            self.judge_vanished(&mut judged);
        }
        let (verdict, proof) = judged.verdict();
        let (pieces, last) = self.keep(&judged);
        let next = (last + 1).max(self.control.as_ref().map_or(1, |control| control.least_next));
        let closed_cleanly = judged.closed || (pieces.is_empty() && self.control.as_ref().is_some_and(|control| control.clean.is_some_and(|clean| clean.segment_id == 0)));
        Survey {
            closed_cleanly: closed_cleanly && judged.refusal.is_none() && !judged.torn,
            torn: judged.torn,
            slots: self.slots,
            control: self.control,
            log_id: self.log_id,
            chain: pieces,
            extras: self.extras,
            findings: judged.findings,
            unlisted: judged.unlisted,
            losses: judged.losses,
            in_the_way: judged.in_the_way,
            verdict,
            proof,
            refusal: judged.refusal,
            durable: self.durable,
            last,
            next,
            epoch: self.epoch,
            highest_id: self.highest_id,
            bytes_read: self.bytes_read,
            records: self.records,
            segment_files: self.members.len(),
        }
    }

    fn judge_hole(&mut self, hole: Hole, judged: &mut Judged) {
        let whole = hole.piece.and_then(|at| self.pieces.get(at)?.sieve.as_ref()).is_some_and(|sieve| hole.due <= sieve.last);
        let mark = hole.due != 0 && (whole || self.durable >= hole.due);
        let missing_to = hole.next.map_or_else(|| if mark { self.durable } else { 0 }, |next| next - 1);
        let missing = Lsn::new(hole.due).zip(Lsn::new(missing_to)).filter(|(first, last)| first <= last);
        let losses = self.control.as_ref().map_or(&[][..], |control| &control.losses);
        let accepted = hole.accepted || losses.iter().any(|row| {
            let there = row.segment_id == hole.row.segment_id && row.offset == hole.offset && (row.file_id == hole.row.file_id || hole.row.file_id == 0);
            there && (hole.due == 0 || row.first <= hole.due) && missing.is_none_or(|(_, last)| last.number() <= row.last)
        });
        let next = match hole.next {
            None => Next::None,
            Some(next) if next == hole.due => Next::At,
            Some(_) => Next::Beyond,
        };
        let evidence = Evidence { place: hole.place, next, mark, reused: hole.reused, clean: hole.clean, accepted };
        let row = judge(&evidence);
        let finding = Finding {
            label: row.label,
            verdict: row.verdict,
            proof: row.proof,
            file: hole.name,
            segment: SegmentId::new(hole.row.segment_id),
            offset: hole.offset,
            lsn: Lsn::new(hole.due),
            missing,
            harmless: row.action != Action::Refuse,
            evidence: if mark { format!("{}; LSN {} was proved durable", hole.note, self.durable) } else { hole.note },
        };
        if let Some(piece) = hole.piece.and_then(|at| self.pieces.get_mut(at)).filter(|_| row.action != Action::Cut) {
            piece.skips.push(Skip { offset: hole.offset, to: hole.to.unwrap_or(u64::MAX), finding: finding.clone() });
        }
        if matches!(hole.place, Place::Alien | Place::Stray) && !accepted {
            judged.in_the_way.push(finding.file.clone());
        } else if row.action == Action::Refuse {
            let last = missing.map_or(hole.due.saturating_sub(1), |(_, last)| last.number());
            judged.losses.push(LossRow { segment_id: hole.row.segment_id, file_id: hole.row.file_id, offset: hole.offset, first: hole.due, last });
        }
        if judged.cut_at.is_some() && row.action != Action::Refuse {
            // Behind the end nothing is part of the log; only what may have hidden a mark still counts. But
            // the first write of a segment may have been torn behind an end that looks clean.
            if row.verdict == Verdict::TornTail && hole.place == Place::Link && !judged.torn {
                judged.torn = true;
                judged.add(finding, row.action);
            }
            return;
        }
        if row.action == Action::Cut {
            judged.cut_at = Some((hole.piece, hole.offset, hole.due.saturating_sub(1)));
            judged.torn = row.verdict == Verdict::TornTail;
            judged.closed = hole.clean && row.verdict != Verdict::TornTail;
        }
        judged.add(finding, row.action);
    }

    /// The control file's own condition.
    fn judge_control(&self, judged: &mut Judged) {
        let finding = |label, verdict, offset, harmless, evidence: &str| Finding {
            label,
            verdict,
            proof: Proof::Unproved,
            file: CONTROL_NAME.to_owned(),
            segment: None,
            offset,
            lsn: None,
            missing: None,
            harmless,
            evidence: evidence.to_owned(),
        };
        match &self.slots {
            None if self.members.is_empty() => {}
            None => judged.add(finding("control-missing", Verdict::Damaged, 0, false, "segments, but no control file; `repair` makes one"), Action::Refuse),
            Some(slots) => {
                if let Some(version) = slots.newer_version() {
                    let evidence = format!("a slot of format version {version}");
                    judged.add(finding("control-newer", Verdict::UnknownVersion, 0, false, &evidence), Action::Refuse);
                } else if slots.newest().is_none() {
                    judged.add(finding("control-lost", Verdict::Damaged, 0, false, "neither slot checks; `repair` makes a new control file"), Action::Refuse);
                } else {
                    for slot in slots.invalid() {
                        let offset = u64::from(slot) * crate::control::SLOT_BYTES;
                        judged.add(finding("control-slot", Verdict::Clean, offset, true, "this slot does not check, the other one does"), Action::GoOn);
                    }
                }
            }
        }
    }

    /// Records were durable, and no segment is there.
    fn judge_vanished(&self, judged: &mut Judged) {
        let missing = Lsn::new(self.due).zip(Lsn::new(self.durable));
        let id = self.first_kept().max(1);
        let finding = Finding {
            label: "missing-proved",
            verdict: Verdict::MissingSegment,
            proof: Proof::Proved,
            file: SegmentId::new(id).map_or_else(String::new, SegmentId::file_name),
            segment: SegmentId::new(id),
            offset: 0,
            lsn: Lsn::new(self.due),
            missing,
            harmless: false,
            evidence: format!("no segment holds a record; LSN {} was proved durable", self.durable),
        };
        judged.add(finding, Action::Refuse);
    }

    /// The pieces that hold what is kept; the others become extras.
    fn keep(&mut self, judged: &Judged) -> (Vec<Piece>, u64) {
        let mut pieces = std::mem::take(&mut self.pieces);
        if let Some((piece, offset, last)) = judged.cut_at {
            // A hole outside the pieces (a loose file) cuts nothing of them.
            let kept = piece.map_or(pieces.len(), |at| at + usize::from(offset >= pieces.get(at).map_or(0, |piece| piece.start)));
            for piece in pieces.drain(kept.min(pieces.len())..) {
                self.extras.push(abandoned(&piece));
            }
            if let Some(newest) = pieces.last_mut().filter(|newest| newest.last > last) {
                newest.last = last;
            }
        }
        if judged.refusal.is_none() && pieces.len() > 1 && pieces.last().is_some_and(|newest| newest.last < newest.base && newest.sieve.is_none() && newest.skips.is_empty()) {
            self.extras.extend(pieces.pop().as_ref().map(abandoned));
        }
        let last = pieces.last().map_or(self.control.as_ref().map_or(0, |control| control.base.saturating_sub(1)), |newest| newest.last);
        (pieces, last)
    }
}

fn abandoned(piece: &Piece) -> Extra {
    Extra { name: piece.name.clone(), row: Some(FileRow { segment_id: piece.id, file_id: piece.file_id }), why: ExtraKind::Abandoned }
}

/// The judgement in the making.
#[derive(Debug, Default)]
struct Judged {
    findings: Vec<Finding>,
    unlisted: u64,
    losses: Vec<LossRow>,
    in_the_way: Vec<String>,
    refusal: Option<Finding>,
    /// Verdict and proof of the end.
    end: Option<(Verdict, Proof)>,
    damaged: bool,
    torn: bool,
    closed: bool,
    /// Piece, offset and last LSN kept at the place where the log ends.
    cut_at: Option<(Option<usize>, u64, u64)>,
}

impl Judged {
    fn add(&mut self, finding: Finding, action: Action) {
        match action {
            Action::Refuse if self.refusal.is_none() => self.refusal = Some(finding.clone()),
            Action::Cut if finding.verdict != Verdict::Damaged => self.end = Some((finding.verdict, finding.proof)),
            _ => self.damaged |= finding.verdict == Verdict::Damaged,
        }
        let ordinary_end = action == Action::Cut && finding.verdict == Verdict::Clean;
        if ordinary_end {
            return;
        }
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.unlisted += 1;
        }
    }

    fn verdict(&self) -> (Verdict, Proof) {
        if let Some(refusal) = &self.refusal {
            return (refusal.verdict, refusal.proof);
        }
        if self.damaged {
            return (Verdict::Damaged, Proof::Proved);
        }
        self.end.unwrap_or((Verdict::Clean, if self.closed { Proof::Proved } else { Proof::Unproved }))
    }
}

/// The walk over one piece.
struct PieceWalk<'s, 'a> {
    surveyor: &'s mut Surveyor<'a>,
    file: Arc<dyn StorageFile>,
    successor: Option<Link>,
    newest: bool,
    note: String,
}

impl PieceWalk<'_, '_> {
    fn at(&self) -> usize {
        self.surveyor.pieces.len() - 1
    }

    fn piece(&mut self) -> &mut Piece {
        let Some(piece) = self.surveyor.pieces.last_mut() else { unreachable!("the piece was pushed before its walk") };
        piece
    }

    /// Where this file ends by its successor, or by its own sieve.
    fn stated_end(&mut self) -> Option<u64> {
        let successor = self.successor.map(|link| link.predecessor_end);
        self.piece().sieve.as_ref().map_or(successor, |sieve| Some(sieve.own_end))
    }

    fn run(mut self) {
        let stated = self.stated_end();
        let piece = self.piece();
        let (salt, start, bytes, sieved) = (piece.salt, piece.start, piece.file_bytes, piece.sieve.is_some());
        let limit = stated.map_or(bytes, |end| end.min(bytes));
        let mut walk = Walk::new(Window::new(Arc::clone(&self.file), limit, SCAN_CHUNK_BYTES), salt, start);
        walk.sieved = sieved;
        let linked = self.check_link(&mut walk);
        let ended = linked && self.frames(&mut walk, stated);
        if ended {
            self.finish(&walk);
        }
        self.surveyor.bytes_read += walk.window.bytes_read;
    }

    /// Whether the link says what the chain says; goes on behind it if not.
    fn check_link(&mut self, walk: &mut Walk) -> bool {
        let Some(link) = self.piece().link else {
            let note = std::mem::take(&mut self.note);
            return self.hole(walk, &Stop { place: Place::Link, durable: 0, claimed_end: None, note }, HEADER_PAGE_BYTES);
        };
        self.surveyor.arrive(link.base);
        let due = self.surveyor.due;
        if link.base != due {
            let note = format!("the link says that the segment begins with LSN {} where LSN {due} is due", link.base);
            let at = if self.piece().sieve.is_some() { walk.offset } else { HEADER_PAGE_BYTES };
            let hole = self.new_hole(Place::Order, at, note, Some(link.base));
            self.surveyor.holes.push(Hole { to: Some(walk.offset), ..hole });
            self.surveyor.due = link.base.max(due);
        }
        let due = self.surveyor.due;
        let piece = self.piece();
        piece.base = due;
        piece.last = due - 1;
        true
    }

    /// Walks the frames; answers whether the end was reached (else a hole was noted as the end).
    fn frames(&mut self, walk: &mut Walk, stated: Option<u64>) -> bool {
        loop {
            if stated == Some(walk.offset) {
                return true;
            }
            match walk.step(self.surveyor.due) {
                Step::Frame(frame) => {
                    self.surveyor.durable = self.surveyor.durable.max(frame.header.durable());
                    match frame.header.kind {
                        FrameKind::Records => self.count(walk, &frame),
                        FrameKind::Seal if stated.is_none() => {
                            walk.offset = frame.offset;
                            self.piece().sealed = true;
                            return true;
                        }
                        FrameKind::Seal | FrameKind::Link | FrameKind::Sieve => {
                            let stop = Stop { place: Place::Order, durable: 0, claimed_end: None, note: "a frame that has no place here".to_owned() };
                            walk.offset = frame.offset;
                            if !self.hole(walk, &Stop { claimed_end: Some(frame.end()), ..stop }, frame.offset) {
                                return false;
                            }
                        }
                        FrameKind::Beacon | FrameKind::Pad | FrameKind::Ancillary(_) => {}
                    }
                    self.piece().end = walk.offset;
                }
                Step::Stop(stop) => {
                    let offset = walk.offset;
                    if !self.hole(walk, &stop, offset) {
                        return false;
                    }
                }
            }
        }
    }

    fn count(&mut self, walk: &Walk, frame: &FrameAt) {
        self.surveyor.arrive(frame.header.first_lsn);
        let first = frame.header.first_lsn;
        let piece = self.piece();
        for (lsn, record) in (first..).zip(RawRecords::new(walk.body())) {
            if let Some(lsn) = Lsn::new(lsn).filter(|_| !record.is_stub()) {
                piece.planes.add(record.plane, 1, lsn, lsn);
            }
        }
        piece.index.add(first, frame.offset);
        piece.last = frame.header.next_lsn() - 1;
        self.surveyor.records += u64::from(frame.header.records);
        self.surveyor.due = frame.header.next_lsn();
    }

    fn new_hole(&mut self, place: Place, offset: u64, note: String, next: Option<u64>) -> Hole {
        let at = self.at();
        let due = self.surveyor.due;
        let piece = self.piece();
        let reused = piece.header.as_ref().is_some_and(|header| header.reused);
        let row = FileRow { segment_id: piece.id, file_id: piece.file_id };
        Hole { name: piece.name.clone(), row, piece: Some(at), place, offset, to: None, due, next, reused, clean: false, accepted: false, note }
    }

    /// Notes the hole at `offset` and moves the walk to the next frame that checks; answers whether
    /// there is one in this file.
    fn hole(&mut self, walk: &mut Walk, stop: &Stop, offset: u64) -> bool {
        let due = self.surveyor.due;
        self.surveyor.durable = self.surveyor.durable.max(stop.durable);
        let from = stop.claimed_end.filter(|&end| end <= walk.window.limit()).unwrap_or(offset);
        let from = if stop.place == Place::Order { from.max(offset + 8) } else { from };
        let sighting = walk.search(from, due);
        let sighting = match sighting {
            Ok(sighting) => sighting,
            Err(error) => {
                let hole = self.new_hole(Place::Io, offset, error.to_string(), None);
                self.surveyor.open_hole = Some(self.surveyor.holes.len());
                self.surveyor.holes.push(hole);
                return false;
            }
        };
        self.surveyor.durable = self.surveyor.durable.max(sighting.durable);
        let place = if stop.place == Place::Bytes && !sighting.nonzero { Place::End } else { stop.place };
        let note = if place == Place::End { "the file ends here or is zero from here on".to_owned() } else { stop.note.clone() };
        let mut hole = self.new_hole(place, offset, note, sighting.frame.map(|frame| frame.header.first_lsn));
        if let Some(frame) = sighting.frame {
            hole.to = Some(frame.offset);
            self.surveyor.holes.push(hole);
            self.surveyor.due = frame.header.first_lsn;
            walk.offset = frame.offset;
            if place == Place::Link {
                let piece = self.piece();
                piece.base = frame.header.first_lsn;
                piece.last = piece.base - 1;
                piece.start = frame.offset;
            }
            return true;
        }
        self.piece().end = walk.offset;
        if self.newest && self.vouched(offset) {
            hole.clean = true;
            let sealed = self.surveyor.control.as_ref().and_then(|control| control.clean).is_some_and(|clean| clean.sealed);
            if sealed {
                hole.place = Place::Seal;
                hole.note = format!("a clean close wrote a seal here, which does not check: {}", stop.note);
            }
        }
        self.surveyor.open_hole = Some(self.surveyor.holes.len());
        self.surveyor.holes.push(hole);
        false
    }

    /// Whether the clean-close proof names this place as the end of the log.
    fn vouched(&mut self, offset: u64) -> bool {
        let due = self.surveyor.due;
        let clean = self.surveyor.control.as_ref().and_then(|control| control.clean);
        let piece = self.piece();
        clean.is_some_and(|clean| clean.segment_id == piece.id && clean.file_id == piece.file_id && clean.end == offset && clean.last + 1 == due)
    }

    /// The end was reached in order: by the successor's link, by the sieve, or by a seal.
    fn finish(&mut self, walk: &Walk) {
        let due = self.surveyor.due;
        self.piece().end = walk.offset;
        if let Some(sieve) = self.piece().sieve.clone() {
            self.surveyor.due = self.surveyor.due.max(sieve.last + 1);
            self.piece().last = sieve.last;
        }
        if let Some(link) = self.successor {
            let (end, last) = self.piece().sieve.as_ref().map_or((walk.offset, due - 1), |sieve| (sieve.original_end, sieve.original_last));
            if link.predecessor_last != last || link.predecessor_end != end {
                let note = format!("the successor says that it ends with LSN {}", link.predecessor_last);
                let hole = self.new_hole(Place::Order, walk.offset, note, None);
                self.surveyor.open_hole = Some(self.surveyor.holes.len());
                self.surveyor.holes.push(hole);
            }
            self.check_branch(walk.offset, &link);
        }
        if self.newest {
            let clean = self.vouched(walk.offset);
            let hole = self.new_hole(Place::End, walk.offset, "the segment is finished here".to_owned(), None);
            self.surveyor.holes.push(Hole { clean, ..hole });
            self.surveyor.open_hole = Some(self.surveyor.holes.len() - 1);
        } else {
            let (salt, end) = (self.piece().salt, walk.offset);
            self.piece().sealed = read_seal(&self.file, salt, end).ok().flatten().is_some();
        }
    }

    /// A branch may begin above the predecessor's last LSN: what lies between was given up.
    fn check_branch(&mut self, offset: u64, link: &Link) {
        if link.branch && link.base > self.surveyor.due && self.surveyor.open_hole.is_none() {
            let hole = self.new_hole(Place::Order, offset, "a branch begins above what was lost".to_owned(), Some(link.base));
            self.surveyor.holes.push(Hole { to: Some(offset), accepted: true, ..hole });
            self.surveyor.due = link.base;
        }
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

fn read_header(file: &Arc<dyn StorageFile>) -> io::Result<HeaderPage> {
    let mut page = vec![0; len_usize(HEADER_PAGE_BYTES)];
    let count = crate::io_util::read_full(&**file, 0, &mut page)?;
    Ok(SegmentHeader::check(page.get(..count).unwrap_or_default()))
}

/// Sieve and link, with the little reading that they need.
fn read_first_frames(file: Arc<dyn StorageFile>, salt: Salt) -> io::Result<FirstFrames> {
    let limit = file.len()?;
    let mut walk = Walk::new(Window::new(file, limit, 512), salt, HEADER_PAGE_BYTES);
    let mut first = FirstFrames { start: HEADER_PAGE_BYTES, ..FirstFrames::default() };
    loop {
        match walk.frame_at(first.start) {
            Ok(frame) => {
                first.durable = first.durable.max(frame.header.durable());
                match frame.header.kind {
                    FrameKind::Sieve if first.sieve.is_none() => first.sieve = Sieve::parse(walk.body()),
                    FrameKind::Link => {
                        first.link = Link::parse(walk.body()).filter(|link| link.base == frame.header.first_lsn);
                        first.start = frame.end();
                        return Ok(first);
                    }
                    _ => {
                        "another frame stands in the place of the link".clone_into(&mut first.note);
                        return Ok(first);
                    }
                }
                first.start = frame.end();
            }
            Err(stop) => {
                first.durable = first.durable.max(stop.durable);
                first.note = stop.note;
                return Ok(first);
            }
        }
    }
}

impl ExtraKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ExtraKind::Temporary => "temporary",
            ExtraKind::Unused => "unused",
            ExtraKind::Abandoned => "abandoned",
            ExtraKind::Leftover => "leftover",
        }
    }
}
