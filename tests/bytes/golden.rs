//! Golden files: format 1 as it was written once, and is written and read still.
//!
//! See `tests/golden/README.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use planewal::storage::MemStorage;
use planewal::{Batch, Lsn, ReadError, View};
use planewal_core::fuzzing::{self, Scene};

use crate::support::{CONTROL, SLOT, crc, frames, open, salt, segment, u32_at, u64_at, view};

/// `v1` is as it was when it was written; what format 1 got since has folders of its own.
fn folder_of(name: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if name == "retired" { golden.join("v1-retired") } else { golden.join("v1").join(name) }
}

type Recipe = fn() -> MemStorage;

/// Every log, with the recipe that makes it again.
const RECIPES: [(&str, Recipe); 6] = [
    ("closed", closed),
    ("unclean", unclean),
    ("sieved", || fuzzing::sample(Scene::Sieved, 1).storage),
    ("repaired", || fuzzing::sample(Scene::Repaired, 1).storage),
    ("control", control),
    ("retired", retired),
];

fn commit(wal: &planewal::Wal, payloads: &[&[u8]]) {
    let mut batch = Batch::new();
    for (plane, payload) in (0x80..).zip(payloads) {
        batch.push(plane, 0x11, payload).unwrap();
    }
    wal.commit(&mut batch).unwrap();
}

/// Three segments: small batches, an empty payload, a record larger than a segment, seals.
fn closed() -> MemStorage {
    let storage = MemStorage::new(11);
    let wal = open(&storage);
    commit(&wal, &[b"one", b"", b"three"]);
    commit(&wal, &[&[0x34; 64]]);
    wal.rotate().unwrap();
    commit(&wal, &[&[0x35; 20_000]]);
    commit(&wal, &[&[0x36; 200], b"seven"]);
    wal.close().unwrap();
    drop(wal);
    storage
}

/// A first run that was not closed; a second that copied its tail, went on, and ended with a beacon.
fn unclean() -> MemStorage {
    let storage = MemStorage::new(12);
    let wal = open(&storage);
    commit(&wal, &[b"one", b"two"]);
    let mut batch = Batch::new();
    batch.push(0x80, 0x11, b"three").unwrap();
    wal.commit_as(&mut batch, planewal::Durability::Written).unwrap();
    drop(wal);
    let wal = open(&storage);
    commit(&wal, &[b"four"]);
    commit(&wal, &[b"five"]);
    let newest = wal.segments().last().unwrap().id.number();
    drop(wal);
    fuzzing::add_beacon(&storage, newest);
    storage
}

/// Sections of known and unknown tags, and the row of an open that found no clean close.
fn control() -> MemStorage {
    let storage = MemStorage::new(13);
    let wal = open(&storage);
    commit(&wal, &[b"one"]);
    drop(wal);
    let wal = open(&storage);
    commit(&wal, &[b"two"]);
    wal.close().unwrap();
    drop(wal);
    fuzzing::add_section(&storage, 1, b"floors");
    fuzzing::add_section(&storage, 0xffff_0001, b"");
    fuzzing::add_section(&storage, 0xffff_0002, b"of a crate that is not written yet");
    storage
}

/// Two durable holds; three segments retired, the file of one written again, that of another a spare.
fn retired() -> MemStorage {
    let storage = MemStorage::new(14);
    let wal = open(&storage);
    let fill = |count: u8| (0..count).for_each(|at| commit(&wal, &[&[0x40 + at; 3000], b"small"]));
    fill(16);
    wal.hold_durably("archive", Lsn::new(9).unwrap()).unwrap();
    wal.hold_durably("replica", Lsn::new(20).unwrap()).unwrap();
    wal.retire_unchecked(Lsn::new(30).unwrap()).unwrap();
    fill(5);
    wal.advance_durable_hold("archive", Lsn::new(25).unwrap()).unwrap();
    wal.retire_unchecked(Lsn::new(30).unwrap()).unwrap();
    wal.close().unwrap();
    drop(wal);
    storage
}

/// The recipe's log; the creation time is the one field that does not follow from it.
fn made(recipe: Recipe) -> MemStorage {
    let storage = recipe();
    fuzzing::set_creation_time(&storage, 1_700_000_000_000_000_000);
    storage
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "expected.txt");
    names.sort();
    names
}

fn golden(name: &str) -> MemStorage {
    let folder = folder_of(name);
    let storage = MemStorage::new(0);
    for file in names(&folder) {
        storage.write(&file, &fs::read(folder.join(&file)).unwrap());
    }
    storage
}

