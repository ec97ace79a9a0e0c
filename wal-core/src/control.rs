//! The control file: what the log has to know before it looks at a single segment.
//!
//! ```text
//! two slots of 65,536 bytes, at 0 and 65,536; each
//!   0  8  magic "PLANECTL"               80  8  next segment id
//!   8  4  crc(0, 12..used length)        88  8  durable LSN (a proof)
//!  12  4  format version, 1              96  8  least next LSN
//!  16  4  incompatible features         104  8  clean close: segment id
//!  20  4  used length                   112  8               file id
//!  24  4  slot number                   120  8               end offset
//!  28  4  flags: 0 clean, 1 backup,     128  8               last LSN
//!                2 sealed               136  4  begun rows, 140 4 abandoned rows
//!  32  8  generation                    144  4  loss rows, 148 4 ancestor rows
//!  40 16  log id                        152  4  sections, 156 4 history rows
//!  56  8  open epoch                    160     begun 24 each, abandoned 16 each,
//!  64  8  first kept segment id                 losses 40 each, ancestors 40 each, history 16 each,
//!  72  8  its base LSN                          sections: tag, length, bytes, padding
//! ```
//!
//! A slot is valid if and only if S1 to S5 of `docs/format.md` hold; of two valid ones the higher
//! generation speaks. Slots are written in place and in turn, so that a torn write of one leaves
//! the other; what must not be lost with one slot is written to both, one sync after the other. The
//! control file is never written on the append path.

use std::io;
use std::sync::Arc;

use crate::error::StorageError;
use crate::io_util::{read_full, write_full};
use crate::lsn::{Lsn, SegmentId};
use crate::spare::SpareUse;
use crate::storage::{Access, Storage, StorageFile};
use crate::wire::{Cursor, Put, crc, len_usize, len64, padded};

/// Name of the control file.
pub(crate) const CONTROL_NAME: &str = "planewal.ctl";

/// Bytes of one slot.
pub(crate) const SLOT_BYTES: u64 = 65_536;

/// [`SLOT_BYTES`], for buffers.
const SLOT_LENGTH: usize = 65_536;

const _: () = assert!(SLOT_LENGTH as u64 == SLOT_BYTES);

const MAGIC: [u8; 8] = *b"PLANECTL";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 160;
const FLAG_CLEAN: u32 = 1;
const FLAG_BACKUP: u32 = 2;
const FLAG_SEALED: u32 = 4;
const BEGUN: u64 = 1;
const EXPECTED: u64 = 2;

pub(crate) const BEGUN_ROWS_MAX: usize = 64;
pub(crate) const ABANDONED_ROWS_MAX: usize = 256;
pub(crate) const LOSS_ROWS_MAX: usize = 512;
pub(crate) const ANCESTOR_ROWS_MAX: usize = 64;
pub(crate) const HISTORY_ROWS_MAX: usize = 256;

/// Room for all sections together.
pub(crate) const SECTION_BYTES_MAX: usize = 30 << 10;

const _: () = assert!(
    HEAD_BYTES
        + 24 * BEGUN_ROWS_MAX
        + 16 * (ABANDONED_ROWS_MAX + HISTORY_ROWS_MAX)
        + 40 * (LOSS_ROWS_MAX + ANCESTOR_ROWS_MAX)
        + SECTION_BYTES_MAX
        <= SLOT_LENGTH,
    "every table full still fits into a slot"
);

/// A file by both its names: the number it is found by and the one it cannot be mistaken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileRow {
    pub(crate) segment_id: u64,
    pub(crate) file_id: u64,
}

/// A segment file that the writer made known before it used it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunRow {
    pub(crate) file: FileRow,
    /// Whether it has to be there. A copy that recovery is about to name may be there or not.
    pub(crate) must_exist: bool,
}

/// An open that found no clean close, and the last LSN that it kept: what tells a cursor that it
/// has seen records which are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HistoryRow {
    pub(crate) epoch: u64,
    pub(crate) kept: u64,
}

