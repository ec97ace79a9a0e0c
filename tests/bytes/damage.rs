//! Damage within files: cuts, flips, zeros, repeats, lengths.

use std::sync::Arc;

use planewal::storage::MemStorage;
use planewal::{Batch, Durability, Lsn, OpenError, Options, Proof, Recovery, Verdict, Wal};

use crate::support::{
    CONTROL, SLOT, append, closed, contents, edit, frames, groups, long, numbers, open, payload, put_u32,
    quick_refusal, read, refusal, reseal_frame, segment, stride, unclean, view, works,
};

// faults: B001, B003, B011, B012, B057, B059, B064
#[test]
fn an_unclean_log_cut_at_any_byte_of_its_last_frame_has_a_torn_tail() {
    let whole = unclean(&[10]);
    let name = segment(1);
    let last = *groups(&whole.read(&name).unwrap()).last().unwrap();
    for cut in last.offset..last.end {
        let storage = whole.fork_live();
        storage.truncate(&name, cut as u64);
        tail_is_torn(&storage, cut == last.offset, &format!("cut at {cut}"));
        // The same, as a preallocated file shows it: zeros where the write never got to.
        let storage = whole.fork_live();
        edit(&storage, &name, |bytes| bytes[cut..].fill(0));
        // The body ends in a payload that is not zero and in padding that is.
        let unharmed = storage.read(&name) == whole.read(&name);
        if !unharmed {
            tail_is_torn(&storage, cut == last.offset, &format!("zero from {cut}"));
        }
    }
}

fn tail_is_torn(storage: &MemStorage, nothing_left: bool, what: &str) {
    let view = view(storage);
    let report = view.report();
    let expected = if nothing_left { Verdict::Clean } else { Verdict::TornTail };
    assert_eq!((report.verdict, report.proof), (expected, Proof::Unproved), "{what}");
    assert_eq!(read(view.read(Lsn::FIRST).unwrap()).lsns(), numbers(9), "{what}");
    if !nothing_left {
        let strict = Options { recovery: Recovery::Refuse, ..crate::support::options() };
        let before = contents(storage);
        assert!(matches!(Wal::open_on(Arc::new(storage.clone()), strict), Err(OpenError::TornTail { .. })));
        assert_eq!(before, contents(storage));
    }
    let wal = open(storage);
    assert_eq!(wal.recovery().torn_tail.is_some(), !nothing_left, "{what}");
    drop(wal);
    let (reading, next) = works(storage);
    assert_eq!((reading.lsns(), next), (numbers(9), 10), "{what}");
}

// faults: B003, B007
#[test]
fn a_closed_log_cut_at_any_byte_of_its_last_frame_is_damaged() {
    let whole = closed(&[10]);
    let name = segment(1);
    let bytes = whole.read(&name).unwrap();
    let last = *groups(&bytes).last().unwrap();
    for cut in last.offset..bytes.len() {
        let storage = whole.fork_live();
        storage.truncate(&name, cut as u64);
        let report = view(&storage).report().clone();
        assert_eq!((report.verdict, report.proof), (Verdict::Damaged, Proof::Proved), "cut at {cut}");
        if cut < last.end {
            let finding = refusal(&storage);
            assert_eq!((finding.file.as_str(), finding.offset), (name.as_str(), last.offset as u64));
            assert_eq!(finding.missing, Lsn::new(10).map(|lsn| (lsn, lsn)), "cut at {cut}");
        } else {
            // Only the seal is hit: nothing is missing.
            let (reading, next) = works(&storage);
            assert_eq!((reading.lsns(), next), (numbers(10), 11), "cut at {cut}");
        }
    }
}

/// Where a reader is told that the log does not check, for a flip of the byte at `at`.
fn place_of(bytes: &[u8], at: usize) -> u64 {
    frames(bytes)
        .iter()
        .find(|frame| (frame.offset..frame.end).contains(&at))
        .map_or(0, |frame| frame.offset as u64)
}

