//! The scenarios that the design had to be right about, by number, and faults that other logs have had.

use std::io::ErrorKind;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use planewal::storage::{CrashPlan, Fault, FaultStorage, MemStorage, Op, Storage};
use planewal::{
    AppendError, Cursor, Durability, Finding, Lsn, OpenError, Options, Proof, ReadError, Verdict, View, Wal,
};

use crate::enumeration::{Checker, crash_again, few_plans};
use crate::model::{Crash, batch_of, check, content, drain, encoded, lsn, number, on, small_options};
use crate::run::{Refusal, Run, SCRIPT, Step};

use Durability::{Buffered, Synced, Written};

fn segment(id: u64) -> String {
    format!("{id:020}.wal")
}

fn open(disk: &MemStorage) -> Result<Wal, OpenError> {
    Wal::open_on(on(disk), small_options())
}

/// The finding for which a writing open refuses, having changed nothing.
fn refusal(disk: &MemStorage) -> Finding {
    let before = content(disk);
    let error = open(disk).unwrap_err();
    // The lock file is all that a refused open may leave.
    let mut after = content(disk);
    after.retain(|(name, _)| name != "planewal.lock" || before.iter().any(|(old, _)| old == name));
    assert_eq!(after, before, "a refusal changed the disk");
    match error {
        OpenError::Refused { finding, .. } => *finding,
        other => panic!("{other}"),
    }
}

/// Of what is pending the first so many are lost and the others survive: what was written last reached the
/// disk first.
fn later_ones_survive(disk: &MemStorage) -> impl Iterator<Item = MemStorage> {
    let pending = disk.pending();
    (0..=pending)
        .map(move |lost| disk.crash(&CrashPlan::Subset((0..pending).map(|number| number >= lost).collect())))
}

/// The numbers of the records that a view reads.
fn records(disk: &MemStorage) -> Vec<u64> {
    let view = View::open_on(on(disk)).unwrap();
    let (records, error) = drain(view.read(Lsn::FIRST).unwrap());
    assert!(error.is_none(), "{error:?}");
    records.into_iter().map(|(lsn, _)| lsn).collect()
}

fn verdict(disk: &MemStorage) -> (Verdict, Proof) {
    let view = View::open_on(on(disk)).unwrap();
    (view.report().verdict, view.report().proof)
}

/// Scenario 1: a record is only written in a segment, the next one is to be synced in the segment behind it, and
/// the power goes.
// faults: B080
#[test]
fn a_record_is_not_durable_before_those_of_the_segment_before() {
    let mut run = Run::new(Options { io_thread: true, beacon_idle: Duration::ZERO, ..small_options() });
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Commit(Written, &[6000])]).unwrap();
    // The closing sync hangs, whoever makes it.
    run.faults.inject(Fault::hang().at(Op::Sync, 1).on_name("00001.wal"));
    run.step(Step::Commit(Written, &[6000])).unwrap();
    assert!(run.faults.wait_hung());
    let wal = run.wal().unwrap();
    assert_eq!(wal.segments().len(), 2);
    let batch = batch_of(1, 3, &[50]);
    let committer = std::thread::spawn({
        let (wal, batch) = (wal.clone(), batch.clone());
        move || wal.commit_as(&mut encoded(&batch), Synced)
    });
    // It is written at once, and not durable before the sync of the first segment has returned.
    while number(wal.written()) < 4 {
        std::thread::yield_now();
    }
    assert_eq!(number(wal.durable()), 1);
    let mut model = run.model();
    model.append(batch);
    let mut hollow = 0;
    for image in later_ones_survive(&run.disk) {
        let second = image.read(&segment(2)).is_some_and(|bytes| bytes[4096..].iter().any(|&byte| byte != 0));
        let kept = check(&image, &model, Crash::Power).unwrap();
        hollow += u32::from(second && kept == 1);
    }
    assert!(hollow > 5, "no image had the second segment without the end of the first");
    run.faults.release();
    committer.join().unwrap().unwrap();
    assert_eq!(number(wal.durable()), 4);
    model.acknowledge(Synced, 4);
    assert_eq!(check(&run.disk.crash(&CrashPlan::Nothing), &model, Crash::Power), Ok(4));
}

/// Scenario 4: the control file was written while records were only in the page cache; the power goes.
#[test]
fn a_control_slot_proves_nothing_that_was_only_written() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Commit(Written, &[6000])]).unwrap();
    let control = || run.faults.counts_for(|name| name == "planewal.ctl").get(Op::Write);
    let before = control();
    // A record that is larger than a segment has one prepared, which the slots have to know.
    let wal = run.wal().unwrap();
    wal.commit_as(&mut encoded(&batch_of(1, 2, &[20_000])), Buffered).unwrap();
    assert!(control() > before);
    let image = run.disk.crash(&CrashPlan::Nothing);
    let mut model = run.model();
    model.append(batch_of(1, 2, &[20_000]));
    check(&image, &model, Crash::Power).unwrap();
    for image in later_ones_survive(&run.disk) {
        check(&image, &model, Crash::Power).unwrap();
    }
}

/// Scenario 5: either control slot rots after a clean close, an open and more commits.
#[test]
fn a_rotten_slot_brings_no_old_close_back() {
    for slot in 0..2 {
        let mut run = Run::new(small_options());
        run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Close, Step::Open]).unwrap();
        run.run(&[Step::Commit(Synced, &[20]), Step::Commit(Written, &[30])]).unwrap();
        for (crash, image) in
            [(Crash::Process, run.disk.fork_live()), (Crash::Power, run.disk.crash(&CrashPlan::Nothing))]
        {
            assert!(image.flip_bit("planewal.ctl", 8 * (65_536 * slot + 90)));
            let view = View::open_on(on(&image)).unwrap();
            assert!(!view.report().closed_cleanly);
            assert!(view.report().findings.iter().any(|finding| finding.label == "control-slot"));
            check(&image, &run.model(), crash).unwrap();
        }
    }
}

