//! Segment files: the header page, and the bodies of the frames that tie segments together.
//!
//! ```text
//! header page, 4096 bytes              link body, 56 bytes
//!    0    8  magic "PLANEWAL"            0  8  predecessor's segment id, 0: none
//!    8    4  format version, 1           8  8  predecessor's file id
//!   12    4  header length, 4096        16  8  predecessor's last LSN
//!   16    4  compatible features        24  8  predecessor's end offset
//!   20    4  read-only-compatible       32  8  base LSN
//!   24    4  incompatible               40  8  kept LSN, 0 unless unclean
//!   28    4  flags: 0 reused            48  4  flags: 0 unclean, 1 branch
//!   32   16  log id                     52  4  reserved
//!   48    8  segment id
//!   56    8  file id                  seal body
//!   64    8  open epoch                  0  8  base LSN
//!   72    8  capacity                    8  8  last LSN
//!   80    8  created, ns since 1970     16  8  record count
//!   88    1  label length               24  4  plane rows, 28 4 index rows
//!   89   63  label                      32     plane rows, 32 bytes each
//!  152 3940  reserved                          index rows, 8 bytes each
//! 4092    4  crc(0, 0..4092)                   seal offset u64, "PLANESEA"
//!
//! sieve body
//!    0    8  original end offset, 8 8 original last LSN, of the run's last segment
//!   16    8  first LSN of the run, 24 8 last LSN
//!   32    8  own end offset, 40 8 kept record count
//!   48    4  flags: 0 lost, 52 4 run rows, 56 4 plane rows, 60 4 reserved
//!   64       run rows, 16 bytes each: segment id, original file id
//!            plane rows, 32 bytes each: plane, 7 reserved, count, first LSN, last LSN
//! ```
//!
//! A header is valid if and only if H1 to H5 of `docs/format.md` hold. Magic and CRC keep their
//! places in every version, so that a damaged version byte is never taken for a version.

use crate::frame::{FrameDraft, FrameKind, RawRecords, Salt};
use crate::lsn::{Lsn, SegmentId};
use crate::wire::{Cursor, Put, crc, len64};

/// Bytes of the header page; the first frame follows it.
pub(crate) const HEADER_PAGE_BYTES: u64 = 4096;

/// Longest label.
pub(crate) const LABEL_BYTES_MAX: usize = 63;

/// Most index rows of a seal.
pub(crate) const INDEX_ROWS_MAX: usize = 8192;

const MAGIC: [u8; 8] = *b"PLANEWAL";
const TRAILER_MAGIC: [u8; 8] = *b"PLANESEA";
const VERSION: u32 = 1;
const CRC_AT: usize = 4092;
const FLAG_REUSED: u32 = 1;
const LINK_BODY_BYTES: u64 = 56;
const LINK_UNCLEAN: u32 = 1;
const LINK_BRANCH: u32 = 2;
const SIEVE_LOST: u32 = 1;
const RUN_ROWS_MAX: u32 = 4096;
const TRAILER_BYTES: usize = 16;

/// Bytes that a link takes in a file, header and all.
pub(crate) const LINK_FRAME_BYTES: u64 = crate::frame::frame_bytes(LINK_BODY_BYTES);

/// Room kept at the end of a segment for a seal with all planes and a full index.
pub(crate) const SEAL_BYTES_MAX: u64 =
    crate::frame::frame_bytes(32 + 256 * 32 + INDEX_ROWS_MAX as u64 * 8 + TRAILER_BYTES as u64);

const _: () = assert!(CRC_AT as u64 + 4 == HEADER_PAGE_BYTES);
const _: () = assert!(HEADER_PAGE_BYTES.is_multiple_of(8) && LINK_FRAME_BYTES.is_multiple_of(8));
const _: () = assert!(89 + LABEL_BYTES_MAX == 152);

/// The header page of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: [u8; 16],
    pub(crate) segment_id: u64,
    pub(crate) file_id: u64,
    pub(crate) epoch: u64,
    pub(crate) capacity: u64,
    pub(crate) created_ns: u64,
    pub(crate) reused: bool,
    pub(crate) label: String,
}

