//! Frames: how one group of batches, or one piece of the log's own bookkeeping, lies in a segment.
//!
//! ```text
//! offset size
//!      0    4  header CRC: crc(salt, frame offset as u64 ++ bytes 4..32)
//!      4    4  body length, without padding
//!      8    8  first LSN; of a frame without records: the next LSN
//!     16    4  body CRC: crc(salt, body ++ padding); of a pad: 0
//!     20    4  record count
//!     24    4  durable lag: first LSN - 1 - durable LSN; all ones says nothing
//!     28    1  kind: 1 records, 2 link, 3 seal, 5 beacon, 6 sieve, 7 pad, 0x80.. ancillary
//!     29    1  flags
//!     30    2  reserved
//!     32       body, zero padding to a multiple of 8
//! ```
//!
//! A body of kind 1 holds records: plane `u8`, kind `u8`, varint of (payload length x 2 + 1 if the
//! record ends its batch), payload.
//!
//! A frame is valid if and only if:
//!
//! * F1  its offset is a multiple of 8 and its 32 bytes lie in the file;
//! * F2  the header CRC is right;
//! * F3  the reserved bytes are zero;
//! * F4  kind and flags are known, or the kind is ancillary;
//! * F5  the body length is within the bound and, padded, within the file;
//! * F6  the body CRC is right;
//! * F7  the record count is 1 or more for kind 1 and 0 otherwise, and the body parses to exactly
//!   that many records, the last of which ends a batch;
//! * F8  the LSNs are LSNs, and the durable lag is less than the first, or all ones.
//!
//! The CRC of the header makes the length worth trusting before anything is read or allocated by it,
//! and separates "a damaged body, the next frame can be reached" from "framing is lost". Offset and
//! salt in it tie a frame to its place in its file: moved, foreign and stale bytes, and bytes inside
//! a payload, do not check.

use crate::lsn::Lsn;
use crate::wire::{Cursor, crc, len64, padded, put_varint32, varint32_bytes};

/// Bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = 32;

/// Largest payload of one record: 1 GiB.
pub(crate) const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Largest body of a frame. The room above the largest payload is for the heads of a batch.
pub(crate) const BODY_BYTES_MAX: u64 = PAYLOAD_BYTES_MAX + (64 << 20);

/// Segment files stay below this, so that two frame offsets differ in at most 32 neighbouring bits,
/// which a CRC-32 is certain to see.
pub(crate) const SEGMENT_BYTES_END: u64 = 1 << 32;

/// A lag that says nothing.
const LAG_UNKNOWN: u32 = u32::MAX;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8));
const _: () = assert!(BODY_BYTES_MAX * 2 < SEGMENT_BYTES_END);
const _: () =
    assert!(PAYLOAD_BYTES_MAX * 2 < u32::MAX as u64, "a record's length field is a varint of 32 bits");

/// What ties the frames of a file to it: a CRC over log id, segment id and file id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Salt(u32);

impl Salt {
    pub(crate) fn new(log_id: [u8; 16], segment_id: u64, file_id: u64) -> Salt {
        let seed = crc(0, &log_id);
        let seed = crc(seed, &segment_id.to_le_bytes());
        Salt(crc(seed, &file_id.to_le_bytes()))
    }
}

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Records,
    Link,
    Seal,
    Beacon,
    Sieve,
    Pad,
    /// A kind of a later version that readers may skip.
    Ancillary(u8),
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        match byte {
            1 => Some(FrameKind::Records),
            2 => Some(FrameKind::Link),
            3 => Some(FrameKind::Seal),
            5 => Some(FrameKind::Beacon),
            6 => Some(FrameKind::Sieve),
            7 => Some(FrameKind::Pad),
            0x80.. => Some(FrameKind::Ancillary(byte)),
            _ => None,
        }
    }

    const fn byte(self) -> u8 {
        match self {
            FrameKind::Records => 1,
            FrameKind::Link => 2,
            FrameKind::Seal => 3,
            FrameKind::Beacon => 5,
            FrameKind::Sieve => 6,
            FrameKind::Pad => 7,
            FrameKind::Ancillary(byte) => byte,
        }
    }
}