// faults: B005, B017
#[test]
fn a_bit_flipped_in_the_first_half_of_a_log_is_seen_and_refused() {
    let storage = closed(&[300]);
    let name = segment(1);
    let bytes = storage.read(&name).unwrap();
    let half = bytes.len() / 2;
    assert!(half > 4096 + 5000, "half of the frames, not of the header");
    // Flipping is its own undoing, and a refusal changes nothing.
    for bit in (0..half * 8).step_by(stride(3)) {
        storage.flip_bit(&name, bit as u64);
        let finding = quick_refusal(&storage).unwrap_or_else(|| panic!("bit {bit} of byte {}", bit / 8));
        assert_eq!(finding.verdict, Verdict::Damaged, "bit {bit}");
        assert_eq!((finding.file.as_str(), finding.segment.unwrap().number()), (name.as_str(), 1));
        assert_eq!(finding.offset, place_of(&bytes, bit / 8), "bit {bit}: {finding}");
        storage.flip_bit(&name, bit as u64);
    }
    assert_eq!(storage.read(&name).unwrap(), bytes);
    assert_eq!(works(&storage).0.lsns(), numbers(300));
}

// faults: B005, B012, B039, B117
#[test]
fn no_flipped_bit_of_a_directory_loses_a_record_without_a_word() {
    for (storage, last) in [(closed(&[4]), 4), (closed(&[2, 3]), 5)] {
        for name in storage.names().into_iter().filter(|name| name.ends_with(".wal")) {
            let ends: Vec<u64> = view(&storage).report().segments.iter().map(|segment| segment.end).collect();
            let end = if name == segment(1) { ends[0] } else { ends[1] };
            for bit in 0..storage.len(&name).unwrap() * 8 {
                storage.flip_bit(&name, bit);
                let view = view(&storage);
                let reading = read(view.read(Lsn::FIRST).unwrap());
                reading.check();
                let refused = view.report().findings.iter().any(|finding| !finding.harmless);
                assert!(refused || reading.lsns() == numbers(last), "{name} bit {bit}");
                assert_eq!(refused, bit / 8 < end, "{name} bit {bit}: {:?}", view.report());
                let past = read(view.past_damage(true).read(Lsn::FIRST).unwrap());
                past.check();
                // Header and link of the newest segment are a matter of their own.
                let own_frame = bit / 8 >= 4184 || end == ends[0] && ends.len() > 1;
                assert!(!own_frame || past.records.len() as u64 >= last - 1, "{name} bit {bit}: {past:?}");
                storage.flip_bit(&name, bit);
            }
        }
    }
}

// faults: B079
#[test]
fn one_rotten_control_slot_is_borne_and_two_are_refused() {
    let storage = closed(&[3, 3]);
    let control = storage.read(CONTROL).unwrap();
    let used = |slot: usize| crate::support::u32_at(&control, slot * SLOT + 20) as usize;
    for slot in 0..2 {
        for bit in 0..used(slot) * 8 {
            let bit = ((slot * SLOT) * 8 + bit) as u64;
            storage.flip_bit(CONTROL, bit);
            let view = view(&storage);
            let labels: Vec<_> = view.report().findings.iter().map(|finding| finding.label).collect();
            assert_eq!((view.report().verdict, labels), (Verdict::Clean, vec!["control-slot"]), "bit {bit}");
            assert_eq!(read(view.read(Lsn::FIRST).unwrap()).lsns(), numbers(6));
            storage.flip_bit(CONTROL, bit);
        }
    }
    // Bytes behind the used length are not looked at.
    storage.flip_bit(CONTROL, (used(0) * 8) as u64);
    assert!(view(&storage).report().findings.is_empty());
    for bit in (0..used(0).min(used(1)) * 8).step_by(stride(7)) {
        let storage = storage.fork_live();
        storage.flip_bit(CONTROL, bit as u64);
        storage.flip_bit(CONTROL, ((SLOT + 8) * 8 + bit % 32) as u64);
        let finding = refusal(&storage);
        assert_eq!((finding.label, finding.verdict), ("control-lost", Verdict::Damaged));
        planewal::repair(Arc::new(storage.clone())).unwrap();
        assert_eq!(works(&storage).0.lsns(), numbers(6), "bit {bit}");
    }
}

