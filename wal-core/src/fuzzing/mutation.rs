//! What may have happened to a log directory.

use super::{Choices, Sample};
use crate::SegmentId;
use crate::control::{CONTROL_NAME, SLOT_BYTES};
use crate::frame::{FrameHeader, HEADER_BYTES, HeaderCheck, Salt};
use crate::segment::{HEADER_PAGE_BYTES, HeaderPage, SegmentHeader};
use crate::storage::{MemStorage, Storage};
use crate::wire::crc;

/// What of the promises still binds after the mutations.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Harm {
    /// A check was made right over other content: then bytes lie, as no disk does.
    pub(super) forged: bool,
    /// A file is as it was at an earlier moment of the same log.
    pub(super) rolled_back: bool,
    /// A file of another log, or of a copy of this one that went on by itself, was put in. Only the
    /// control file can tell whose log it is.
    pub(super) strangers: bool,
}

/// Other directories that files may come from.
#[derive(Debug)]
pub(super) struct Others<'a> {
    /// Another log with the same segment ids.
    pub(super) foreign: &'a Sample,
    /// A copy of this log that went on by itself.
    pub(super) twin: &'a MemStorage,
    /// This log before its last run.
    pub(super) earlier: Option<&'a MemStorage>,
}

const LOCK_NAME: &str = "planewal.lock";

/// Names that a file may get by mistake.
const NAMES: [&str; 11] = [
    "00000000000000000001.wal",
    "00000000000000000002.wal",
    "00000000000000000003.wal",
    "00000000000000000005.wal",
    "00000000000000000009.wal",
    "18446744073709551615.wal",
    "00000000000000000007.wal.tmp",
    "planewal.ctl.tmp",
    "00000000000000000012.wal.aside-1",
    "planewal.ctl",
    "00000000000000000006.spare",
];

/// Does what the choices say until they end.
pub(super) fn mutate(storage: &MemStorage, choices: &mut Choices<'_>, others: &Others<'_>) -> Harm {
    let mut harm = Harm::default();
    let mut count = 0;
    while !choices.is_empty() && count < 16 {
        step(storage, choices, others, &mut harm);
        count += 1;
    }
    harm
}

fn step(storage: &MemStorage, choices: &mut Choices<'_>, others: &Others<'_>, harm: &mut Harm) {
    let operation = choices.u8() % 20;
    let names: Vec<String> = storage.names().into_iter().filter(|name| name != LOCK_NAME).collect();
    let name = pick(&names, choices);
    let bytes = storage.read(&name).unwrap_or_default();
    let length = bytes.len() as u64;
    match operation {
        0 => drop(storage.truncate(&name, choices.below(length + 1))),
        1 | 2 => drop(storage.flip_bit(&name, choices.below(length * 8))),
        3 => patch(storage, &name, bytes, |bytes| {
            let (from, count) = (choices.below(length) as usize, usize::from(choices.u16()));
            bytes.iter_mut().skip(from).take(count).for_each(|byte| *byte = 0);
        }),
        4 => patch(storage, &name, bytes, |bytes| {
            let (from, to) = (choices.below(length) as usize, choices.below(length) as usize);
            let count = usize::from(choices.u16());
            let repeated: Vec<u8> = bytes.iter().copied().skip(from).take(count).collect();
            bytes.iter_mut().skip(to).zip(repeated).for_each(|(place, byte)| *place = byte);
        }),
        5 => {
            let other = pick(&names, choices);
            if let Some(theirs) = storage.read(&other).filter(|_| storage.len(&name).is_some()) {
                storage.write(&name, &theirs);
                storage.write(&other, &bytes);
            }
        }
        6 => {
            let to = NAMES[usize::from(choices.u8()) % NAMES.len()];
            if storage.len(&name).is_some() {
                storage.write(to, &bytes);
            }
        }
        // With the control file of another log it is another log.
        7 | 8 if name != CONTROL_NAME => {
            copy_from(storage, if operation == 7 { &others.foreign.storage } else { others.twin }, &name);
            harm.strangers = true;
        }
        9 => {
            if let Some(earlier) = others.earlier {
                copy_from(storage, earlier, &name);
                harm.rolled_back = true;
            }
        }
        10 => drop(storage.remove_file(&name)),
        11 => drop(storage.rename(&name, NAMES[usize::from(choices.u8()) % NAMES.len()])),
        12 => {
            harm.forged = true;
            forge_page(storage, &name, bytes, choices);
        }
        13 => {
            harm.forged = true;
            forge_frame(storage, &name, bytes, choices);
        }
        14 => patch(storage, CONTROL_NAME, storage.read(CONTROL_NAME).unwrap_or_default(), |bytes| {
            let at = usize::from(choices.u8() & 1) * SLOT_BYTES as usize;
            let garbage = choices.take(32);
            bytes.iter_mut().skip(at).zip(garbage).for_each(|(place, byte)| *place = *byte);
        }),
        15 => {
            storage.remove_file(&name);
            storage.plant_directory(&name);
        }
        16 => {
            storage.remove_file(&name);
            storage.plant_link(&name);
        }
        17 => {
            let count = usize::from(choices.u8());
            storage.write(&name, choices.take(count));
        }
        18 => drop(storage.truncate(&name, length + choices.below(20_000))),
        _ => patch(storage, &name, bytes, |bytes| {
            let at = choices.below(length) as usize;
            let count = usize::from(choices.u8() % 64);
            let other = choices.take(count);
            bytes.iter_mut().skip(at).zip(other).for_each(|(place, byte)| *place = *byte);
        }),
    }
}

