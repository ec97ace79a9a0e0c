//! Every instant of a run at which the power could go or the process die, and what could survive then.
//!
//! Before each call that changes anything, the disk is copied as a crash could leave it: nothing of
//! what is unsynced, all of it, every subset of the newest few pieces, samples of the rest, and the page
//! cache as a dead process leaves it. Each copy has to keep all promises. Recovery is a run
//! like any other: it is crashed at every call of its own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use planewal::storage::{CrashPlan, MemStorage, Op};
use planewal::{Durability, Options};

use crate::model::{Crash, Model, check, fingerprint, long, look, small_options};
use crate::run::{Moment, Run, SCRIPT, Step};

/// Failures that are told; one bug fails at many places.
const TOLD: usize = 5;

/// Checks images and remembers which it has seen.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    seen: Mutex<HashSet<(u64, u64, u64)>>,
    failures: Mutex<Vec<String>>,
    images: AtomicU64,
    checked: AtomicU64,
}

impl Checker {
    /// Whether this image with these promises is new.
    fn is_new(&self, image: &MemStorage, model: &Model, crash: Crash) -> bool {
        self.images.fetch_add(1, Ordering::Relaxed);
        let key = (fingerprint(image), model.floor(crash), model.len());
        let new = self.seen.lock().unwrap().insert(key);
        self.checked.fetch_add(u64::from(new), Ordering::Relaxed);
        new
    }

    fn check(&self, image: &MemStorage, model: &Model, crash: Crash, place: impl Fn() -> String) {
        if !self.is_new(image, model, crash) {
            return;
        }
        if let Err(found) = check(image, model, crash) {
            self.fail(format!("{}: {found}", place()));
        }
    }

    fn fail(&self, found: String) {
        let mut failures = self.failures.lock().unwrap();
        if failures.len() < 1000 {
            failures.push(found);
        }
    }

    /// All crash images of a moment.
    pub(crate) fn check_moment(&self, moment: &Moment<'_>, plans: &[CrashPlan], place: &dyn Fn() -> String) {
        let images: Vec<MemStorage> = plans.iter().map(|plan| moment.crash(plan)).collect();
        let live = moment.disk.fork_live();
        let model = moment.model();
        for (plan, image) in plans.iter().zip(images) {
            self.check(&image, &model, Crash::Power, || format!("{} {moment}, {plan:?}", place()));
        }
        self.check(&live, &model, Crash::Process, || format!("{} {moment}, process death", place()));
    }

    /// Nothing was found, and it was really looked.
    pub(crate) fn assert_sound(&self, least: u64) {
        let failures = self.failures.lock().unwrap();
        let (images, checked) = (self.images.load(Ordering::Relaxed), self.checked.load(Ordering::Relaxed));
        println!("{images} images, {checked} of them different");
        assert!(
            failures.is_empty(),
            "{} failures in {checked} images, the first:\n{}",
            failures.len(),
            failures.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("\n")
        );
        assert!(checked >= least, "only {checked} images");
    }
}

/// Nothing, everything, all subsets of the newest `window` pieces, and `samples` of all.
fn plans(pending: usize, window: usize, samples: u64, seed: u64) -> Vec<CrashPlan> {
    let window = window.min(pending);
    let first = pending - window;
    let mut plans = vec![CrashPlan::Nothing, CrashPlan::Everything];
    for bits in 0..1_u64 << window {
        plans.push(CrashPlan::Mask { first, bits, others: true });
        if first > 0 {
            plans.push(CrashPlan::Mask { first, bits, others: false });
        }
    }
    plans.extend((0..samples).map(|sample| CrashPlan::Seeded(seed << 8 | sample)));
    plans
}

pub(crate) fn few_plans(samples: u64, seed: u64) -> Vec<CrashPlan> {
    plans(0, 0, samples, seed)
}

/// Mutating calls of the whole script.
fn calls_of_the_script(options: &Options) -> u64 {
    let mut run = Run::new(options.clone());
    run.run(SCRIPT).unwrap();
    run.faults.mutations()
}

// faults: B001, B003, B019, B072, B075, B077, B079, B082, B160
#[test]
fn the_power_may_go_before_any_call() {
    let window = if long() { 10 } else { 6 };
    let checker = Arc::new(Checker::default());
    let mut run = Run::new(small_options());
    run.watch({
        let checker = Arc::clone(&checker);
        move |moment| {
            let plans = plans(moment.disk.pending(), window, if long() { 64 } else { 8 }, moment.number);
            checker.check_moment(moment, &plans, &String::new);
        }
    });
    run.run(SCRIPT).unwrap();
    checker
        .check(&run.disk.crash(&CrashPlan::Nothing), &run.model(), Crash::Power, || "at the end".to_owned());
    checker.assert_sound(1000);
}

/// Room that is only reserved, and segments of another size.
#[test]
fn the_power_may_go_with_reserved_room() {
    let checker = Arc::new(Checker::default());
    let mut run = Run::new(Options {
        preparation: planewal::storage::Allocation::Reserve,
        segment_bytes: 24 << 10,
        prepare_bytes: 64 << 10,
        ..small_options()
    });
    run.watch({
        let checker = Arc::clone(&checker);
        move |moment| {
            let plans = plans(moment.disk.pending(), 3, 4, moment.number);
            checker.check_moment(moment, &plans, &String::new);
        }
    });
    run.run(SCRIPT).unwrap();
    checker.assert_sound(300);
}

