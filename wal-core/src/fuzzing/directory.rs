//! Opening a whole directory that something happened to.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::mutation::{Harm, Others, mutate};
use super::sample::random;
use super::{Choices, Sample, Scene, Sent, options, sample};
use crate::storage::{MemStorage, Storage};
use crate::{
    Lsn, OpenError, ReadError, Reader, RepairError, SegmentId, Verdict, View, Wal, plan_repair, repair,
};

/// A log with what may be put into it.
struct Ground {
    sample: Sample,
    twin: MemStorage,
    earlier: MemStorage,
}

fn grounds() -> &'static [Ground] {
    static GROUNDS: OnceLock<Vec<Ground>> = OnceLock::new();
    GROUNDS.get_or_init(|| Scene::ALL.into_iter().map(|scene| ground(sample(scene, 7))).collect())
}

fn ground(sample: Sample) -> Ground {
    let earlier = sample.storage.fork_live();
    let twin = sample.storage.fork_live();
    twin_goes_on(&twin, 0xee);
    Ground { sample, twin, earlier }
}

fn twin_goes_on(twin: &MemStorage, byte: u8) {
    // The twin is another machine: it draws other file ids.
    Storage::random(twin, &mut [0; 24]).unwrap();
    let wal = Wal::open_on(Arc::new(twin.clone()), options()).unwrap();
    for length in [10, 20, 30] {
        wal.append(0x90, 9, &vec![byte; length]).unwrap();
    }
    wal.close().unwrap();
}

/// Its seed is none that a recipe can draw: equal seeds make the same log.
fn foreign() -> &'static Sample {
    static FOREIGN: OnceLock<Sample> = OnceLock::new();
    FOREIGN.get_or_init(|| sample(Scene::Closed, 1 << 32))
}

/// Takes a sound log, does to it what the data says, and asks everything of it that a user could.
pub fn open_directory(data: &[u8]) {
    let mut choices = Choices::new(data);
    let scene = usize::from(choices.u8()) % (Scene::ALL.len() + 1);
    let made;
    let ground = match grounds().get(scene) {
        Some(ground) => ground,
        None => {
            made = ground(random(&mut choices));
            &made
        }
    };
    let storage = ground.sample.storage.fork_live();
    // In half of the cases the log has gone on since, so that there is an earlier state to fall back to.
    let went_on = choices.u8() & 1 == 1;
    let mut appended = ground.sample.appended.clone();
    let mut readable = ground.sample.records.clone();
    if went_on {
        let wal = Wal::open_on(Arc::new(storage.clone()), options()).unwrap();
        for length in [5, 50] {
            let sent = Sent { plane: 0x85, kind: 2, ends_batch: true, payload: vec![0x55; length] };
            let lsn = wal.append(sent.plane, sent.kind, &sent.payload).unwrap().number();
            appended.insert(lsn, sent.clone());
            readable.insert(lsn, sent);
        }
        wal.close().unwrap();
    }
    let closed = ground.sample.closed || went_on;
    let before = storage.fork_live();
    let others =
        Others { foreign: foreign(), twin: &ground.twin, earlier: went_on.then_some(&ground.earlier) };
    let harm = mutate(&storage, &mut choices, &others);
    let kept_at_least = if closed { u64::MAX } else { intact_until(&before, &storage) };
    let control_gone = control_is_gone(&storage);
    Trial { storage, appended, readable, harm, closed, kept_at_least, control_gone }.run();
}

struct Trial {
    storage: MemStorage,
    appended: BTreeMap<u64, Sent>,
    readable: BTreeMap<u64, Sent>,
    harm: Harm,
    closed: bool,
    /// Records up to here lie before everything that was touched.
    kept_at_least: u64,
    /// Nothing says any more which files belong to the log.
    control_gone: bool,
}

impl Trial {
    fn run(&self) {
        let untouched = contents(&self.storage);
        let view = View::open_on(Arc::new(self.storage.clone()));
        if let Ok(view) = &view {
            self.look(view);
        }
        assert_eq!(untouched, contents(&self.storage), "a view changed something");
        let opened = Wal::open_on(Arc::new(self.storage.clone()), options());
        let refusal = view
            .as_ref()
            .ok()
            .and_then(|view| view.report().findings.iter().find(|finding| !finding.harmless).cloned());
        match (opened, &refusal) {
            (Ok(wal), None) => match &view {
                Ok(view) => self.go_on(&wal, view),
                Err(OpenError::Missing { .. }) => assert!(wal.recovery().created),
                Err(error) => panic!("a view cannot be had of what can be written: {error}"),
            },
            (Err(OpenError::Refused { finding, .. }), Some(refusal)) => {
                assert_eq!(finding.verdict, view.as_ref().unwrap().report().verdict);
                assert_eq!(*finding, *refusal, "view and open disagree");
                assert!(!finding.file.is_empty() && !finding.evidence.is_empty());
                assert_eq!(untouched, contents(&self.storage), "a refusal changed something");
                self.repair(finding.verdict);
            }
            (Err(OpenError::Storage(_)), _) => {}
            (Err(error), _) if self.harm.forged => drop(error),
            (opened, refusal) => {
                panic!("view says {refusal:?}, open says {:?}", opened.map(|wal| wal.recovery().clone()))
            }
        }
    }