/// What a header page turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeaderPage {
    Valid(SegmentHeader),
    /// Magic and CRC are right, the version or an incompatible feature is not known.
    Newer {
        version: u32,
    },
    Invalid,
}

impl SegmentHeader {
    pub(crate) fn salt(&self) -> Salt {
        Salt::new(self.log_id, self.segment_id, self.file_id)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(len_of_page());
        page.put(&MAGIC);
        page.put_u32(VERSION);
        page.put_u32(4096);
        page.put_u32(0);
        page.put_u32(0);
        page.put_u32(0);
        page.put_u32(if self.reused { FLAG_REUSED } else { 0 });
        page.put(&self.log_id);
        page.put_u64(self.segment_id);
        page.put_u64(self.file_id);
        page.put_u64(self.epoch);
        page.put_u64(self.capacity);
        page.put_u64(self.created_ns);
        page.put_u8(u8::try_from(self.label.len()).unwrap_or(0));
        page.put(self.label.as_bytes());
        page.resize(CRC_AT, 0);
        let check = crc(0, &page);
        page.put_u32(check);
        page
    }

    /// Judges a header page: H1 to H5.
    pub(crate) fn check(page: &[u8]) -> HeaderPage {
        SegmentHeader::parse(page).unwrap_or(HeaderPage::Invalid)
    }

    fn parse(page: &[u8]) -> Option<HeaderPage> {
        let page = page.get(..len_of_page())?;
        let (checked, stated) = page.split_at(CRC_AT);
        let mut cursor = Cursor::new(checked);
        if cursor.array()? != MAGIC || Cursor::new(stated).u32()? != crc(0, checked) {
            return None;
        }
        let version = cursor.u32()?;
        let header_bytes = cursor.u32()?;
        let _compatible = cursor.u32()?;
        let read_only_compatible = cursor.u32()?;
        let incompatible = cursor.u32()?;
        if version != VERSION || incompatible != 0 || read_only_compatible != 0 {
            return Some(HeaderPage::Newer { version });
        }
        let flags = cursor.u32()?;
        let header = SegmentHeader {
            log_id: cursor.array()?,
            segment_id: cursor.u64()?,
            file_id: cursor.u64()?,
            epoch: cursor.u64()?,
            capacity: cursor.u64()?,
            created_ns: cursor.u64()?,
            reused: flags & FLAG_REUSED != 0,
            label: parse_label(&mut cursor)?,
        };
        cursor.zeros(cursor.remaining())?;
        let sound = header_bytes == 4096
            && flags & !FLAG_REUSED == 0
            && header.log_id != [0; 16]
            && header.segment_id != 0
            && header.file_id != 0
            && header.epoch != 0
            && header.epoch <= Lsn::MAX_NUMBER;
        sound.then_some(HeaderPage::Valid(header))
    }
}

const fn len_of_page() -> usize {
    CRC_AT + 4
}

fn parse_label(cursor: &mut Cursor<'_>) -> Option<String> {
    let length = usize::from(cursor.u8()?);
    let field = cursor.bytes(LABEL_BYTES_MAX)?;
    let (label, rest) = field.split_at_checked(length)?;
    Cursor::new(rest).zeros(rest.len())?;
    String::from_utf8(label.to_vec()).ok()
}

/// Names a segment's predecessor: where it ends, and where this one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// 0: nothing before this is kept.
    pub(crate) predecessor_id: u64,
    pub(crate) predecessor_file_id: u64,
    pub(crate) predecessor_last: u64,
    pub(crate) predecessor_end: u64,
    pub(crate) base: u64,
    /// The last LSN that recovery kept, if this run found no clean close.
    pub(crate) kept: Option<u64>,
    /// The base may lie above the predecessor's last LSN + 1.
    pub(crate) branch: bool,
}