/// Scenario 6: a copied directory goes on beside its twin, and files get from one to the other.
#[test]
fn a_file_of_a_twin_is_not_taken_for_ours() {
    let mut ours = Run::new(small_options());
    ours.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Close]).unwrap();
    let twin_disk = ours.disk.fork_live();
    // Two machines do not draw the same random bytes.
    twin_disk.random(&mut [0; 8]).unwrap();
    let mut twin = Run::on(&twin_disk, small_options(), ours.model());
    for rounds in 1..4 {
        twin.open().unwrap();
        twin.commit(Synced, &[rounds, 77]).unwrap();
        twin.step(Step::Close).unwrap();
    }
    ours.run(&[Step::Open, Step::Commit(Synced, &[30]), Step::Close]).unwrap();
    let names = twin_disk.names().into_iter().filter(|name| name.ends_with(".wal"));
    let mut tried = 0;
    for name in names.filter(|name| *name != segment(1)) {
        tried += 1;
        let image = ours.disk.fork_live();
        image.write(&name, &twin_disk.read(&name).unwrap());
        let finding = refusal(&image);
        assert!(
            matches!(finding.verdict, Verdict::ForeignFile | Verdict::MissingSegment | Verdict::Damaged),
            "{name}: {finding}"
        );
        let view = View::open_on(on(&image)).unwrap();
        let (seen, _) = drain(view.read(Lsn::FIRST).unwrap());
        assert!(seen.len() <= 2, "{name}: records of the twin");
        for (lsn, payload) in seen {
            assert_eq!(*payload, *ours.model().record(lsn).unwrap().payload, "{name}");
        }
    }
    assert!(tried >= 3);
}

/// Scenario 6: ids and epochs only rise, over crashes, and over names that are not segments yet or any more.
// faults: B066, B068
#[test]
fn no_id_and_no_epoch_is_given_twice() {
    let mut disk = MemStorage::new(3);
    let mut ids = Vec::new();
    let mut epoch = 0;
    for round in 0..20_u64 {
        let wal = open(&disk).unwrap();
        wal.commit_as(&mut encoded(&batch_of(round, 0, &[10])), Written).unwrap();
        let newest = wal.segments().last().unwrap().clone();
        assert!(newest.epoch > epoch, "{newest:?}");
        epoch = newest.epoch;
        assert!(!ids.contains(&newest.id.number()), "{newest:?}");
        ids.push(newest.id.number());
        let crashed = if round % 3 == 0 { disk.fork_live() } else { disk.crash(&CrashPlan::Seeded(round)) };
        drop(wal);
        disk = crashed;
    }
    disk.write(&format!("{}.tmp", segment(900)), b"unfinished");
    disk.write(&format!("{}.aside-1", segment(950)), b"kept by repair");
    let wal = open(&disk).unwrap();
    wal.append(0x80, 1, b"x").unwrap();
    assert!(wal.segments().last().unwrap().id.number() > 950);
    assert!(!disk.names().contains(&format!("{}.tmp", segment(900))));
    assert!(disk.names().contains(&format!("{}.aside-1", segment(950))));
}

/// Bytes that a disk has allocated.
fn used(disk: &MemStorage) -> u64 {
    let much = 1 << 40;
    disk.set_capacity(Some(much));
    much - disk.free_bytes().unwrap()
}

/// Two segments with records above the durable mark, and nobody who has them open.
fn unproved_tail() -> Run {
    let mut run = Run::new(small_options());
    run.run(&[
        Step::Open,
        Step::Commit(Synced, &[10]),
        Step::Commit(Written, &[6000]),
        Step::Commit(Written, &[6000, 3]),
        Step::Commit(Written, &[100]),
        Step::Drop,
    ])
    .unwrap();
    assert_eq!((run.model().durable, run.model().written), (1, 5));
    run
}

/// Scenario 7: the disk is full when a log with an unproved tail is opened.
// faults: B087, B089
#[test]
fn a_full_disk_is_opened_and_goes_on_when_there_is_room() {
    let mut pending = 0;
    let mut proved = 0;
    for spare in (0..80).map(|sectors| sectors * 512) {
        let mut run = unproved_tail();
        let full = used(&run.disk) + spare;
        run.disk.set_capacity(Some(full));
        run.open().unwrap_or_else(|error| panic!("{spare} bytes to spare: {error}"));
        let wal = run.wal().unwrap();
        let model = run.model();
        assert_eq!(model.len(), 5);
        if wal.recovery().copy_pending {
            pending += 1;
            assert_eq!(number(wal.durable()), 1);
            assert!(matches!(wal.sync(), Err(AppendError::Full(_))), "{spare}");
            let Err(Refusal::Append(AppendError::Full(_))) = run.step(Step::Commit(Synced, &[1])) else {
                panic!("{spare}: appended behind an unproved tail")
            };
            assert!(matches!(wal.wait_durable(lsn(5)), Err(AppendError::Full(_))), "{spare}");
        } else {
            proved += 1;
            assert_eq!(number(wal.durable()), 5, "{spare}");
        }
        for plan in [CrashPlan::Nothing, CrashPlan::Everything] {
            let image = run.disk.crash(&plan);
            image.set_capacity(None);
            check(&image, &run.model(), Crash::Power).unwrap_or_else(|found| panic!("{spare}: {found}"));
        }
        run.disk.set_capacity(None);
        run.run(&[Step::Commit(Written, &[40]), Step::Commit(Synced, &[1])])
            .unwrap_or_else(|refusal| panic!("{spare}: there is room, and {refusal:?}"));
        drop(wal);
        run.step(Step::Close).unwrap();
        let image = run.disk.crash(&CrashPlan::Nothing);
        check(&image, &run.model(), Crash::Power).unwrap_or_else(|found| panic!("{spare}: {found}"));
    }
    assert!(pending > 5 && proved > 5, "{pending} pending, {proved} copied");
}

