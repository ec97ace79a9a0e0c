//! The feature `tracing`: events are told, and who hears them cannot change what is decided (P12).
#![cfg(all(feature = "tracing", feature = "testing"))]
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, OnceLock};

use planewal_core::fuzzing::set_creation_time;
use planewal_core::storage::{Fault, FaultStorage, MemStorage, Op};
use planewal_core::{AppendError, Lsn, Options, Wal};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// Remembers the names of events, and does something at each.
#[derive(Default)]
struct Heard {
    names: Arc<Mutex<Vec<String>>>,
    hook: Option<Hook>,
}

struct Name(String);

impl Visit for Name {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "event" {
            value.clone_into(&mut self.0);
        }
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "planewal"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut name = Name(String::new());
        event.record(&mut name);
        self.names.lock().unwrap().push(name.0.clone());
        if let Some(hook) = &self.hook {
            hook(&name.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn quiet() -> Options {
    Options { io_thread: false, segment_bytes: 16 << 10, prepare_bytes: 4 << 10, ..Options::default() }
}

/// Fills a disk, makes room, goes on, and closes.
fn life(storage: &FaultStorage, wal: &Wal) {
    wal.append(0x80, 1, b"first").unwrap();
    storage.inject(Fault::error(ErrorKind::StorageFull).at(Op::Allocate, 1).sticky());
    while wal.append(0x80, 1, &[7; 1000]).is_ok() {}
    storage.clear_faults();
    wal.append(0x80, 1, &[7; 1000]).unwrap();
    wal.close().unwrap();
}

fn what_happens_is_told_in_order() {
    let heard = Heard::default();
    let names = Arc::clone(&heard.names);
    tracing::subscriber::with_default(heard, || {
        let storage = FaultStorage::new(Arc::new(MemStorage::new(1)));
        life(&storage, &Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap());
    });
    assert_eq!(*names.lock().unwrap(), ["opened", "rotated", "full", "resumed", "closed"]);
    let heard = Heard::default();
    let names = Arc::clone(&heard.names);
    tracing::subscriber::with_default(heard, || {
        let storage = FaultStorage::new(Arc::new(MemStorage::new(2)));
        let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
        storage.inject(Fault::error(ErrorKind::Other).at(Op::Sync, 4).sticky());
        while wal.append(0x80, 1, b"until it fails").is_ok() {}
        drop(wal);
    });
    assert_eq!(names.lock().unwrap().last().unwrap(), "poisoned");
}

/// What is on the disk, apart from when it was made.
fn content(disk: &MemStorage) -> Vec<(String, Option<Vec<u8>>)> {
    set_creation_time(disk, 1);
    disk.names().into_iter().map(|name| (name.clone(), disk.read(&name))).collect()
}

// Whoever hears may look at the log, which needs its lock, and may panic.
fn who_hears_changes_nothing() {
    static LOG: OnceLock<Wal> = OnceLock::new();
    let lived = |remember: bool| {
        let disk = MemStorage::new(3);
        let storage = FaultStorage::new(Arc::new(disk.clone()));
        let wal = Wal::open_on(Arc::new(storage.clone()), quiet()).unwrap();
        if remember {
            LOG.set(wal.clone()).unwrap();
        }
        life(&storage, &wal);
        assert!(matches!(wal.append(0x80, 1, b"late"), Err(AppendError::Closed)));
        (storage.mutations(), content(&disk))
    };
    let alone = lived(false);
    let hook: Hook = Box::new(|name| {
        if let Some(wal) = LOG.get() {
            let _ = (wal.stats(), wal.segments(), wal.read(Lsn::FIRST).is_ok());
        }
        assert_eq!(name, "", "a subscriber with a bug");
    });
    let heard = Heard { names: Arc::default(), hook: Some(hook) };
    let names = Arc::clone(&heard.names);
    let observed = tracing::subscriber::with_default(heard, || lived(true));
    assert_eq!(names.lock().unwrap().len(), 5);
    assert!(observed == alone, "P12");
}

// One after the other: who is interested in an event is remembered for the whole process.
#[test]
fn events_are_told_and_change_nothing() {
    what_happens_is_told_in_order();
    who_hears_changes_nothing();
}
