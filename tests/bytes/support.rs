//! Logs to damage, and a second reading of format 1: written from `docs/format.md` alone, so that it
//! does not share a mistake with the code that it tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use planewal::storage::{MemStorage, Storage};
use planewal::{Finding, Lsn, OpenError, Options, ReadError, Reader, View, Wal};
use planewal_core::fuzzing;

pub(crate) const CONTROL: &str = "planewal.ctl";
pub(crate) const SLOT: usize = 65_536;

/// Whether to take the time for every case instead of a sample of them.
pub(crate) fn long() -> bool {
    std::env::var_os("PLANEWAL_LONG").is_some()
}

/// Every `n`th case, or all of them.
pub(crate) fn stride(n: usize) -> usize {
    if long() { 1 } else { n }
}

pub(crate) fn segment(id: u64) -> String {
    format!("{id:020}.wal")
}

pub(crate) fn options() -> Options {
    fuzzing::options()
}

/// The payload of the record with this LSN in the logs made here.
pub(crate) fn payload(lsn: u64) -> Vec<u8> {
    format!("record number {lsn:06}").into_bytes()
}

pub(crate) fn open(storage: &MemStorage) -> Wal {
    open_with(storage, options())
}

pub(crate) fn open_with(storage: &MemStorage, options: Options) -> Wal {
    Wal::open_on(Arc::new(storage.clone()), options).unwrap()
}

/// Appends records one by one, synced.
pub(crate) fn append(wal: &Wal, count: u64) {
    for _ in 0..count {
        let lsn = wal.next();
        assert_eq!(wal.append(0x80, 1, &payload(lsn.number())).unwrap(), lsn);
    }
}

/// A log with segments of so many records, appended one by one and synced; not closed.
pub(crate) fn unclean(segments: &[u64]) -> MemStorage {
    build(7, segments, false)
}

/// The same, closed.
pub(crate) fn closed(segments: &[u64]) -> MemStorage {
    build(7, segments, true)
}

pub(crate) fn build(seed: u64, segments: &[u64], close: bool) -> MemStorage {
    let storage = MemStorage::new(seed);
    let wal = open_with(&storage, Options { segment_bytes: 1 << 20, ..options() });
    for (at, &count) in segments.iter().enumerate() {
        if at > 0 {
            wal.rotate().unwrap();
        }
        append(&wal, count);
    }
    if close {
        wal.close().unwrap();
    }
    drop(wal);
    // What another process finds after this one died.
    storage.fork_live()
}

/// Makes a copy of a machine draw other random numbers than the original.
pub(crate) fn another_machine(storage: &MemStorage) {
    Storage::random(storage, &mut [0; 24]).unwrap();
}

pub(crate) fn view(storage: &MemStorage) -> View {
    View::open_on(Arc::new(storage.clone())).unwrap()
}

/// All files but the lock, with their bytes; `None` for what is not a file.
pub(crate) fn contents(storage: &MemStorage) -> BTreeMap<String, Option<Vec<u8>>> {
    let names = storage.names().into_iter().filter(|name| name != "planewal.lock");
    names.map(|name| (name.clone(), storage.read(&name))).collect()
}

/// The finding that a writing open refuses, which has to be the view's, and to have changed nothing.
#[track_caller]
pub(crate) fn refusal(storage: &MemStorage) -> Finding {
    let before = contents(storage);
    let finding = quick_refusal(storage).expect("a writing open has to refuse");
    assert_eq!(before, contents(storage), "a refusal changes no byte");
    finding
}

/// The same, without looking at every byte; `None` if the log opens.
#[track_caller]
pub(crate) fn quick_refusal(storage: &MemStorage) -> Option<Finding> {
    let view = view(storage);
    let refused = view.report().findings.iter().find(|finding| !finding.harmless);
    match (Wal::open_on(Arc::new(storage.clone()), options()), refused) {
        (Err(OpenError::Refused { finding, .. }), Some(refused)) => {
            assert_eq!(*finding, *refused, "view and open agree");
            assert_eq!(view.report().verdict, finding.verdict);
            Some(*finding)
        }
        (Ok(_), None) => None,
        (opened, refused) => panic!("open says {:?}, the view {refused:?}", opened.map(|_| "yes")),
    }
}

/// What a reader told, to its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) records: Vec<(u64, Vec<u8>)>,
    pub(crate) lost: Vec<(u64, u64)>,
    pub(crate) not_kept: Vec<(u64, u64)>,
    pub(crate) broken: Option<Box<Finding>>,
}

impl Reading {
    pub(crate) fn lsns(&self) -> Vec<u64> {
        self.records.iter().map(|(lsn, _)| *lsn).collect()
    }