/// A header whose CRC, kind and reserved bytes were found right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    pub(crate) first_lsn: u64,
    pub(crate) records: u32,
    body_bytes: u32,
    body_crc: u32,
    lag: u32,
}

/// What 32 bytes turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderCheck {
    /// F2, F3, F4, F8 and the absolute bound of F5 hold.
    Valid(FrameHeader),
    /// F2 holds, F3 or F4 does not: written by a later version.
    Newer,
    /// F2 to F4 hold, and the fields contradict each other: no torn write does that.
    Contradictory,
    Invalid,
}

impl FrameHeader {
    /// Checks the 32 bytes at `offset` of the file that `salt` belongs to.
    pub(crate) fn check(salt: Salt, offset: u64, bytes: &[u8; HEADER_BYTES]) -> HeaderCheck {
        FrameHeader::parse(salt, offset, bytes).unwrap_or(HeaderCheck::Invalid)
    }

    fn parse(salt: Salt, offset: u64, bytes: &[u8; HEADER_BYTES]) -> Option<HeaderCheck> {
        let mut cursor = Cursor::new(bytes);
        let header_crc = cursor.u32()?;
        if !offset.is_multiple_of(8) || header_crc != header_crc_of(salt, offset, bytes) {
            return None;
        }
        let body_bytes = cursor.u32()?;
        let first_lsn = cursor.u64()?;
        let body_crc = cursor.u32()?;
        let records = cursor.u32()?;
        let lag = cursor.u32()?;
        let kind = cursor.u8()?;
        let flags = cursor.u8()?;
        let reserved = cursor.array::<2>()?;
        let Some(kind) = FrameKind::from_byte(kind) else {
            return Some(HeaderCheck::Newer);
        };
        if reserved != [0; 2] || (flags != 0 && !matches!(kind, FrameKind::Ancillary(_))) {
            return Some(HeaderCheck::Newer);
        }
        let counted = (kind == FrameKind::Records) == (records > 0);
        let lag_fits = lag == LAG_UNKNOWN || u64::from(lag) < first_lsn;
        let lsns_fit = first_lsn != 0
            && first_lsn.checked_add(u64::from(records)).is_some_and(|next| next <= Lsn::MAX_NUMBER);
        if !counted || !lag_fits || !lsns_fit || u64::from(body_bytes) > BODY_BYTES_MAX {
            return Some(HeaderCheck::Contradictory);
        }
        Some(HeaderCheck::Valid(FrameHeader { kind, first_lsn, records, body_bytes, body_crc, lag }))
    }

    /// The durable LSN that this frame testifies to; 0 if none.
    pub(crate) fn durable(&self) -> u64 {
        if self.lag == LAG_UNKNOWN { 0 } else { self.first_lsn - 1 - u64::from(self.lag) }
    }

    /// The LSN that is due after this frame.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.records)
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        u64::from(self.body_bytes)
    }

    /// Bytes that the frame takes in the file: header, body and padding.
    pub(crate) fn frame_bytes(&self) -> u64 {
        frame_bytes(self.body_bytes())
    }

    /// F6: whether `body`, padding included, has the CRC that the header states.
    pub(crate) fn body_checks(&self, salt: Salt, padded_body: &[u8]) -> bool {
        match self.kind {
            FrameKind::Pad => self.body_crc == 0,
            _ => self.body_crc == crc(salt.0, padded_body),
        }
    }
}

/// Bytes that a frame with a body of `body_bytes` takes in the file.
pub(crate) const fn frame_bytes(body_bytes: u64) -> u64 {
    HEADER_BYTES as u64 + padded(body_bytes)
}

fn header_crc_of(salt: Salt, offset: u64, header: &[u8; HEADER_BYTES]) -> u32 {
    let seed = crc(salt.0, &offset.to_le_bytes());
    crc(seed, header.get(4..).unwrap_or_default())
}

/// What a frame is to say, apart from its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameDraft {
    pub(crate) kind: FrameKind,
    pub(crate) first_lsn: u64,
    pub(crate) records: u32,
    /// The durable LSN at this moment.
    pub(crate) durable: u64,
}