    fn look(&self, view: &View) {
        let report = view.report();
        let first = report.first.unwrap_or(Lsn::FIRST);
        if let Ok(mut reader) = view.read(first) {
            self.check(&read(&mut reader, first));
        }
        let last = report.last.map_or(0, Lsn::number).min(200);
        for number in 1..=last + 2 {
            let Some(lsn) = Lsn::new(number) else { continue };
            if let Ok(position) = view.seek(lsn) {
                assert!(position.first <= lsn && lsn <= position.last && position.offset >= 4096);
            }
        }
    }

    /// P3: what was read was appended, to this log, at this LSN.
    fn check(&self, reading: &Reading) {
        if self.harm.forged || self.harm.strangers && self.control_gone {
            return;
        }
        for (lsn, record) in &reading.records {
            assert_eq!(Some(record), self.appended.get(lsn), "LSN {lsn} was never appended like this");
            let given_up = !self.readable.contains_key(lsn) && !self.harm.rolled_back;
            assert!(!given_up, "LSN {lsn} was given up and came back");
        }
    }

    /// The log opens: it has what it must have, and works.
    fn go_on(&self, wal: &Wal, view: &View) {
        let report = view.report();
        let first = report.first.unwrap_or(Lsn::FIRST);
        let mut reading = read(&mut wal.read(first).unwrap(), first);
        self.check(&reading);
        let next = wal.next();
        if !self.harm.forged {
            assert_eq!(reading.broken, None, "an open log reads to its end");
            if !self.harm.rolled_back {
                let due = self.readable.range(..self.kept_at_least.saturating_add(1));
                for (lsn, record) in due {
                    assert_eq!(reading.records.get(lsn), Some(record), "LSN {lsn} is lost without a word");
                }
                let complete = reading.records.len() == self.readable.len();
                let claim = (report.verdict, report.proof) == (Verdict::Clean, crate::Proof::Proved);
                assert!(complete || !claim, "a proved clean log, and records are missing");
                assert!(complete || !self.closed);
                assert!(report.durable.is_none_or(|durable| next > durable), "P4");
            }
        }
        match wal.append(0x86, 3, b"and on") {
            Ok(lsn) => {
                assert_eq!(lsn, next);
                wal.close().unwrap();
                let sent = Sent { plane: 0x86, kind: 3, ends_batch: true, payload: b"and on".to_vec() };
                reading.records.insert(lsn.number(), sent);
                let again = View::open_on(Arc::new(self.storage.clone())).unwrap();
                if !self.harm.forged {
                    assert!(again.report().closed_cleanly, "{:?}", again.report());
                    let second = read(&mut again.read(first).unwrap(), first);
                    assert_eq!(second.records, reading.records, "what was read before is there again");
                    assert_eq!(second.broken, None);
                    Wal::open_on(Arc::new(self.storage.clone()), options()).unwrap();
                }
            }
            Err(error) => assert!(self.harm.forged, "{error}"),
        }
    }