/// A loss that `repair` accepted: at this offset of this file the log does not check, and the LSNs
/// from `first` to `last` are gone (`last` = `first` - 1: none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LossRow {
    pub(crate) segment_id: u64,
    pub(crate) file_id: u64,
    pub(crate) offset: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// A log that this one branched from: its files count up to this segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AncestorRow {
    pub(crate) log_id: [u8; 16],
    pub(crate) last_segment_id: u64,
    pub(crate) last_file_id: u64,
    pub(crate) last_lsn: u64,
}

/// Where a clean close left the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CleanClose {
    /// 0: the log held no segment.
    pub(crate) segment_id: u64,
    pub(crate) file_id: u64,
    pub(crate) end: u64,
    pub(crate) last: u64,
    /// Whether a seal was written at `end`.
    pub(crate) sealed: bool,
}

/// Bytes that an upper crate keeps here, and the durable holds (`hold.rs`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) tag: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The content of a slot, apart from its generation and number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControlState {
    pub(crate) log_id: [u8; 16],
    pub(crate) epoch: u64,
    pub(crate) first_kept: u64,
    pub(crate) base: u64,
    pub(crate) next_segment_id: u64,
    pub(crate) durable: u64,
    pub(crate) least_next: u64,
    pub(crate) backup: bool,
    pub(crate) clean: Option<CleanClose>,
    pub(crate) begun: Vec<BegunRow>,
    pub(crate) abandoned: Vec<FileRow>,
    pub(crate) losses: Vec<LossRow>,
    pub(crate) ancestors: Vec<AncestorRow>,
    pub(crate) history: Vec<HistoryRow>,
    pub(crate) sections: Vec<Section>,
}

impl ControlState {
    /// The state of a log without records.
    pub(crate) fn new(log_id: [u8; 16]) -> ControlState {
        ControlState {
            log_id,
            epoch: 0,
            first_kept: 1,
            base: 1,
            next_segment_id: 1,
            durable: 0,
            least_next: 1,
            backup: false,
            clean: None,
            begun: Vec::new(),
            abandoned: Vec::new(),
            losses: Vec::new(),
            ancestors: Vec::new(),
            history: Vec::new(),
            sections: Vec::new(),
        }
    }

    /// Notes that the open of `epoch` found no clean close and kept the records up to `kept`. Rows
    /// that a later one outdoes go; of too many, the oldest two become one that is no weaker.
    pub(crate) fn note_unclean_open(&mut self, epoch: u64, kept: u64) {
        self.history.retain(|row| row.kept < kept);
        self.history.push(HistoryRow { epoch, kept });
        if self.history.len() > HISTORY_ROWS_MAX {
            let oldest = self.history.remove(0);
            if let Some(next) = self.history.first_mut() {
                next.kept = oldest.kept;
            }
        }
    }

    /// Whether a slot with this state would be understood. Better no slot than one that nobody can read.
    pub(crate) fn check(&self) -> Result<(), StorageError> {
        if matches!(Slot::check(&self.encode(0, 1), 0), Slot::Valid { .. }) {
            return Ok(());
        }
        let error = io::Error::new(io::ErrorKind::InvalidData, "a number in it is out of range");
        Err(StorageError::new("encode", CONTROL_NAME, error))
    }