/// Scenario 7: the power goes while a copy that had to wait is made.
#[test]
fn a_copy_that_had_to_wait_may_be_cut_short() {
    let checker = Arc::new(Checker::default());
    let mut run = unproved_tail();
    run.disk.set_capacity(Some(used(&run.disk)));
    run.open().unwrap();
    run.disk.set_capacity(None);
    run.watch({
        let checker = Arc::clone(&checker);
        move |moment| checker.check_moment(moment, &few_plans(8, moment.number), &String::new)
    });
    run.step(Step::Commit(Synced, &[1])).unwrap();
    assert_eq!(number(run.wal().unwrap().durable()), 6);
    checker.assert_sound(20);
}

/// Scenario 7: a log that fills its disk again and again loses nothing and never has to be reopened.
// faults: B087
#[test]
fn a_log_that_fills_its_disk_goes_on_with_every_bit_of_room() {
    let mut run = Run::new(small_options());
    run.open().unwrap();
    let mut refused = 0;
    for round in 0..60_u64 {
        let room = 140_000 + round * 1536;
        run.disk.set_capacity(Some(room));
        for level in [Buffered, Written, Synced] {
            match run.commit(level, &[500]) {
                Ok(()) => {}
                Err(AppendError::Full(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if round % 7 == 0 {
            let image = run.disk.crash(&CrashPlan::Seeded(round));
            image.set_capacity(None);
            check(&image, &run.model(), Crash::Power).unwrap();
        }
    }
    assert!(refused > 5, "the disk was never full");
    assert!(run.model().len() > 60);
    run.disk.set_capacity(None);
    run.run(&[Step::Commit(Synced, &[1]), Step::Close]).unwrap();
    check(&run.disk.fork_live(), &run.model(), Crash::Process).unwrap();
}

/// Has the I/O thread write a beacon and waits for it.
fn beacon(run: &Run) {
    let came = Arc::new((Mutex::new(false), Condvar::new()));
    run.watch({
        let came = Arc::clone(&came);
        move |moment| {
            if moment.op == Op::Write && moment.name.ends_with(".wal") {
                *came.0.lock().unwrap() = true;
                came.1.notify_all();
            }
        }
    });
    // The mark may have been carried on before anybody looked.
    run.wal().unwrap().commit_as(&mut encoded(&batch_of(0, 0, &[1])), Written).unwrap();
    *came.0.lock().unwrap() = false;
    run.wal().unwrap().sync().unwrap();
    let seen = came.0.lock().unwrap();
    let (seen, _) = came.1.wait_timeout_while(seen, Duration::from_secs(20), |came| !*came).unwrap();
    assert!(*seen, "no beacon came");
}

/// Scenario 9: a beacon between two durable groups is flipped.
#[test]
fn a_flipped_beacon_loses_nothing() {
    let mut run =
        Run::new(Options { io_thread: true, beacon_idle: Duration::from_millis(1), ..small_options() });
    run.run(&[Step::Open, Step::Commit(Synced, &[10])]).unwrap();
    beacon(&run);
    let wal = run.wal().unwrap();
    let last = wal.append(0x80, 1, b"behind").unwrap();
    let from = wal.seek(lsn(last.number() - 1)).unwrap().offset + 40;
    let to = wal.seek(last).unwrap().offset;
    wal.close().unwrap();
    assert_eq!(to - from, 32, "a beacon stands between the two groups");
    for byte in [0, 8, 24, 28, 31] {
        let image = run.disk.fork_live();
        image.flip_bit(&segment(1), 8 * (from + byte));
        let view = View::open_on(on(&image)).unwrap();
        let labels: Vec<_> = view.report().findings.iter().map(|finding| finding.label).collect();
        assert_eq!((view.report().verdict, &labels[..]), (Verdict::Damaged, &["filler-damaged"][..]));
        assert_eq!(records(&image).len() as u64, last.number());
        let wal = open(&image).unwrap();
        assert_eq!(wal.last(), Some(last));
        wal.append(0x80, 1, b"more").unwrap();
        wal.close().unwrap();
        assert_eq!(records(&image).len() as u64, last.number() + 1);
    }
}

fn cursor_at(wal: &Wal, last: u64) -> Cursor {
    let mut reader = wal.read(Lsn::FIRST).unwrap();
    for _ in 0..last {
        reader.next().unwrap().unwrap();
    }
    Cursor::from_bytes(&reader.cursor().to_bytes()).unwrap()
}

fn is_diverged<T>(result: Result<T, ReadError>, read: u64, kept: u64) -> bool {
    matches!(result, Err(ReadError::Diverged { read: told, kept: left, .. }) if told == lsn(read) && left == lsn(kept).into())
}

/// Scenario 10: a reader saw records that a power loss took.
#[test]
fn a_cursor_above_what_a_power_loss_left_has_diverged() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10, 11]), Step::Commit(Written, &[20, 21])]).unwrap();
    let wal = run.wal().unwrap();
    let [safe, gone] = [2, 4].map(|last| cursor_at(&wal, last));
    let disk = run.disk.crash(&CrashPlan::Nothing);
    for epoch in 0..6_u64 {
        let wal = open(&disk).unwrap();
        let view = View::open_on(on(&disk)).unwrap();
        assert!(is_diverged(wal.read_from(&gone), 4, 2), "epoch {epoch}");
        assert!(is_diverged(view.read_from(&gone), 4, 2), "epoch {epoch}");
        let (behind, error) = drain(wal.read_from(&safe).unwrap());
        assert!(error.is_none());
        assert_eq!(behind.len() as u64, 3 * epoch);
        assert!(drain(view.read_from(&safe).unwrap()).1.is_none());
        // The LSNs are given out again, with other records, and later ones too.
        wal.commit_as(&mut encoded(&batch_of(50 + epoch, 2, &[5, 6, 7])), Synced).unwrap();
        if epoch % 2 == 0 {
            wal.close().unwrap();
        }
    }
    // A process death and the copy that follows it are no divergence.
    run.let_go();
    drop(wal);
    run.open().unwrap();
    let wal = run.wal().unwrap();
    assert_eq!(wal.recovery().copied, Some((lsn(3), lsn(4))));
    wal.commit_as(&mut encoded(&batch_of(60, 4, &[9])), Synced).unwrap();
    assert_eq!(drain(wal.read_from(&gone).unwrap()).0.len(), 1);
    assert_eq!(drain(wal.read_from(&safe).unwrap()).0.len(), 3);
}

