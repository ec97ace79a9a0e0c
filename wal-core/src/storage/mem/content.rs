//! The content of a file, seen and durable, by sectors.
//!
//! Kept in blocks that copies share until they are written to: a crash image of a big file costs a
//! map of pointers, not the bytes, and a sync costs what was written since the last one.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::CrashPlan;

/// A file: what is seen of it, what is durable of it, and where the two differ.
///
/// Up to the live length, a sector that is not dirty is the same in both.
#[derive(Default)]
pub(super) struct File {
    pub(super) live: Image,
    pub(super) durable: Image,
    /// Per block the unsynced sectors, one bit each; none behind the live length, none zero.
    pub(super) dirty: BTreeMap<u64, u8>,
    pub(super) handles: usize,
}

impl File {
    pub(super) fn pending(&self) -> usize {
        let sectors: usize = self.dirty.values().map(|mask| mask.count_ones() as usize).sum();
        sectors + usize::from(self.live.len != self.durable.len)
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.grow(offset.saturating_add(bytes.len() as u64));
        self.live.write(offset, bytes);
        self.mark(offset, bytes.len());
    }

    /// Allocates a range that lies within the length, without changing a byte.
    pub(super) fn make_room(&mut self, offset: u64, len: usize) {
        self.live.make_room(offset, len);
        self.mark(offset, len);
    }

    pub(super) fn mark(&mut self, offset: u64, len: usize) {
        for piece in pieces(offset, len) {
            *self.dirty.entry(piece.block).or_default() |= piece.sectors();
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.live.len {
            self.cut(len);
        } else {
            self.grow(len);
        }
    }

    /// Extends the live length, if it is less than `len`.
    pub(super) fn grow(&mut self, len: u64) {
        if len <= self.live.len {
            return;
        }
        // What was cut off before is zero when it comes back, but durable it is still the old.
        let from = self.live.len.next_multiple_of(SECTOR_BYTES);
        let blocks = from / BLOCK_BYTES..len.div_ceil(BLOCK_BYTES).max(from / BLOCK_BYTES);
        for (block, slot) in self.durable.blocks.range(blocks) {
            let mask = slot.allocated & sectors_within(*block, from, len);
            if mask != 0 {
                *self.dirty.entry(*block).or_default() |= mask;
            }
        }
        self.live.len = len;
    }

    pub(super) fn cut(&mut self, len: u64) {
        self.live.cut(len);
        self.dirty.retain(|block, mask| {
            *mask &= sectors_within(*block, 0, len);
            *mask != 0
        });
        // The sector through which the cut goes keeps its front and lost its back.
        if !len.is_multiple_of(SECTOR_BYTES) {
            let block = len / BLOCK_BYTES;
            if self.live.blocks.contains_key(&block) || self.durable.blocks.contains_key(&block) {
                self.mark(len, 1);
            }
        }
    }

    pub(super) fn sync(&mut self) {
        for (block, mask) in std::mem::take(&mut self.dirty) {
            self.durable.take(&self.live, block, mask);
        }
        self.durable.cut(self.live.len);
        self.durable.len = self.live.len;
    }

    /// The content after a crash; `first` is the number of the file's first pending thing.
    pub(super) fn crash(&self, first: usize, plan: &CrashPlan) -> Image {
        let mut image = self.durable.clone();
        let mut number = first;
        for (block, mask) in &self.dirty {
            let mut chosen = 0;
            for bit in (0..8).map(|bit| 1_u8 << bit).filter(|bit| mask & bit != 0) {
                if plan.survives(number) {
                    chosen |= bit;
                }
                number += 1;
            }
            if chosen != 0 {
                image.take(&self.live, *block, chosen);
            }
        }
        if self.live.len != self.durable.len && plan.survives(number) {
            image.len = self.live.len;
        }
        // Sectors that survived behind the length that survived are out of reach.
        image.cut(image.len);
        image
    }
}

/// The content of a file: a length, and blocks that copies share until they are written to.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    pub(super) len: u64,
    /// None behind the length; a missing one reads as zero.
    pub(super) blocks: Arc<BTreeMap<u64, Slot>>,
    pub(super) allocated_sectors: u64,
}

