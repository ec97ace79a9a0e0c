//! Files that are not where or what they should be: gone, foreign, swapped, of a later version.

use std::sync::Arc;

use planewal::storage::{Fault, FaultStorage, MemStorage, Op};
use planewal::{Lsn, OpenError, Proof, RepairError, SegmentId, Verdict, View, Wal, plan_repair, repair};

use crate::support::{
    CONTROL, SLOT, another_machine, append, build, closed, contents, edit, groups, numbers, open, options,
    put_u32, read, refusal, reseal_frame, reseal_page, reseal_slot, segment, unclean, view, works,
};

fn id(number: u64) -> Option<SegmentId> {
    SegmentId::new(number)
}

// faults: B007, B072, B075, B082
#[test]
fn a_missing_segment_is_named_wherever_it_stood() {
    for whole in [closed(&[4, 4, 4]), unclean(&[4, 4, 4])] {
        for gone in 1..=2 {
            let storage = whole.fork_live();
            storage.remove_file(&segment(gone));
            let finding = refusal(&storage);
            assert_eq!((finding.verdict, finding.segment), (Verdict::MissingSegment, id(gone)), "{finding}");
            assert_eq!(finding.file, segment(gone));
            assert_eq!(finding.lsn.unwrap().number(), 4 * (gone - 1) + 1, "{finding}");
        }
    }
}

// faults: B062
#[test]
fn a_log_whose_segments_are_all_gone_is_not_a_new_log() {
    let storage = closed(&[4, 4]);
    storage.remove_file(&segment(1));
    storage.remove_file(&segment(2));
    assert_eq!(refusal(&storage).verdict, Verdict::MissingSegment);
    let done = repair(Arc::new(storage.clone())).unwrap();
    assert!(done.next > Lsn::new(8).unwrap(), "P4: what was durable is never given out again");
    let (reading, next) = works(&storage);
    assert!(reading.records.is_empty() && next > 8);
}

// faults: B017, B077
#[test]
fn a_segment_cut_to_any_short_length_is_damaged_and_stays() {
    let whole = closed(&[4, 4, 4]);
    for name in [segment(1), segment(2)] {
        for length in [0, 1, 8, 11, 12, 4091, 4095, 4096, 4097, 4096 + 31, 4096 + 87] {
            let storage = whole.fork_live();
            storage.truncate(&name, length);
            let finding = refusal(&storage);
            assert_eq!((finding.verdict, finding.file), (Verdict::Damaged, name.clone()), "{length}");
        }
    }
}

// faults: B017, B020, B145
#[test]
fn a_segment_of_a_later_version_is_refused_and_never_truncated() {
    let whole = closed(&[4, 4, 4]);
    // Version, read-only-compatible and incompatible features.
    for (name, at) in [1, 2].into_iter().flat_map(|id| [8, 20, 24].map(|at| (segment(id), at))) {
        let storage = whole.fork_live();
        edit(&storage, &name, |bytes| {
            put_u32(bytes, at, 2);
            reseal_page(bytes);
        });
        let finding = refusal(&storage);
        assert_eq!((finding.verdict, finding.file.clone()), (Verdict::UnknownVersion, name), "field {at}");
        cannot_be_repaired(&storage);
    }
    // A compatible feature is none of our business.
    edit(&whole, &segment(1), |bytes| {
        put_u32(bytes, 16, u32::MAX);
        reseal_page(bytes);
    });
    assert_eq!(works(&whole).0.lsns(), numbers(12));
}

fn cannot_be_repaired(storage: &MemStorage) {
    let before = contents(storage);
    assert!(matches!(plan_repair(storage), Err(RepairError::Newer(_))));
    assert!(matches!(repair(Arc::new(storage.clone())), Err(RepairError::Newer(_))));
    assert_eq!(before, contents(storage), "what is not understood is not touched");
}

#[test]
fn a_damaged_version_is_damage_and_not_a_version() {
    let storage = closed(&[4, 4]);
    edit(&storage, &segment(1), |bytes| put_u32(bytes, 8, 2));
    assert_eq!(refusal(&storage).verdict, Verdict::Damaged);
}

