//! Steps 3 and 4 of a survey: the chain by its links, and what is not on it.

use super::heads::{Head, read_first_frames};
use super::{Element, Extra, ExtraKind, Surveyor};
use crate::control::FileRow;
use crate::scan::{SCAN_CHUNK_BYTES, Sighting, Step, Walk, Window};
use crate::segment::HEADER_PAGE_BYTES;
use crate::verdict::Place;

impl Surveyor<'_> {
    pub(super) fn first_kept(&self) -> u64 {
        self.control.as_ref().map_or(0, |control| control.first_kept)
    }

    /// Whether nothing before this segment belongs to the log.
    fn is_head(&self, at: usize) -> bool {
        let covered = self
            .sieve(at)
            .is_some_and(|sieve| sieve.run.iter().any(|row| row.segment_id == self.first_kept()));
        self.id(at) == self.first_kept()
            || covered
            || self.link(at).is_some_and(|link| link.predecessor_id == 0)
    }

    /// The newest member below `id` whose link checks.
    fn linked_below(&self, id: u64) -> Option<usize> {
        (0..self.members.len())
            .rev()
            .find(|&at| self.id(at) < id && self.link(at).is_some() && !self.is_listed_as_abandoned(at))
    }

    /// The newest member whose link checks. Without a control file the log is that of the newest epoch, and
    /// what it branched from is known by links alone.
    fn newest_linked(&self) -> Option<usize> {
        let newest = self.linked_below(u64::MAX)?;
        if self.control.is_some() {
            return Some(newest);
        }
        let of_this_log = |at: &usize| match self.members.get(*at).map(|member| &member.head) {
            Some(Head::Ours { header, .. }) => Some(header.log_id) == self.log_id,
            _ => false,
        };
        (0..=newest).rev().filter(|at| self.link(*at).is_some()).find(of_this_log)
    }

    pub(super) fn is_listed_as_abandoned(&self, at: usize) -> bool {
        let row = FileRow { segment_id: self.id(at), file_id: self.file_id(at) };
        self.control.as_ref().is_some_and(|control| control.abandoned.contains(&row))
    }

    /// Steps 3 and 4: the chain, oldest first; what is not on it is sorted out.
    pub(super) fn order(&mut self) -> Vec<Element> {
        let mut elements = Vec::new();
        self.dismiss_strangers();
        let mut cursor = self.newest_linked().map(|at| (at, self.file_id(at)));
        while let Some((at, file_id)) = cursor {
            elements.push(Element::Present { member: at, file_id });
            cursor = if self.is_head(at) { None } else { self.predecessor(at, &mut elements) };
        }
        elements.reverse();
        let on_chain: Vec<usize> = elements.iter().filter_map(Element::member).collect();
        self.top = on_chain.iter().map(|&at| self.id(at)).max().unwrap_or(0);
        self.add_unlinked(&mut elements);
        self.due = self.first_due(&elements);
        for at in 0..self.members.len() {
            if !on_chain.contains(&at) && self.id(at) < self.top {
                self.sort_out(at, &on_chain);
            }
        }
        elements
    }

    /// Segments above the highest link that checks, which the control file says were begun: they belong
    /// behind it, in whatever state they are. One without any frame is only prepared.
    fn add_unlinked(&mut self, elements: &mut Vec<Element>) {
        let mut behind: Vec<(u64, Element)> = Vec::new();
        for at in 0..self.members.len() {
            let id = self.id(at);
            if id <= self.top {
                continue;
            }
            if let Some(Head::Alien(note)) = self.members.get(at).map(|member| &member.head) {
                self.note_file(at, Place::Alien, note.clone());
                continue;
            }
            let Some(file_id) = self.named_file_id(id) else { continue };
            if self.is_listed_as_abandoned(at) {
                continue;
            }
            let begun = match self.members.get(at).map(|member| &member.head) {
                Some(Head::Ours { header, .. }) if header.file_id == file_id => {
                    let salt = header.salt();
                    self.sight(at, salt, 1).is_none_or(|(frame, _)| frame.is_some())
                }
                Some(Head::Rotten(_) | Head::Unreadable(_) | Head::Newer(_)) => true,
                _ => false,
            };
            if begun {
                behind.push((id, Element::Present { member: at, file_id }));
            }
        }
        behind.extend(self.gone().into_iter().map(|row| (row.segment_id, Element::Absent(row))));
        behind.sort_by_key(|(id, _)| *id);
        elements.extend(behind.into_iter().map(|(_, element)| element));
    }

    /// Segments that have to be there, above the highest link that checks, and are not.
    fn gone(&self) -> Vec<FileRow> {
        let Some(control) = &self.control else { return Vec::new() };
        let begun = control.begun.iter().filter(|row| row.must_exist).map(|row| row.file);
        let clean =
            control.clean.map(|clean| FileRow { segment_id: clean.segment_id, file_id: clean.file_id });
        let mut gone: Vec<FileRow> = begun
            .chain(clean)
            .filter(|row| row.segment_id > self.top && !control.abandoned.contains(row))
            .filter(|row| {
                let mut there = self.members.iter().filter(|member| member.id == row.segment_id);
                there.all(|member| matches!(member.head, Head::Alien(_)))
            })
            .collect();
        gone.dedup();
        gone
    }

    /// Files with frames above everything that the control file names: of a copied directory that
    /// went on by itself, say. Their links may fit, and still they are not of this log.
    fn dismiss_strangers(&mut self) {
        let Some(control) = &self.control else { return };
        let named = |row: FileRow| {
            let closed = control
                .clean
                .is_some_and(|clean| clean.segment_id == row.segment_id && clean.file_id == row.file_id);
            closed || control.abandoned.contains(&row) || control.begun.iter().any(|begun| begun.file == row)
        };
        let top = control
            .begun
            .iter()
            .map(|begun| begun.file.segment_id)
            .chain(control.clean.map(|clean| clean.segment_id))
            .max()
            .unwrap_or(0);
        let strangers: Vec<usize> = (0..self.members.len())
            .filter(|&at| {
                let row = FileRow { segment_id: self.id(at), file_id: self.file_id(at) };
                let contested = control.begun.iter().any(|begun| begun.file.segment_id == row.segment_id)
                    || row.segment_id > top;
                self.link(at).is_some() && contested && !named(row)
            })
            .collect();
        for at in strangers {
            self.strange_mark = self.strange_mark.max(self.told_by(at));
            if let Some(member) = self.members.get_mut(at) {
                member.head =
                    Head::Alien("no control slot knows it: it was not begun by this log".to_owned());
            }
        }
    }

    /// The highest LSN that the frames of a file tell of.
    fn told_by(&mut self, at: usize) -> u64 {
        let Some(member) = self.members.get(at) else { return 0 };
        let Head::Ours { header, .. } = &member.head else { return 0 };
        let (salt, name, bytes) = (header.salt(), member.name.clone(), member.bytes);
        let Ok(file) = self.open(&name) else { return 0 };
        let mut walk = Walk::new(Window::new(file, bytes, SCAN_CHUNK_BYTES), salt, HEADER_PAGE_BYTES);
        let mut told = 0;
        loop {
            match walk.step_anyhow() {
                Step::Frame(frame) => told = told.max(frame.header.next_lsn() - 1),
                Step::Stop(_) => match walk.search(walk.offset, 1) {
                    Ok(Sighting { frame: Some(frame), .. }) => walk.offset = frame.offset,
                    _ => return told,
                },
            }
        }
    }

    fn predecessor(&mut self, at: usize, elements: &mut Vec<Element>) -> Option<(usize, u64)> {
        let Some(link) = self.link(at) else {
            return self.linked_below(self.id(at)).map(|below| (below, self.file_id(below)));
        };
        let named = FileRow { segment_id: link.predecessor_id, file_id: link.predecessor_file_id };
        let found = (0..self.members.len())
            .find(|&other| self.id(other) == named.segment_id && named.segment_id < self.id(at));
        match found.and_then(|other| Some((other, &self.members.get(other)?.head))) {
            Some((other, Head::Ours { header, first })) => {
                let original = first
                    .sieve
                    .as_ref()
                    .and_then(|sieve| sieve.run.last())
                    .map_or(header.file_id, |row| row.file_id);
                if original == named.file_id {
                    return Some((other, header.file_id));
                }
            }
            Some((other, Head::Rotten(_))) => {
                self.name_rotten(other, named);
                return Some((other, named.file_id));
            }
            Some((other, Head::Unreadable(_) | Head::Newer(_))) => return Some((other, named.file_id)),
            _ => {}
        }
        elements.push(Element::Absent(named));
        let below = named.segment_id.min(self.id(at));
        self.linked_below(below).map(|below| (below, self.file_id(below)))
    }

    /// A link knows the file id of a file whose own header does not check: its frames can be read.
    fn name_rotten(&mut self, at: usize, named: FileRow) {
        let salt = self.salt(named.segment_id, named.file_id);
        let Some(member) = self.members.get(at) else { return };
        let first = self.open(&member.name).and_then(|file| read_first_frames(file, salt));
        if let Some(member) = self.members.get_mut(at) {
            member.head = match first {
                Ok(first) => Head::Rotten(Some((named.file_id, first))),
                Err(error) => Head::Unreadable(error.to_string()),
            };
        }
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
        let in_run = on_chain.iter().any(|&other| {
            self.sieve(other).is_some_and(|sieve| sieve.run.iter().any(|run| run.segment_id == id))
        });
        let listed = self.is_listed_as_abandoned(at);
        // Recovery began a newer segment at or below its base: it held what was copied or given up.
        let superseded = self.link(at).is_some_and(|link| {
            let mut newer =
                on_chain.iter().filter(|&&other| self.id(other) > id).filter_map(|&other| self.link(other));
            newer.any(|newer| newer.kept.is_some() && newer.base <= link.base)
        });
        let frameless = self.link(at).is_none() && !self.holds_frames(at);
        let Some(member) = self.members.get(at) else { return };
        let why = match member.head {
            Head::Ours { .. } if listed || superseded => ExtraKind::Abandoned,
            Head::Ours { .. } if id < self.first_kept() || in_run => ExtraKind::Leftover,
            Head::Ours { .. } if frameless => ExtraKind::Unused,
            Head::Alien(ref note) => return self.note_file(at, Place::Alien, note.clone()),
            Head::Newer(version) => {
                return self.note_file(at, Place::Newer, format!("format version {version}"));
            }
            Head::Unreadable(ref note) => return self.note_file(at, Place::Io, note.clone()),
            Head::Rotten(_) => {
                return self.note_file(at, Place::Header, "the header page does not check".to_owned());
            }
            Head::Ours { .. } => {
                return self.note_file(
                    at,
                    Place::Stray,
                    "no link and no control slot says why it is here".to_owned(),
                );
            }
        };
        self.extras.push(Extra { name, row: Some(row), why });
    }

    /// Whether any frame in a file checks, or any byte says that one was there. Those of a reused file say
    /// nothing: they are of its former life.
    fn holds_frames(&mut self, at: usize) -> bool {
        let (salt, reused) = match self.members.get(at).map(|member| &member.head) {
            Some(Head::Ours { header, .. }) => (header.salt(), header.reused),
            _ => return true,
        };
        self.sight(at, salt, 1).is_none_or(|(frame, nonzero)| frame.is_some() || (nonzero && !reused))
    }
}
