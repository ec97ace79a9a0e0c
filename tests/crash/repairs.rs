//! A repair that a crash cuts short.

use std::sync::{Arc, Mutex};

use planewal::storage::{CrashPlan, FaultStorage, MemStorage};
use planewal::{Durability, Lsn, OpenError, ReadError, RepairPlan, View, Wal, plan_repair, repair};

use crate::enumeration::few_plans;
use crate::model::{content, on, small_options};
use crate::run::{Run, Step};

/// Three segments with six durable records, closed.
fn sound() -> MemStorage {
    let mut run = Run::new(small_options());
    run.run(&[
        Step::Open,
        Step::Commit(Durability::Synced, &[10]),
        Step::Commit(Durability::Synced, &[20, 21]),
        Step::Rotate,
        Step::Commit(Durability::Synced, &[300]),
        Step::Rotate,
        Step::Commit(Durability::Synced, &[300]),
        Step::Commit(Durability::Synced, &[30]),
        Step::Close,
    ])
    .unwrap();
    run.disk.fork_live()
}

/// What is told of a log: its records, and what was lost of it.
type Told = (Vec<(u64, Vec<u8>)>, Vec<(Lsn, Lsn)>);

fn told(wal: &Wal) -> Told {
    let mut told = Told::default();
    let mut reader = wal.read(Lsn::FIRST).unwrap();
    loop {
        match reader.next() {
            Ok(Some(record)) => told.0.push((record.lsn.number(), record.payload.to_vec())),
            Ok(None) => return told,
            Err(ReadError::Lost { first, last }) => told.1.push((first, last)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The bytes of all segments, under whatever names they are.
fn segments(disk: &MemStorage) -> Vec<Vec<u8>> {
    let files = content(disk).into_iter().filter(|(name, _)| name.contains(".wal"));
    let mut bytes: Vec<_> = files.filter_map(|(_, bytes)| bytes).collect();
    bytes.sort();
    bytes
}

/// A log that was refused, cut short in its repair: the same is refused still, or all is as after the repair.
fn repair_again(image: &MemStorage, done: &RepairPlan, whole: &Told, before: &[Vec<u8>]) {
    assert_eq!(segments(image), before, "a segment is gone or changed");
    match Wal::open_on(on(&image.fork_live()), small_options()) {
        Ok(wal) => assert_eq!(told(&wal), *whole),
        Err(OpenError::Refused { .. }) => assert!(!plan_repair(image).unwrap().nothing_to_do),
        Err(error) => panic!("{error}"),
    }
    let again = repair(on(image)).unwrap_or_else(|error| panic!("no way on: {error}"));
    assert!(again.next >= done.next, "P4: {} of {}", again.next, done.next);
    assert_eq!(segments(image), before, "a segment is gone or changed by the second repair");
    for _ in 0..2 {
        let wal = Wal::open_on(on(image), small_options()).unwrap();
        assert!(told(&wal).0.starts_with(&whole.0), "records are gone");
        assert_eq!(told(&wal).1, whole.1, "other losses");
        assert!(wal.append(0x80, 1, b"goes on").unwrap() >= done.next);
    }
    assert!(plan_repair(image).unwrap().nothing_to_do);
}

// faults: B013, B152
#[test]
fn a_repair_may_be_cut_short_at_any_step() {
    type Harm = (&'static str, fn(&MemStorage));
    let harms: [Harm; 6] = [
        ("a flipped body", |disk| assert!(disk.flip_bit("00000000000000000001.wal", 8 * 4260))),
        ("a missing segment", |disk| assert!(disk.remove_file("00000000000000000002.wal"))),
        ("a lost end", |disk| assert!(disk.truncate("00000000000000000003.wal", 4200))),
        ("a file in the way", |disk| disk.write("00000000000000000007.wal", b"whose is this")),
        ("no control file", |disk| assert!(disk.remove_file("planewal.ctl"))),
        ("a rotten control file", |disk| disk.write("planewal.ctl", &[0x99; 1 << 17])),
    ];
    let mut images = 0;
    for (what, harm) in harms {
        let disk = sound();
        harm(&disk);
        assert!(!plan_repair(&disk).unwrap().nothing_to_do, "{what} is not refused");
        let before = segments(&disk);
        let storage = FaultStorage::new(on(&disk));
        let seen = Arc::new(Mutex::new(Vec::new()));
        storage.on_call({
            let (disk, faults, seen) = (disk.clone(), storage.clone(), Arc::clone(&seen));
            move |op, name| {
                let number = faults.mutations();
                let mut seen = seen.lock().unwrap();
                for plan in few_plans(3, number) {
                    seen.push((format!("{what}, before call {number} ({op:?} {name})"), disk.crash(&plan)));
                }
                seen.push((format!("{what}, death before call {number}"), disk.fork_live()));
            }
        });
        let done = repair(Arc::new(storage.clone())).unwrap();
        storage.on_call(|_, _| {});
        let end = disk.crash(&CrashPlan::Nothing);
        assert_eq!(content(&end), content(&disk), "{what}: a repair leaves nothing unsynced");
        let whole = told(&Wal::open_on(on(&end), small_options()).unwrap());
        assert!(View::open_on(on(&disk)).unwrap().report().findings.iter().all(|finding| finding.harmless));
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        images += seen.len();
        for (place, image) in seen {
            println!("{place}");
            repair_again(&image, &done, &whole, &before);
        }
    }
    assert!(images > 100, "{images}");
}
