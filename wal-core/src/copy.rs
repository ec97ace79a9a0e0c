//! Copying an unproved tail: what recovery keeps above the durable mark, it writes anew.
//!
//! Records above the mark may be in the page cache only, even after a sync that once failed. The copy is
//! whole and synced before it gets its name, so its seal may say that all of it is durable, and no
//! recovery copies it again.

use std::sync::Arc;

use crate::chain::{Chain, Predecessor, Segment};
use crate::control::{ABANDONED_ROWS_MAX, BegunRow, ControlFile, FileRow};
use crate::error::StorageError;
use crate::frame::{FrameDraft, FrameKind};
use crate::io_util::write_full;
use crate::lsn::SegmentId;
use crate::prepare::{create_temporary, discard, give_name};
use crate::scan::SCAN_CHUNK_BYTES;
use crate::segment::{
    HEADER_PAGE_BYTES, LINK_FRAME_BYTES, Link, PlaneTable, SEAL_BYTES_MAX, Seal, SegmentHeader, SparseIndex,
};
use crate::storage::{Access, Storage, StorageFile};
use crate::survey::{Piece, Shown};
use crate::wire::{crc, len64};

/// The copy of an unproved tail, made at opening or, where there was no room, before the first append.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    chain: Arc<Chain>,
    /// From the predecessor of the copy on.
    pieces: Vec<Piece>,
    header: SegmentHeader,
    /// Where the copied part begins in the first piece.
    from: u64,
    /// The last LSN before that place.
    before: u64,
    /// The first LSN that is copied. Not the next one, if the copied part begins a branch.
    pub(crate) first: u64,
    durable: u64,
    last: u64,
}

/// Why a copy was not made.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// There was no room for it; nothing has changed, and it can be tried again.
    NoRoom(StorageError),
    Failed(StorageError),
}

/// A running check over frames, to compare what was read with what was written.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    frames: u64,
    records: u64,
    check: u32,
}

impl Tally {
    fn add(&mut self, first: u64, records: u32, body: &[u8]) {
        self.frames += 1;
        self.records += u64::from(records);
        self.check = crc(crc(self.check, &first.to_le_bytes()), body);
    }
}

impl PendingCopy {
    pub(crate) fn new(
        chain: Arc<Chain>,
        pieces: Vec<Piece>,
        header: SegmentHeader,
        durable: u64,
        last: u64,
    ) -> Result<PendingCopy, StorageError> {
        let at = pieces.iter().rposition(|piece| piece.base <= durable).unwrap_or(0);
        let pieces: Vec<Piece> = pieces.into_iter().skip(at).collect();
        let mut copy = PendingCopy { chain, pieces, header, from: 0, before: 0, first: 0, durable, last };
        if let Some(piece) = copy.pieces.first().cloned() {
            let next = copy.pieces.get(1).map_or(piece.last + 1, |next| next.base);
            // The first frame that holds anything above the mark.
            let mut begin = (piece.end, piece.last, next);
            piece.frames(&*copy.chain.storage, piece.start, |shown| {
                let unproved = shown.first + u64::from(shown.records) > durable + 1;
                if unproved {
                    begin = (shown.offset, shown.first - 1, shown.first);
                }
                Ok(!unproved)
            })?;
            (copy.from, copy.before, copy.first) = begin;
        }
        Ok(copy)
    }