    /// The bytes of a slot, up to its used length.
    pub(crate) fn encode(&self, slot: u32, generation: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put(&MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(VERSION);
        bytes.put_u32(0);
        bytes.put_u32(0);
        bytes.put_u32(slot);
        let mut flags = if self.backup { FLAG_BACKUP } else { 0 };
        if let Some(clean) = self.clean {
            flags |= FLAG_CLEAN | if clean.sealed { FLAG_SEALED } else { 0 };
        }
        bytes.put_u32(flags);
        bytes.put_u64(generation);
        bytes.put(&self.log_id);
        let clean =
            self.clean.unwrap_or(CleanClose { segment_id: 0, file_id: 0, end: 0, last: 0, sealed: false });
        for number in [
            self.epoch,
            self.first_kept,
            self.base,
            self.next_segment_id,
            self.durable,
            self.least_next,
            clean.segment_id,
            clean.file_id,
            clean.end,
            clean.last,
        ] {
            bytes.put_u64(number);
        }
        for count in [
            self.begun.len(),
            self.abandoned.len(),
            self.losses.len(),
            self.ancestors.len(),
            self.sections.len(),
            self.history.len(),
        ] {
            bytes.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
        }
        debug_assert_eq!(bytes.len(), HEAD_BYTES);
        for row in &self.begun {
            for number in
                [row.file.segment_id, row.file.file_id, if row.must_exist { BEGUN } else { EXPECTED }]
            {
                bytes.put_u64(number);
            }
        }
        for row in &self.abandoned {
            bytes.put_u64(row.segment_id);
            bytes.put_u64(row.file_id);
        }
        for row in &self.losses {
            for number in [row.segment_id, row.file_id, row.offset, row.first, row.last] {
                bytes.put_u64(number);
            }
        }
        for row in &self.ancestors {
            bytes.put(&row.log_id);
            for number in [row.last_segment_id, row.last_file_id, row.last_lsn] {
                bytes.put_u64(number);
            }
        }
        for row in &self.history {
            bytes.put_u64(row.epoch);
            bytes.put_u64(row.kept);
        }
        for section in &self.sections {
            bytes.put_u32(section.tag);
            bytes.put_u32(u32::try_from(section.bytes.len()).unwrap_or(u32::MAX));
            bytes.put(&section.bytes);
            bytes.resize(len_usize(padded(len64(bytes.len()))), 0);
        }
        debug_assert!(len64(bytes.len()) <= SLOT_BYTES, "the row limits keep a slot within its bound");
        let used = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        overwrite(&mut bytes, 20, &used.to_le_bytes());
        let check = crc(0, bytes.get(12..).unwrap_or_default());
        overwrite(&mut bytes, 8, &check.to_le_bytes());
        bytes
    }
}

fn overwrite(bytes: &mut [u8], at: usize, field: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(field) {
        *place = *byte;
    }
}

/// What a slot turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    Valid {
        generation: u64,
        state: Box<ControlState>,
    },
    /// The CRC is right, and its version, a feature or a field is not known.
    Newer {
        version: u32,
    },
    Invalid,
}

impl Slot {
    /// Judges the bytes of slot `number`: S1 to S5.
    pub(crate) fn check(bytes: &[u8], number: u32) -> Slot {
        Slot::parse(bytes, number).unwrap_or(Slot::Invalid)
    }

    fn parse(bytes: &[u8], number: u32) -> Option<Slot> {
        let mut cursor = Cursor::new(bytes);
        if cursor.array()? != MAGIC {
            return None;
        }
        let stated = cursor.u32()?;
        let version = cursor.u32()?;
        let incompatible = cursor.u32()?;
        let used = cursor.u32()?;
        if u64::from(used) > SLOT_BYTES || !used.is_multiple_of(8) {
            return None;
        }
        let bytes = bytes.get(..usize::try_from(used).ok()?)?;
        if stated != crc(0, bytes.get(12..)?) {
            return None;
        }
        if version != VERSION || incompatible != 0 {
            return Some(Slot::Newer { version });
        }
        let mut cursor = Cursor::new(bytes);
        cursor.bytes(24)?;
        if cursor.u32()? != number {
            return None;
        }
        let flags = cursor.u32()?;
        let generation = cursor.u64()?;
        // The CRC is right: what cannot be understood was not torn, but written by somebody who knew more.
        let state = parse_state(&mut cursor, flags);
        let sound = flags & !(FLAG_CLEAN | FLAG_BACKUP | FLAG_SEALED) == 0 && generation != 0;
        Some(match state.filter(|_| sound) {
            Some(state) => Slot::Valid { generation, state: Box::new(state) },
            None => Slot::Newer { version },
        })
    }
}