/// Scenario 10: everything was lost; a cursor into it has diverged, and one at the beginning has not.
#[test]
fn a_cursor_into_a_log_that_lost_everything_has_diverged() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Written, &[10])]).unwrap();
    let wal = run.wal().unwrap();
    let [start, gone] = [0, 1].map(|last| cursor_at(&wal, last));
    let disk = run.disk.crash(&CrashPlan::Nothing);
    let wal = open(&disk).unwrap();
    wal.append(0x80, 1, b"another").unwrap();
    assert!(matches!(wal.read_from(&gone), Err(ReadError::Diverged { kept: None, .. })));
    assert_eq!(drain(wal.read_from(&start).unwrap()).0, [(1, b"another".to_vec())]);
}

/// Scenario 11: a container restarts while the host's page cache lives on; then the host loses power.
// faults: B095
#[test]
fn what_was_found_in_a_page_cache_is_durable_before_it_is_relied_on() {
    let mut run = unproved_tail();
    run.open().unwrap();
    assert_eq!(run.model().durable, 5);
    let report = run.wal().unwrap().recovery().clone();
    assert_eq!(report.copied.map(|(first, last)| (first.number(), last.number())), Some((2, 5)));
    assert_eq!(check(&run.disk.crash(&CrashPlan::Nothing), &run.model(), Crash::Power), Ok(5));
}

/// Scenario 12: a crash in the middle of copying a tail that spans two segments; then another; then one more.
// faults: B062
#[test]
fn a_copy_of_two_segments_may_be_cut_short_again_and_again() {
    let checker = Arc::new(Checker::default());
    let mut run = unproved_tail();
    let calls = Arc::new(Mutex::new(0));
    run.watch({
        let checker = Arc::clone(&checker);
        let calls = Arc::clone(&calls);
        move |moment| {
            *calls.lock().unwrap() += 1;
            for plan in few_plans(1, moment.number) {
                let place = format!("{moment}, {plan:?}");
                crash_again(&checker, &moment.crash(&plan), &moment.model(), Crash::Power, &place);
            }
        }
    });
    run.open().unwrap();
    assert!(*calls.lock().unwrap() > 10);
    checker.assert_sound(100);
}

/// The slots may not say that a file has to be there before its name is durable: a copy whose name was found in
/// the page cache of a dead process. (Found by `a_process_may_die_and_then_the_power_goes`.)
#[test]
fn a_copy_found_in_a_page_cache_may_still_lose_its_name() {
    let mut run = unproved_tail();
    // Dies between the rename of the copy and the directory's sync.
    run.faults.inject(Fault::error(ErrorKind::Other).at(Op::SyncDir, 2).sticky());
    run.open().unwrap_err();
    run.faults.clear_faults();
    run.watch(|moment| {
        for plan in few_plans(4, moment.number) {
            check(&moment.crash(&plan), &moment.model(), Crash::Power)
                .unwrap_or_else(|found| panic!("{moment}, {plan:?}: {found}"));
        }
    });
    run.open().unwrap();
}