#[test]
fn a_rotten_slot_is_written_again_by_the_next_open() {
    for slot in 0..2 {
        let storage = closed(&[3]);
        storage.flip_bit(CONTROL, ((slot * SLOT + 40) * 8) as u64);
        drop(open(&storage));
        assert!(view(&storage).report().findings.is_empty(), "slot {slot}");
    }
}

#[test]
fn zeroed_sectors_of_a_closed_log_are_damage() {
    let whole = closed(&[60, 60]);
    for id in [1, 2] {
        let length = whole.len(&segment(id)).unwrap() as usize;
        let seal = frames(&whole.read(&segment(id)).unwrap()).last().unwrap().offset;
        for from in (0..length).step_by(512) {
            let storage = whole.fork_live();
            edit(&storage, &segment(id), |bytes| {
                let to = (from + 512).min(length);
                bytes[from..to].fill(0);
            });
            if storage.read(&segment(id)) == whole.read(&segment(id)) {
                assert!((152..4096).contains(&from), "only the reserved part of the header is zero");
                continue;
            }
            let report = view(&storage).report().clone();
            assert_eq!(report.verdict, Verdict::Damaged, "segment {id}, sector at {from}");
            if from < seal {
                refusal(&storage);
                assert!(report.findings.iter().any(|finding| finding.file == segment(id)), "{report:?}");
            }
        }
    }
}

// A sector-sized piece written to a wrong place of the same file.
// faults: B013
#[test]
fn frames_written_to_a_wrong_place_are_no_frames() {
    let whole = closed(&[60]);
    let name = segment(1);
    let bytes = whole.read(&name).unwrap();
    let groups = groups(&bytes);
    let length = groups[0].end - groups[0].offset;
    for (from, to) in [(0, 10), (10, 0), (20, 59), (59, 20), (30, 31)] {
        let storage = whole.fork_live();
        edit(&storage, &name, |bytes| {
            bytes.copy_within(groups[from].offset..groups[from].end, groups[to].offset);
        });
        let finding = refusal(&storage);
        assert_eq!((finding.verdict, finding.offset), (Verdict::Damaged, groups[to].offset as u64));
        assert_eq!(finding.lsn.unwrap().number(), to as u64 + 1);
        let reading = read(view(&storage).past_damage(true).read(Lsn::FIRST).unwrap());
        reading.check();
        assert_eq!(reading.lost, [(to as u64 + 1, to as u64 + 1)]);
        assert_eq!(reading.records.len(), 59);
    }
    // Repeated behind the end, in an unclean log: a torn tail of somebody else's bytes.
    let storage = unclean(&[60]);
    let end = frames(&storage.read(&name).unwrap()).last().unwrap().end;
    edit(&storage, &name, |bytes| {
        bytes.resize(end + length, 0);
        bytes.copy_within(groups[3].offset..groups[3].end, end);
    });
    assert_eq!(view(&storage).report().verdict, Verdict::TornTail);
    assert_eq!(works(&storage).0.lsns(), numbers(60));
}

// faults: B013, B019
#[test]
fn swapped_sectors_of_a_closed_log_are_damage() {
    let whole = closed(&[60, 60]);
    let name = segment(1);
    let seal = frames(&whole.read(&name).unwrap()).last().unwrap().offset;
    let sectors = seal / 512;
    for a in 8..sectors {
        for b in [0, a + 1, sectors - 1] {
            if b >= sectors || a == b {
                continue;
            }
            let storage = whole.fork_live();
            edit(&storage, &name, |bytes| {
                let first = bytes[a * 512..][..512].to_vec();
                bytes.copy_within(b * 512..(b + 1) * 512, a * 512);
                bytes[b * 512..][..512].copy_from_slice(&first);
            });
            assert_eq!(refusal(&storage).verdict, Verdict::Damaged, "sectors {a} and {b}");
            let view = view(&storage).past_damage(true);
            read(view.read(view.report().first.unwrap()).unwrap()).check();
        }
    }
}