impl Image {
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let available = index(self.len.saturating_sub(offset));
        let len = buffer.len().min(available);
        let mut rest = buffer.get_mut(..len).unwrap_or_default();
        for piece in pieces(offset, len) {
            let (now, later) = rest.split_at_mut(piece.len);
            let slot = self.blocks.get(&piece.block);
            match slot.and_then(|slot| slot.bytes.get(piece.start..piece.start + piece.len)) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            rest = later;
        }
        len
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces(offset, bytes.len()) {
            let (now, later) = rest.split_at(piece.len);
            let slot = self.allocate(&piece);
            match <&[u8; BLOCK_LEN]>::try_from(now) {
                Ok(whole) => slot.bytes = Arc::new(*whole),
                Err(_) => overwrite(&mut slot.bytes, piece.start, now),
            }
            rest = later;
        }
    }

    pub(super) fn make_room(&mut self, offset: u64, len: usize) {
        for piece in pieces(offset, len) {
            self.allocate(&piece);
        }
    }

    pub(super) fn allocate(&mut self, piece: &Piece) -> &mut Slot {
        let slot = Arc::make_mut(&mut self.blocks).entry(piece.block).or_default();
        let added = piece.sectors() & !slot.allocated;
        slot.allocated |= added;
        self.allocated_sectors += u64::from(added.count_ones());
        slot
    }

    /// How many bytes of a range can be written with `room` more bytes allocated.
    pub(super) fn fitting(&self, offset: u64, len: usize, room: u64) -> usize {
        let mut sectors = room / SECTOR_BYTES;
        if sectors >= len as u64 / SECTOR_BYTES + 2 {
            return len;
        }
        for piece in pieces(offset, len) {
            let allocated = self.blocks.get(&piece.block).map_or(0, |slot| slot.allocated);
            let mut missing = piece.sectors() & !allocated;
            while missing != 0 {
                if sectors == 0 {
                    let sector = u64::from(missing.trailing_zeros());
                    let end = piece.block * BLOCK_BYTES + sector * SECTOR_BYTES;
                    return index(end.saturating_sub(offset));
                }
                sectors -= 1;
                missing &= missing - 1;
            }
        }
        len
    }

    /// Drops everything behind `len` and lowers the length to it.
    pub(super) fn cut(&mut self, len: u64) {
        self.len = self.len.min(len);
        let kept = len.div_ceil(BLOCK_BYTES);
        if self.blocks.range(kept..).next().is_some() {
            for slot in Arc::make_mut(&mut self.blocks).split_off(&kept).values() {
                self.allocated_sectors -= u64::from(slot.allocated.count_ones());
            }
        }
        let (block, start) = (len / BLOCK_BYTES, index(len % BLOCK_BYTES));
        let mask = sectors_within(block, 0, len);
        let Some(slot) = self.blocks.get(&block) else {
            return;
        };
        let tail = slot.bytes.get(start..).unwrap_or_default();
        let dirty_tail = tail.iter().any(|byte| *byte != 0);
        if !dirty_tail && slot.allocated & !mask == 0 {
            return;
        }
        if let Some(slot) = Arc::make_mut(&mut self.blocks).get_mut(&block) {
            self.allocated_sectors -= u64::from((slot.allocated & !mask).count_ones());
            slot.allocated &= mask;
            if dirty_tail && let Some(tail) = Arc::make_mut(&mut slot.bytes).get_mut(start..) {
                tail.fill(0);
            }
        }
    }

    /// Takes over sectors of a block as they are in `other`.
    pub(super) fn take(&mut self, other: &Image, block: u64, sectors: u8) {
        let theirs = other.blocks.get(&block).cloned().unwrap_or_default();
        let slot = Arc::make_mut(&mut self.blocks).entry(block).or_default();
        let before = slot.allocated.count_ones();
        if sectors == u8::MAX {
            *slot = theirs;
        } else {
            slot.allocated = slot.allocated & !sectors | theirs.allocated & sectors;
            let mut start = 0;
            for (bit, sector) in theirs.bytes.chunks(SECTOR_LEN).enumerate() {
                if sectors >> bit & 1 == 1 {
                    overwrite(&mut slot.bytes, start, sector);
                }
                start += SECTOR_LEN;
            }
        }
        self.allocated_sectors += u64::from(slot.allocated.count_ones());
        self.allocated_sectors -= u64::from(before);
    }

    pub(super) fn flip(&mut self, bit_offset: u64) -> bool {
        let offset = bit_offset / 8;
        let mut byte = [0];
        if self.read(offset, &mut byte) == 0 {
            return false;
        }
        self.write(offset, &byte.map(|byte| byte ^ 1 << (bit_offset % 8)));
        true
    }
}

/// A block of a file.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) bytes: Arc<[u8; BLOCK_LEN]>,
    /// The sectors that have room on the disk, one bit each; all others read as zero.
    pub(super) allocated: u8,
}

impl Default for Slot {
    fn default() -> Self {
        Self { bytes: Arc::clone(&ZEROS), allocated: 0 }
    }
}

pub(super) fn overwrite(block: &mut Arc<[u8; BLOCK_LEN]>, start: usize, bytes: &[u8]) {
    if let Some(target) = Arc::make_mut(block).get_mut(start..start + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

/// The part of a range that lies in one block; never empty.
pub(super) struct Piece {
    pub(super) block: u64,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Piece {
    /// The sectors touched, one bit each.
    pub(super) fn sectors(&self) -> u8 {
        let first = self.start / SECTOR_LEN;
        let last = (self.start + self.len - 1) / SECTOR_LEN;
        u8::MAX << first & u8::MAX >> (7 - last)
    }
}

pub(super) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut position = offset;
    let mut left = len;
    std::iter::from_fn(move || {
        let start = index(position % BLOCK_BYTES);
        let piece = Piece { block: position / BLOCK_BYTES, start, len: left.min(BLOCK_LEN - start) };
        position += piece.len as u64;
        left -= piece.len;
        (piece.len > 0).then_some(piece)
    })
}

/// The sectors of a block that have a byte in `from..to`, one bit each.
pub(super) fn sectors_within(block: u64, from: u64, to: u64) -> u8 {
    let start = block * BLOCK_BYTES;
    let first = from.clamp(start, start + BLOCK_BYTES);
    let last = to.clamp(start, start + BLOCK_BYTES);
    match usize::try_from(last.saturating_sub(first)) {
        Ok(len) if len > 0 => Piece { block, start: index(first - start), len }.sectors(),
        _ => 0,
    }
}

/// A number that fits, as all content is in memory.
pub(super) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

static ZEROS: LazyLock<Arc<[u8; BLOCK_LEN]>> = LazyLock::new(|| Arc::new([0; BLOCK_LEN]));
pub(super) const SECTOR_LEN: usize = 512;
pub(super) const SECTOR_BYTES: u64 = SECTOR_LEN as u64;
pub(super) const BLOCK_LEN: usize = 8 * SECTOR_LEN;
pub(super) const BLOCK_BYTES: u64 = BLOCK_LEN as u64;