// faults: B017, B145
#[test]
fn a_frame_of_a_later_version_is_refused_and_never_cut() {
    for (id, at) in [(1, 2), (2, 3)] {
        // Kinds 4, 8 and 0x7f, flags, reserved bytes.
        for (field, value) in [(28, 4), (28, 8), (28, 0x7f), (29, 1), (29, 0x80), (30, 1), (31, 1)] {
            for whole in [closed(&[4, 4]), unclean(&[4, 4])] {
                let group = groups(&whole.read(&segment(id)).unwrap())[at];
                edit(&whole, &segment(id), |bytes| {
                    bytes[group.offset + field] = value;
                    reseal_frame(bytes, group.offset);
                });
                let finding = refusal(&whole);
                assert_eq!(finding.verdict, Verdict::UnknownVersion, "{finding}");
                assert_eq!((finding.file.clone(), finding.offset), (segment(id), group.offset as u64));
                cannot_be_repaired(&whole);
            }
        }
    }
}

// faults: B145
#[test]
fn an_ancillary_frame_is_stepped_over() {
    let storage = unclean(&[4]);
    let last = groups(&storage.read(&segment(1)).unwrap())[3];
    edit(&storage, &segment(1), |bytes| {
        bytes.truncate(last.end);
        bytes.extend_from_slice(&[0; 40]);
        put_u32(bytes, last.end + 4, 8);
        bytes[last.end + 8..last.end + 16].copy_from_slice(&5_u64.to_le_bytes());
        bytes[last.end + 28] = 0x80;
        bytes[last.end + 32..].copy_from_slice(b"whatever");
        reseal_frame(bytes, last.end);
    });
    let report = view(&storage).report().clone();
    assert_eq!((report.verdict, report.durable, report.findings.len()), (Verdict::Clean, Lsn::new(4), 0));
    assert_eq!(works(&storage).0.lsns(), numbers(4));
}

// faults: B017
#[test]
fn a_control_slot_of_a_later_version_is_refused_and_stays() {
    let whole = closed(&[4]);
    for (slot, field) in [0, 1].into_iter().flat_map(|slot| [12, 16].map(|field| (slot, field))) {
        let storage = whole.fork_live();
        edit(&storage, CONTROL, |bytes| {
            put_u32(bytes, slot * SLOT + field, 2);
            reseal_slot(bytes, slot);
        });
        let finding = refusal(&storage);
        assert_eq!((finding.label, finding.verdict), ("control-newer", Verdict::UnknownVersion));
        cannot_be_repaired(&storage);
    }
}

