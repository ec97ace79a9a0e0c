//! A disk that fails: at the n-th call, for every n, in every way.
//!
//! Whatever fails, nothing that was acknowledged is lost, the error is told, and what is
//! not certain any more is never tried again behind the caller's back.

use std::io::ErrorKind;
use std::sync::Arc;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op};
use planewal::{AppendError, CloseError, Durability, Lsn, OpenError, Verdict, View, Wal};

use crate::model::{Crash, Model, batch_of, check, content, encoded, lsn, number, on, small_options};
use crate::run::{Refusal, Run, SCRIPT, Step};

/// What a whole run with one fault came to.
#[derive(Debug, Default)]
struct Tally {
    poisoned: u32,
    refused: u32,
    not_opened: u32,
    not_closed: u32,
    unnoticed: u32,
}

/// Crash images right after a failure keep all promises.
fn check_images(run: &Run, place: &str) {
    let model = run.model();
    for plan in [CrashPlan::Nothing, CrashPlan::Everything, CrashPlan::Seeded(1), CrashPlan::Seeded(2)] {
        if let Err(found) = check(&run.disk.crash(&plan), &model, Crash::Power) {
            panic!("{place}, {plan:?}: {found}");
        }
    }
    if let Err(found) = check(&run.disk.fork_live(), &model, Crash::Process) {
        panic!("{place}, process death: {found}");
    }
}

/// P6: every call is answered with the poison, and nothing more is tried on the disk.
fn poison_stays(wal: &Wal, run: &Run, place: &str) {
    let poison = wal.poisoned().unwrap();
    let mutations = run.faults.mutations();
    for level in [Durability::Buffered, Durability::Written, Durability::Synced] {
        let error = wal.commit_as(&mut encoded(&batch_of(9, 0, &[5])), level).unwrap_err();
        assert!(matches!(&error, AppendError::Poisoned(told) if **told == *poison), "{place}: {error}");
    }
    assert!(matches!(wal.sync(), Err(AppendError::Poisoned(_))), "{place}: sync");
    assert!(matches!(wal.rotate(), Err(AppendError::Poisoned(_))), "{place}: rotate");
    if let Some(last) = wal.last().filter(|&last| Some(last) > wal.durable()) {
        assert!(matches!(wal.wait_durable(last), Err(AppendError::Poisoned(_))), "{place}: wait_durable");
    }
    for _ in 0..2 {
        assert!(matches!(wal.close(), Err(CloseError::Poisoned(_))), "{place}: close");
    }
    assert_eq!(run.faults.mutations(), mutations, "{place}: the disk was touched after {poison}");
}

/// Runs every case to its end, and tells of the first few that failed.
#[derive(Debug, Default)]
struct Cases {
    failed: Vec<String>,
    run: u32,
}

impl Cases {
    fn case(&mut self, place: &str, case: impl FnOnce()) {
        self.run += 1;
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case)) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            self.failed.push(format!("{place}: {}", text.unwrap_or_default()));
        }
    }

    fn assert_sound(&self) {
        for failed in &self.failed {
            println!("{failed}");
        }
        let first: Vec<&str> = self.failed.iter().take(5).map(String::as_str).collect();
        assert!(
            first.is_empty(),
            "{} of {} cases failed:\n{}",
            self.failed.len(),
            self.run,
            first.join("\n")
        );
        assert!(self.run > 0);
    }
}