    /// The log is refused: repair makes a way out, or says why not.
    fn repair(&self, verdict: Verdict) {
        let untouched = contents(&self.storage);
        let plan = plan_repair(&self.storage);
        assert_eq!(untouched, contents(&self.storage), "a plan changed something");
        let done = match repair(Arc::new(self.storage.clone())) {
            Ok(done) => done,
            Err(RepairError::Newer(finding)) => {
                assert_eq!(finding.verdict, Verdict::UnknownVersion, "{finding}");
                assert_eq!(untouched, contents(&self.storage));
                return;
            }
            Err(RepairError::TwoLogs { .. }) => {
                assert_eq!(untouched, contents(&self.storage));
                return;
            }
            Err(RepairError::Hopeless { .. } | RepairError::TooMany { .. } | RepairError::Storage(_)) => {
                return;
            }
            Err(error) => panic!("{verdict}: {error}"),
        };
        assert!(!plan.unwrap().nothing_to_do && !done.nothing_to_do);
        self.originals_are_there(&untouched);
        let again = match repair(Arc::new(self.storage.clone())) {
            Err(_) if self.harm.forged => return,
            again => again.unwrap(),
        };
        let opened = Wal::open_on(Arc::new(self.storage.clone()), options());
        if self.harm.forged {
            return;
        }
        assert!(again.nothing_to_do, "repaired twice: {again:?}");
        let wal = opened.expect("what was repaired opens");
        let first = wal.segments().first().map_or(Lsn::FIRST, |segment| segment.base);
        let reading = read(&mut wal.read(first).unwrap(), first);
        self.check(&reading);
        assert_eq!(reading.broken, None, "a repaired log reads to its end");
        for (first, last) in &done.lost {
            assert!(wal.next() > *last, "P4: LSN {last} was lost and would be given out again");
            assert!(first <= last);
        }
        let lsn = wal.append(0x86, 3, b"and on").unwrap();
        wal.close().unwrap();
        let view = View::open_on(Arc::new(self.storage.clone())).unwrap();
        assert!(view.report().findings.iter().all(|finding| finding.harmless), "{:?}", view.report());
        let reader = view.read(first);
        let mut reader =
            reader.unwrap_or_else(|error| panic!("{error}: {:?} {:#?}", wal.segments(), view.report()));
        let mut second = read(&mut reader, first);
        assert_eq!(second.broken, None);
        assert!(second.records.remove(&lsn.number()).is_some());
        assert_eq!(second.records, reading.records);
    }

    /// Every segment file is there as it was, or set aside as it was; nothing is deleted.
    fn originals_are_there(&self, untouched: &BTreeMap<String, Option<Vec<u8>>>) {
        let now = contents(&self.storage);
        for (name, bytes) in untouched.iter().filter(|(name, _)| SegmentId::from_file_name(name).is_some()) {
            let aside = format!("{name}.aside-");
            let kept = now
                .iter()
                .any(|(other, content)| (other == name || other.starts_with(&aside)) && content == bytes);
            assert!(kept, "repair changed {name}");
        }
    }
}

/// What a reader told, to its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reading {
    records: BTreeMap<u64, Sent>,
    gaps: Vec<(u64, u64)>,
    broken: Option<String>,
}

/// Reads to the end; every LSN is a record or told to be missing, in order.
fn read(reader: &mut Reader, from: Lsn) -> Reading {
    let mut reading = Reading::default();
    let mut due = from.number();
    loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert_eq!(record.lsn.number(), due, "a gap that nobody told of");
                let sent = Sent {
                    plane: record.plane,
                    kind: record.kind,
                    ends_batch: record.ends_batch,
                    payload: record.payload.to_vec(),
                };
                reading.records.insert(due, sent);
                due += 1;
            }
            Ok(None) => return reading,
            Err(ReadError::Lost { first, last } | ReadError::NotKept { first, last }) => {
                assert!(first <= last, "an empty gap");
                assert!(last.number() >= due, "a gap behind the reader: {first} to {last} at {due}");
                reading.gaps.push((first.number(), last.number()));
                due = last.number() + 1;
            }
            Err(error) => {
                reading.broken = Some(error.to_string());
                return reading;
            }
        }
    }
}

fn control_is_gone(storage: &MemStorage) -> bool {
    let view = View::open_on(Arc::new(storage.clone()));
    view.is_ok_and(|view| {
        view.report()
            .findings
            .iter()
            .any(|finding| ["control-missing", "control-lost"].contains(&finding.label))
    })
}

/// Names and bytes, the lock apart.
fn contents(storage: &MemStorage) -> BTreeMap<String, Option<Vec<u8>>> {
    let names = storage.names().into_iter().filter(|name| name != "planewal.lock");
    names.map(|name| (name.clone(), storage.read(&name))).collect()
}

/// The last LSN whose frame, and everything before it, is as it was.
fn intact_until(before: &MemStorage, after: &MemStorage) -> u64 {
    let view = View::open_on(Arc::new(before.clone())).unwrap();
    let mut intact = 0;
    for segment in &view.report().segments {
        let (was, is) = (before.read(&segment.file).unwrap(), after.read(&segment.file).unwrap_or_default());
        let same = was.iter().zip(&is).take_while(|(was, is)| was == is).count() as u64;
        let Some(last) = segment.last else { continue };
        let mut lsn = segment.base;
        while lsn <= last {
            let Ok(position) = view.seek(lsn) else { break };
            let behind = position.last.next();
            let end = if position.last == last {
                segment.end
            } else {
                view.seek(behind).map_or(segment.end, |next| next.offset)
            };
            if end > same {
                return intact;
            }
            intact = position.last.number();
            lsn = behind;
        }
    }
    intact
}