fn parse_state(cursor: &mut Cursor<'_>, flags: u32) -> Option<ControlState> {
    let mut state = ControlState::new(cursor.array()?);
    state.epoch = cursor.u64()?;
    state.first_kept = cursor.u64()?;
    state.base = cursor.u64()?;
    state.next_segment_id = cursor.u64()?;
    state.durable = cursor.u64()?;
    state.least_next = cursor.u64()?;
    state.backup = flags & FLAG_BACKUP != 0;
    let clean = CleanClose {
        segment_id: cursor.u64()?,
        file_id: cursor.u64()?,
        end: cursor.u64()?,
        last: cursor.u64()?,
        sealed: flags & FLAG_SEALED != 0,
    };
    state.clean = (flags & FLAG_CLEAN != 0).then_some(clean);
    let none = CleanClose { segment_id: 0, file_id: 0, end: 0, last: 0, sealed: false };
    if state.clean.is_none() && clean != none {
        return None;
    }
    let [begun, abandoned, losses, ancestors, sections, history] =
        [cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?];
    let file = |c: &mut Cursor<'_>| Some(FileRow { segment_id: c.u64()?, file_id: c.u64()? });
    state.begun = parse_rows(cursor, begun, BEGUN_ROWS_MAX, |c| {
        let file = file(c)?;
        let state = c.u64()?;
        (state == BEGUN || state == EXPECTED).then_some(BegunRow { file, must_exist: state == BEGUN })
    })?;
    state.abandoned = parse_rows(cursor, abandoned, ABANDONED_ROWS_MAX, file)?;
    state.losses = parse_rows(cursor, losses, LOSS_ROWS_MAX, |c| {
        Some(LossRow {
            segment_id: c.u64()?,
            file_id: c.u64()?,
            offset: c.u64()?,
            first: c.u64()?,
            last: c.u64()?,
        })
    })?;
    state.ancestors = parse_rows(cursor, ancestors, ANCESTOR_ROWS_MAX, |c| {
        Some(AncestorRow {
            log_id: c.array()?,
            last_segment_id: c.u64()?,
            last_file_id: c.u64()?,
            last_lsn: c.u64()?,
        })
    })?;
    state.history = parse_rows(cursor, history, HISTORY_ROWS_MAX, |c| {
        Some(HistoryRow { epoch: c.u64()?, kept: c.u64()? })
    })?;
    state.sections = parse_rows(cursor, sections, SECTION_BYTES_MAX / 8, |c| {
        let tag = c.u32()?;
        let length = c.u32()?;
        let bytes = c.bytes(usize::try_from(length).ok()?)?.to_vec();
        c.zeros(len_usize(padded(u64::from(length)) - u64::from(length)))?;
        Some(Section { tag, bytes })
    })?;
    let positive = [state.epoch, state.first_kept, state.base, state.next_segment_id, state.least_next];
    let in_range = |number: &u64| *number <= Lsn::MAX_NUMBER;
    let rows = state.losses.iter().flat_map(|row| [row.segment_id, row.first, row.last]);
    let rows = rows.chain(state.begun.iter().map(|row| row.file.segment_id));
    let rows = rows.chain(state.abandoned.iter().map(|row| row.segment_id));
    let rows = rows.chain(state.ancestors.iter().flat_map(|row| [row.last_segment_id, row.last_lsn]));
    let rows = rows.chain(state.history.iter().flat_map(|row| [row.epoch, row.kept]));
    let sound = state.log_id != [0; 16]
        && positive.iter().all(|number| *number != 0 && *number <= SegmentId::MAX_NUMBER)
        && state.durable <= SegmentId::MAX_NUMBER
        && [state.durable, clean.segment_id, clean.last].iter().all(in_range)
        && rows.clone().all(|number| in_range(&number));
    (sound && cursor.remaining() == 0).then_some(state)
}

fn parse_rows<T>(
    cursor: &mut Cursor<'_>,
    count: u32,
    most: usize,
    row: impl Fn(&mut Cursor<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(count).ok()?;
    if count > most {
        return None;
    }
    (0..count).map(|_| row(cursor)).collect()
}

/// Both slots as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slots {
    slots: [Slot; 2],
}

impl Slots {
    pub(crate) fn read(file: &dyn StorageFile) -> io::Result<Slots> {
        let mut bytes = vec![0; SLOT_LENGTH];
        let mut read = |number: u32| -> io::Result<Slot> {
            let count = read_full(file, u64::from(number) * SLOT_BYTES, &mut bytes)?;
            Ok(Slot::check(bytes.get(..count).unwrap_or_default(), number))
        };
        Ok(Slots { slots: [read(0)?, read(1)?] })
    }