/// Everything that a view tells of a log, as text.
fn told(view: &View) -> String {
    let mut text = String::new();
    let report = view.report();
    let line = |text: &mut String, line: std::fmt::Arguments<'_>| writeln!(text, "{line}").unwrap();
    line(&mut text, format_args!("verdict {} {}", report.verdict, report.proof));
    line(&mut text, format_args!("log {}", report.log_id.unwrap()));
    line(
        &mut text,
        format_args!(
            "first {:?} last {:?} next {} durable {:?} epoch {} closed {}",
            report.first, report.last, report.next, report.durable, report.epoch, report.closed_cleanly
        ),
    );
    for finding in &report.findings {
        line(&mut text, format_args!("finding {finding}"));
    }
    for segment in &report.segments {
        line(
            &mut text,
            format_args!(
                "segment {} base {} last {:?} records {} end {} sealed {} sieved {} epoch {} label {:?} planes {:?}",
                segment.id,
                segment.base,
                segment.last,
                segment.records,
                segment.end,
                segment.sealed,
                segment.sieved,
                segment.epoch,
                segment.label,
                segment
                    .planes
                    .iter()
                    .map(|row| (row.plane, row.records, row.first.number(), row.last.number()))
                    .collect::<Vec<_>>()
            ),
        );
    }
    for ancestor in &report.ancestors {
        line(
            &mut text,
            format_args!(
                "ancestor {} to segment {} LSN {:?}",
                ancestor.log_id, ancestor.last_segment, ancestor.last
            ),
        );
    }
    for spare in &report.spares {
        line(&mut text, format_args!("spare {spare}"));
    }
    // A log that retired its head is read from where it begins; one that repair gave up the head of, from 1.
    let head = report.segments.first().is_none_or(|segment| segment.id.number() == 1);
    let mut reader = view.read(if head { Lsn::FIRST } else { report.first.unwrap() }).unwrap();
    loop {
        match reader.next() {
            Ok(Some(record)) => line(
                &mut text,
                format_args!(
                    "record {} plane {:#x} kind {:#x} ends {} bytes {} crc {:08x}",
                    record.lsn,
                    record.plane,
                    record.kind,
                    record.ends_batch,
                    record.payload.len(),
                    crc(0, record.payload)
                ),
            ),
            Ok(None) => return text,
            Err(ReadError::Lost { first, last }) => line(&mut text, format_args!("lost {first} to {last}")),
            Err(ReadError::NotKept { first, last }) => {
                line(&mut text, format_args!("not kept {first} to {last}"));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn golden_logs_read_as_ever() {
    write_missing();
    for (name, _) in RECIPES {
        let storage = golden(name);
        let expected = fs::read_to_string(folder_of(name).join("expected.txt")).unwrap();
        assert_eq!(told(&view(&storage)), expected, "{name}");
        // And they are logs to go on with.
        let wal = open(&storage);
        let lsn = wal.append(0x80, 1, b"today").unwrap();
        wal.close().unwrap();
        drop(wal);
        assert_eq!(view(&storage).report().last, Some(lsn), "{name}");
    }
}

// faults: B147
#[test]
fn golden_logs_are_written_as_ever() {
    write_missing();
    for (name, recipe) in RECIPES {
        let (golden, made) = (golden(name), made(recipe));
        let files: Vec<String> = made.names().into_iter().filter(|file| file != "planewal.lock").collect();
        assert_eq!(files, golden.names(), "{name}");
        for file in files {
            let (now, then) = (made.read(&file).unwrap(), golden.read(&file).unwrap());
            let differs = now.iter().zip(&then).position(|(now, then)| now != then);
            assert_eq!((differs, now.len()), (None, then.len()), "{name}/{file}: the format has changed");
        }
    }
}

#[test]
fn sections_that_nobody_knows_are_kept() {
    write_missing();
    let storage = golden("control");
    let wal = open(&storage);
    wal.append(0x80, 1, b"today").unwrap();
    wal.close().unwrap();
    let control = storage.read(CONTROL).unwrap();
    let text = b"of a crate that is not written yet";
    for slot in [&control[..SLOT], &control[SLOT..]] {
        assert_eq!(u32_at(slot, 152), 3, "three sections");
        assert!(slot.windows(text.len()).any(|bytes| bytes == text));
    }
}

/// `docs/format.md` in a second reading: checks, padding, order, link and seal of every file.
// faults: B027, B147
#[test]
fn golden_segments_are_what_the_format_page_says() {
    write_missing();
    for (name, _) in RECIPES {
        let storage = golden(name);
        let segments: Vec<String> =
            storage.names().into_iter().filter(|file| file.ends_with(".wal")).collect();
        for file in &segments {
            let bytes = storage.read(file).unwrap();
            // Segment 2 of the repaired log is damaged, and stays so.
            let damaged = name == "repaired" && *file == segment(2);
            segment_is_sound(&bytes, file, damaged);
        }
        control_is_sound(&storage.read(CONTROL).unwrap(), u64_at(&storage.read(&segments[0]).unwrap(), 32));
    }
}

fn segment_is_sound(bytes: &[u8], file: &str, damaged: bool) {
    assert_eq!(&bytes[..8], b"PLANEWAL");
    let reused = u32_at(bytes, 28);
    assert!(reused == 0 || reused == 1 && file > segment(4).as_str(), "only the retired log has spares");
    assert_eq!([8, 12, 16, 20, 24].map(|at| u32_at(bytes, at)), [1, 4096, 0, 0, 0]);
    assert_eq!(segment(u64_at(bytes, 48)), file);
    assert_eq!((bytes[88], &bytes[89..95]), (6, &b"sample"[..]));
    assert!(bytes[95..4092].iter().all(|&byte| byte == 0));
    assert_eq!(u32_at(bytes, 4092), crc(0, &bytes[..4092]));
    let frames = frames(bytes);
    let kinds: Vec<u8> = frames.iter().map(|frame| frame.kind).collect();
    let link = usize::from(kinds[0] == 6);
    assert_eq!(kinds[link], 2, "{kinds:?}");
    let mut due = u64_at(bytes, frames[link].offset + 32 + 32);
    for frame in &frames {
        let body = &bytes[frame.offset + 32..frame.end];
        let whole = crc(salt(bytes), body) == u32_at(bytes, frame.offset + 16);
        assert!(whole || damaged, "{file}: frame at {}", frame.offset);
        assert!(body[frame.body..].iter().all(|&byte| byte == 0));
        assert_eq!(bytes[frame.offset + 29..frame.offset + 32], [0; 3]);
        assert!(frame.first == due || link == 1 && frame.first >= due);
        assert!(u64::from(frame.lag) < frame.first);
        due = frame.first + u64::from(frame.records);
        match frame.kind {
            1 => assert_eq!(count_records(&body[..frame.body]), frame.records, "{file}"),
            3 => {
                assert_eq!(&body[frame.body - 8..frame.body], b"PLANESEA");
                assert_eq!(u64_at(body, frame.body - 16), frame.offset as u64);
                assert_eq!(u64_at(body, 8) + 1, frame.first);
                assert_eq!(frame.end, bytes.len(), "the file is cut behind its seal");
            }
            _ => assert!([2, 5, 6].contains(&frame.kind)),
        }
    }
}

fn count_records(mut body: &[u8]) -> u32 {
    let (mut count, mut ends) = (0, false);
    while !body.is_empty() {
        let (mut length, mut at) = (0_usize, 2);
        loop {
            length |= usize::from(body[at] & 0x7f) << (7 * (at - 2));
            at += 1;
            if body[at - 1] < 0x80 {
                break;
            }
        }
        ends = length & 1 == 1;
        body = &body[at + (length >> 1)..];
        count += 1;
    }
    assert!(ends);
    count
}

fn control_is_sound(bytes: &[u8], log_id: u64) {
    assert_eq!(bytes.len(), 2 * SLOT);
    for (number, slot) in bytes.chunks(SLOT).enumerate() {
        let used = u32_at(slot, 20) as usize;
        assert_eq!((&slot[..8], u32_at(slot, 12), u32_at(slot, 16)), (&b"PLANECTL"[..], 1, 0));
        assert_eq!((u32_at(slot, 8), u32_at(slot, 24)), (crc(0, &slot[12..used]), number as u32));
        let rows = [136, 140, 144, 148, 156].map(|at| u32_at(slot, at) as usize);
        let mut at =
            160 + rows.iter().zip([24, 16, 40, 40, 16]).map(|(rows, bytes)| rows * bytes).sum::<usize>();
        for _ in 0..u32_at(slot, 152) {
            at += 8 + (u32_at(slot, at + 4) as usize).div_ceil(8) * 8;
        }
        assert_eq!(at, used, "rows and sections end exactly at the used length");
        if rows[3] == 0 {
            assert_eq!(u64_at(slot, 40), log_id);
        }
    }
}

/// Writes logs that are not there yet; never one that is.
fn write_missing() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if std::env::var_os("PLANEWAL_WRITE_GOLDEN").is_none() {
        return;
    }
    ONCE.call_once(|| {
        for (name, recipe) in RECIPES {
            let folder = folder_of(name);
            if folder.exists() {
                continue;
            }
            fs::create_dir_all(&folder).unwrap();
            let storage = made(recipe);
            for file in storage.names().into_iter().filter(|file| file != "planewal.lock") {
                fs::write(folder.join(&file), storage.read(&file).unwrap()).unwrap();
            }
            fs::write(folder.join("expected.txt"), told(&view(&storage))).unwrap();
        }
    });
}