impl FrameDraft {
    /// Closes the frame that begins with `frame`: its header's 32 bytes, body and padding already in
    /// place, `body_bytes` of it body. Writes the header.
    pub(crate) fn close(&self, salt: Salt, offset: u64, frame: &mut [u8], body_bytes: u64) {
        debug_assert_eq!(len64(frame.len()), frame_bytes(body_bytes), "a frame is closed with its padding");
        let Some((header, body)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else {
            unreachable!("a frame has a header");
        };
        *header = self.header(salt, offset, body_bytes, crc(salt.0, body));
    }

    /// The header and the padding that go around a body which lies elsewhere.
    pub(crate) fn around(&self, salt: Salt, offset: u64, body: &[u8]) -> ([u8; HEADER_BYTES], &'static [u8]) {
        const ZEROS: [u8; 8] = [0; 8];
        let body_bytes = len64(body.len());
        let padding = crate::wire::len_usize(padded(body_bytes) - body_bytes);
        let padding = ZEROS.get(..padding).unwrap_or_default();
        (self.header(salt, offset, body_bytes, crc(crc(salt.0, body), padding)), padding)
    }

    fn header(&self, salt: Salt, offset: u64, body_bytes: u64, body_crc: u32) -> [u8; HEADER_BYTES] {
        let lag = (self.first_lsn - 1).saturating_sub(self.durable);
        let lag = u32::try_from(lag).unwrap_or(LAG_UNKNOWN);
        let body_crc = if self.kind == FrameKind::Pad { 0 } else { body_crc };
        let length = u32::try_from(body_bytes).unwrap_or(u32::MAX);
        let mut header = [0_u8; HEADER_BYTES];
        let fields: [&[u8]; 6] = [
            &length.to_le_bytes(),
            &self.first_lsn.to_le_bytes(),
            &body_crc.to_le_bytes(),
            &self.records.to_le_bytes(),
            &lag.to_le_bytes(),
            &[self.kind.byte(), 0],
        ];
        for (place, byte) in header.iter_mut().skip(4).zip(fields.iter().copied().flatten()) {
            *place = *byte;
        }
        let check = header_crc_of(salt, offset, &header);
        for (place, byte) in header.iter_mut().zip(check.to_le_bytes()) {
            *place = byte;
        }
        header
    }

    /// A whole small frame around `body`.
    pub(crate) fn frame(&self, salt: Salt, offset: u64, body: &[u8]) -> Vec<u8> {
        let body_bytes = len64(body.len());
        let mut frame = vec![0; HEADER_BYTES];
        frame.extend_from_slice(body);
        frame.resize(crate::wire::len_usize(frame_bytes(body_bytes)), 0);
        self.close(salt, offset, &mut frame, body_bytes);
        frame
    }
}

/// One record as it lies in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawRecord<'a> {
    pub(crate) plane: u8,
    pub(crate) kind: u8,
    pub(crate) ends_batch: bool,
    pub(crate) payload: &'a [u8],
}

impl RawRecord<'_> {
    /// Whether this stands where a sieve dropped a record.
    pub(crate) fn is_stub(&self) -> bool {
        self.plane == 0
    }
}

/// The records of a body, in order. Ends early, with `None`, where bytes are no record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRecords<'a> {
    cursor: Cursor<'a>,
}

impl<'a> RawRecords<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        RawRecords { cursor: Cursor::new(body) }
    }

    /// Bytes not yet read.
    pub(crate) fn remaining(&self) -> usize {
        self.cursor.remaining()
    }
}

impl<'a> Iterator for RawRecords<'a> {
    type Item = RawRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<RawRecord<'a>> {
        // The position moves only over whole records, so that what remains tells whether all were.
        let mut cursor = self.cursor;
        let plane = cursor.u8()?;
        let kind = cursor.u8()?;
        let length = cursor.varint32()?;
        let payload = cursor.bytes(usize::try_from(length >> 1).ok()?)?;
        let stub = plane == 0 && kind == 0 && payload.is_empty();
        let real = plane != 0 && kind != 0 && u64::from(length >> 1) <= PAYLOAD_BYTES_MAX;
        if !stub && !real {
            return None;
        }
        self.cursor = cursor;
        Some(RawRecord { plane, kind, ends_batch: length & 1 == 1, payload })
    }
}

