//! Step 2 of a survey: what the head of each file says.

use std::io;
use std::sync::Arc;

use super::Surveyor;
use crate::control::FileRow;
use crate::frame::{FrameKind, Salt};
use crate::scan::{Walk, Window};
use crate::segment::{HEADER_PAGE_BYTES, HeaderPage, Link, SegmentHeader, Sieve};
use crate::storage::StorageFile;
use crate::verdict::Place;
use crate::wire::len_usize;

/// A segment file with what its head says.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) head: Head,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly every head is the large one")]
pub(super) enum Head {
    Ours {
        header: SegmentHeader,
        first: FirstFrames,
    },
    /// The header does not check; where the control file names the file, its frames still can be read.
    Rotten(Option<(u64, FirstFrames)>),
    Newer(u32),
    Alien(String),
    Unreadable(String),
}

/// The frames before the records.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstFrames {
    pub(crate) sieve: Option<Sieve>,
    pub(crate) link: Option<Link>,
    pub(crate) start: u64,
    pub(crate) durable: u64,
    pub(crate) note: String,
    /// What stands in the place of the link.
    pub(crate) stopped: Option<Place>,
}

impl Surveyor<'_> {
    /// Step 2: headers and first frames.
    pub(super) fn read_heads(&mut self) {
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
        self.members
            .iter()
            .filter(|member| !matches!(member.head, Head::Alien(_)))
            .filter_map(header)
            .max_by_key(|header| header.epoch)
            .map(|header| header.log_id)
    }

    fn read_head(&mut self, name: &str, id: u64) -> io::Result<Head> {
        let file = self.open(name)?;
        self.bytes_read += HEADER_PAGE_BYTES;
        let header = match read_header(&file)? {
            HeaderPage::Valid(header) => header,
            HeaderPage::Newer { version } => return Ok(Head::Newer(version)),
            HeaderPage::Invalid => {
                let named = self.named_file_id(id);
                let first =
                    named.map(|file_id| Ok((file_id, read_first_frames(file, self.salt(id, file_id))?)));
                return first.transpose().map(Head::Rotten);
            }
        };
        if header.segment_id != id {
            return Ok(Head::Alien(format!("its header says segment {}", header.segment_id)));
        }
        if !self.is_ours(&header) {
            self.foreign += 1;
            let id = crate::lsn::LogId::new(header.log_id).map_or_else(String::new, |id| id.to_string());
            return Ok(Head::Alien(format!("it belongs to the log {id}")));
        }
        let first = read_first_frames(file, header.salt())?;
        Ok(if first.stopped == Some(Place::Newer) { Head::Newer(1) } else { Head::Ours { header, first } })
    }

    /// The file id that the control file knows for a segment.
    pub(super) fn named_file_id(&self, id: u64) -> Option<u64> {
        let control = self.control.as_ref()?;
        let begun = control.begun.iter().map(|row| row.file);
        let clean =
            control.clean.map(|clean| FileRow { segment_id: clean.segment_id, file_id: clean.file_id });
        begun.chain(clean).find(|row| row.segment_id == id).map(|row| row.file_id)
    }

    fn is_ours(&self, header: &SegmentHeader) -> bool {
        // Without a control file the links say what belongs together.
        let Some(control) = &self.control else { return true };
        let ancestors = &control.ancestors;
        Some(header.log_id) == self.log_id
            || ancestors
                .iter()
                .any(|row| row.log_id == header.log_id && header.segment_id <= row.last_segment_id)
    }
}

pub(crate) fn read_header(file: &Arc<dyn StorageFile>) -> io::Result<HeaderPage> {
    let mut page = vec![0; len_usize(HEADER_PAGE_BYTES)];
    let count = crate::io_util::read_full(&**file, 0, &mut page)?;
    Ok(SegmentHeader::check(page.get(..count).unwrap_or_default()))
}

/// Sieve and link, with the little reading that they need.
pub(crate) fn read_first_frames(file: Arc<dyn StorageFile>, salt: Salt) -> io::Result<FirstFrames> {
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
                        first.link =
                            Link::parse(walk.body()).filter(|link| link.base == frame.header.first_lsn);
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
            Err(stop) if stop.place == Place::Io => return Err(io::Error::other(stop.note)),
            Err(stop) => {
                first.durable = first.durable.max(stop.durable);
                first.note = stop.note;
                first.stopped = Some(stop.place);
                return Ok(first);
            }
        }
    }
}