    /// Every record is the one that was appended with its LSN.
    #[track_caller]
    pub(crate) fn check(&self) {
        for (lsn, bytes) in &self.records {
            assert_eq!(*bytes, payload(*lsn), "LSN {lsn} was never appended like this");
        }
    }
}

pub(crate) fn read(mut reader: Reader) -> Reading {
    let mut reading = Reading::default();
    loop {
        match reader.next() {
            Ok(Some(record)) => reading.records.push((record.lsn.number(), record.payload.to_vec())),
            Ok(None) => return reading,
            Err(ReadError::Lost { first, last }) => reading.lost.push((first.number(), last.number())),
            Err(ReadError::NotKept { first, last }) => {
                reading.not_kept.push((first.number(), last.number()));
            }
            Err(ReadError::Broken(finding)) => {
                reading.broken = Some(finding);
                return reading;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Opens for writing, reads all, appends, closes, and reads all again in a view: the records before the
/// one that was appended, whose LSN comes second.
#[track_caller]
pub(crate) fn works(storage: &MemStorage) -> (Reading, u64) {
    let wal = open(storage);
    let first = wal.segments().first().map_or(Lsn::FIRST, |segment| segment.base);
    let reading = read(wal.read(first).unwrap());
    assert_eq!(reading.broken, None);
    reading.check();
    let lsn = wal.next().number();
    append(&wal, 1);
    wal.close().unwrap();
    drop(wal);
    let again = view(storage);
    assert!(again.report().closed_cleanly, "{:?}", again.report());
    let mut second = read(again.read(first).unwrap());
    assert_eq!(second.records.pop(), Some((lsn, payload(lsn))));
    assert_eq!((&second.records, &second.broken), (&reading.records, &None));
    assert_eq!(quick_refusal(storage), None, "and it opens again");
    (reading, lsn)
}

pub(crate) fn numbers(last: u64) -> Vec<u64> {
    (1..=last).collect()
}

/// CRC-32C, bit by bit.
pub(crate) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!seed, |crc, &byte| {
        (0..8).fold(
            crc ^ u32::from(byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// A frame as its bytes say, by `docs/format.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) offset: usize,
    pub(crate) end: usize,
    pub(crate) kind: u8,
    pub(crate) first: u64,
    pub(crate) records: u32,
    pub(crate) lag: u32,
    pub(crate) body: usize,
}

pub(crate) fn salt(segment: &[u8]) -> u32 {
    crc(0, &segment[32..64])
}

/// The frames of a segment, up to the first place where no header checks.
pub(crate) fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut at = 4096;
    while at + 32 <= bytes.len() {
        let seed = crc(salt(bytes), &(at as u64).to_le_bytes());
        if u32_at(bytes, at) != crc(seed, &bytes[at + 4..at + 32]) {
            break;
        }
        let body = u32_at(bytes, at + 4) as usize;
        let end = at + 32 + body.div_ceil(8) * 8;
        frames.push(Frame {
            offset: at,
            end,
            kind: bytes[at + 28],
            first: u64_at(bytes, at + 8),
            records: u32_at(bytes, at + 20),
            lag: u32_at(bytes, at + 24),
            body,
        });
        at = end;
    }
    frames
}

/// The frames with records.
pub(crate) fn groups(bytes: &[u8]) -> Vec<Frame> {
    frames(bytes).into_iter().filter(|frame| frame.kind == 1).collect()
}

/// Makes the CRCs of the frame at `at` right.
pub(crate) fn reseal_frame(bytes: &mut [u8], at: usize) {
    let seed = salt(bytes);
    let end = at + 32 + (u32_at(bytes, at + 4) as usize).div_ceil(8) * 8;
    if let Some(body) = bytes.get(at + 32..end) {
        let check = crc(seed, body);
        put_u32(bytes, at + 16, check);
    }
    let check = crc(crc(seed, &(at as u64).to_le_bytes()), &bytes[at + 4..at + 32]);
    put_u32(bytes, at, check);
}

/// Makes the CRC of a header page right.
pub(crate) fn reseal_page(bytes: &mut [u8]) {
    let check = crc(0, &bytes[..4092]);
    put_u32(bytes, 4092, check);
}

/// Makes the CRC of a control slot right.
pub(crate) fn reseal_slot(bytes: &mut [u8], slot: usize) {
    let slot = &mut bytes[slot * SLOT..][..SLOT];
    let used = u32_at(slot, 20) as usize;
    let check = crc(0, &slot[12..used]);
    put_u32(slot, 8, check);
}

/// Changes a file in place.
pub(crate) fn edit(storage: &MemStorage, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = storage.read(name).unwrap();
    change(&mut bytes);
    storage.write(name, &bytes);
}