fn pick(names: &[String], choices: &mut Choices<'_>) -> String {
    let number = usize::from(choices.u8());
    names.get(number.checked_rem(names.len()).unwrap_or(0)).cloned().unwrap_or_else(|| NAMES[0].to_owned())
}

fn patch(storage: &MemStorage, name: &str, mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) {
    if storage.len(name).is_some() {
        change(&mut bytes);
        storage.write(name, &bytes);
    }
}

fn copy_from(storage: &MemStorage, other: &MemStorage, name: &str) {
    if let Some(bytes) = other.read(name) {
        storage.write(name, &bytes);
    }
}

/// Changes a field of a header page or of both slots, and makes the CRC right again.
fn forge_page(storage: &MemStorage, name: &str, mut bytes: Vec<u8>, choices: &mut Choices<'_>) {
    let at = usize::from(choices.u8());
    let count = usize::from(choices.u8() % 9);
    let field = choices.take(count);
    let change = |page: &mut [u8], at: usize| {
        page.iter_mut().skip(at).zip(field).for_each(|(place, byte)| *place = *byte);
    };
    if name == CONTROL_NAME {
        for slot in bytes.chunks_mut(SLOT_BYTES as usize) {
            change(slot, 12 + at);
            let used = slot.get(20..24).map_or(0, |used| u32::from_le_bytes(used.try_into().unwrap()));
            if let Some(checked) = slot.get(12..used as usize) {
                let check = crc(0, checked);
                slot[8..12].copy_from_slice(&check.to_le_bytes());
            }
        }
    } else if SegmentId::from_file_name(name).is_some() && bytes.len() >= HEADER_PAGE_BYTES as usize {
        change(&mut bytes, 8 + at);
        let check = crc(0, &bytes[..4092]);
        bytes[4092..4096].copy_from_slice(&check.to_le_bytes());
    } else {
        return;
    }
    storage.write(name, &bytes);
}

/// Changes a frame, header and body, and makes both CRCs right again.
fn forge_frame(storage: &MemStorage, name: &str, mut bytes: Vec<u8>, choices: &mut Choices<'_>) {
    let HeaderPage::Valid(page) = SegmentHeader::check(&bytes) else { return };
    let seed = crc(0, &bytes[32..64]);
    let number = usize::from(choices.u8());
    let frames = frames(&bytes, page.salt());
    let Some(&(at, length)) = number.checked_rem(frames.len()).and_then(|number| frames.get(number)) else {
        return;
    };
    let from = 4 + choices.below(length as u64 - 4) as usize;
    let count = usize::from(choices.u8() % 9);
    let field = choices.take(count);
    let Some(frame) = bytes.get_mut(at..at + length) else { return };
    frame.iter_mut().skip(from).zip(field).for_each(|(place, byte)| *place = *byte);
    let check = crc(seed, &frame[HEADER_BYTES..]);
    frame[16..20].copy_from_slice(&check.to_le_bytes());
    let check = crc(crc(seed, &(at as u64).to_le_bytes()), &frame[4..HEADER_BYTES]);
    frame[..4].copy_from_slice(&check.to_le_bytes());
    storage.write(name, &bytes);
}

/// Offset and length of the frames from the front.
fn frames(bytes: &[u8], salt: Salt) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = HEADER_PAGE_BYTES as usize;
    while let Some(header) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let HeaderCheck::Valid(header) = FrameHeader::check(salt, at as u64, header) else { break };
        let length = header.frame_bytes() as usize;
        if at + length > bytes.len() {
            break;
        }
        frames.push((at, length));
        at += length;
    }
    frames
}