/// Runs the whole script with one fault in it. Every failure is looked into, and then the script goes
/// on: with the same handle where the log says that it can, with a new one where not.
fn run_with(fault: Fault, place: &str, tally: &mut Tally) {
    let mut run = Run::new(small_options());
    run.faults.inject(fault);
    let mut noticed = false;
    for (at, step) in SCRIPT.iter().enumerate() {
        let place = format!("{place}, step {at} {step:?}");
        let wal = run.wal();
        let Err(refusal) = run.step(*step) else { continue };
        noticed = true;
        check_images(&run, &place);
        match (&refusal, wal) {
            (Refusal::Open(OpenError::Storage(_) | OpenError::Full(_)), _) => {
                tally.not_opened += 1;
                run.step(*step).unwrap_or_else(|again| panic!("{place}: {refusal:?}, then {again:?}"));
            }
            (_, Some(wal)) if wal.poisoned().is_some() => {
                tally.poisoned += 1;
                poison_stays(&wal, &run, &place);
                check_images(&run, &place);
                drop(wal);
                run.let_go();
                run.open().unwrap_or_else(|error| panic!("{place}: {refusal:?}, then {error}"));
                assert!(run.wal().unwrap().recovery().unclean, "{place}: a clean close after {refusal:?}");
            }
            (Refusal::Close(CloseError::Storage(_)), _) => {
                tally.not_closed += 1;
                run.let_go();
                run.open().unwrap_or_else(|error| panic!("{place}: {refusal:?}, then {error}"));
            }
            (
                Refusal::Append(AppendError::Full(_) | AppendError::Storage(_))
                | Refusal::Close(CloseError::Full { .. }),
                Some(_),
            ) => {
                tally.refused += 1;
                run.step(*step).unwrap_or_else(|again| panic!("{place}: {refusal:?}, then {again:?}"));
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    tally.unnoticed += u32::from(!noticed);
    run.step(Step::Close).unwrap();
    check_images(&run, &format!("{place}, at the end"));
}

fn calls_of_the_script() -> u64 {
    let mut run = Run::new(small_options());
    run.run(SCRIPT).unwrap();
    run.faults.mutations()
}

fn fail_everywhere(what: &str, fault: impl Fn() -> Fault) -> Tally {
    let mut tally = Tally::default();
    let mut cases = Cases::default();
    for call in 1..=calls_of_the_script() {
        let place = format!("{what} at call {call}");
        cases.case(&place, || run_with(fault().at_mutation(call), &place, &mut tally));
    }
    println!("{what}: {tally:?}");
    cases.assert_sound();
    tally
}

/// Fails each call of one kind. Answers what came of it.
fn fail_each(op: Op, what: &str, fault: impl Fn() -> Fault) -> Tally {
    let mut run = Run::new(small_options());
    run.run(SCRIPT).unwrap();
    let mut tally = Tally::default();
    let mut cases = Cases::default();
    for call in 1..=run.faults.counts().get(op) {
        let place = format!("{what} at {op:?} {call}");
        cases.case(&place, || run_with(fault().at(op, call), &place, &mut tally));
    }
    println!("{what}: {tally:?}");
    cases.assert_sound();
    tally
}

// faults: B092, B095, B096, B099, B100, B102, B108
#[test]
fn any_call_may_fail() {
    let tally = fail_everywhere("error", || Fault::error(ErrorKind::Other));
    assert!(
        tally.poisoned > 20 && tally.not_opened > 20 && tally.refused > 0 && tally.not_closed > 0,
        "{tally:?}"
    );
}

// faults: B083, B085
#[test]
fn any_write_may_be_torn_and_then_fail() {
    for bytes in [1, 40, 511, 700, 4000] {
        let tally = fail_each(Op::Write, &format!("{bytes} bytes, then an error"), || {
            Fault::torn_write(bytes, ErrorKind::Other)
        });
        assert!(tally.poisoned > 10 && tally.not_opened > 5, "{tally:?}");
    }
}

// faults: B085
#[test]
fn a_short_write_is_continued() {
    for bytes in [1, 33, 512] {
        let tally = fail_each(Op::Write, &format!("{bytes} bytes"), || Fault::short_write(bytes));
        assert_eq!(tally.poisoned + tally.refused + tally.not_opened + tally.not_closed, 0, "{tally:?}");
    }
}

// faults: B095, B096, B098
#[test]
fn a_sync_that_failed_is_for_ever() {
    for op in [Op::Sync, Op::SyncDir] {
        let tally = fail_each(op, "error", || Fault::error(ErrorKind::Other));
        assert!(tally.poisoned > 3 && tally.not_opened > 3, "{tally:?}");
        assert_eq!(
            tally.refused, 0,
            "an error of {op:?} was taken for something to be tried again: {tally:?}"
        );
    }
}

/// P6 makes an exception for a write without room, not for a sync.
// faults: B095
#[test]
fn a_sync_without_room_is_for_ever_too() {
    for op in [Op::Sync, Op::SyncDir] {
        let tally = fail_each(op, "no room", || Fault::error(ErrorKind::StorageFull));
        assert!(tally.poisoned > 3 && tally.not_opened > 3, "{tally:?}");
        assert_eq!(
            tally.refused, 0,
            "no room of {op:?} was taken for something to be tried again: {tally:?}"
        );
    }
}

// faults: B083, B087, B088, B091
#[test]
fn any_call_may_find_no_room() {
    let tally = fail_everywhere("no room", || Fault::error(ErrorKind::StorageFull));
    assert!(tally.refused > 5 && tally.not_opened > 10, "{tally:?}");
    for bytes in [1, 700] {
        fail_each(Op::Write, &format!("{bytes} bytes, then no room"), || {
            Fault::torn_write(bytes, ErrorKind::StorageFull)
        });
    }
}

// faults: B012, B105
#[test]
fn an_interrupted_call_is_made_again() {
    for op in [Op::Read, Op::Write] {
        let tally = fail_each(op, "interrupted", || Fault::error(ErrorKind::Interrupted));
        assert_eq!(tally.poisoned + tally.refused + tally.not_opened + tally.not_closed, 0, "{tally:?}");
    }
}

/// The files named `name` that were synced so far, as a count.
fn syncs(storage: &FaultStorage, name: &str) -> u64 {
    storage.counts_for(|file| file == name).get(Op::Sync)
}

// faults: B095, B096
#[test]
fn after_a_failed_sync_the_file_is_not_synced_again() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Durability::Synced, &[10]), Step::Commit(Durability::Written, &[20])])
        .unwrap();
    run.faults.inject(Fault::error(ErrorKind::Other).at(Op::Sync, 1).on_name(".wal"));
    let name = "00000000000000000001.wal";
    let before = syncs(&run.faults, name);
    run.step(Step::Commit(Durability::Synced, &[30])).unwrap_err();
    assert_eq!(syncs(&run.faults, name), before + 1);
    let wal = run.wal().unwrap();
    poison_stays(&wal, &run, "a failed sync");
    assert_eq!(number(wal.durable()), 1);
    drop(wal);
    run.let_go();
    assert_eq!(syncs(&run.faults, name), before + 1);
    // The page cache may tell the next reader what never reached the disk: it is written anew.
    run.open().unwrap();
    let wal = run.wal().unwrap();
    assert_eq!(wal.recovery().copied, Some((lsn(2), lsn(3))));
    check_images(&run, "after the copy");
}