impl Link {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(self.predecessor_id);
        body.put_u64(self.predecessor_file_id);
        body.put_u64(self.predecessor_last);
        body.put_u64(self.predecessor_end);
        body.put_u64(self.base);
        body.put_u64(self.kept.unwrap_or(0));
        let unclean = if self.kept.is_some() { LINK_UNCLEAN } else { 0 };
        let branch = if self.branch { LINK_BRANCH } else { 0 };
        body.put_u32(unclean | branch);
        body.put_u32(0);
        debug_assert_eq!(len64(body.len()), LINK_BODY_BYTES);
        body
    }

    /// The whole frame, at `offset`.
    pub(crate) fn frame(&self, salt: Salt, offset: u64, durable: u64) -> Vec<u8> {
        let draft = FrameDraft { kind: FrameKind::Link, first_lsn: self.base, records: 0, durable };
        draft.frame(salt, offset, &self.encode())
    }

    pub(crate) fn parse(body: &[u8]) -> Option<Link> {
        let mut cursor = Cursor::new(body);
        let predecessor_id = cursor.u64()?;
        let predecessor_file_id = cursor.u64()?;
        let predecessor_last = cursor.u64()?;
        let predecessor_end = cursor.u64()?;
        let base = cursor.u64()?;
        let kept = cursor.u64()?;
        let flags = cursor.u32()?;
        cursor.zeros(4)?;
        let unclean = flags & LINK_UNCLEAN != 0;
        let branch = flags & LINK_BRANCH != 0;
        Lsn::new(base)?;
        let follows = if predecessor_id == 0 {
            predecessor_file_id == 0 && predecessor_last == 0 && predecessor_end == 0
        } else {
            let gap = base.checked_sub(1)?.checked_sub(predecessor_last)?;
            predecessor_file_id != 0 && predecessor_end >= HEADER_PAGE_BYTES && (branch || gap == 0)
        };
        let sound = cursor.remaining() == 0
            && predecessor_id <= SegmentId::MAX_NUMBER
            && flags & !(LINK_UNCLEAN | LINK_BRANCH) == 0
            && (unclean || kept == 0)
            && follows;
        sound.then_some(Link {
            predecessor_id,
            predecessor_file_id,
            predecessor_last,
            predecessor_end,
            base,
            kept: unclean.then_some(kept),
            branch,
        })
    }
}

/// What a segment holds of one plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneCount {
    /// The plane.
    pub plane: u8,
    /// Number of its records, 1 or more.
    pub records: u64,
    /// The first of them.
    pub first: Lsn,
    /// The last of them.
    pub last: Lsn,
}

/// Counts and LSNs per plane, ordered by plane; only planes that are present have a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PlaneTable {
    rows: Vec<PlaneCount>,
}

impl PlaneTable {
    pub(crate) fn rows(&self) -> &[PlaneCount] {
        &self.rows
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Counts `records` more of a plane, at LSNs from `first` to `last`, above all before them.
    pub(crate) fn add(&mut self, plane: u8, records: u64, first: Lsn, last: Lsn) {
        match self.rows.binary_search_by_key(&plane, |row| row.plane) {
            Ok(at) => {
                if let Some(row) = self.rows.get_mut(at) {
                    row.records += records;
                    row.last = last;
                }
            }
            Err(at) => self.rows.insert(at, PlaneCount { plane, records, first, last }),
        }
    }

    /// Counts the records of a body that begins with LSN `first`; stubs are none.
    pub(crate) fn count(&mut self, first: u64, body: &[u8]) {
        for (lsn, record) in (first..).zip(RawRecords::new(body)) {
            if let Some(lsn) = Lsn::new(lsn).filter(|_| !record.is_stub()) {
                self.add(record.plane, 1, lsn, lsn);
            }
        }
    }

    pub(crate) fn merge(&mut self, later: &PlaneTable) {
        for row in &later.rows {
            self.add(row.plane, row.records, row.first, row.last);
        }
    }

    pub(crate) fn records(&self) -> u64 {
        self.rows.iter().map(|row| row.records).sum()
    }

    fn put(&self, body: &mut Vec<u8>) {
        for row in &self.rows {
            body.put_u8(row.plane);
            body.put_zeros(7);
            body.put_u64(row.records);
            body.put_u64(row.first.number());
            body.put_u64(row.last.number());
        }
    }

    fn parse(cursor: &mut Cursor<'_>, count: u32) -> Option<PlaneTable> {
        let mut rows: Vec<PlaneCount> = Vec::new();
        for _ in 0..count {
            let plane = cursor.u8()?;
            cursor.zeros(7)?;
            let row = PlaneCount {
                plane,
                records: cursor.u64()?,
                first: Lsn::new(cursor.u64()?)?,
                last: Lsn::new(cursor.u64()?)?,
            };
            let ascending = rows.last().is_none_or(|before| before.plane < plane);
            let span = row.last.number().checked_sub(row.first.number())?;
            if !ascending || plane == 0 || row.records == 0 || row.records - 1 > span {
                return None;
            }
            rows.push(row);
        }
        Some(PlaneTable { rows })
    }
}

/// Where a frame begins, for finding LSNs without reading all headers before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexRow {
    pub(crate) lsn: u64,
    pub(crate) offset: u64,
}