// The CRC is right and the numbers are none: what cannot be understood was written by somebody else.
// faults: B047, B068
#[test]
fn a_slot_whose_numbers_are_out_of_range_is_not_acted_on() {
    let mut wrong = Vec::new();
    for (field, at) in [
        ("epoch", 56),
        ("base", 72),
        ("next segment id", 80),
        ("durable", 88),
        ("least next", 96),
        ("clean last", 128),
    ] {
        let storage = closed(&[4]);
        edit(&storage, CONTROL, |bytes| {
            for slot in 0..2 {
                bytes[slot * SLOT + at..][..8].fill(0xff);
                reseal_slot(bytes, slot);
            }
        });
        let before = contents(&storage);
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let looked = View::open_on(Arc::new(storage.clone()));
            drop(looked.map(|view| view.read(Lsn::FIRST).map(read)));
            let opened = Wal::open_on(Arc::new(storage.clone()), options());
            opened.map(|_| "opened").map_err(|error| error.to_string())
        }));
        match tried {
            Err(_) => wrong.push(format!("{field}: panics")),
            Ok(Ok(_)) => wrong.push(format!("{field}: opens")),
            Ok(Err(error)) if before != contents(&storage) => {
                wrong.push(format!("{field}: changed, {error}"))
            }
            Ok(Err(_)) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn without_a_control_file_a_log_is_refused_and_repair_makes_one() {
    for whole in [closed(&[4, 4]), unclean(&[4, 4])] {
        for loss in 0..3 {
            let storage = whole.fork_live();
            match loss {
                0 => assert!(storage.remove_file(CONTROL)),
                1 => assert!(storage.truncate(CONTROL, 0)),
                _ => storage.write(CONTROL, &[0x99; 2 * SLOT]),
            }
            let before = contents(&storage);
            assert_eq!(refusal(&storage).verdict, Verdict::Damaged);
            let done = repair(Arc::new(storage.clone())).unwrap();
            assert!(done.lost.is_empty() && done.new_log_id.is_some());
            for name in [segment(1), segment(2)] {
                assert_eq!(storage.read(&name), before[&name], "{name} stays as it is");
            }
            assert_eq!(works(&storage).0.lsns(), numbers(8), "loss {loss}");
        }
    }
}

#[test]
fn a_control_file_that_is_no_file_is_refused_and_not_a_new_log() {
    for link in [false, true] {
        let storage = closed(&[4]);
        storage.remove_file(CONTROL);
        if link {
            storage.plant_link(CONTROL);
        } else {
            storage.plant_directory(CONTROL);
        }
        assert_eq!(refusal(&storage).verdict, Verdict::Damaged);
        let done = repair(Arc::new(storage.clone())).unwrap();
        assert_eq!(done.set_aside, [(CONTROL.to_owned(), format!("{CONTROL}.aside-1"))]);
        assert_eq!(works(&storage).0.lsns(), numbers(4));
    }
}

// faults: B129
#[test]
fn a_directory_or_a_link_with_a_segments_name_is_refused() {
    for number in [1, 2, 4, 9] {
        for link in [false, true] {
            let storage = closed(&[4, 4, 4]);
            storage.remove_file(&segment(number));
            if link {
                storage.plant_link(&segment(number));
            } else {
                storage.plant_directory(&segment(number));
            }
            let finding = refusal(&storage);
            let refused = matches!(
                finding.verdict,
                Verdict::ForeignFile | Verdict::MissingSegment | Verdict::Unreadable
            );
            assert!(refused, "segment {number}: {finding}");
            assert_eq!(finding.file, segment(number));
            let done = repair(Arc::new(storage.clone())).unwrap();
            assert_eq!(done.set_aside, [(segment(number), format!("{}.aside-1", segment(number)))]);
            let (reading, _) = works(&storage);
            assert_eq!(reading.records.len(), if number < 4 { 8 } else { 12 });
        }
    }
}

// faults: B020, B129
#[test]
fn a_segment_of_another_log_is_foreign_under_any_name() {
    let other = build(99, &[4, 4, 4], true);
    for whole in [closed(&[4, 4, 4]), unclean(&[4, 4, 4])] {
        for number in [1, 2, 4] {
            let storage = whole.fork_live();
            storage.write(&segment(number), &other.read(&segment(number.min(3))).unwrap());
            let finding = refusal(&storage);
            let refused = matches!(finding.verdict, Verdict::ForeignFile | Verdict::MissingSegment);
            assert!(refused && finding.file == segment(number), "segment {number}: {finding}");
            let labels = view(&storage).report().findings.clone();
            assert!(labels.iter().any(|finding| finding.verdict == Verdict::ForeignFile), "{labels:?}");
            let view = view(&storage).past_damage(true);
            read(view.read(view.report().first.unwrap()).unwrap()).check();
        }
    }
}

// The twin of a copied machine has the same log id, segment ids and epochs.
// faults: B020
#[test]
fn a_segment_of_a_twin_that_went_on_is_foreign() {
    for whole in [closed(&[4, 4]), unclean(&[4, 4])] {
        let twin = whole.fork_live();
        another_machine(&twin);
        for (storage, count) in [(&whole, 3), (&twin, 5)] {
            let wal = open(storage);
            append(&wal, count);
            wal.close().unwrap();
        }
        let newest =
            |storage: &MemStorage| storage.names().into_iter().rfind(|name| name.ends_with(".wal")).unwrap();
        assert_eq!(newest(&whole), newest(&twin), "twins give the same ids");
        let name = newest(&twin);
        // Over our own, as a further one, and in place of a lost one.
        let storage = whole.fork_live();
        storage.write(&name, &twin.read(&name).unwrap());
        let findings = view(&storage).report().findings.clone();
        assert!(findings.iter().any(|finding| finding.verdict == Verdict::ForeignFile), "{findings:?}");
        refusal(&storage);
        let wal = open(&twin);
        append(&wal, 2);
        wal.close().unwrap();
        drop(wal);
        let further = newest(&twin);
        let storage = whole.fork_live();
        storage.write(&further, &twin.read(&further).unwrap());
        let finding = refusal(&storage);
        assert_eq!((finding.verdict, finding.file), (Verdict::ForeignFile, further));
        let reading = read(view(&storage).read(Lsn::FIRST).unwrap());
        assert_eq!(reading.lsns(), numbers(11), "our own records are there");
    }
}

#[test]
fn swapped_renamed_and_duplicated_segments_are_refused() {
    let whole = closed(&[4, 4, 4]);
    let bytes = |number: u64| whole.read(&segment(number)).unwrap();
    for (a, b) in [(1, 2), (2, 3), (1, 3)] {
        let storage = whole.fork_live();
        storage.write(&segment(a), &bytes(b));
        storage.write(&segment(b), &bytes(a));
        refusal(&storage);
        for name in [segment(a), segment(b)] {
            let findings = view(&storage).report().findings.clone();
            assert!(findings.iter().any(|finding| finding.file == name), "swapped {a} and {b}: {findings:?}");
        }
    }
    for from in 1..=3 {
        for to in [4, 9, u64::MAX] {
            let storage = whole.fork_live();
            storage.write(&segment(to), &bytes(from));
            let finding = refusal(&storage);
            assert_eq!((finding.verdict, finding.file), (Verdict::ForeignFile, segment(to)), "{from} twice");
            storage.remove_file(&segment(from));
            refusal(&storage);
        }
    }
}

// What is wrong with the newest segment is told as that, at its own place, although no link names it:
// the slots do.
// faults: B007, B017, B039, B072
#[test]
fn what_happened_to_the_newest_segment_is_told_of_that_segment() {
    type Harm = (&'static str, Verdict, fn(&MemStorage, &str));
    let harms: [Harm; 6] = [
        ("gone", Verdict::MissingSegment, |storage, name| assert!(storage.remove_file(name))),
        ("empty", Verdict::Damaged, |storage, name| assert!(storage.truncate(name, 0))),
        ("header", Verdict::Damaged, |storage, name| assert!(storage.flip_bit(name, 8 * 60))),
        ("link", Verdict::Damaged, |storage, name| assert!(storage.flip_bit(name, 8 * 4130))),
        ("version", Verdict::UnknownVersion, |storage, name| {
            edit(storage, name, |bytes| {
                put_u32(bytes, 8, 2);
                reseal_page(bytes);
            });
        }),
        ("directory", Verdict::ForeignFile, |storage, name| {
            storage.remove_file(name);
            storage.plant_directory(name);
        }),
    ];
    let mut wrong = Vec::new();
    for (what, verdict, harm) in harms {
        for segments in [&[4, 4, 4][..], &[4]] {
            let storage = closed(segments);
            let name = segment(segments.len() as u64);
            harm(&storage, &name);
            let finding = refusal(&storage);
            if (finding.verdict, &finding.file) != (verdict, &name) {
                wrong.push(format!("{what} of {segments:?}: {finding}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_unreadable_newest_segment_is_unreadable() {
    let whole = closed(&[4, 4, 4]);
    let storage = FaultStorage::new(Arc::new(whole.clone()));
    storage.inject(Fault::raw_error(5).at(Op::Read, 1).on_name(&segment(3)).sticky());
    let view = View::open_on(Arc::new(storage)).unwrap();
    assert_eq!(view.report().verdict, Verdict::Unreadable, "{:?}", view.report().findings);
}

/// The highest id that a name can hold.
// faults: B154
#[test]
fn a_file_with_the_highest_name_of_all_is_refused_and_set_aside() {
    let storage = closed(&[4]);
    let name = segment(u64::MAX);
    storage.write(&name, b"not ours");
    refusal(&storage);
    let done = repair(Arc::new(storage.clone()));
    if let Ok(done) = done {
        assert_eq!(done.set_aside, [(name.clone(), format!("{name}.aside-1"))]);
        assert_eq!(works(&storage).0.lsns(), numbers(4));
    }
}

#[test]
fn a_file_with_a_slot_or_segment_name_and_other_content_is_refused() {
    for name in [segment(1), segment(3)] {
        for content in [&b""[..], b"x", &[0; 5000], &[0xff; 5000], b"PLANEWAL"] {
            let storage = closed(&[4, 4]);
            storage.write(&name, content);
            let finding = refusal(&storage);
            assert_eq!(finding.file, name, "{finding}");
        }
    }
}

// faults: B039, B105
#[test]
fn an_unreadable_file_is_unreadable_and_neither_torn_nor_empty() {
    for name in [segment(1), segment(2)] {
        for whole in [closed(&[4, 4, 4]), unclean(&[4, 4, 4])] {
            // At the header, at the first frames, and in the middle of the walk.
            for call in 1..=3 {
                let before = contents(&whole);
                let storage = FaultStorage::new(Arc::new(whole.clone()));
                let fault = || Fault::raw_error(5).at(Op::Read, call).on_name(&name).sticky();
                storage.inject(fault());
                let view = View::open_on(Arc::new(storage.clone())).unwrap();
                let report = view.report();
                assert_eq!(
                    (report.verdict, report.proof),
                    (Verdict::Unreadable, Proof::Unproved),
                    "{name} call {call}: {:?}",
                    report.findings
                );
                storage.clear_faults();
                storage.inject(fault());
                match Wal::open_on(Arc::new(storage.clone()), options()) {
                    Err(OpenError::Refused { finding, .. }) => {
                        assert_eq!((finding.verdict, &finding.file), (Verdict::Unreadable, &name));
                    }
                    other => panic!("{name} call {call}: {other:?}"),
                }
                assert_eq!(before, contents(&whole));
            }
            assert_eq!(works(&whole).0.lsns(), numbers(12), "a passing error harms nothing");
        }
    }
}

#[test]
fn an_unreadable_control_file_is_an_error_and_not_a_new_log() {
    let whole = closed(&[4]);
    let before = contents(&whole);
    let storage = FaultStorage::new(Arc::new(whole.clone()));
    storage.inject(Fault::raw_error(5).at(Op::Read, 1).on_name(CONTROL).sticky());
    assert!(View::open_on(Arc::new(storage.clone())).is_err());
    assert!(Wal::open_on(Arc::new(storage.clone()), options()).is_err());
    assert_eq!(before, contents(&whole));
}

// faults: B081, B137, B139
#[test]
fn leftovers_of_every_kind_go_at_the_next_open_and_other_files_stay() {
    let storage = closed(&[4]);
    let ours = [segment(7) + ".tmp", "planewal.ctl.tmp".to_owned()];
    let theirs = ["notes.txt", "planewal.conf", "00000000000000000001.wal.aside-1", "7.wal", "x.tmp"];
    for name in ours.iter().map(String::as_str).chain(theirs) {
        storage.write(name, b"whatever");
    }
    let wal = open(&storage);
    let removed: Vec<_> = wal.recovery().removed.iter().map(|extra| extra.why).collect();
    assert_eq!(removed, ["temporary", "temporary"]);
    drop(wal);
    for name in &ours {
        assert_eq!(storage.read(name), None);
    }
    for name in theirs {
        assert_eq!(storage.read(name).as_deref(), Some(&b"whatever"[..]), "{name} is not ours");
    }
    assert_eq!(works(&storage).0.lsns(), numbers(4));
}

// docs/format.md, "Control file": a begun row goes when the successor's link of its file is durable.
#[test]
fn begun_rows_name_only_segments_that_nothing_else_names() {
    let control = closed(&[4, 4, 4]).read(CONTROL).unwrap();
    for slot in [&control[..SLOT], &control[SLOT..]] {
        let count = crate::support::u32_at(slot, 136) as usize;
        let rows: Vec<u64> = (0..count).map(|at| crate::support::u64_at(slot, 160 + 24 * at)).collect();
        assert!(rows.iter().all(|&id| id >= 3), "segments 1 and 2 are named by links: rows of {rows:?}");
    }
}

// A link of a kind that a later version writes, in the newest segment, which nothing proves.
// faults: B017, B145
#[test]
fn a_link_of_a_later_version_is_not_torn() {
    for storage in [closed(&[4, 4]), unclean(&[4, 4])] {
        let newest = segment(2);
        for (at, value, verdict) in [(28, 9, Verdict::UnknownVersion), (29, 1, Verdict::UnknownVersion)] {
            let storage = storage.fork_live();
            edit(&storage, &newest, |bytes| {
                bytes[4096 + at] = value;
                crate::support::reseal_frame(bytes, 4096);
            });
            let before = contents(&storage);
            assert_eq!(refusal(&storage).verdict, verdict, "byte {at}");
            let mut after = contents(&storage);
            after.retain(|name, _| before.contains_key(name));
            assert_eq!(before, after, "nothing is cut");
        }
    }
}
