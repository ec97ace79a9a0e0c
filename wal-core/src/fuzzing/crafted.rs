//! What core reads and does not write yet, or not at a foreseeable moment: stand-ins, sections, beacons.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::control::{CONTROL_NAME, ControlFile, ControlState, Section, Slots};
use crate::frame::{FrameDraft, FrameKind, RawRecords, Salt, frame_bytes, put_record};
use crate::scan::{SCAN_CHUNK_BYTES, Step, Walk, Window};
use crate::segment::{
    HEADER_PAGE_BYTES, HeaderPage, LINK_FRAME_BYTES, Link, PlaneTable, RunRow, SegmentHeader, Sieve,
};
use crate::storage::{Access, MemStorage, Storage};
use crate::{Lsn, SegmentId};

/// What is read of a segment of the run.
struct Original {
    header: SegmentHeader,
    link: Link,
    /// First LSN and body.
    frames: Vec<(u64, Vec<u8>)>,
    end: u64,
    last: u64,
}

fn read_original(storage: &MemStorage, id: u64) -> Original {
    let name = SegmentId::new(id).unwrap().file_name();
    let bytes = storage.read(&name).unwrap();
    let HeaderPage::Valid(header) = SegmentHeader::check(&bytes) else { panic!("{name} is no segment") };
    let file = Arc::from(storage.open(&name, Access::Read).unwrap());
    let window = Window::new(file, bytes.len() as u64, SCAN_CHUNK_BYTES);
    let mut walk = Walk::new(window, header.salt(), HEADER_PAGE_BYTES);
    let frame = walk.frame_at(HEADER_PAGE_BYTES).unwrap();
    let link = Link::parse(walk.body()).unwrap();
    walk.offset = frame.end();
    let (mut frames, mut end, mut due) = (Vec::new(), walk.offset, link.base);
    while let Step::Frame(frame) = walk.step(due) {
        match frame.header.kind {
            FrameKind::Seal => break,
            FrameKind::Records => frames.push((due, walk.body().to_vec())),
            _ => {}
        }
        (due, end) = (frame.header.next_lsn(), frame.end());
    }
    Original { header, link, frames, end, last: due - 1 }
}

/// Replaces the segments `first` to `last` of a closed log by one stand-in with the records that `keep`
/// (of LSN and plane) is true for; answers their LSNs.
///
/// # Panics
/// If those are not whole segments of the log.
pub fn sieved_log(
    storage: &MemStorage,
    first: u64,
    last: u64,
    keep: impl Fn(u64, u8) -> bool,
) -> BTreeSet<u64> {
    let originals: Vec<Original> = (first..=last).map(|id| read_original(storage, id)).collect();
    let (head, newest) = (originals.first().unwrap(), originals.last().unwrap());
    let file_id = newest.header.file_id ^ 0x5111_5111;
    let header = SegmentHeader { file_id, ..newest.header.clone() };
    let salt = header.salt();

    let (mut kept, mut planes, mut frames) = (BTreeSet::new(), PlaneTable::default(), Vec::new());
    for (lsn, body) in originals.iter().flat_map(|original| &original.frames) {
        let (mut sieved, mut records, mut any) = (Vec::new(), 0, false);
        for (lsn, record) in (*lsn..).zip(RawRecords::new(body)) {
            let stays = keep(lsn, record.plane);
            let (plane, kind, payload) =
                if stays { (record.plane, record.kind, record.payload) } else { (0, 0, &[][..]) };
            let length_at = put_record(&mut sieved, plane, kind, payload, payload.len() as u32);
            sieved[length_at] |= u8::from(record.ends_batch);
            records += 1;
            any |= stays;
            if stays {
                let lsn = Lsn::new(lsn).unwrap();
                planes.add(plane, 1, lsn, lsn);
                kept.insert(lsn.number());
            }
        }
        if any {
            frames.push((*lsn, records, sieved));
        }
    }

    let mut sieve = Sieve {
        original_end: newest.end,
        original_last: newest.last,
        first: head.link.base,
        last: newest.last,
        own_end: 0,
        lost: false,
        run: originals
            .iter()
            .map(|original| RunRow {
                segment_id: original.header.segment_id,
                file_id: original.header.file_id,
            })
            .collect(),
        planes,
    };
    let records: u64 = frames.iter().map(|(_, _, body)| frame_bytes(body.len() as u64)).sum();
    sieve.own_end = HEADER_PAGE_BYTES + frame_bytes(sieve.encode().len() as u64) + LINK_FRAME_BYTES + records;
    let bytes = stand_in(&header, salt, &sieve, &head.link, &frames);
    assert_eq!(bytes.len() as u64, sieve.own_end);
    forget_begun(storage, first, last);
    for id in first..=last {
        storage.remove_file(&SegmentId::new(id).unwrap().file_name());
    }
    storage.write(&SegmentId::new(last).unwrap().file_name(), &bytes);
    kept
}