/// A sparse index from LSNs to frame offsets: rows a spacing apart, which doubles when they get too
/// many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SparseIndex {
    rows: Vec<IndexRow>,
    spacing: u64,
}

impl Default for SparseIndex {
    fn default() -> Self {
        SparseIndex { rows: Vec::new(), spacing: SparseIndex::SPACING_BYTES }
    }
}

impl SparseIndex {
    /// Closest distance of two rows, in bytes of the file.
    pub(crate) const SPACING_BYTES: u64 = 16 << 10;

    /// Most rows of the index; with the spacing this keeps 64 MiB at the closest distance.
    const ROWS: usize = 4096;

    pub(crate) fn add(&mut self, lsn: u64, offset: u64) {
        if self.rows.last().is_some_and(|row| offset < row.offset + self.spacing) {
            return;
        }
        if self.rows.len() == SparseIndex::ROWS {
            let mut keep = false;
            self.rows.retain(|_| {
                keep = !keep;
                keep
            });
            self.spacing *= 2;
        }
        self.rows.push(IndexRow { lsn, offset });
    }

    /// The last row at or before `lsn`.
    pub(crate) fn find(&self, lsn: u64) -> Option<IndexRow> {
        let behind = self.rows.partition_point(|row| row.lsn <= lsn);
        self.rows.get(behind.checked_sub(1)?).copied()
    }
}

/// What a finished segment says of itself behind its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) base: u64,
    /// Base - 1 if the segment holds no record.
    pub(crate) last: u64,
    pub(crate) planes: PlaneTable,
    pub(crate) index: SparseIndex,
}

impl Seal {
    /// The whole frame, at `offset`.
    pub(crate) fn frame(&self, salt: Salt, offset: u64, durable: u64) -> Vec<u8> {
        let rows: Vec<(u32, u32)> = self
            .index
            .rows
            .iter()
            .filter_map(|row| {
                Some((u32::try_from(row.lsn - self.base).ok()?, u32::try_from(row.offset / 8).ok()?))
            })
            .collect();
        let mut body = Vec::new();
        body.put_u64(self.base);
        body.put_u64(self.last);
        body.put_u64(self.planes.records());
        body.put_u32(u32::try_from(self.planes.rows.len()).unwrap_or(0));
        body.put_u32(u32::try_from(rows.len()).unwrap_or(0));
        self.planes.put(&mut body);
        for (lsn, place) in rows {
            body.put_u32(lsn);
            body.put_u32(place);
        }
        body.put_u64(offset);
        body.put(&TRAILER_MAGIC);
        let draft = FrameDraft { kind: FrameKind::Seal, first_lsn: self.last + 1, records: 0, durable };
        let frame = draft.frame(salt, offset, &body);
        debug_assert!(len64(frame.len()) <= SEAL_BYTES_MAX);
        frame
    }