// faults: B100
#[test]
fn the_sync_of_a_left_segment_that_failed_is_not_overlooked() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Durability::Synced, &[10]), Step::Commit(Durability::Written, &[20])])
        .unwrap();
    // The next batch does not fit: the segment is left, and its closing sync fails.
    run.faults.inject(Fault::error(ErrorKind::Other).at(Op::Sync, 1).on_name("00001.wal"));
    run.step(Step::Commit(Durability::Synced, &[9000])).unwrap_err();
    let wal = run.wal().unwrap();
    assert_eq!(number(wal.durable()), 1);
    poison_stays(&wal, &run, "a closing sync");
    check_images(&run, "a closing sync");
}

/// Scenario 8: the log goes on in a new segment with a group that found no room, and never writes to that file again.
// faults: B083, B087
#[test]
fn a_group_without_room_goes_to_a_new_segment() {
    for torn in [None, Some(1), Some(600)] {
        let mut run = Run::new(small_options());
        run.run(&[
            Step::Open,
            Step::Commit(Durability::Synced, &[10]),
            Step::Commit(Durability::Buffered, &[20]),
        ])
        .unwrap();
        let fault = match torn {
            None => Fault::error(ErrorKind::StorageFull),
            Some(bytes) => Fault::torn_write(bytes, ErrorKind::StorageFull),
        };
        run.faults.inject(fault.at(Op::Write, 1).on_name("00001.wal"));
        run.step(Step::Commit(Durability::Synced, &[800, 5])).unwrap();
        let wal = run.wal().unwrap();
        assert!(wal.poisoned().is_none());
        assert_eq!(wal.segments().len(), 2, "{torn:?}");
        check_images(&run, "after the move");
        let counts = run.faults.counts_for(|name| name.ends_with("00001.wal"));
        run.run(&[Step::Commit(Durability::Synced, &[30]), Step::Commit(Durability::Written, &[40])])
            .unwrap();
        // Sealing the file that was left is all that may still happen to it.
        let written = (run.faults.counts_for(|name| name.ends_with("00001.wal")) - counts).bytes_written;
        assert!(written < 400, "{written} bytes were written to the file that has no room");
        run.step(Step::Close).unwrap();
        check_images(&run, "closed");
    }
}

