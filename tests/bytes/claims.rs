//! Frames that check, and what they claim: contradictions, checksums of zero, bytes of a former life,
//! the time of day, and limits that differ between writing and reading.

use std::sync::Arc;

use planewal::storage::{FaultStorage, MemStorage};
use planewal::{AppendError, Batch, Durability, Lsn, Options, Proof, Verdict, Wal};
use planewal_core::fuzzing;

use crate::counting::peak;
use crate::support::{
    append, closed, crc, edit, frames, groups, numbers, open, open_with, payload, put_u32, read, refusal,
    reseal_frame, reseal_page, salt, segment, unclean, view, works,
};

/// What a writer with a bug could say in the header of a whole frame.
const CONTRADICTIONS: &[(&str, usize, &[u8])] = &[
    ("no LSN", 8, &[0; 8]),
    ("the LSN of another record", 8, &77_u64.to_le_bytes()),
    ("an LSN out of range", 8, &u64::MAX.to_le_bytes()),
    ("no record", 20, &[0; 4]),
    ("a record too many", 20, &[2, 0, 0, 0]),
    ("more records than there are bytes", 20, &[0xff; 4]),
    ("a durable mark below zero", 24, &[0xfe, 0xff, 0xff, 0xff]),
    ("a record of no plane", 32, &[0]),
    ("a record of no kind", 33, &[0]),
    ("a record longer than its frame", 34, &[0x7f]),
    ("a record shorter than its frame", 34, &[0x03]),
    ("a record that ends no batch", 34, &[40]),
];

// The CRCs are right: no torn write makes such a frame, and no mark is needed to know it.
// faults: B010, B041, B045
#[test]
fn a_whole_frame_that_contradicts_itself_is_damage_wherever_it_stands() {
    for &(what, at, bytes) in CONTRADICTIONS {
        for (whole, records) in [(closed(&[4]), 4), (unclean(&[4]), 4), (unclean(&[1]), 1)] {
            for number in 1..=records {
                let storage = whole.fork_live();
                let group = groups(&storage.read(&segment(1)).unwrap())[number as usize - 1];
                edit(&storage, &segment(1), |file| {
                    file[group.offset + at..][..bytes.len()].copy_from_slice(bytes);
                    reseal_frame(file, group.offset);
                });
                let (finding, bytes) = peak(|| refusal(&storage));
                assert!(bytes < 4 << 20, "{what}: {bytes} bytes at once");
                assert_eq!(finding.verdict, Verdict::Damaged, "{what} in frame {number}: {finding}");
                assert_eq!(finding.offset, group.offset as u64, "{what} in frame {number}: {finding}");
                let past = read(view(&storage).past_damage(true).read(Lsn::FIRST).unwrap());
                past.check();
                assert!(!past.lsns().contains(&number), "{what} in frame {number}");
            }
        }
    }
}