    /// The slots of a control file that is no file.
    pub(crate) fn lost() -> Slots {
        Slots { slots: [Slot::Invalid, Slot::Invalid] }
    }

    /// The state that speaks, with its generation.
    pub(crate) fn newest(&self) -> Option<(u64, &ControlState)> {
        self.slots.iter().filter_map(Slots::valid).max_by_key(|(generation, _)| *generation)
    }

    fn valid(slot: &Slot) -> Option<(u64, &ControlState)> {
        match slot {
            Slot::Valid { generation, state } => Some((*generation, state)),
            _ => None,
        }
    }

    /// The version of a slot that a later planewal wrote.
    pub(crate) fn newer_version(&self) -> Option<u32> {
        self.slots
            .iter()
            .find_map(|slot| if let Slot::Newer { version } = slot { Some(*version) } else { None })
    }

    /// Numbers of the slots that do not check.
    pub(crate) fn invalid(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.slots).filter(|(_, slot)| **slot == Slot::Invalid).map(|(number, _)| number)
    }

    /// Which slot to write first: one that does not check, else the older.
    fn older(&self) -> u32 {
        let [first, second] = &self.slots;
        match (Slots::valid(first), Slots::valid(second)) {
            (Some((a, _)), Some((b, _))) if a > b => 1,
            (Some(_), None) => 1,
            _ => 0,
        }
    }
}

/// The control file of a writer, which alone writes it.
#[derive(Debug)]
pub(crate) struct ControlFile {
    file: Box<dyn StorageFile>,
    generation: u64,
    next_slot: u32,
    pub(crate) state: ControlState,
    /// Whoever prepares a segment has the control file; so it is counted here what spares are good for.
    pub(crate) spare_use: Arc<SpareUse>,
}

impl ControlFile {
    /// Makes the control file with both slots valid, under a temporary name, and names it: after this
    /// the log exists.
    pub(crate) fn create(storage: &dyn Storage, state: ControlState) -> Result<ControlFile, StorageError> {
        state.check()?;
        let temporary = format!("{CONTROL_NAME}.tmp");
        let failed = |operation| {
            let temporary = temporary.clone();
            move |error| StorageError::new(operation, temporary, error)
        };
        let file = storage.create(&temporary).map_err(failed("create"))?;
        for slot in 0..2 {
            let mut bytes = state.encode(slot, u64::from(slot) + 1);
            bytes.resize(SLOT_LENGTH, 0);
            write_full(&*file, u64::from(slot) * SLOT_BYTES, &bytes).map_err(failed("write"))?;
        }
        file.sync().map_err(failed("sync"))?;
        storage.rename(&temporary, CONTROL_NAME).map_err(failed("rename"))?;
        storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
        Ok(ControlFile { file, generation: 2, next_slot: 0, state, spare_use: Arc::default() })
    }

    /// Opens the control file for writing; `slots` are what was read of it.
    pub(crate) fn open(
        storage: &dyn Storage,
        slots: &Slots,
        state: ControlState,
    ) -> Result<ControlFile, StorageError> {
        let file = storage
            .open(CONTROL_NAME, Access::ReadWrite)
            .map_err(|error| StorageError::new("open", CONTROL_NAME, error))?;
        let generation = slots.newest().map_or(0, |(generation, _)| generation);
        let next_slot = slots.older();
        Ok(ControlFile { file, generation, next_slot, state, spare_use: Arc::default() })
    }

    /// Writes the state to one slot, the older, and syncs it.
    pub(crate) fn write_one(&mut self) -> Result<(), StorageError> {
        let generation = self.generation + 1;
        self.state.check()?;
        let bytes = self.state.encode(self.next_slot, generation);
        write_full(&*self.file, u64::from(self.next_slot) * SLOT_BYTES, &bytes)
            .map_err(|error| StorageError::new("write", CONTROL_NAME, error))?;
        self.file.sync().map_err(|error| StorageError::new("sync", CONTROL_NAME, error))?;
        self.generation = generation;
        self.next_slot = 1 - self.next_slot;
        Ok(())
    }