/// There is no room for long: appends say so before an LSN, `close` names what is not written, and all goes on
/// once there is room.
// faults: B087, B092
#[test]
fn a_group_waits_until_there_is_room() {
    let mut run = Run::new(small_options());
    run.run(&[
        Step::Open,
        Step::Commit(Durability::Synced, &[10]),
        Step::Commit(Durability::Buffered, &[20]),
    ])
    .unwrap();
    let wal = run.wal().unwrap();
    for op in [Op::Write, Op::Create, Op::Allocate] {
        run.faults.inject(Fault::error(ErrorKind::StorageFull).at(op, 1).sticky());
    }
    // The staged record has its LSN; a rotation has to write it and cannot.
    let error = wal.rotate().unwrap_err();
    assert!(matches!(error, AppendError::Full(_)), "{error}");
    for _ in 0..2 {
        let Err(Refusal::Append(AppendError::Full(_))) = run.step(Step::Commit(Durability::Synced, &[30]))
        else {
            panic!("no room, but appended")
        };
    }
    let closed = wal.close().unwrap_err();
    assert!(
        matches!(closed, CloseError::Full { first, last, .. } if (first, last) == (lsn(2), lsn(2))),
        "{closed}"
    );
    check_images(&run, "no room");
    run.faults.clear_faults();
    run.step(Step::Commit(Durability::Synced, &[30])).unwrap();
    assert_eq!(number(wal.durable()), 3);
    drop(wal);
    run.step(Step::Close).unwrap();
    check_images(&run, "closed");
}

/// A disk with a log that was left in the middle of things: two segments with an unproved tail, and a torn end.
fn left_behind() -> (MemStorage, Model) {
    let mut run = Run::new(small_options());
    run.run(&SCRIPT[..13]).unwrap();
    run.run(&[Step::Commit(Durability::Written, &[2000]), Step::Commit(Durability::Written, &[9000])])
        .unwrap();
    run.faults.inject(Fault::torn_write(700, ErrorKind::Other).at(Op::Write, 1));
    run.step(Step::Commit(Durability::Written, &[900])).unwrap_err();
    run.faults.clear_faults();
    run.let_go();
    let mut model = run.model();
    let image = run.disk.fork_live();
    let kept = check(&image.fork_live(), &model, Crash::Process).unwrap();
    model.keep(kept);
    (image, model)
}