/// Scenario 14: a payload holds the bytes of its own segment.
#[test]
fn a_log_inside_a_payload_stays_a_payload() {
    let options = Options { segment_bytes: 1 << 20, ..small_options() };
    let wal_and_disk = || {
        let disk = MemStorage::new(5);
        (Wal::open_on(on(&disk), options.clone()).unwrap(), disk)
    };
    let (wal, disk) = wal_and_disk();
    for size in [10, 500, 40] {
        wal.append(0x80, 1, &vec![7; size]).unwrap();
    }
    let own = disk.read(&segment(1)).unwrap();
    let first = wal.seek(lsn(1)).unwrap().offset as usize;
    // At every alignment, so that one of the copies begins at a multiple of eight in the file.
    for shift in 0..8 {
        let mut payload = vec![0; shift];
        payload.extend_from_slice(&own[first..first + 800]);
        wal.append(0x81, 1, &payload).unwrap();
    }
    let whole = 11;
    assert_eq!(records(&disk.fork_live()), (1..=whole).collect::<Vec<_>>());
    for due in 4..=whole {
        let offset = wal.seek(lsn(due)).unwrap().offset;
        // Without a header that checks, the search goes through the payload.
        for byte in [0, 4, 8] {
            let image = disk.fork_live();
            assert!(image.flip_bit(&segment(1), 8 * (offset + byte)));
            assert_eq!(
                drain(View::open_on(on(&image)).unwrap().read(Lsn::FIRST).unwrap()).0.len() as u64,
                due - 1
            );
            if due < whole {
                let finding = refusal(&image);
                let missing = finding.missing.map(|(first, last)| (first.number(), last.number()));
                assert_eq!((finding.verdict, missing), (Verdict::Damaged, Some((due, due))), "{finding}");
            } else {
                assert_eq!(open(&image).unwrap().last(), Some(lsn(due - 1)));
            }
        }
    }
}

/// Scenario 14: the power goes while such a payload is written.
#[test]
fn a_torn_payload_with_a_log_inside_invents_nothing() {
    let mut run = Run::new(Options { segment_bytes: 1 << 20, ..small_options() });
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Commit(Written, &[500, 40])]).unwrap();
    let wal = run.wal().unwrap();
    let own = run.disk.read(&segment(1)).unwrap();
    let first = wal.seek(lsn(1)).unwrap().offset as usize;
    let mut model = run.model();
    let mut batch = batch_of(3, 3, &[0]);
    batch[0].payload = own[first..first + 4000].into();
    model.append(batch.iter().cloned());
    wal.commit_as(&mut encoded(&batch), Written).unwrap();
    let pending = run.disk.pending();
    for lost in 0..pending {
        let image = run.disk.crash(&CrashPlan::Mask { first: lost, bits: !1, others: true });
        check(&image, &model, Crash::Power).unwrap();
    }
    for seed in 0..200 {
        check(&run.disk.crash(&CrashPlan::Seeded(seed)), &model, Crash::Power).unwrap();
    }
}