    /// Writes the state to both slots, the second only after the first is synced.
    pub(crate) fn write_both(&mut self) -> Result<(), StorageError> {
        self.write_one()?;
        self.write_one()
    }
}

/// Adds the ranges of some loss rows to others; what two of them tell is told once.
pub(crate) fn lost_ranges<'a>(
    rows: impl Iterator<Item = &'a LossRow>,
    known: Vec<(Lsn, Lsn)>,
) -> Vec<(Lsn, Lsn)> {
    let mut all = known;
    all.extend(
        rows.filter(|row| row.first <= row.last)
            .filter_map(|row| Lsn::new(row.first).zip(Lsn::new(row.last))),
    );
    all.sort_unstable();
    let mut ranges: Vec<(Lsn, Lsn)> = Vec::new();
    for (first, last) in all {
        match ranges.last_mut() {
            Some(before) if first <= before.1 => before.1 = before.1.max(last),
            _ => ranges.push((first, last)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn state() -> ControlState {
        let mut state = ControlState::new([5; 16]);
        state.epoch = 3;
        state.durable = 77;
        state.clean = Some(CleanClose { segment_id: 2, file_id: 9, end: 5000, last: 77, sealed: true });
        state.begun.push(BegunRow { file: FileRow { segment_id: 2, file_id: 9 }, must_exist: true });
        state.begun.push(BegunRow { file: FileRow { segment_id: 3, file_id: 10 }, must_exist: false });
        state.note_unclean_open(3, 77);
        state.abandoned.push(FileRow { segment_id: 1, file_id: 4 });
        state.losses.push(LossRow { segment_id: 1, file_id: 4, offset: 4184, first: 3, last: 9 });
        state.ancestors.push(AncestorRow {
            log_id: [1; 16],
            last_segment_id: 1,
            last_file_id: 4,
            last_lsn: 9,
        });
        state.sections.push(Section { tag: 1, bytes: b"abc".to_vec() });
        state.sections.push(Section { tag: 0xffff_0000, bytes: Vec::new() });
        state
    }

    #[test]
    fn a_slot_reads_back_in_its_place_only() {
        let bytes = state().encode(1, 12);
        assert_eq!(Slot::check(&bytes, 1), Slot::Valid { generation: 12, state: Box::new(state()) });
        assert_eq!(Slot::check(&bytes, 0), Slot::Invalid, "a slot copied over the other one");
    }

    #[test]
    fn no_flipped_bit_and_no_cut_of_a_slot_goes_unseen() {
        let whole = state().encode(0, 1);
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::check(&bytes, 0), Slot::Invalid, "bit {bit}");
        }
        for length in 0..whole.len() {
            assert_eq!(Slot::check(&whole[..length], 0), Slot::Invalid);
        }
    }

    #[test]
    fn full_tables_fit_a_slot() {
        let mut state = state();
        state.begun =
            vec![BegunRow { file: FileRow { segment_id: 1, file_id: 1 }, must_exist: true }; BEGUN_ROWS_MAX];
        state.history = vec![HistoryRow { epoch: 1, kept: 1 }; HISTORY_ROWS_MAX];
        state.abandoned = vec![FileRow { segment_id: 1, file_id: 1 }; ABANDONED_ROWS_MAX];
        state.losses =
            vec![LossRow { segment_id: 1, file_id: 1, offset: 0, first: 1, last: 1 }; LOSS_ROWS_MAX];
        state.ancestors =
            vec![
                AncestorRow { log_id: [1; 16], last_segment_id: 1, last_file_id: 1, last_lsn: 1 };
                ANCESTOR_ROWS_MAX
            ];
        state.sections = vec![Section { tag: 1, bytes: vec![7; SECTION_BYTES_MAX - 8] }];
        let bytes = state.encode(0, 1);
        assert!(len64(bytes.len()) <= SLOT_BYTES);
        assert!(matches!(Slot::check(&bytes, 0), Slot::Valid { .. }));
    }
}
