//! Steps 5 and 6 of a survey: the frames, forwards, with the LSN that is due.

use std::sync::Arc;

use super::heads::Head;
use super::{Element, Extra, ExtraKind, Hole, Piece, Surveyor};
use crate::control::FileRow;
use crate::frame::{FrameKind, Salt};
use crate::lsn::SegmentId;
use crate::scan::{FrameAt, SCAN_CHUNK_BYTES, Step, Stop, Walk, Window, read_seal};
use crate::segment::{HEADER_PAGE_BYTES, Link, PlaneTable, SEAL_BYTES_MAX, SegmentHeader, SparseIndex};
use crate::storage::StorageFile;
use crate::verdict::Place;
use crate::wire::len_usize;

impl Surveyor<'_> {
    /// Step 5 and 6: the frames, forwards.
    pub(super) fn walk(&mut self, elements: &[Element]) {
        for (at, element) in elements.iter().enumerate() {
            let successor = elements.get(at + 1).and_then(|next| match next {
                Element::Present { member, .. } => self.link(*member).copied(),
                Element::Absent(_) => None,
            });
            match *element {
                Element::Absent(row) => self.note_absent(row),
                Element::Present { member, file_id } => {
                    self.walk_member(member, file_id, successor, at + 1 == elements.len())
                }
            }
        }
        self.look_at_seals();
        self.look_at_loose_files(elements);
        self.look_for_vanished_records();
    }

    fn note_absent(&mut self, row: FileRow) {
        let name = SegmentId::new(row.segment_id).map_or_else(String::new, SegmentId::file_name);
        let note = "the file is not there, or another one has its name".to_owned();
        let hole = Hole { due: self.due, ..Hole::new(name, row, Place::Absent, note) };
        self.note_open(hole);
    }

    /// A valid frame with first LSN `lsn` follows: that is what lies behind every open hole.
    fn arrive(&mut self, lsn: u64) {
        for at in std::mem::take(&mut self.open_holes) {
            if let Some(hole) = self.holes.get_mut(at) {
                hole.next = Some(lsn);
            }
            self.due = lsn;
        }
    }

    fn walk_member(&mut self, at: usize, file_id: u64, successor: Option<Link>, newest: bool) {
        let Some(member) = self.members.get(at) else { return };
        let (name, id, bytes) = (member.name.clone(), member.id, member.bytes);
        let row = FileRow { segment_id: id, file_id };
        let bad =
            |place: Place, note: String, due: u64| Hole { due, ..Hole::new(name.clone(), row, place, note) };
        let (header, first) = match &member.head {
            Head::Ours { header, first } => (Some(header.clone()), first.clone()),
            Head::Rotten(named) => {
                let first = named.as_ref().map(|(_, first)| first.clone()).unwrap_or_default();
                let hole = bad(Place::Header, "the header page does not check".to_owned(), self.due);
                self.note(Hole { next: Some(self.due), ..hole });
                (None, first)
            }
            Head::Newer(version) => {
                let note = format!("format version {version}");
                return self.note_open(bad(Place::Newer, note, self.due));
            }
            Head::Unreadable(note) | Head::Alien(note) => {
                let note = note.clone();
                return self.note_open(bad(Place::Io, note, self.due));
            }
        };
        let salt = header.as_ref().map_or_else(|| self.salt(id, file_id), SegmentHeader::salt);
        let file = match self.open(&name) {
            Ok(file) => file,
            Err(error) => {
                return self.note_open(bad(Place::Io, error.to_string(), self.due));
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
        PieceWalk { surveyor: self, file, successor, newest, note: first.note, stopped: first.stopped }.run();
    }

    pub(super) fn salt(&self, id: u64, file_id: u64) -> Salt {
        // Files of an ancestor count up to its last; ancestors are listed oldest first.
        let ancestors = self.control.as_ref().map_or(&[][..], |control| &control.ancestors);
        let log_id =
            ancestors.iter().find(|row| id <= row.last_segment_id).map(|row| row.log_id).or(self.log_id);
        Salt::new(log_id.unwrap_or_default(), id, file_id)
    }

    /// Segments are sealed in order, each durably before the next. So where a later one has its seal, or the
    /// log was closed, bytes behind an end that are no seal were one once.
    fn look_at_seals(&mut self) {
        let closed =
            self.control.as_ref().and_then(|control| control.clean).is_some_and(|clean| clean.sealed);
        let mut proved = closed;
        for at in (0..self.pieces.len().saturating_sub(1)).rev() {
            let due = self.pieces.get(at + 1).map_or(0, |piece| piece.base);
            let Some(piece) = self.pieces.get(at) else { continue };
            if piece.sealed {
                proved = true;
            } else if proved
                && piece.sieve.is_none()
                && piece.skips.is_empty()
                && self.has_bytes_behind(piece)
            {
                let hole = Hole {
                    offset: piece.end,
                    due,
                    next: Some(due),
                    ..Hole::new(
                        piece.name.clone(),
                        FileRow { segment_id: piece.id, file_id: piece.file_id },
                        Place::Seal,
                        "a later segment has its seal, and the one here does not check".to_owned(),
                    )
                };
                self.note(hole);
            }
        }
    }

    fn has_bytes_behind(&self, piece: &Piece) -> bool {
        let Ok(file) = self.open(&piece.name) else { return false };
        let mut window = Window::new(file, piece.file_bytes, SCAN_CHUNK_BYTES);
        let behind = window.bytes(piece.end, len_usize(SEAL_BYTES_MAX));
        behind.is_ok_and(|bytes| bytes.iter().any(|&byte| byte != 0))
    }

    /// Files above the newest linked segment: prepared, torn at their first write, or damaged.
    fn look_at_loose_files(&mut self, elements: &[Element]) {
        let on_chain: Vec<usize> = elements.iter().filter_map(Element::member).collect();
        for at in (0..self.members.len()).filter(|at| !on_chain.contains(at)) {
            let Some(member) = self.members.get(at).filter(|member| member.id > self.top) else { continue };
            let (id, name) = (member.id, member.name.clone());
            if self.is_listed_as_abandoned(at) {
                let row = FileRow { segment_id: id, file_id: self.file_id(at) };
                self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Abandoned });
                continue;
            }
            match &member.head {
                Head::Ours { header, first } => {
                    let (row, salt, note) = (
                        FileRow { segment_id: id, file_id: header.file_id },
                        header.salt(),
                        first.note.clone(),
                    );
                    let reused = header.reused;
                    self.look_at_loose_file(at, row, salt, reused, &name, note);
                }
                Head::Rotten(_) => {
                    self.note_file(at, Place::Header, "the header page does not check".to_owned())
                }
                Head::Newer(version) => self.note_file(at, Place::Newer, format!("format version {version}")),
                // Told when the chain was put in order.
                Head::Alien(_) => {}
                Head::Unreadable(note) => self.note_file(at, Place::Io, note.clone()),
            }
        }
    }

    fn look_at_loose_file(
        &mut self,
        at: usize,
        row: FileRow,
        salt: Salt,
        reused: bool,
        name: &str,
        note: String,
    ) {
        let name = name.to_owned();
        let due = self.due;
        let hole = |place, note| Hole {
            offset: HEADER_PAGE_BYTES,
            due,
            ..Hole::new(name.clone(), row, place, note)
        };
        match self.sight(at, salt, 1) {
            None => self.note(hole(Place::Io, "cannot be read".to_owned())),
            Some((Some(_), _)) => {
                self.note(hole(Place::Link, note));
                self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Abandoned });
            }
            Some((None, true)) if !reused => {
                self.note(hole(Place::Link, note));
                self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Abandoned });
            }
            Some((None, _)) => self.extras.push(Extra { name, row: Some(row), why: ExtraKind::Unused }),
        }
    }

    /// Records were proved durable, and neither a segment nor a hole says anything of them.
    fn look_for_vanished_records(&mut self) {
        let due = self.due;
        if self.pieces.is_empty() && self.durable >= due && !self.holes.iter().any(|hole| hole.due == due) {
            self.note_absent(FileRow { segment_id: self.first_kept().max(1), file_id: 0 });
        }
    }
}

