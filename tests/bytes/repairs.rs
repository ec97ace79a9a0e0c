//! Repair: a way out of every refusal, and what it gave up told to every later reader.

use std::sync::Arc;

use planewal::storage::MemStorage;
use planewal::{Lsn, Verdict, plan_repair, repair};

use crate::support::{
    CONTROL, append, closed, contents, edit, groups, numbers, open, put_u32, read, refusal, segment, view,
    works,
};

/// Repairs, and checks everything that has to hold for every repair: the ranges given up.
#[track_caller]
fn repaired(storage: &MemStorage) -> Vec<(u64, u64)> {
    refusal(storage);
    let before = contents(storage);
    let plan = plan_repair(storage).unwrap();
    assert!(!plan.nothing_to_do && plan.new_log_id.is_none());
    assert_eq!(before, contents(storage), "a plan changes nothing");
    let done = repair(Arc::new(storage.clone())).unwrap();
    assert!(!done.nothing_to_do && !done.accepted.is_empty());
    assert!(plan.lost.iter().all(|range| done.lost.contains(range)), "{plan:?} {done:?}");
    let after = contents(storage);
    for (name, bytes) in before.iter().filter(|(name, _)| *name != CONTROL) {
        let moved = done.set_aside.iter().find(|(from, _)| from == name);
        assert_eq!(&after[moved.map_or(name, |(_, to)| to)], bytes, "{name} byte for byte");
    }
    assert!(repair(Arc::new(storage.clone())).unwrap().nothing_to_do, "twice is once");
    assert_eq!(after, contents(storage));
    let looked = view(storage);
    assert!(looked.report().findings.iter().all(|finding| finding.harmless), "{:?}", looked.report());
    assert_eq!(looked.report().ancestors.len(), 1);
    let told = read(looked.read(Lsn::FIRST).unwrap());
    let (reading, next) = works(storage);
    let lost: Vec<(u64, u64)> =
        done.lost.iter().map(|(first, last)| (first.number(), last.number())).collect();
    assert_eq!((&told.records, &told.broken), (&reading.records, &None));
    assert_eq!(looked.report().lost, done.lost);
    let later = read(view(storage).read(Lsn::FIRST).unwrap());
    assert_eq!(later.lost, lost, "told to every later reader");
    for &(_, last) in &lost {
        assert!(next > last, "P4: LSN {last} was lost and is given out again");
    }
    assert_eq!(next, done.next.number());
    lost
}

// faults: B013, B015, B140
#[test]
fn a_damaged_frame_in_any_segment_costs_its_own_records_only() {
    for id in 1..=3_u64 {
        for at in 0..4_u64 {
            let storage = closed(&[4, 4, 4]);
            let group = groups(&storage.read(&segment(id)).unwrap())[at as usize];
            let lsn = group.first;
            edit(&storage, &segment(id), |bytes| bytes[group.offset + 40] ^= 1);
            assert_eq!(repaired(&storage), [(lsn, lsn)], "LSN {lsn}");
            let (reading, _) = works(&storage);
            assert!(numbers(12).iter().all(|kept| *kept == lsn || reading.lsns().contains(kept)));
        }
    }
}

#[test]
fn several_holes_are_all_accepted_and_all_told() {
    let whole = closed(&[6, 6, 6]);
    let storage = whole.fork_live();
    for (id, at) in [(1, 1), (1, 2), (2, 4), (3, 0)] {
        let group = groups(&whole.read(&segment(id)).unwrap())[at];
        edit(&storage, &segment(id), |bytes| bytes[group.offset + 8] ^= 1);
    }
    let lost = repaired(&storage);
    let missing: Vec<u64> = lost.iter().flat_map(|&(first, last)| first..=last).collect();
    assert_eq!(missing, [2, 3, 11, 13]);
}

// faults: B007, B131
#[test]
fn a_missing_segment_costs_what_was_in_it() {
    for gone in [2, 3] {
        let storage = closed(&[4, 4, 4]);
        storage.remove_file(&segment(gone));
        assert_eq!(repaired(&storage), [(4 * gone - 3, 4 * gone)], "segment {gone}");
    }
}

// Its records are lost, not retired.
#[test]
fn a_missing_first_segment_is_told_to_who_reads_from_the_first_lsn() {
    let storage = closed(&[4, 4, 4]);
    storage.remove_file(&segment(1));
    repair(Arc::new(storage.clone())).unwrap();
    match view(&storage).read(Lsn::FIRST) {
        Ok(reader) => assert_eq!(read(reader).lost, [(1, 4)]),
        Err(error) => assert!(matches!(error, planewal::ReadError::Lost { .. }), "{error}"),
    }
}