// Groups that were never synced reach the disk in any order.
// faults: B013, B019, B085
#[test]
fn a_torn_group_before_a_whole_one_is_cut_with_it() {
    for torn in 4..=6 {
        for offset in [0, 40] {
            let storage = MemStorage::new(7);
            let wal = open(&storage);
            append(&wal, 3);
            let mut batch = Batch::new();
            for lsn in 4..=6 {
                batch.push(0x80, 1, &payload(lsn)).unwrap();
                wal.commit_as(&mut batch, Durability::Written).unwrap();
            }
            drop(wal);
            let group = groups(&storage.read(&segment(1)).unwrap())[torn - 1];
            edit(&storage, &segment(1), |bytes| bytes[group.offset + offset] ^= 1);
            let report = view(&storage).report().clone();
            assert_eq!((report.verdict, report.proof), (Verdict::TornTail, Proof::Unproved), "LSN {torn}");
            assert_eq!(report.segments[0].end, group.offset as u64, "LSN {torn}: it ends where it is cut");
            let (reading, next) = works(&storage);
            assert_eq!((reading.lsns(), next), (numbers(torn as u64 - 1), torn as u64), "LSN {torn}");
        }
    }
}

// faults: B002, B007, B008, B019
#[test]
fn a_hole_below_a_later_mark_is_damage_and_above_every_mark_is_a_torn_tail() {
    let whole = unclean(&[5, 5, 5]);
    for id in 1..=3_u64 {
        for (at, group) in groups(&whole.read(&segment(id)).unwrap()).into_iter().enumerate() {
            let storage = whole.fork_live();
            edit(&storage, &segment(id), |bytes| bytes[group.offset..group.end].fill(0));
            let lsn = group.first;
            if (id, at) == (3, 4) {
                // Nothing on disk says that the last group was ever durable.
                assert_eq!(view(&storage).report().verdict, Verdict::Clean);
                assert_eq!(works(&storage).0.lsns(), numbers(14));
            } else {
                let finding = refusal(&storage);
                assert_eq!((finding.verdict, finding.proof), (Verdict::Damaged, Proof::Proved), "LSN {lsn}");
                assert_eq!((finding.segment.unwrap().number(), finding.offset), (id, group.offset as u64));
                assert_eq!(finding.lsn.unwrap().number(), lsn);
                assert_eq!(finding.missing, Lsn::new(lsn).map(|lsn| (lsn, lsn)));
            }
        }
    }
}

// faults: B037, B038, B044, B045, B047
#[test]
fn a_garbage_length_is_never_followed() {
    let whole = closed(&[40]);
    let name = segment(1);
    let bytes = whole.read(&name).unwrap();
    for frame in groups(&bytes) {
        for length in [0, 1, 31, 0xffff, 1 << 26, 1 << 30, 0x7fff_ffff, 0xffff_fff8, u32::MAX] {
            let storage = whole.fork_live();
            edit(&storage, &name, |bytes| put_u32(bytes, frame.offset + 4, length));
            let (finding, peak) = crate::counting::peak(|| quick_refusal(&storage));
            let finding = finding.unwrap();
            assert_eq!((finding.verdict, finding.offset), (Verdict::Damaged, frame.offset as u64));
            assert!(peak < 4 << 20, "length {length}: {peak} bytes at once");
        }
    }
}

// The length has the right CRC and still leads nowhere.
// faults: B037, B044
#[test]
fn a_length_beyond_the_file_is_never_allocated() {
    let whole = closed(&[40]);
    let name = segment(1);
    for at in [0, 17, 39] {
        let frame = groups(&whole.read(&name).unwrap())[at];
        for length in
            [1 << 20, 1 << 26, 1 << 30, (1 << 30) + (64 << 20), (1 << 30) + (64 << 20) + 1, u32::MAX]
        {
            let storage = whole.fork_live();
            edit(&storage, &name, |bytes| {
                put_u32(bytes, frame.offset + 4, length);
                reseal_frame(bytes, frame.offset);
            });
            let (finding, peak) = crate::counting::peak(|| quick_refusal(&storage));
            assert_eq!(finding.unwrap().offset, frame.offset as u64);
            assert!(peak < 4 << 20, "length {length}: {peak} bytes at once");
        }
    }
}