// faults: B089, B105, B108
#[test]
fn any_call_of_open_may_fail() {
    let (image, model) = left_behind();
    let mut opened = 0;
    let mut cases = Cases::default();
    for op in Op::ALL {
        let counting = FaultStorage::new(on(&image.fork_live()));
        drop(Wal::open_on(Arc::new(counting.clone()), small_options()).unwrap());
        for call in 1..=counting.counts().get(op) {
            for kind in [ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::PermissionDenied] {
                let place = format!("{kind:?} at {op:?} {call}");
                cases.case(&place, || opened += u32::from(fail_open(&image, &model, op, call, kind)));
            }
        }
    }
    cases.assert_sound();
    assert!(opened > 0);
}

/// Opens with one call failing, and again without; answers whether the first went well all the same.
fn fail_open(image: &MemStorage, model: &Model, op: Op, call: u64, kind: ErrorKind) -> bool {
    let disk = image.fork_live();
    let storage = FaultStorage::new(on(&disk));
    storage.inject(Fault::error(kind).at(op, call));
    match Wal::open_on(Arc::new(storage.clone()), small_options()) {
        Ok(wal) => {
            // The copy may wait for room; everything else has to be told.
            let pending = wal.recovery().copy_pending;
            assert!(!pending || kind == ErrorKind::StorageFull);
            assert_eq!(model.compare_wal(&wal), Ok(model.len()), "copy pending: {pending}");
            let receipt = wal
                .commit(&mut encoded(&batch_of(5, 0, &[5])))
                .unwrap_or_else(|error| panic!("copy pending: {pending}, then a commit: {error}"));
            assert_eq!(receipt.first.number(), model.len() + 1);
            return true;
        }
        Err(OpenError::Refused { finding, .. }) => {
            assert_eq!(finding.verdict, Verdict::Unreadable, "{finding}");
            assert_eq!(storage.mutations(), 0);
            assert_eq!(content(&disk), content(image));
        }
        Err(OpenError::Storage(_) | OpenError::Full(_)) => {}
        Err(error) => panic!("{error}"),
    }
    let mut promised = model.clone();
    promised.acknowledge(Durability::Written, model.len());
    if let Err(found) = check(&disk, &promised, Crash::Process) {
        panic!("then {found}");
    }
    false
}

/// What cannot be read is `Unreadable`, and never taken for the end of the log.
// faults: B012, B105
#[test]
fn what_cannot_be_read_is_not_cut() {
    let (image, model) = left_behind();
    let segments = image.names().into_iter().filter(|name| name.ends_with(".wal"));
    for name in segments {
        let disk = image.fork_live();
        let storage = FaultStorage::new(on(&disk));
        storage.inject(Fault::error(ErrorKind::Other).at(Op::Read, 1).on_name(&name).sticky());
        let view = View::open_on(Arc::new(storage.clone())).unwrap();
        assert_eq!(view.report().verdict, Verdict::Unreadable, "{name}");
        let error = Wal::open_on(Arc::new(storage.clone()), small_options()).unwrap_err();
        assert!(
            matches!(&error, OpenError::Refused { finding, .. } if finding.verdict == Verdict::Unreadable),
            "{name}: {error}"
        );
        assert_eq!(storage.mutations(), 0);
        assert_eq!(content(&disk), content(&image));
        let mut promised = model.clone();
        promised.acknowledge(Durability::Written, model.len());
        assert_eq!(check(&disk, &promised, Crash::Process), Ok(model.len()));
    }
}

/// Reads that come back short, whole calls or bit by bit, are continued.
#[test]
fn a_short_read_is_continued() {
    let (image, model) = left_behind();
    for bytes in [1, 100] {
        let storage = FaultStorage::new(on(&image));
        storage.inject(Fault::short_read(bytes).at(Op::Read, 1).on_name("planewal.ctl"));
        for call in 1..40 {
            storage.inject(Fault::short_read(bytes).at(Op::Read, call).on_name(".wal"));
        }
        let view = View::open_on(Arc::new(storage)).unwrap();
        let (records, error) = crate::model::drain(view.read(Lsn::FIRST).unwrap());
        assert!(error.is_none());
        assert_eq!(records.len() as u64, model.len());
    }
}
