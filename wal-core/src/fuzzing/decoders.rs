//! The decoders alone, and the walk over one segment.

use std::io;
use std::sync::{Arc, OnceLock};

use super::{Choices, Scene, sample};
use crate::control::Slot;
use crate::frame::{
    BODY_BYTES_MAX, FrameHeader, FrameKind, HEADER_BYTES, HeaderCheck, RawRecords, Salt, records_check,
};
use crate::scan::{SCAN_CHUNK_BYTES, SEEK_CHUNK_BYTES, Step, Walk, Window, read_seal};
use crate::segment::{HEADER_PAGE_BYTES, HeaderPage, Link, Seal, SegmentHeader, Sieve};
use crate::storage::{Allocation, StorageFile};
use crate::wire::crc;
use crate::{Cursor, SegmentId};

/// Every decoder on the same bytes: as they are, and with the checks made right, so that what lies
/// behind a CRC is reached too.
pub fn frame_parser(data: &[u8]) {
    let mut choices = Choices::new(data);
    let place = Place::new([choices.u8(); 16], 1, choices.u8().into());
    let salt = place.salt;
    let offset = choices.u64();
    let bytes = choices.bytes;
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        check_header(salt, offset, header);
        let mut right = *header;
        place.make_right(offset & !7, &mut right);
        check_header(salt, offset & !7, &right);
    }
    let mut records = RawRecords::new(bytes);
    let count = records.by_ref().count();
    assert!(count <= bytes.len() / 3, "a record takes three bytes at least");
    if records.remaining() > 0 {
        assert!(!records_check(bytes, count as u32, true), "bytes behind the last record");
    }
    bodies(bytes, offset);
    pages(bytes);
    assert!(crate::hold::section_has_one_form(bytes), "durable holds have one form");
    if let Some(cursor) = Cursor::from_bytes(bytes) {
        assert_eq!(cursor.to_bytes(), bytes, "a cursor has one form");
    }
}

/// A file that frames belong to.
#[derive(Debug, Clone, Copy)]
struct Place {
    salt: Salt,
    /// The same as a number: see "salt" in `docs/format.md`.
    seed: u32,
}

impl Place {
    fn new(log_id: [u8; 16], segment_id: u64, file_id: u64) -> Place {
        let seed = crc(crc(crc(0, &log_id), &segment_id.to_le_bytes()), &file_id.to_le_bytes());
        Place { salt: Salt::new(log_id, segment_id, file_id), seed }
    }

    /// Makes the CRC of a frame header right.
    fn make_right(self, offset: u64, header: &mut [u8]) {
        let check = crc(crc(self.seed, &offset.to_le_bytes()), &header[4..HEADER_BYTES]);
        header[..4].copy_from_slice(&check.to_le_bytes());
    }
}

fn check_header(salt: Salt, offset: u64, header: &[u8; HEADER_BYTES]) {
    if let HeaderCheck::Valid(header) = FrameHeader::check(salt, offset, header) {
        assert!(header.body_bytes() <= BODY_BYTES_MAX);
        assert!(header.durable() < header.first_lsn);
        assert!(header.next_lsn() >= header.first_lsn);
        assert!(header.frame_bytes().is_multiple_of(8));
    }
}

/// What is understood is written back the same.
fn bodies(bytes: &[u8], offset: u64) {
    if let Some(link) = Link::parse(bytes) {
        assert_eq!(link.encode(), bytes);
    }
    if let Some(sieve) = Sieve::parse(bytes) {
        assert_eq!(sieve.encode(), bytes);
    }
    for at in [offset, u64::from(u32::MAX) * 8] {
        if let Some(seal) = Seal::parse(bytes, at) {
            let frame = seal.frame(Salt::new([1; 16], 1, 1), at, 0);
            assert_eq!(&frame[HEADER_BYTES..HEADER_BYTES + bytes.len()], bytes);
        }
    }
}

fn pages(bytes: &[u8]) {
    assert!(!matches!(SegmentHeader::check(&bytes[..bytes.len().min(4095)]), HeaderPage::Valid(_)));
    for number in 0..2 {
        let _ = Slot::check(bytes, number);
    }
    let mut page = vec![0; 4092];
    page[..8].copy_from_slice(b"PLANEWAL");
    page[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 16, 0, 0]);
    for (place, byte) in page.iter_mut().skip(16).zip(bytes) {
        *place = *byte;
    }
    let check = crc(0, &page);
    page.extend(check.to_le_bytes());
    if let HeaderPage::Valid(header) = SegmentHeader::check(&page) {
        // Compatible features are not kept: a reader does not write them back.
        assert_eq!(header.encode()[28..4092], page[28..4092]);
    }
    let slot = right_slot(bytes);
    if let Slot::Valid { generation, state } = Slot::check(&slot, 0) {
        // Fields of a clean close that is not flagged are not kept, so not every byte comes back.
        let again = Slot::check(&state.encode(0, generation), 0);
        assert_eq!(again, Slot::Valid { generation, state }, "a slot reads back");
    }
}