// Garbage over the first bytes at every place of the record area.
// faults: B038, B045
#[test]
fn garbage_at_every_offset_is_damage_and_bounded() {
    let whole = closed(&[12]);
    let name = segment(1);
    let bytes = whole.read(&name).unwrap();
    let groups = groups(&bytes);
    let (from, to) = (groups[0].offset, groups[11].end);
    for at in from..to - 8 {
        let storage = whole.fork_live();
        edit(&storage, &name, |bytes| bytes[at..at + 8].copy_from_slice(b"\xff\xff\xff\x7f\xff\xff\xff\xff"));
        let (finding, peak) = crate::counting::peak(|| quick_refusal(&storage));
        let finding = finding.unwrap();
        assert_eq!((finding.verdict, finding.proof), (Verdict::Damaged, Proof::Proved), "at {at}");
        assert!(peak < 4 << 20, "at {at}: {peak} bytes at once");
    }
}

#[test]
fn every_damaged_body_is_told_once_and_costs_one_reading() {
    let storage = closed(&[2000]);
    let name = segment(1);
    let length = storage.len(&name).unwrap();
    edit(&storage, &name, |bytes| {
        for group in groups(bytes) {
            bytes[group.offset + 40] ^= 1;
        }
    });
    let report = view(&storage).report().clone();
    assert_eq!(report.verdict, Verdict::Damaged);
    assert_eq!(
        report.findings.len() as u64 + report.unlisted_findings,
        1,
        "one hole, as nothing of it checks"
    );
    assert!(
        report.bytes_read < 8 * length,
        "{} bytes were read of a file of {length}: the search behind a hole starts over at each header",
        report.bytes_read
    );
}

#[test]
fn a_flip_in_the_padding_is_seen_too() {
    let storage = closed(&[10]);
    let name = segment(1);
    let group = groups(&storage.read(&name).unwrap()).into_iter().find(|group| group.body % 8 != 0).unwrap();
    edit(&storage, &name, |bytes| bytes[group.end - 1] = 1);
    assert_eq!(refusal(&storage).offset, group.offset as u64);
}

#[test]
fn bytes_behind_the_seal_of_a_finished_segment_change_nothing() {
    let storage = closed(&[5, 5]);
    for id in [1, 2] {
        edit(&storage, &segment(id), |bytes| bytes.extend_from_slice(&[0xab; 100]));
    }
    let view = view(&storage);
    assert_eq!(read(view.read(Lsn::FIRST).unwrap()).lsns(), numbers(10));
    assert_eq!(works(&storage).0.lsns(), numbers(10));
}

// faults: B011, B064, B066, B117, B131
#[test]
fn a_torn_tail_after_a_torn_tail_keeps_everything_between() {
    let storage = unclean(&[3]);
    let rounds = if long() { 60 } else { 12 };
    let mut kept = 3;
    for round in 0..rounds {
        let newest = storage.names().into_iter().rfind(|name| name.ends_with(".wal")).unwrap();
        let end = frames(&storage.read(&newest).unwrap()).last().unwrap().end;
        edit(&storage, &newest, |bytes| {
            bytes.truncate(end);
            bytes.extend_from_slice(&[0x5a; 77]);
        });
        let wal = open(&storage);
        assert!(wal.recovery().torn_tail.is_some(), "round {round}: {:?}", wal.recovery().survey);
        assert_eq!(read(wal.read(Lsn::FIRST).unwrap()).lsns(), numbers(kept), "round {round}");
        append(&wal, 2);
        kept += 2;
    }
    assert_eq!(works(&storage).0.lsns(), numbers(kept));
}

// The seal of a segment that is not the newest: nothing is lost, and it is said.
#[test]
fn a_damaged_seal_of_any_segment_is_told_and_costs_nothing() {
    for id in 1..=3 {
        for back in [1, 9, 20, 40, 100] {
            let storage = closed(&[4, 4, 4]);
            let length = storage.len(&segment(id)).unwrap();
            storage.flip_bit(&segment(id), (length - back) * 8);
            let report = view(&storage).report().clone();
            assert_eq!(report.verdict, Verdict::Damaged, "segment {id}, {back} before its end");
            let found = report.findings.iter().any(|finding| finding.file == segment(id) && finding.harmless);
            assert!(found, "{:?}", report.findings);
            let wal = open(&storage);
            assert_eq!(wal.last().map(|lsn| lsn.number()), Some(12));
        }
    }
}