    /// Parses the body of the seal at `offset`.
    pub(crate) fn parse(body: &[u8], offset: u64) -> Option<Seal> {
        let mut cursor = Cursor::new(body);
        let base = cursor.u64()?;
        let last = cursor.u64()?;
        let records = cursor.u64()?;
        let plane_rows = cursor.u32()?;
        let index_rows = cursor.u32()?;
        Lsn::new(base)?;
        if plane_rows > 256 || len64(INDEX_ROWS_MAX) < u64::from(index_rows) || last.checked_add(1)? < base {
            return None;
        }
        let planes = PlaneTable::parse(&mut cursor, plane_rows)?;
        let mut index = SparseIndex::default();
        for _ in 0..index_rows {
            let row = IndexRow { lsn: base + u64::from(cursor.u32()?), offset: u64::from(cursor.u32()?) * 8 };
            let ascending =
                index.rows.last().is_none_or(|before| before.lsn <= row.lsn && before.offset < row.offset);
            if !ascending || row.lsn > last || row.offset >= offset {
                return None;
            }
            index.rows.push(row);
        }
        let sound = cursor.u64()? == offset
            && cursor.array()? == TRAILER_MAGIC
            && cursor.remaining() == 0
            && planes.records() == records;
        let inside = planes.rows.iter().all(|row| row.first.number() >= base && row.last.number() <= last);
        (sound && inside).then_some(Seal { base, last, planes, index })
    }

    /// Where the last 16 bytes of a file say that its seal begins. A hint: the seal there has to check.
    #[cfg(test)]
    pub(crate) fn offset_from_trailer(trailer: &[u8; TRAILER_BYTES]) -> Option<u64> {
        let mut cursor = Cursor::new(trailer);
        let offset = cursor.u64()?;
        (cursor.array()? == TRAILER_MAGIC).then_some(offset)
    }
}

/// One segment of the run that a sieved file stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunRow {
    pub(crate) segment_id: u64,
    pub(crate) file_id: u64,
}

/// What a rewritten file says of the segments that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sieve {
    pub(crate) original_end: u64,
    pub(crate) original_last: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) own_end: u64,
    pub(crate) lost: bool,
    pub(crate) run: Vec<RunRow>,
    pub(crate) planes: PlaneTable,
}