// A reader that has come to the end knows that records before the next LSN are gone.
#[test]
fn a_lost_end_is_told_before_anything_follows_it() {
    let storage = closed(&[4, 4]);
    storage.truncate(&segment(2), groups(&storage.read(&segment(2)).unwrap())[1].offset as u64);
    let done = repair(Arc::new(storage.clone())).unwrap();
    assert_eq!((done.lost.len(), done.next.number()), (1, 9));
    let view = view(&storage);
    assert_eq!(view.report().next.number(), 9);
    assert_eq!(read(view.read(Lsn::FIRST).unwrap()).lost, [(6, 8)], "told to every later reader");
}

#[test]
fn a_damaged_header_costs_nothing_where_something_names_the_file() {
    for id in [1, 2] {
        let storage = closed(&[4, 4, 4]);
        storage.flip_bit(&segment(id), 8 * 60);
        assert_eq!(repaired(&storage), [], "segment {id}");
        assert_eq!(works(&storage).0.lsns()[..12], numbers(12), "segment {id}");
    }
}

// Found by fuzzing: the slots name the file, so its frames can be read.
#[test]
fn a_damaged_header_of_the_only_segment_can_be_repaired() {
    for storage in [closed(&[2]), crate::support::unclean(&[3])] {
        storage.flip_bit(&segment(1), 0);
        let done = repair(Arc::new(storage.clone()));
        let done = done.unwrap_or_else(|error| panic!("no way out: {error}"));
        assert!(done.lost.is_empty(), "nothing that can be read is given up: {:?}", done.lost);
        assert!(works(&storage).0.lsns().len() >= 2);
    }
}

#[test]
fn a_damaged_link_costs_nothing_where_the_frames_behind_it_check() {
    for id in [1, 2] {
        let storage = closed(&[4, 4, 4]);
        storage.flip_bit(&segment(id), 8 * 4130);
        assert_eq!(repaired(&storage), [], "segment {id}");
        assert_eq!(works(&storage).0.lsns()[..12], numbers(12), "segment {id}");
    }
}

// "Nothing that can be read is given up": the slots name the file, so its salt is known.
#[test]
fn a_damaged_header_or_link_of_the_newest_segment_costs_nothing() {
    for bit in [8 * 60, 8 * 4130] {
        let storage = closed(&[4, 4, 4]);
        storage.flip_bit(&segment(3), bit);
        let done = repair(Arc::new(storage.clone())).unwrap();
        assert!(done.lost.is_empty(), "byte {}: {:?}", bit / 8, done.lost);
        assert_eq!(works(&storage).0.lsns(), numbers(12));
    }
}

#[test]
fn a_lost_end_is_told_and_never_given_out_again() {
    for cut in [0, 1, 3] {
        let storage = closed(&[4, 4]);
        let group = groups(&storage.read(&segment(2)).unwrap())[cut as usize];
        storage.truncate(&segment(2), group.offset as u64);
        assert_eq!(repaired(&storage), [(5 + cut, 8)], "cut before LSN {}", 5 + cut);
    }
}

#[test]
fn a_foreign_file_is_set_aside() {
    let storage = closed(&[4, 4]);
    let foreign = crate::support::build(99, &[1, 1, 1], true).read(&segment(3)).unwrap();
    storage.write(&segment(3), &foreign);
    storage.write(&(segment(3) + ".aside-1"), b"what is this");
    assert_eq!(repaired(&storage), []);
    assert_eq!(storage.read(&(segment(3) + ".aside-2")), Some(foreign));
    assert_eq!(works(&storage).0.lsns()[..8], numbers(8));
}

// faults: B013
#[test]
fn lost_records_stay_lost_even_if_their_bytes_come_back() {
    let whole = closed(&[4, 4, 4]);
    let storage = whole.fork_live();
    let group = groups(&storage.read(&segment(2)).unwrap())[1];
    edit(&storage, &segment(2), |bytes| bytes[group.offset + 40] ^= 1);
    assert_eq!(repaired(&storage), [(6, 6)]);
    storage.write(&segment(2), &whole.read(&segment(2)).unwrap());
    let reading = read(view(&storage).read(Lsn::FIRST).unwrap());
    assert!(!reading.lsns().contains(&6));
    assert_eq!(reading.lost, [(6, 6)]);
}