/// The walk over one piece.
struct PieceWalk<'s, 'a> {
    surveyor: &'s mut Surveyor<'a>,
    file: Arc<dyn StorageFile>,
    successor: Option<Link>,
    newest: bool,
    note: String,
    stopped: Option<Place>,
}

impl PieceWalk<'_, '_> {
    fn at(&self) -> usize {
        self.surveyor.pieces.len() - 1
    }

    fn piece(&mut self) -> &mut Piece {
        let Some(piece) = self.surveyor.pieces.last_mut() else {
            unreachable!("the piece was pushed before its walk")
        };
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
        // The closing sync may be all that proves the last records, so a seal counts whether they check or not.
        let end = stated.filter(|_| !self.newest);
        let seal = end.and_then(|end| read_seal(&self.file, salt, end).ok().flatten());
        let sealed = seal.is_some();
        let mark = seal.map_or(0, |(_, durable)| durable);
        self.surveyor.durable = self.surveyor.durable.max(mark);
        if ended {
            self.finish(&walk, sealed);
        }
        self.surveyor.bytes_read += walk.window.bytes_read;
    }

    /// Whether the link says what the chain says; goes on behind it if not.
    fn check_link(&mut self, walk: &mut Walk) -> bool {
        let Some(link) = self.piece().link else {
            let note = std::mem::take(&mut self.note);
            return self.hole(
                walk,
                &Stop { place: Place::Link, durable: 0, claimed_end: None, note },
                HEADER_PAGE_BYTES,
            );
        };
        self.surveyor.arrive(link.base);
        let due = self.surveyor.due;
        if link.base != due {
            let note = format!(
                "the link says that the segment begins with LSN {} where LSN {due} is due",
                link.base
            );
            let at = if self.piece().sieve.is_some() { walk.offset } else { HEADER_PAGE_BYTES };
            let hole = self.new_hole(Place::Order, at, note, Some(link.base));
            self.surveyor.note(Hole { to: Some(walk.offset), ..hole });
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
                            let stop = Stop {
                                place: Place::Order,
                                durable: 0,
                                claimed_end: None,
                                note: "a frame that has no place here".to_owned(),
                            };
                            walk.offset = frame.offset;
                            if !self.hole(
                                walk,
                                &Stop { claimed_end: Some(frame.end()), ..stop },
                                frame.offset,
                            ) {
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
        piece.planes.count(first, walk.body());
        piece.index.add(first, frame.offset);
        piece.last = frame.header.next_lsn() - 1;
        self.surveyor.records += u64::from(frame.header.records);
        self.surveyor.due = frame.header.next_lsn();
    }

    fn new_hole(&mut self, place: Place, offset: u64, note: String, next: Option<u64>) -> Hole {
        // A frame with the right CRC that is no link was not torn: it was whole once, whatever it is.
        let proved = place == Place::Link && self.stopped == Some(Place::Order);
        let at = self.at();
        let due = self.surveyor.due;
        let piece = self.piece();
        let reused = piece.header.as_ref().is_some_and(|header| header.reused);
        let row = FileRow { segment_id: piece.id, file_id: piece.file_id };
        Hole {
            piece: Some(at),
            offset,
            due,
            next,
            reused,
            proved,
            ..Hole::new(piece.name.clone(), row, place, note)
        }
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
                self.surveyor.note_open(hole);
                return false;
            }
        };
        self.surveyor.durable = self.surveyor.durable.max(sighting.durable);
        let place = if stop.place == Place::Bytes && !sighting.nonzero { Place::End } else { stop.place };
        let note = if place == Place::End {
            "the file ends here or is zero from here on".to_owned()
        } else {
            stop.note.clone()
        };
        let reused = self.piece().header.as_ref().is_some_and(|header| header.reused);
        let ends = place == Place::End || (place == Place::Bytes && reused);
        if ends && !self.newest && self.successor.is_none() && sighting.frame.is_none() {
            // It ends here, and what follows is known to be unsound: that is told of what follows. Behind the
            // end of a reused file lie the bytes of its former life.
            self.piece().end = walk.offset;
            return false;
        }
        let mut hole = self.new_hole(place, offset, note, sighting.frame.map(|frame| frame.header.first_lsn));
        if let Some(frame) = sighting.frame {
            self.surveyor.arrive(frame.header.first_lsn);
            hole.to = Some(frame.offset);
            self.surveyor.note(hole);
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
            let sealed = self
                .surveyor
                .control
                .as_ref()
                .and_then(|control| control.clean)
                .is_some_and(|clean| clean.sealed);
            if sealed {
                hole.place = Place::Seal;
                hole.note = format!("a clean close wrote a seal here, which does not check: {}", stop.note);
            }
        }
        self.surveyor.note_open(hole);
        false
    }