impl Sieve {
    /// The body of the frame. Core reads these; the recycler writes them.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u64(self.original_end);
        body.put_u64(self.original_last);
        body.put_u64(self.first);
        body.put_u64(self.last);
        body.put_u64(self.own_end);
        body.put_u64(self.planes.records());
        body.put_u32(if self.lost { SIEVE_LOST } else { 0 });
        body.put_u32(u32::try_from(self.run.len()).unwrap_or(u32::MAX));
        body.put_u32(u32::try_from(self.planes.rows.len()).unwrap_or(0));
        body.put_u32(0);
        for row in &self.run {
            body.put_u64(row.segment_id);
            body.put_u64(row.file_id);
        }
        self.planes.put(&mut body);
        body
    }

    pub(crate) fn parse(body: &[u8]) -> Option<Sieve> {
        let mut cursor = Cursor::new(body);
        let original_end = cursor.u64()?;
        let original_last = cursor.u64()?;
        let first = cursor.u64()?;
        let last = cursor.u64()?;
        let own_end = cursor.u64()?;
        let records = cursor.u64()?;
        let flags = cursor.u32()?;
        let run_rows = cursor.u32()?;
        let plane_rows = cursor.u32()?;
        cursor.zeros(4)?;
        Lsn::new(first)?;
        Lsn::new(last.checked_add(1)?)?;
        if run_rows == 0
            || run_rows > RUN_ROWS_MAX
            || plane_rows > 256
            || flags & !SIEVE_LOST != 0
            || last.checked_add(1)? < first
        {
            return None;
        }
        let mut run: Vec<RunRow> = Vec::new();
        for _ in 0..run_rows {
            let row = RunRow { segment_id: cursor.u64()?, file_id: cursor.u64()? };
            if row.file_id == 0
                || row.segment_id > SegmentId::MAX_NUMBER
                || run.last().map_or(row.segment_id == 0, |before| before.segment_id >= row.segment_id)
            {
                return None;
            }
            run.push(row);
        }
        let planes = PlaneTable::parse(&mut cursor, plane_rows)?;
        let inside = planes.rows.iter().all(|row| row.first.number() >= first && row.last.number() <= last);
        let sound = cursor.remaining() == 0 && planes.records() == records && inside && original_last == last;
        sound.then_some(Sieve {
            original_end,
            original_last,
            first,
            last,
            own_end,
            lost: flags & SIEVE_LOST != 0,
            run,
            planes,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            log_id: [3; 16],
            segment_id: 7,
            file_id: 9,
            epoch: 2,
            capacity: 1 << 20,
            created_ns: 1,
            reused: false,
            label: "shard-1".to_owned(),
        }
    }

    fn planes() -> PlaneTable {
        let mut planes = PlaneTable::default();
        planes.add(0x81, 2, Lsn::new(12).unwrap(), Lsn::new(14).unwrap());
        planes.add(0x80, 1, Lsn::new(13).unwrap(), Lsn::new(13).unwrap());
        planes
    }

    #[test]
    fn a_header_reads_back_and_no_flipped_bit_goes_unseen() {
        let page = header().encode();
        assert_eq!(SegmentHeader::check(&page), HeaderPage::Valid(header()));
        for bit in 0..page.len() * 8 {
            let mut page = page.clone();
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                SegmentHeader::check(&page),
                HeaderPage::Invalid,
                "bit {bit}: a damaged version is no version"
            );
        }
        assert_eq!(SegmentHeader::check(&page[..4095]), HeaderPage::Invalid);
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let mut page = header().encode();
        page[8] = 2;
        let check = crc(0, &page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&check.to_le_bytes());
        assert_eq!(SegmentHeader::check(&page), HeaderPage::Newer { version: 2 });
    }

    #[test]
    fn links_read_back_and_contradictions_do_not() {
        let link = Link {
            predecessor_id: 3,
            predecessor_file_id: 8,
            predecessor_last: 10,
            predecessor_end: 4184,
            base: 11,
            kept: Some(10),
            branch: false,
        };
        assert_eq!(Link::parse(&link.encode()), Some(link));
        for broken in [
            Link { base: 12, ..link },
            Link { base: 10, ..link },
            Link { predecessor_file_id: 0, ..link },
            Link { predecessor_end: 8, ..link },
            Link { base: 0, ..link },
        ] {
            assert_eq!(Link::parse(&broken.encode()), None, "{broken:?}");
        }
        assert!(Link::parse(&Link { base: 20, branch: true, ..link }.encode()).is_some());
    }

    #[test]
    fn seals_read_back_only_where_they_stand() {
        let mut index = SparseIndex::default();
        index.add(12, 4184);
        index.add(14, 4184 + (64 << 10));
        let seal = Seal { base: 12, last: 14, planes: planes(), index };
        let frame = seal.frame(header().salt(), 80_000, 14);
        let body = &frame[32..];
        assert_eq!(Seal::parse(body, 80_000), Some(seal));
        assert_eq!(Seal::parse(body, 80_008), None);
        assert_eq!(
            Seal::offset_from_trailer(frame.last_chunk().unwrap()),
            Some(80_000),
            "the trailer is the end of the file"
        );
    }

    #[test]
    fn sieves_read_back() {
        let sieve = Sieve {
            original_end: 9000,
            original_last: 14,
            first: 12,
            last: 14,
            own_end: 5000,
            lost: true,
            run: vec![RunRow { segment_id: 5, file_id: 1 }, RunRow { segment_id: 7, file_id: 2 }],
            planes: planes(),
        };
        assert_eq!(Sieve::parse(&sieve.encode()), Some(sieve.clone()));
        let backwards = Sieve {
            run: vec![RunRow { segment_id: 7, file_id: 1 }, RunRow { segment_id: 5, file_id: 2 }],
            ..sieve
        };
        assert_eq!(Sieve::parse(&backwards.encode()), None);
    }

    #[test]
    fn an_index_stays_bounded_and_finds_the_frame_before() {
        let mut index = SparseIndex::default();
        for frame in 0..100_000_u64 {
            index.add(frame * 10 + 1, 4096 + frame * 5000);
        }
        assert!(index.rows.len() <= SparseIndex::ROWS);
        let row = index.find(500_000).unwrap();
        assert!(row.lsn <= 500_000 && 500_000 - row.lsn < 10 * 2 * index.spacing / 5000 + 20);
        assert_eq!(index.find(0), None);
    }
}