/// A slot with magic, version, length and CRC right, whatever else.
fn right_slot(bytes: &[u8]) -> Vec<u8> {
    let mut slot = b"PLANECTL\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    let length = (28 + bytes.len()).div_ceil(8) * 8;
    slot.extend((length as u32).to_le_bytes());
    slot.extend([0; 4]);
    slot.extend_from_slice(bytes);
    slot.resize(length, 0);
    let check = crc(0, &slot[12..]);
    slot[8..12].copy_from_slice(&check.to_le_bytes());
    slot
}

/// A file of some bytes.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl StorageFile for Bytes {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|from| self.0.get(from..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
        panic!("a scan never writes")
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        panic!("a scan never writes")
    }

    fn allocate(&self, _: u64, _: u64, _: Allocation) -> io::Result<Allocation> {
        panic!("a scan never writes")
    }

    fn sync(&self) -> io::Result<()> {
        panic!("a scan never writes")
    }
}

/// A walk over a segment of any bytes: a sound one with changes, or what the data says.
pub fn segment_scan(data: &[u8]) {
    static SOUND: OnceLock<(Vec<u8>, Place)> = OnceLock::new();
    let (sound, place) = SOUND.get_or_init(|| {
        let bytes = sample(Scene::Closed, 3).storage.read(&SegmentId::new(2).unwrap().file_name()).unwrap();
        let HeaderPage::Valid(header) = SegmentHeader::check(&bytes) else { panic!("a segment") };
        (bytes, Place::new(header.log_id, header.segment_id, header.file_id))
    });
    let mut choices = Choices::new(data);
    let mode = choices.u8();
    let due = u64::from(choices.u8());
    let bytes = if mode & 1 == 0 { choices.bytes.to_vec() } else { changed(sound, *place, &mut choices) };
    let start = if mode & 2 == 0 { HEADER_PAGE_BYTES } else { u64::from(mode) };
    walk(bytes, place.salt, start, due, mode & 4 != 0);
}

fn changed(sound: &[u8], place: Place, choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    while !choices.is_empty() {
        let length = bytes.len() as u64;
        match choices.u8() % 5 {
            0 => {
                let at = choices.below(length) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= choices.u8();
                }
            }
            1 => bytes.truncate(choices.below(length) as usize),
            2 => {
                let (from, count) = (choices.below(length) as usize, usize::from(choices.u16()));
                bytes.iter_mut().skip(from).take(count).for_each(|byte| *byte = 0);
            }
            3 => {
                let (from, count) = (choices.below(length) as usize, usize::from(choices.u16()));
                let repeated: Vec<u8> = bytes.iter().copied().skip(from).take(count).collect();
                bytes.truncate(1 << 16);
                bytes.extend(repeated);
            }
            // A frame header with the right CRC, and anything behind it.
            _ => {
                let at = choices.below(length) as usize & !7;
                let fields = choices.take(HEADER_BYTES - 4);
                if let Some(header) = bytes.get_mut(at..at + HEADER_BYTES) {
                    header[4..4 + fields.len()].copy_from_slice(fields);
                    place.make_right(at as u64, header);
                }
            }
        }
    }
    bytes
}

fn walk(bytes: Vec<u8>, salt: Salt, start: u64, mut due: u64, sieved: bool) {
    let length = bytes.len() as u64;
    let file: Arc<dyn StorageFile> = Arc::new(Bytes(bytes));
    let chunk = if sieved { SEEK_CHUNK_BYTES } else { SCAN_CHUNK_BYTES };
    let mut walk = Walk::new(Window::new(Arc::clone(&file), length, chunk), salt, start);
    walk.sieved = sieved;
    let mut steps = 0;
    loop {
        steps += 1;
        assert!(steps <= 2 * length / 8 + 2, "a walk gets on by eight bytes at least");
        let before = walk.offset;
        match walk.step(due) {
            Step::Frame(frame) => {
                assert_eq!((frame.offset, walk.offset), (before, frame.end()));
                assert!(frame.end() <= length && frame.end() >= before + HEADER_BYTES as u64);
                assert!(frame.header.first_lsn == due || sieved && frame.header.first_lsn > due);
                assert_eq!(walk.body().len() as u64, frame.header.body_bytes());
                if frame.header.kind == FrameKind::Records {
                    assert_eq!(RawRecords::new(walk.body()).count(), frame.header.records as usize);
                }
                due = frame.header.next_lsn();
            }
            Step::Stop(stop) => {
                assert_eq!(walk.offset, before, "a walk does not move where it stops");
                assert!(walk.body().is_empty());
                let from = stop.claimed_end.filter(|&end| end <= length).unwrap_or(before + 8);
                let sighting = walk.search(from, due).unwrap();
                let Some(frame) = sighting.frame else { break };
                assert!(frame.offset >= from && frame.offset.is_multiple_of(8));
                assert!(frame.header.first_lsn >= due, "a sighting is of what is due, or later");
                assert!(frame.end() <= length);
                due = frame.header.first_lsn;
                walk.offset = frame.offset;
            }
        }
    }
    for end in [0, start, length.saturating_sub(8), length, u64::MAX - 7] {
        let _ = read_seal(&file, salt, end).unwrap();
    }
}