/// Scenario 17: a write hangs, its handle goes away, and another one wants to open the log.
// faults: B148
#[test]
fn the_lock_lives_as_long_as_the_last_write() {
    let disk = MemStorage::new(1);
    let storage = FaultStorage::new(on(&disk));
    let options = Options { segment_bytes: 4 << 20, ..Options::default() };
    let wal = Wal::open_on(Arc::new(storage.clone()), options.clone()).unwrap();
    wal.append(0x80, 1, b"first").unwrap();
    storage.inject(Fault::hang().at(Op::Write, 1).on_name(".wal"));
    // So much that the I/O thread writes it by itself.
    wal.commit_as(&mut encoded(&batch_of(1, 1, &[300 << 10])), Buffered).unwrap();
    assert!(storage.wait_hung());
    drop(wal);
    for _ in 0..3 {
        assert!(matches!(Wal::open_on(on(&disk), options.clone()), Err(OpenError::Locked { .. })));
    }
    storage.release();
    let wal = loop {
        match Wal::open_on(on(&disk), options.clone()) {
            Err(OpenError::Locked { .. }) => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    assert_eq!(wal.last(), Some(lsn(2)), "the write had landed before the lock went");
}

/// Scenario 17: the same with the writer in the middle of a commit.
#[test]
fn a_second_writer_is_refused_while_the_first_one_hangs() {
    let disk = MemStorage::new(1);
    let storage = FaultStorage::new(on(&disk));
    let wal = Wal::open_on(Arc::new(storage.clone()), small_options()).unwrap();
    wal.append(0x80, 1, b"first").unwrap();
    for op in [Op::Write, Op::Sync] {
        storage.inject(Fault::hang().at(op, 1));
        let committer = std::thread::spawn({
            let wal = wal.clone();
            move || wal.append(0x80, 1, b"next")
        });
        assert!(storage.wait_hung());
        assert!(matches!(open(&disk), Err(OpenError::Locked { .. })));
        // Looking is always allowed.
        assert!(matches!(verdict(&disk).0, Verdict::Clean));
        storage.release();
        committer.join().unwrap().unwrap();
    }
    drop(wal);
    assert_eq!(open(&disk).unwrap().last(), Some(lsn(3)));
}

/// Scenario 18: the newest segment's file vanishes.
// faults: B007, B075
#[test]
fn a_segment_that_vanished_is_missed() {
    for closed in [false, true] {
        let mut run = Run::new(small_options());
        run.run(&[
            Step::Open,
            Step::Commit(Synced, &[10]),
            Step::Commit(Synced, &[6000]),
            Step::Commit(Synced, &[6000]),
            Step::Commit(Synced, &[6000]),
            if closed { Step::Close } else { Step::Drop },
        ])
        .unwrap();
        let segments: Vec<String> =
            run.disk.names().into_iter().filter(|name| name.ends_with(".wal")).collect();
        assert!(segments.len() >= 3);
        for name in &segments {
            let image = run.disk.fork_live();
            image.remove_file(name);
            refusal(&image);
            // A mark may show first that the segment before should go on; what is missing is told as well.
            let view = View::open_on(on(&image)).unwrap();
            let missed = view.report().findings.iter().any(|finding| {
                finding.verdict == Verdict::MissingSegment && finding.file == *name && !finding.harmless
            });
            assert!(missed, "{name}, closed: {closed}: {:?}", view.report().findings);
        }
        let image = run.disk.fork_live();
        segments.iter().for_each(|name| assert!(image.remove_file(name)));
        assert_eq!(refusal(&image).verdict, Verdict::MissingSegment, "closed: {closed}");
    }
}

/// Scenario 19: after a repair the next open, and every later one, agrees with it.
// faults: B005, B015
#[test]
fn after_a_repair_the_next_open_agrees() {
    let mut run = Run::new(small_options());
    run.run(&[
        Step::Open,
        Step::Commit(Synced, &[10]),
        Step::Commit(Synced, &[20, 21]),
        Step::Commit(Synced, &[9000]),
        Step::Commit(Synced, &[30]),
        Step::Drop,
    ])
    .unwrap();
    let disk = run.disk.fork_live();
    // The body of the frame with LSN 2 and 3.
    let offset = View::open_on(on(&disk)).unwrap().seek(lsn(2)).unwrap().offset;
    assert!(disk.flip_bit(&segment(1), 8 * (offset + 40)));
    let segments = |disk: &MemStorage| -> Vec<_> {
        content(disk).into_iter().filter(|(name, _)| name.ends_with(".wal")).collect()
    };
    let before = segments(&disk);
    let finding = refusal(&disk);
    assert_eq!((finding.verdict, finding.proof), (Verdict::Damaged, Proof::Proved));
    let storage = FaultStorage::new(on(&disk));
    let plan = planewal::plan_repair(&storage).unwrap();
    assert_eq!(storage.mutations(), 0);
    let done = planewal::repair(on(&disk)).unwrap();
    assert_eq!((&plan.accepted, &plan.lost, plan.next), (&done.accepted, &done.lost, done.next));
    assert_eq!(done.lost, [(lsn(2), lsn(3))]);
    assert_eq!(segments(&disk), before, "repair changed a segment");
    for round in 0..3_u64 {
        let wal = open(&disk).unwrap();
        let mut reader = wal.read(Lsn::FIRST).unwrap();
        let mut seen = Vec::new();
        loop {
            match reader.next() {
                Ok(Some(record)) => seen.push(record.lsn.number()),
                Ok(None) => break,
                Err(ReadError::Lost { first, last }) => assert_eq!((first, last), (lsn(2), lsn(3))),
                Err(error) => panic!("{error}"),
            }
        }
        let due: Vec<u64> = [1].into_iter().chain(4..=5).chain(6..6 + round).collect();
        assert_eq!(seen, due);
        assert!(wal.next() >= done.next);
        wal.append(0x80, 1, b"on the branch").unwrap();
        if round == 1 {
            wal.close().unwrap();
        }
        drop(wal);
        assert!(planewal::plan_repair(&*on(&disk)).unwrap().nothing_to_do);
    }
}

// faults: B011, B064, B107
#[test]
fn what_is_appended_behind_a_torn_tail_stays() {
    for life in 0..3 {
        let mut run = Run::new(small_options());
        run.run(&[Step::Open, Step::Commit(Synced, &[10])]).unwrap();
        run.faults.inject(Fault::torn_write(300, ErrorKind::Other).at(Op::Write, 1));
        run.step(Step::Commit(Synced, &[600])).unwrap_err();
        run.faults.clear_faults();
        run.let_go();
        assert_eq!(verdict(&run.disk.fork_live()).0, Verdict::TornTail);
        run.open().unwrap();
        assert!(run.wal().unwrap().recovery().torn_tail.is_some());
        run.step(Step::Commit(Synced, &[30])).unwrap();
        match life {
            0 => run.let_go(),
            1 => run.step(Step::Close).unwrap(),
            _ => {
                let disk = run.disk.crash(&CrashPlan::Nothing);
                run = Run::on(&disk, small_options(), run.model());
            }
        }
        run.open().unwrap();
        assert_eq!(run.model().len(), 2);
        // Told once.
        assert!(run.wal().unwrap().recovery().torn_tail.is_none());
    }
}

/// A record over the edges of sectors and pages, in a file whose length says nothing, with any of
/// its sectors gone.
// faults: B001, B002, B019
#[test]
fn a_record_torn_at_any_sector_is_a_torn_tail() {
    for before in [10, 430, 455, 470, 3900] {
        let mut run = Run::new(Options { prepare_bytes: 64 << 10, ..small_options() });
        run.open().unwrap();
        run.commit(Synced, &[before]).unwrap();
        run.commit(Written, &[1800]).unwrap();
        let pending = run.disk.pending();
        assert!((3..=6).contains(&pending), "{pending}");
        for bits in 0..1_u64 << pending {
            let image = run.disk.crash(&CrashPlan::Mask { first: 0, bits, others: false });
            let kept = check(&image.fork_live(), &run.model(), Crash::Power).unwrap();
            let all = bits == (1 << pending) - 1;
            assert_eq!(kept, if all { 2 } else { 1 });
            let expected = if all || bits == 0 { Verdict::Clean } else { Verdict::TornTail };
            assert_eq!(verdict(&image).0, expected, "{bits:b} of {pending}");
        }
    }
}

// faults: B003, B057
#[test]
fn a_file_cut_at_any_byte_of_its_last_group_ends_in_a_torn_tail() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Commit(Written, &[100, 3])]).unwrap();
    let wal = run.wal().unwrap();
    let from = wal.seek(lsn(2)).unwrap().offset;
    let to = wal.segments()[0].end;
    for len in from..to {
        let image = run.disk.fork_live();
        image.truncate(&segment(1), len);
        let expected = if len == from { Verdict::Clean } else { Verdict::TornTail };
        // The first four bytes are a CRC that may begin with zeros.
        assert!(verdict(&image).0 == expected || len < from + 4, "cut {} bytes into the frame", len - from);
        assert_eq!(check(&image, &run.model(), Crash::Power), Ok(1), "cut at {len}");
    }
}