    /// The segments whose records are all in the copy.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().skip(1)
    }

    /// Steps 5 to 7. Can be tried again after it found no room.
    pub(crate) fn run(&self, control: &mut ControlFile) -> Result<Predecessor, CopyError> {
        let storage = &*self.chain.storage;
        let Some(predecessor) = self.pieces.first() else { unreachable!("there is something to copy") };
        let copy = self.write_copy(predecessor).map_err(|error| {
            let name = SegmentId::new(self.header.segment_id).map_or_else(String::new, SegmentId::file_name);
            discard(storage, &format!("{name}.tmp"));
            if error.is_full() { CopyError::NoRoom(error) } else { CopyError::Failed(error) }
        })?;
        self.put_in_place(predecessor, copy, control).map_err(CopyError::Failed)
    }

    /// Steps 6 and 7: from here on the copy is there, and there is no other try.
    fn put_in_place(
        &self,
        predecessor: &Piece,
        copy: Piece,
        control: &mut ControlFile,
    ) -> Result<Predecessor, StorageError> {
        let storage = &*self.chain.storage;
        let row = FileRow { segment_id: self.header.segment_id, file_id: self.header.file_id };
        control.state.durable = control.state.durable.max(self.last);
        control.state.begun = vec![BegunRow { file: row, must_exist: true }];
        control
            .state
            .abandoned
            .extend(self.replaced().map(|piece| FileRow { segment_id: piece.id, file_id: piece.file_id }));
        let surplus = control.state.abandoned.len().saturating_sub(ABANDONED_ROWS_MAX);
        control.state.abandoned.drain(..surplus);
        control.write_both()?;

        let cut = predecessor.cut_at(storage, self.from, self.before)?;
        let cut = trim(storage, &cut, self.before)?;
        for piece in self.replaced() {
            storage.remove(&piece.name).map_err(|error| StorageError::new("remove", &piece.name, error))?;
        }
        storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
        let result = Predecessor { id: copy.id, file_id: copy.file_id, last: copy.last, end: copy.end };
        self.chain.replace_from(predecessor.id, [Segment::found(cut), Segment::found(copy)]);
        self.chain.publish_durable(result.last);
        Ok(result)
    }

    /// Writes the copy under a temporary name, syncs it, reads it again, and gives it its name.
    fn write_copy(&self, predecessor: &Piece) -> Result<Piece, StorageError> {
        let storage = &*self.chain.storage;
        let bytes: u64 = self.pieces.iter().map(|piece| piece.end).sum::<u64>() - self.from;
        let header = SegmentHeader {
            capacity: HEADER_PAGE_BYTES + LINK_FRAME_BYTES + bytes + SEAL_BYTES_MAX,
            ..self.header.clone()
        };
        let (file, name, temporary) = create_temporary(storage, &header)?;
        // Behind all of a stand-in's own frames it is named as what it stands for.
        let named = Predecessor::of(predecessor);
        let whole = self.from == predecessor.end && self.before == predecessor.last;
        let (file_id, last, end) = if whole {
            (named.file_id, named.last, named.end)
        } else {
            (predecessor.file_id, self.before, self.from)
        };
        let link = Link {
            predecessor_id: predecessor.id,
            predecessor_file_id: file_id,
            predecessor_last: last,
            predecessor_end: end,
            base: self.first,
            kept: Some(self.last),
            branch: self.first > last + 1,
        };
        let salt = header.salt();
        let start = HEADER_PAGE_BYTES + LINK_FRAME_BYTES;
        let mut copy = Piece {
            id: header.segment_id,
            file_id: header.file_id,
            name: temporary.clone(),
            salt,
            link: Some(link),
            sieve: None,
            file_bytes: 0,
            start,
            base: self.first,
            last: self.last,
            end: start,
            sealed: true,
            planes: PlaneTable::default(),
            index: SparseIndex::default(),
            skips: Vec::new(),
            header: Some(header),
        };
        let failed = |operation| {
            let temporary = temporary.clone();
            move |error| StorageError::new(operation, temporary, error)
        };
        let mut pending = link.frame(salt, HEADER_PAGE_BYTES, self.durable);
        let mut written_to = HEADER_PAGE_BYTES;
        let mut read = Tally::default();
        for (at, piece) in self.pieces.iter().enumerate() {
            let from = if at == 0 { self.from } else { piece.start };
            piece.frames(storage, from, |Shown { first, records, body, .. }| {
                read.add(first, records, body);
                copy.planes.count(first, body);
                copy.index.add(first, copy.end);
                let draft =
                    FrameDraft { kind: FrameKind::Records, first_lsn: first, records, durable: self.durable };
                let (header, padding) = draft.around(salt, copy.end, body);
                for part in [&header[..], body, padding] {
                    // A large body goes to disk from where it lies, behind what is pending.
                    let large = part.len() > SCAN_CHUNK_BYTES;
                    if large || pending.len() + part.len() > 2 * SCAN_CHUNK_BYTES {
                        write_full(&*file, written_to, &pending).map_err(failed("write"))?;
                        written_to += len64(pending.len());
                        pending.clear();
                    }
                    if large {
                        write_full(&*file, written_to, part).map_err(failed("write"))?;
                        written_to += len64(part.len());
                    } else {
                        pending.extend_from_slice(part);
                    }
                }
                copy.end = written_to + len64(pending.len());
                Ok(true)
            })?;
        }
        let seal =
            Seal { base: copy.base, last: copy.last, planes: copy.planes.clone(), index: copy.index.clone() };
        // Nobody sees this file before all of it is synced, so its seal may say so.
        pending.extend_from_slice(&seal.frame(salt, copy.end, self.last));
        copy.file_bytes = written_to + len64(pending.len());
        write_full(&*file, written_to, &pending).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        let mut again = Tally::default();
        copy.frames(storage, start, |Shown { first, records, body, .. }| {
            again.add(first, records, body);
            Ok(true)
        })?;
        if again != read {
            return Err(failed("read again")(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "the copy is not what was copied",
            )));
        }
        give_name(storage, &temporary, &name)?;
        copy.name = name;
        Ok(copy)
    }
}

/// Cuts a finished segment at its end and seals it there, durably. A file with accepted losses, or one that
/// stands in for others, stays as it is.
pub(crate) fn trim(storage: &dyn Storage, piece: &Piece, durable: u64) -> Result<Piece, StorageError> {
    if !piece.skips.is_empty() || piece.sieve.is_some() || piece.header.is_none() {
        return Ok(piece.clone());
    }
    let file = open_for_writing(storage, &piece.name)?;
    let seal =
        Seal { base: piece.base, last: piece.last, planes: piece.planes.clone(), index: piece.index.clone() };
    let frame = seal.frame(piece.salt, piece.end, durable.min(piece.last));
    let behind = piece.end + len64(frame.len());
    if piece.sealed && piece.file_bytes == behind {
        return Ok(piece.clone());
    }
    let failed = |operation| move |error| StorageError::new(operation, piece.name.clone(), error);
    file.set_len(piece.end).map_err(failed("cut"))?;
    file.sync().map_err(failed("sync"))?;
    let mut trimmed = Piece { sealed: false, file_bytes: piece.end, ..piece.clone() };
    match write_full(&*file, piece.end, &frame) {
        Ok(()) => {
            trimmed.sealed = true;
            trimmed.file_bytes = behind;
        }
        Err(error) if crate::io_util::is_full(&error) => file.set_len(piece.end).map_err(failed("cut"))?,
        Err(error) => return Err(failed("write")(error)),
    }
    file.sync().map_err(failed("sync"))?;
    Ok(trimmed)
}

pub(crate) fn open_for_writing(
    storage: &dyn Storage,
    name: &str,
) -> Result<Box<dyn StorageFile>, StorageError> {
    storage.open(name, Access::ReadWrite).map_err(|error| StorageError::new("open", name, error))
}