/// F7: whether `body` is exactly `count` records, the last of which ends a batch; stubs only where
/// they may be.
pub(crate) fn records_check(body: &[u8], count: u32, stubs: bool) -> bool {
    let mut records = RawRecords::new(body);
    let mut seen: u32 = 0;
    let mut ends = false;
    for record in records.by_ref() {
        if record.is_stub() && !stubs {
            return false;
        }
        seen = seen.saturating_add(1);
        ends = record.ends_batch;
    }
    records.remaining() == 0 && seen == count && ends
}

/// Appends a record's head and payload to a body; answers where its length field begins.
#[inline]
pub(crate) fn put_record(
    body: &mut Vec<u8>,
    plane: u8,
    kind: u8,
    payload: &[u8],
    payload_bytes: u32,
) -> usize {
    body.push(plane);
    body.push(kind);
    let length_at = body.len();
    put_varint32(body, payload_bytes << 1);
    body.extend_from_slice(payload);
    length_at
}

/// Bytes of a record with its head.
pub(crate) const fn record_bytes(payload_bytes: u32) -> u64 {
    2 + varint32_bytes(payload_bytes << 1 | 1) as u64 + payload_bytes as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    const SALT: Salt = Salt(0x1234_5678);

    fn frame(offset: u64) -> Vec<u8> {
        let mut body = Vec::new();
        let at = put_record(&mut body, 0x80, 1, b"hello", 5);
        body[at] |= 1;
        FrameDraft { kind: FrameKind::Records, first_lsn: 10, records: 1, durable: 7 }
            .frame(SALT, offset, &body)
    }

    fn header(bytes: &[u8]) -> &[u8; 32] {
        bytes.first_chunk().unwrap()
    }

    #[test]
    fn a_frame_reads_back() {
        let frame = frame(4096);
        let HeaderCheck::Valid(header) = FrameHeader::check(SALT, 4096, header(&frame)) else {
            panic!("valid")
        };
        assert_eq!((header.first_lsn, header.records, header.durable(), header.next_lsn()), (10, 1, 7, 11));
        assert_eq!(header.frame_bytes(), len64(frame.len()));
        assert!(header.body_checks(SALT, &frame[32..]));
        assert!(records_check(&frame[32..32 + 8], 1, false));
    }

    #[test]
    fn a_frame_checks_only_in_its_place_and_its_file() {
        let frame = frame(4096);
        assert_eq!(FrameHeader::check(SALT, 4104, header(&frame)), HeaderCheck::Invalid);
        assert_eq!(FrameHeader::check(Salt(1), 4096, header(&frame)), HeaderCheck::Invalid);
    }

    #[test]
    fn no_flipped_bit_of_a_frame_goes_unseen() {
        let whole = frame(4096);
        for bit in 0..whole.len() * 8 {
            let mut frame = whole.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let seen = match FrameHeader::check(SALT, 4096, header(&frame)) {
                HeaderCheck::Valid(header) => !header.body_checks(SALT, &frame[32..]),
                _ => true,
            };
            assert!(seen, "bit {bit}");
        }
    }

    #[test]
    fn heads_take_three_and_four_bytes() {
        assert_eq!(
            (record_bytes(0), record_bytes(63), record_bytes(64), record_bytes(8191)),
            (3, 66, 68, 8195)
        );
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert!(!records_check(&[], 0, false), "a body of records has at least one");
        assert!(!records_check(&[0x80, 1, 0], 1, false), "a batch that never ends");
        assert!(!records_check(&[0x80, 1, 1, 9], 1, false), "a trailing byte");
        assert!(!records_check(&[0x80, 0, 1], 1, false), "kind 0");
        assert!(!records_check(&[0, 0, 1], 1, false), "a stub outside a sieve");
        assert!(records_check(&[0, 0, 1], 1, true));
        assert!(!records_check(&[0x80, 1, 0xff, 0xff, 0xff, 0xff, 0x0f], 1, false), "longer than the body");
    }
}