/// The end of a segment that is not the newest is known: whatever is missing there was whole once.
// faults: B005, B007
#[test]
fn a_segment_cut_before_a_durable_successor_is_damaged() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Commit(Synced, &[20, 21])]).unwrap();
    let wal = run.wal().unwrap();
    let edges = [wal.seek(lsn(2)).unwrap().offset, wal.seek(lsn(2)).unwrap().offset + 33];
    drop(wal);
    run.run(&[Step::Rotate, Step::Commit(Synced, &[30]), Step::Commit(Synced, &[31]), Step::Drop]).unwrap();
    for edge in edges {
        for flip in [false, true] {
            let image = run.disk.fork_live();
            if flip {
                image.flip_bit(&segment(1), 8 * edge + 1);
            } else {
                image.truncate(&segment(1), edge);
            }
            let finding = refusal(&image);
            assert_eq!((finding.verdict, finding.proof), (Verdict::Damaged, Proof::Proved), "{finding}");
            assert_eq!(finding.missing, Some((lsn(2), lsn(3))));
            let (seen, error) = drain(View::open_on(on(&image)).unwrap().read(Lsn::FIRST).unwrap());
            assert_eq!(seen.len(), 1, "nothing from behind the damage");
            assert!(matches!(error, Some(ReadError::Broken(_))), "{error:?}");
        }
    }
}

/// A read error is not the end of the log: what was synced is not cut because it could not be read once.
/// (Found by `failures::any_call_of_open_may_fail`.)
// faults: B012, B039, B105
#[test]
fn a_synced_record_survives_one_failed_read() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Drop]).unwrap();
    let mut refused = 0;
    for call in 1..30 {
        let disk = run.disk.fork_live();
        let storage = FaultStorage::new(on(&disk));
        storage.inject(Fault::error(ErrorKind::Other).at(Op::Read, call));
        refused += u32::from(Wal::open_on(Arc::new(storage), small_options()).is_err());
        assert_eq!(check(&disk, &run.model(), Crash::Power), Ok(1), "read {call} failed");
    }
    assert!(refused > 3);
}

/// A frame that a disk put into the wrong place is not read there.
// faults: B013
#[test]
fn a_misdirected_frame_is_not_believed() {
    let mut run = Run::new(small_options());
    run.run(&[
        Step::Open,
        Step::Commit(Synced, &[10]),
        Step::Commit(Synced, &[10]),
        Step::Commit(Synced, &[10]),
    ])
    .unwrap();
    let wal = run.wal().unwrap();
    let offsets = [1, 2, 3].map(|number| wal.seek(lsn(number)).unwrap().offset as usize);
    let length = offsets[1] - offsets[0];
    let bytes = run.disk.read(&segment(1)).unwrap();
    for (from, to) in [(0, 1), (1, 0), (2, 1)] {
        let mut wrong = bytes.clone();
        wrong.copy_within(offsets[from]..offsets[from] + length, offsets[to]);
        let image = run.disk.fork_live();
        image.write(&segment(1), &wrong);
        let finding = refusal(&image);
        assert_eq!((finding.verdict, finding.lsn), (Verdict::Damaged, Some(lsn(to as u64 + 1))), "{finding}");
    }
}

// faults: B017
#[test]
fn a_damaged_version_is_no_other_version() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Close]).unwrap();
    for bit in 8 * 8..8 * 12 {
        let image = run.disk.fork_live();
        image.flip_bit(&segment(1), bit);
        assert_eq!(refusal(&image).verdict, Verdict::Damaged);
    }
}

/// Opens and deaths, again and again: the disk holds the records and not the deaths.
// faults: B025, B028, B137
#[test]
fn a_crash_loop_leaves_nothing_behind() {
    let mut run = Run::new(small_options());
    run.run(&[Step::Open, Step::Commit(Synced, &[10]), Step::Close]).unwrap();
    let mut most = 0;
    for round in 0..60 {
        run.open().unwrap();
        if round % 2 == 0 {
            run.commit(Written, &[5]).unwrap();
        }
        if round % 3 == 0 {
            let disk = run.disk.fork_live();
            run = Run::on(&disk, small_options(), run.model());
        } else {
            run.let_go();
        }
        if round == 10 {
            most = used(&run.disk);
        }
    }
    run.run(&[Step::Open, Step::Close]).unwrap();
    let now = used(&run.disk);
    // Every death begins a segment if something was written: a page of header and what is in it.
    assert!(now <= most + 25 * 8192, "{now} bytes, and {most} after ten rounds");
    assert_eq!(run.model().len(), 31);
    let segments = run.disk.names().iter().filter(|name| name.ends_with(".wal")).count();
    assert!(segments <= 33, "{segments} segments for 31 deaths with a record");
    // Deaths without a record leave nothing at all.
    let names = run.disk.names();
    for _ in 0..30 {
        run.run(&[Step::Open, Step::Drop]).unwrap();
    }
    run.run(&[Step::Open, Step::Close]).unwrap();
    assert_eq!(run.disk.names(), names);
}