/// Crashes recovery at every call, for an image that a crash left.
pub(crate) fn crash_again(
    checker: &Arc<Checker>,
    image: &MemStorage,
    model: &Model,
    crash: Crash,
    place: &str,
) {
    let kept = match look(image, model) {
        Ok(seen) => seen.map_or(0, |seen| seen.last),
        Err(found) => return checker.fail(format!("{place}: {found}")),
    };
    assert!(kept >= model.floor(crash), "{place}: {kept} kept");
    let mut model = model.clone();
    model.keep(kept);
    // What survived the first crash is on the disk, so it survives the second one, whatever recovery does.
    model.acknowledge(Durability::Synced, kept);
    model.acknowledge(Durability::Written, kept);
    let mut run = Run::on(&image.crash(&CrashPlan::Everything), small_options(), model);
    run.watch({
        let checker = Arc::clone(checker);
        let place = place.to_owned();
        move |moment| {
            let pending = moment.disk.pending();
            let window = if long() { 5 } else { 2 };
            let plans = plans(pending, window, 1, moment.number);
            checker.check_moment(moment, &plans, &|| format!("{place}; then"));
        }
    });
    run.run(&[Step::Open, Step::Commit(Durability::Written, &[50]), Step::Commit(Durability::Synced, &[60])])
        .unwrap_or_else(|refusal| panic!("{place}: {refusal:?}"));
}

// faults: B013, B064, B081
#[test]
fn recovery_may_be_cut_short_anywhere() {
    let checker = Arc::new(Checker::default());
    let first = Arc::new(Checker::default());
    let mut run = Run::new(small_options());
    let stride = if long() { 1 } else { 2 };
    run.watch({
        let checker = Arc::clone(&checker);
        let first = Arc::clone(&first);
        move |moment| {
            if moment.number % stride != 0 {
                return;
            }
            let mut images: Vec<_> = few_plans(1, moment.number)
                .into_iter()
                .map(|plan| (format!("{plan:?}"), Crash::Power, moment.crash(&plan)))
                .collect();
            images.push(("process death".to_owned(), Crash::Process, moment.disk.fork_live()));
            let model = moment.model();
            for (plan, crash, image) in images {
                if first.is_new(&image, &model, crash) {
                    crash_again(&checker, &image, &model, crash, &format!("{moment}, {plan}"));
                }
            }
        }
    });
    run.run(SCRIPT).unwrap();
    checker.assert_sound(1000);
}

/// A process dies at a call, another one recovers on the page cache that it left, and then the power
/// goes: nothing that only the cache held may have been relied on.
// faults: B095, B064
#[test]
fn a_process_may_die_and_then_the_power_goes() {
    let checker = Arc::new(Checker::default());
    let calls = calls_of_the_script(&small_options());
    let stride = if long() { 1 } else { 3 };
    for dead in (1..=calls).step_by(stride) {
        let mut run = Run::new(small_options());
        run.faults
            .inject(planewal::storage::Fault::error(std::io::ErrorKind::Other).at_mutation(dead).sticky());
        // The last steps of the script open and close: one of them meets the end.
        assert!(run.run(SCRIPT).is_err() || run.faults.mutations() >= dead);
        run.die();
        run.watch({
            let checker = Arc::clone(&checker);
            move |moment| {
                let plans = few_plans(if long() { 8 } else { 2 }, moment.number);
                checker.check_moment(moment, &plans, &|| format!("died before call {dead};"));
            }
        });
        let steps = [
            Step::Open,
            Step::Commit(Durability::Buffered, &[30]),
            Step::Commit(Durability::Written, &[50]),
            Step::Commit(Durability::Synced, &[60]),
        ];
        run.run(&steps).unwrap_or_else(|refusal| panic!("died before call {dead}: {refusal:?}"));
    }
    checker.assert_sound(1000);
}

/// Beacons, preparation and sealing by the I/O thread, with images at its calls too.
#[test]
fn the_power_may_go_beside_the_io_thread() {
    let checker = Arc::new(Checker::default());
    let mut run = Run::new(Options {
        io_thread: true,
        beacon_idle: std::time::Duration::from_millis(1),
        ..small_options()
    });
    let beacons = Arc::new(AtomicU64::new(0));
    let waker = Arc::new((Mutex::new(0_u64), std::sync::Condvar::new()));
    run.watch({
        let checker = Arc::clone(&checker);
        let beacons = Arc::clone(&beacons);
        let waker = Arc::clone(&waker);
        let committer = std::thread::current().id();
        move |moment| {
            checker.check_moment(moment, &plans(moment.disk.pending(), 2, 2, moment.number), &String::new);
            if std::thread::current().id() != committer && moment.op == Op::Write {
                beacons.fetch_add(1, Ordering::Relaxed);
                *waker.0.lock().unwrap() += 1;
                waker.1.notify_all();
            }
        }
    });
    let rounds = if long() { 20 } else { 3 };
    for _ in 0..rounds {
        for (at, step) in SCRIPT.iter().enumerate() {
            run.step(*step).unwrap_or_else(|refusal| panic!("step {at}: {refusal:?}"));
            if matches!(step, Step::Sync) {
                // What was just synced is not testified to by anything, so a beacon comes.
                let seen = waker.0.lock().unwrap();
                let before = *seen;
                let (_seen, time) = waker
                    .1
                    .wait_timeout_while(seen, std::time::Duration::from_secs(10), |now| *now == before)
                    .unwrap();
                assert!(!time.timed_out(), "no beacon came");
            }
        }
    }
    assert!(beacons.load(Ordering::Relaxed) >= rounds);
    checker.assert_sound(300);
}