/// The argument for which an affine function of 32 bits answers `wanted`.
fn solve(function: impl Fn(u32) -> u32, wanted: u32) -> u32 {
    let constant = function(0);
    let (mut target, mut argument) = (wanted ^ constant, 0);
    // Rows with one leading bit each, and the argument that makes them.
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for bit in 0..32 {
        let (mut value, mut made_of) = (function(1 << bit) ^ constant, 1 << bit);
        for &(row, by) in &rows {
            if value ^ row < value {
                (value, made_of) = (value ^ row, made_of ^ by);
            }
        }
        if value != 0 {
            rows.push((value, made_of));
            rows.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    for (row, by) in rows {
        if target ^ row < target {
            (target, argument) = (target ^ row, argument ^ by);
        }
    }
    assert_eq!(function(argument), wanted, "it is not affine, or not onto");
    argument
}

// faults: B051
#[test]
fn a_checksum_that_happens_to_be_zero_is_a_checksum() {
    for header in [false, true] {
        let storage = MemStorage::new(7);
        let wal = open(&storage);
        append(&wal, 2);
        let bytes = storage.read(&segment(1)).unwrap();
        let (seed, at) = (salt(&bytes), frames(&bytes).last().unwrap().end);
        let body_crc_of = |word: u32| {
            let mut body = [0x80, 1, 4 * 2 + 1, 0, 0, 0, 0, 0];
            body[3..7].copy_from_slice(&word.to_le_bytes());
            crc(seed, &body)
        };
        let header_crc_of = |body_crc: u32| {
            let mut header = [0; 32];
            put_u32(&mut header, 4, 7);
            header[8..16].copy_from_slice(&3_u64.to_le_bytes());
            put_u32(&mut header, 16, body_crc);
            put_u32(&mut header, 20, 1);
            header[28] = 1;
            crc(crc(seed, &(at as u64).to_le_bytes()), &header[4..])
        };
        let word = solve(body_crc_of, if header { solve(header_crc_of, 0) } else { 0 });
        let lsn = wal.append(0x80, 1, &word.to_le_bytes()).unwrap();
        let zero = at + if header { 0 } else { 16 };
        assert_eq!(storage.read(&segment(1)).unwrap()[zero..][..4], [0; 4], "the sum is not zero");
        append(&wal, 1);
        let dead = storage.fork_live();
        for wal in [wal, open(&dead)] {
            let reading = read(wal.read(Lsn::FIRST).unwrap());
            assert_eq!(reading.lsns(), numbers(4));
            assert_eq!(reading.records[2], (lsn.number(), word.to_le_bytes().to_vec()));
        }
    }
}

/// Puts bytes of the first segment from `at` on behind the same place of the second one, and says in the
/// second one's header that its file was used before.
fn lived_before(storage: &MemStorage, at: usize) {
    let former = storage.read(&segment(1)).unwrap();
    edit(storage, &segment(2), |bytes| {
        bytes.resize(bytes.len().max(former.len()), 0);
        bytes[at..former.len()].copy_from_slice(&former[at..]);
        put_u32(bytes, 28, 1);
        reseal_page(bytes);
    });
}

// Frames of the same log, at their own offsets, with the LSNs that are due: only the salt tells.
// faults: B020, B022, B024
#[test]
fn frames_of_a_files_former_life_are_not_read() {
    let whole = unclean(&[6, 2]);
    let last = *groups(&whole.read(&segment(2)).unwrap()).last().unwrap();
    let storage = whole.fork_live();
    lived_before(&storage, last.end);
    let report = view(&storage).report().clone();
    assert_eq!((report.verdict, report.findings.len()), (Verdict::Clean, 0), "{:?}", report.findings);
    assert_eq!(works(&storage).0.lsns(), numbers(8));
    // Closed, the place of the end is proved.
    let storage = closed(&[6, 2]);
    let end = storage.len(&segment(2)).unwrap() as usize;
    lived_before(&storage, end);
    let report = view(&storage).report().clone();
    assert_eq!((report.verdict, report.proof), (Verdict::Clean, Proof::Proved), "{:?}", report.findings);
    assert_eq!(works(&storage).0.lsns(), numbers(8));
}

// The first frame is the link, which has no record: it is as much bound to its file as any other.
// faults: B022
#[test]
fn the_link_of_a_files_former_life_is_no_link() {
    let storage = unclean(&[6, 2]);
    lived_before(&storage, 4096);
    assert_eq!(view(&storage).report().verdict, Verdict::Clean, "{:?}", view(&storage).report().findings);
    let (reading, next) = works(&storage);
    assert_eq!((reading.lsns(), next), (numbers(6), 7));
}

// A creation time is for people.
// faults: B069, B071
#[test]
fn no_time_of_day_decides_anything() {
    for whole in [closed(&[4, 4, 4]), unclean(&[4, 4, 4])] {
        let told = |storage: &MemStorage| {
            let report = view(storage).report().clone();
            (report.verdict, report.proof, report.durable, report.segments.len(), report.findings)
        };
        let before = told(&whole);
        for time in [0, 1, 1 << 32, i64::MAX as u64, u64::MAX] {
            let storage = whole.fork_live();
            fuzzing::set_creation_time(&storage, time);
            assert_eq!(told(&storage), before, "{time}");
            let (reading, next) = works(&storage);
            assert_eq!((reading.lsns(), next), (numbers(12), 13), "{time}");
        }
    }
}

// Limits are for writing. Whoever opens the log with smaller ones reads, recovers and copies all the same.
// faults: B042
#[test]
fn what_was_written_under_larger_limits_is_read_under_the_smallest() {
    let large = Options {
        segment_bytes: 8 << 20,
        group_bytes: 16 << 20,
        record_bytes_max: 4 << 20,
        prepare_bytes: 1 << 20,
        ..fuzzing::options()
    };
    let small = Options { record_bytes_max: 1, group_bytes: 4 << 10, ..fuzzing::options() };
    let storage = MemStorage::new(7);
    let wal = open_with(&storage, large);
    let sizes = [1, 100, 5000, 70_000, 4 << 20, 0, 1 << 20];
    let mut batch = Batch::new();
    for (at, &size) in sizes.iter().enumerate() {
        batch.push(0x80, 1, &vec![at as u8; size]).unwrap();
        // Above the durable mark, but for the first: the next open copies it.
        let level = if at == 0 { Durability::Synced } else { Durability::Written };
        wal.commit_as(&mut batch, level).unwrap();
    }
    drop(wal);
    for _ in 0..3 {
        let wal = open_with(&storage, small.clone());
        let reading = read(wal.read(Lsn::FIRST).unwrap());
        let seen: Vec<_> = reading.records.iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(seen, sizes);
        for (at, (_, bytes)) in reading.records.iter().enumerate() {
            assert!(bytes.iter().all(|&byte| byte == at as u8), "record {at}");
        }
        assert!(matches!(wal.append(0x80, 1, b"xx"), Err(AppendError::TooLarge { bytes: 2, limit: 1 })));
    }
}

// faults: B046
#[test]
fn a_record_above_the_limit_is_refused_before_anything_happens() {
    let storage = FaultStorage::new(Arc::new(MemStorage::new(7)));
    let options = Options { record_bytes_max: 1000, ..fuzzing::options() };
    let wal = Wal::open_on(Arc::new(storage.clone()), options).unwrap();
    wal.append(0x80, 1, &[7; 1000]).unwrap();
    let before = (storage.mutations(), wal.next());
    for sizes in [&[1001][..], &[500, 501], &[1 << 20], &[0, 1000, 1]] {
        let mut batch = Batch::new();
        for &size in sizes {
            batch.push(0x80, 1, &vec![7; size]).unwrap();
        }
        let total = sizes.iter().sum::<usize>() as u64;
        for level in [Durability::Buffered, Durability::Synced] {
            for error in [
                wal.commit_as(&mut batch, level).map(drop).unwrap_err(),
                wal.submit_as(&mut batch, level).map(drop).unwrap_err(),
            ] {
                assert!(
                    matches!(error, AppendError::TooLarge { bytes, limit: 1000 } if bytes == total),
                    "{error}"
                );
            }
        }
        assert_eq!(batch.records() as usize, sizes.len(), "the batch is still the caller's");
        assert_eq!((storage.mutations(), wal.next()), before);
    }
    assert_eq!(wal.append(0x80, 1, &[7; 1000]).unwrap(), before.1);
    assert!(wal.poisoned().is_none());
}

// A group is made of what its members gave; one that gives nothing is refused, and harms no other.
// faults: B052
#[test]
fn an_empty_batch_is_refused_and_its_neighbours_are_not() {
    let storage = MemStorage::new(7);
    let wal = open(&storage);
    let mut empty = Batch::new();
    let mut batch = Batch::new();
    for lsn in 1..=9 {
        for level in [Durability::Buffered, Durability::Written, Durability::Synced] {
            assert!(matches!(wal.commit_as(&mut empty, level), Err(AppendError::EmptyBatch)));
            assert!(matches!(wal.submit_as(&mut empty, level), Err(AppendError::EmptyBatch)));
        }
        batch.push(0x80, 1, &payload(lsn)).unwrap();
        let level = if lsn % 3 == 0 { Durability::Synced } else { Durability::Buffered };
        assert_eq!(wal.commit_as(&mut batch, level).unwrap().last.number(), lsn);
        wal.sync().unwrap();
        // With nothing staged, a sync is a group without a member.
        wal.sync().unwrap();
    }
    drop(wal);
    assert_eq!(works(&storage).0.lsns(), numbers(9));
}