#[test]
fn damage_after_a_repair_is_repaired_too() {
    let storage = closed(&[4, 4, 4]);
    let hit = |id: u64, at: usize| {
        let group = groups(&storage.read(&segment(id)).unwrap())[at];
        edit(&storage, &segment(id), |bytes| bytes[group.offset + 40] ^= 1);
    };
    hit(1, 1);
    repaired(&storage);
    hit(2, 1);
    refusal(&storage);
    let done = repair(Arc::new(storage.clone())).unwrap();
    assert_eq!(done.lost, [(Lsn::new(6).unwrap(), Lsn::new(6).unwrap())]);
    let (reading, _) = works(&storage);
    assert!(!reading.lsns().contains(&2) && !reading.lsns().contains(&6) && reading.lsns().contains(&12));
    assert_eq!(view(&storage).report().ancestors.len(), 2);
}

#[test]
fn a_sound_log_has_nothing_to_repair() {
    for storage in [closed(&[4, 4]), crate::support::unclean(&[4])] {
        let before = contents(&storage);
        assert!(plan_repair(&storage).unwrap().nothing_to_do);
        assert!(repair(Arc::new(storage.clone())).unwrap().nothing_to_do);
        assert_eq!(before, contents(&storage));
    }
}

#[test]
fn a_repaired_log_goes_on_like_any_other() {
    let storage = closed(&[4, 4]);
    let group = groups(&storage.read(&segment(1)).unwrap())[3];
    edit(&storage, &segment(1), |bytes| put_u32(bytes, group.offset, 0));
    assert_eq!(repaired(&storage), [(4, 4)]);
    for _ in 0..3 {
        let wal = open(&storage);
        append(&wal, 2);
        wal.rotate().unwrap();
        append(&wal, 1);
        // Not closed: the next open recovers.
    }
    let (reading, _) = works(&storage);
    assert_eq!(reading.lost, [(4, 4)]);
    assert_eq!(reading.records.len(), 7 + 1 + 9);
    assert_eq!(view(&storage).report().verdict, Verdict::Clean);
}

// The control file of an earlier day: the segment that it does not know proves records, and they are not
// forgotten when it is set aside.
#[test]
fn an_older_control_file_put_back_loses_nothing_without_a_word() {
    let storage = closed(&[4, 4]);
    let old = storage.read(CONTROL).unwrap();
    let wal = open(&storage);
    append(&wal, 3);
    wal.close().unwrap();
    drop(wal);
    storage.write(CONTROL, &old);
    assert_eq!(refusal(&storage).verdict, Verdict::ForeignFile);
    let done = repair(Arc::new(storage.clone())).unwrap();
    assert_eq!(done.lost, [(Lsn::new(9).unwrap(), Lsn::new(11).unwrap())]);
    assert_eq!(done.next.number(), 12, "P4: what was proved durable is not given out again");
    let (reading, next) = works(&storage);
    assert_eq!((reading.lsns(), next), (numbers(8), 12));
}

// Without a control file the links say what a branch had branched from.
#[test]
fn a_branch_that_loses_its_control_file_keeps_the_segments_before_it() {
    let storage = closed(&[4, 4, 4]);
    let group = groups(&storage.read(&segment(1)).unwrap())[1];
    edit(&storage, &segment(1), |bytes| bytes[group.offset + 40] ^= 1);
    repaired(&storage);
    let before = works(&storage).0.lsns();
    storage.remove_file(CONTROL);
    repair(Arc::new(storage.clone())).unwrap();
    let after = works(&storage).0.lsns();
    assert!(before.iter().all(|lsn| after.contains(lsn)), "{before:?} {after:?}");
}

// Recovery copies the first segment of the branch, and the copy begins where the branch did.
// (Found by `crash::repairs::a_repair_may_be_cut_short_at_any_step`.)
// faults: B152
#[test]
fn a_branch_behind_a_lost_end_survives_one_death_after_the_other() {
    for kept in 0..3 {
        let storage = closed(&[4, 4]);
        if kept == 0 {
            storage.remove_file(&segment(2));
        } else {
            let group = groups(&storage.read(&segment(2)).unwrap())[kept];
            storage.truncate(&segment(2), group.offset as u64);
        }
        repair(Arc::new(storage.clone())).unwrap();
        for round in 0..4 {
            // One of the branch's records is synced and then proved by nothing when the process dies.
            let wal = open(&storage);
            append(&wal, 1 + round % 2);
            drop(wal);
            let dead = storage.fork_live();
            let (reading, next) = works(&dead);
            assert_eq!(reading.lost, [(5 + kept as u64, 8)], "{kept} kept, round {round}");
            assert_eq!(reading.lsns().last(), Some(&(next - 1)), "{kept} kept, round {round}");
            assert_eq!(reading.records.len() as u64, next - 1 - (4 - kept as u64));
        }
    }
}