    /// Whether the clean-close proof names this place as the end of the log.
    fn vouched(&mut self, offset: u64) -> bool {
        let due = self.surveyor.due;
        let clean = self.surveyor.control.as_ref().and_then(|control| control.clean);
        let piece = self.piece();
        let original =
            piece.sieve.as_ref().and_then(|sieve| Some((sieve.run.last()?.file_id, sieve.original_end)));
        let (file_id, offset) = original.unwrap_or((piece.file_id, offset));
        clean.is_some_and(|clean| {
            clean.segment_id == piece.id
                && clean.file_id == file_id
                && clean.end == offset
                && clean.last + 1 == due
        })
    }

    /// The end was reached in order: by the successor's link, by the sieve, or by a seal.
    fn finish(&mut self, walk: &Walk, sealed: bool) {
        let due = self.surveyor.due;
        self.piece().end = walk.offset;
        if let Some(sieve) = self.piece().sieve.clone() {
            self.surveyor.due = self.surveyor.due.max(sieve.last + 1);
            self.piece().last = sieve.last;
        }
        if let Some(link) = self.successor {
            let (end, last) = self
                .piece()
                .sieve
                .as_ref()
                .map_or((walk.offset, due - 1), |sieve| (sieve.original_end, sieve.original_last));
            if link.predecessor_last != last || link.predecessor_end != end {
                let note = format!("the successor says that it ends with LSN {}", link.predecessor_last);
                let hole = self.new_hole(Place::Order, walk.offset, note, None);
                self.surveyor.note_open(hole);
            }
            self.check_branch(walk.offset, &link);
        }
        if self.newest {
            let clean = self.vouched(walk.offset);
            let hole =
                self.new_hole(Place::End, walk.offset, "the segment is finished here".to_owned(), None);
            self.surveyor.note_open(Hole { clean, ..hole });
        } else if sealed {
            // The seal has the index; so memory does not grow with the number of segments.
            self.piece().sealed = true;
            self.piece().index = SparseIndex::default();
        }
    }

    /// A branch may begin above the predecessor's last LSN: what lies between was given up.
    fn check_branch(&mut self, offset: u64, link: &Link) {
        if link.branch && link.base > self.surveyor.due && self.surveyor.open_holes.is_empty() {
            let hole = self.new_hole(
                Place::Order,
                offset,
                "a branch begins above what was lost".to_owned(),
                Some(link.base),
            );
            self.surveyor.note(Hole { to: Some(offset), accepted: true, ..hole });
            self.surveyor.due = link.base;
        }
    }
}