/// The control file names files by their ids: those of the run are about to go.
fn forget_begun(storage: &MemStorage, first: u64, last: u64) {
    change_control(storage, |state| {
        state.begun.retain(|row| !(first..=last).contains(&row.file.segment_id));
    });
}

fn change_control(storage: &MemStorage, change: impl FnOnce(&mut ControlState)) {
    let slots = Slots::read(&*storage.open(CONTROL_NAME, Access::Read).unwrap()).unwrap();
    let (_, state) = slots.newest().unwrap();
    let mut state = state.clone();
    change(&mut state);
    ControlFile::open(storage, &slots, state).unwrap().write_both().unwrap();
}

/// Takes the segments below `id` away from a closed log; answers the LSN that it begins with then.
///
/// # Panics
/// If there is no such segment.
pub fn retire_head(storage: &MemStorage, id: u64) -> Lsn {
    let base = read_original(storage, id).link.base;
    change_control(storage, |state| (state.first_kept, state.base) = (id, base));
    for below in 1..id {
        storage.remove_file(&SegmentId::new(below).unwrap().file_name());
    }
    Lsn::new(base).unwrap()
}

/// Puts a section into both control slots, as an upper crate does.
///
/// # Panics
/// If there is no control file that checks.
pub fn add_section(storage: &MemStorage, tag: u32, bytes: &[u8]) {
    change_control(storage, |state| state.sections.push(Section { tag, bytes: bytes.to_vec() }));
}

/// Writes a beacon behind the last frame of an unsealed segment, which says that all of it is durable.
///
/// # Panics
/// If there is no such segment.
pub fn add_beacon(storage: &MemStorage, id: u64) {
    let original = read_original(storage, id);
    let (first_lsn, durable) = (original.last + 1, original.last);
    let draft = FrameDraft { kind: FrameKind::Beacon, first_lsn, records: 0, durable };
    let frame = draft.frame(original.header.salt(), original.end, &[]);
    let name = SegmentId::new(id).unwrap().file_name();
    let mut bytes = storage.read(&name).unwrap();
    let end = original.end as usize;
    bytes.resize(bytes.len().max(end + frame.len()), 0);
    bytes[end..end + frame.len()].copy_from_slice(&frame);
    storage.write(&name, &bytes);
}

fn stand_in(
    header: &SegmentHeader,
    salt: Salt,
    sieve: &Sieve,
    link: &Link,
    frames: &[(u64, u32, Vec<u8>)],
) -> Vec<u8> {
    let mut bytes = header.encode();
    let durable = sieve.last;
    let draft = FrameDraft { kind: FrameKind::Sieve, first_lsn: link.base, records: 0, durable };
    bytes.extend(draft.frame(salt, bytes.len() as u64, &sieve.encode()));
    bytes.extend(link.frame(salt, bytes.len() as u64, durable));
    for (first_lsn, records, body) in frames {
        let draft =
            FrameDraft { kind: FrameKind::Records, first_lsn: *first_lsn, records: *records, durable };
        bytes.extend(draft.frame(salt, bytes.len() as u64, body));
    }
    bytes
}