// faults: B024
#[test]
fn a_closed_log_is_proved_clean() {
    let mut run = Run::new(small_options());
    run.run(SCRIPT).unwrap();
    assert_eq!(verdict(&run.disk), (Verdict::Clean, Proof::Proved));
    let image = run.disk.crash(&CrashPlan::Nothing);
    assert_eq!(verdict(&image), (Verdict::Clean, Proof::Proved));
    assert_eq!(content(&image), content(&run.disk), "a close leaves nothing unsynced");
    let view = View::open_on(on(&run.disk)).unwrap();
    for segment in &view.report().segments {
        assert!(segment.sealed, "{segment:?}");
        assert!(segment.file_bytes < segment.end + 512, "{segment:?}");
    }
}

// faults: B053
#[test]
fn an_empty_log_is_closed_opened_and_crashed() {
    let mut run = Run::new(small_options());
    for last in [Step::Close, Step::Drop, Step::Close, Step::Close] {
        run.run(&[Step::Open, Step::Rotate, Step::Sync, last]).unwrap();
        assert_eq!(records(&run.disk), Vec::<u64>::new());
        check(&run.disk.crash(&CrashPlan::Nothing), &run.model(), Crash::Power).unwrap();
    }
}

/// A segment is left with every number of bytes between its last frame and its end.
// faults: B049, B055, B059
#[test]
fn a_segment_may_end_with_any_room_left() {
    for size in (9900..10_300).step_by(7).chain([0, 1]) {
        let mut run = Run::new(small_options());
        run.open().unwrap();
        for sizes in [&[size][..], &[0], &[1], &[60], &[0, 0]] {
            run.commit(Synced, sizes).unwrap();
        }
        check(&run.disk.crash(&CrashPlan::Nothing), &run.model(), Crash::Power)
            .unwrap_or_else(|found| panic!("{size}: {found}"));
    }
}

/// What a level costs: nothing, a write, a write and a sync, and none of it twice.
// faults: B098, B103
#[test]
fn an_acknowledgement_costs_one_write_and_at_most_one_sync() {
    let mut run = Run::new(Options { prepare_bytes: 64 << 10, segment_bytes: 1 << 20, ..small_options() });
    run.run(&[Step::Open, Step::Commit(Synced, &[1])]).unwrap();
    let cost = |run: &mut Run, level, sizes| {
        let before = run.faults.counts();
        run.commit(level, sizes).unwrap();
        let cost = run.faults.counts() - before;
        (cost.get(Op::Write), cost.get(Op::Sync), cost.total())
    };
    assert_eq!(cost(&mut run, Buffered, &[10]), (0, 0, 0));
    assert_eq!(cost(&mut run, Written, &[10]), (1, 0, 1));
    assert_eq!(cost(&mut run, Synced, &[10, 11]), (1, 1, 2));
    // A strict member makes the group strict, whatever the others asked for.
    assert_eq!(cost(&mut run, Buffered, &[10]), (0, 0, 0));
    assert_eq!(cost(&mut run, Synced, &[10]), (1, 1, 2));
    assert_eq!(run.model().durable, run.model().len());
    assert_eq!(
        check(&run.disk.crash(&CrashPlan::Nothing), &run.model(), Crash::Power),
        Ok(run.model().len())
    );
}

/// A name is durable before anything relies on it.
// faults: B072, B074, B082
#[test]
fn a_directory_is_synced_after_every_new_name() {
    let run = Run::new(small_options());
    let unsynced = Arc::new(Mutex::new(Vec::new()));
    run.watch({
        let unsynced = Arc::clone(&unsynced);
        move |moment| {
            let mut unsynced = unsynced.lock().unwrap();
            match moment.op {
                Op::Rename => unsynced.push(moment.name.trim_end_matches(".tmp").to_owned()),
                Op::SyncDir => unsynced.clear(),
                Op::Write | Op::Sync => {
                    assert!(!unsynced.iter().any(|name| name == moment.name), "{moment}");
                }
                _ => {}
            }
        }
    });
    let mut run = run;
    run.run(SCRIPT).unwrap();
    assert!(run.faults.counts().get(Op::Rename) > 5);
}

// The mark in a seal counts where the segment has a successor, too: the closing sync may be all that proves the
// last records of a segment, and a damaged one of those is no torn tail.
#[test]
fn the_seal_of_a_segment_with_a_successor_proves_its_last_record() {
    let disk = MemStorage::new(51);
    let options = Options { beacon_idle: std::time::Duration::ZERO, io_thread: false, ..small_options() };
    let wal = Wal::open_on(on(&disk), options.clone()).unwrap();
    wal.append_as(0x80, 1, b"one", Durability::Written).unwrap();
    wal.append_as(0x80, 1, &[2; 6000], Durability::Written).unwrap();
    // Begins the second segment, with a mark from before the seal of the first.
    wal.append_as(0x80, 1, &[3; 9000], Durability::Written).unwrap();
    assert_eq!((wal.segments().len(), wal.durable()), (2, None));
    // Seals the first: its closing sync has returned.
    wal.rotate().unwrap();
    assert_eq!(wal.durable(), Some(lsn(2)));
    let image = disk.fork_live();
    let report = View::open_on(on(&image)).unwrap().report().clone();
    assert_eq!((report.durable, report.last), (Some(lsn(2)), Some(lsn(3))));
    let place = View::open_on(on(&image)).unwrap().seek(lsn(2)).unwrap();
    let name = place.segment.file_name();
    image.flip_bit(&name, (place.offset + 33) * 8);
    match Wal::open_on(on(&image), options) {
        Err(OpenError::Refused { finding, .. }) => assert_eq!(finding.verdict, Verdict::Damaged),
        opened => panic!("{opened:?}"),
    }
}
