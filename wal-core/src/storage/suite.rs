//! The conformance suite: what any [`Storage`] must do for a log to be safe on it.
//!
//! The contract is only as good as the check that comes with it: whoever brings a storage of their
//! own runs [`check`] in a test. Durability itself cannot be seen from here, as it takes a crash;
//! that a sync is honest stays the promise of whoever wrote the storage.
//!
//! ```
//! use std::sync::Arc;
//! use planewal_core::storage::{MemStorage, suite};
//!
//! suite::check(|| Arc::new(MemStorage::new(1))).unwrap();
//! ```

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::thread;

use super::{Access, Allocation, Entry, EntryKind, LockError, Storage, StorageFile};

/// Checks every point of the contract, each on a storage of its own that `make` gives, which must be
/// empty.
///
/// # Errors
///
/// The first point that fails, by the name of its function, and what was found.
pub fn check(make: impl Fn() -> Arc<dyn Storage>) -> Result<(), String> {
    for (name, point) in POINTS {
        point(&*make()).map_err(|found| format!("{name}: {found}"))?;
    }
    Ok(())
}

/// One point of the contract, checked on an empty storage.
pub type Point = fn(&dyn Storage) -> Result<(), String>;

/// All points, by name.
pub const POINTS: &[(&str, Point)] = &[
    ("create_is_exclusive", create_is_exclusive),
    ("missing_names_are_not_found", missing_names_are_not_found),
    ("a_new_file_is_empty", a_new_file_is_empty),
    ("what_was_written_is_read", what_was_written_is_read),
    ("reading_stops_at_the_end", reading_stops_at_the_end),
    ("overwriting_leaves_the_rest", overwriting_leaves_the_rest),
    ("gaps_read_as_zeros", gaps_read_as_zeros),
    ("set_len_cuts_and_extends", set_len_cuts_and_extends),
    ("allocate_keeps_bytes", allocate_keeps_bytes),
    ("allocate_within_changes_nothing", allocate_within_changes_nothing),
    ("reading_handles_do_not_write", reading_handles_do_not_write),
    ("handles_see_each_other", handles_see_each_other),
    ("rename_moves", rename_moves),
    ("rename_replaces", rename_replaces),
    ("a_handle_follows_a_rename", a_handle_follows_a_rename),
    ("remove_removes", remove_removes),
    ("list_tells_kind_length_and_links", list_tells_kind_length_and_links),
    ("a_lock_excludes", a_lock_excludes),
    ("a_lock_leaves_its_file", a_lock_leaves_its_file),
    ("random_bytes_differ", random_bytes_differ),
    ("syncs_succeed", syncs_succeed),
    ("space_and_name_are_told", space_and_name_are_told),
    ("reads_and_writes_run_side_by_side", reads_and_writes_run_side_by_side),
];

/// A name can be created once, and creating does not touch what is there.
pub fn create_is_exclusive(storage: &dyn Storage) -> Result<(), String> {
    let file = create(storage, "a", b"abc")?;
    expect_kind(storage.create("a"), io::ErrorKind::AlreadyExists, "creating a taken name")?;
    expect_content(&*file, b"abc")
}

/// Opening, renaming and removing what is not there say `NotFound` and create nothing.
pub fn missing_names_are_not_found(storage: &dyn Storage) -> Result<(), String> {
    for access in [Access::Read, Access::ReadWrite] {
        expect_kind(storage.open("a", access), io::ErrorKind::NotFound, "opening a missing name")?;
    }
    expect_kind(storage.rename("a", "b"), io::ErrorKind::NotFound, "renaming a missing name")?;
    expect_kind(storage.remove("a"), io::ErrorKind::NotFound, "removing a missing name")?;
    expect(names(storage)?, Vec::new(), "names")
}

/// A new file has no bytes and can be read and written.
pub fn a_new_file_is_empty(storage: &dyn Storage) -> Result<(), String> {
    let file = create(storage, "a", b"")?;
    expect(ok(file.len(), "len")?, 0, "length of a new file")?;
    expect(ok(file.read_at(0, &mut [0; 4]), "read")?, 0, "bytes read from a new file")
}

/// Bytes come back, through this handle and through another, at any offset.
pub fn what_was_written_is_read(storage: &dyn Storage) -> Result<(), String> {
    let content = pattern(3 * 4096 + 77, 1);
    let file = create(storage, "a", &content)?;
    expect_content(&*file, &content)?;
    let other = ok(storage.open("a", Access::Read), "open")?;
    expect_content(&*other, &content)?;
    for offset in [1, 511, 512, 4095, 4097, 12_000] {
        let mut buffer = vec![0; 300];
        ok(read_full(&*other, offset, &mut buffer), "read")?;
        let wanted = content.get(offset_index(offset)..).unwrap_or_default();
        let wanted = wanted.get(..300).unwrap_or(wanted);
        expect(buffer.get(..wanted.len()), Some(wanted), "bytes read inside")?;
    }
    Ok(())
}

/// A read past the end gives nothing; one across the end gives what is there; one into an empty
/// buffer gives nothing.
pub fn reading_stops_at_the_end(storage: &dyn Storage) -> Result<(), String> {
    let file = create(storage, "a", b"abcdef")?;
    let mut buffer = [7; 8];
    for offset in [6, 7, 1 << 20, 1 << 40] {
        expect(ok(file.read_at(offset, &mut buffer), "read")?, 0, "bytes read past the end")?;
    }
    expect(buffer, [7; 8], "a buffer that nothing was read into")?;
    expect(ok(file.read_at(0, &mut []), "read")?, 0, "bytes read into an empty buffer")?;
    expect(ok(read_full(&*file, 4, &mut buffer), "read")?, 2, "bytes read across the end")?;
    expect(buffer, *b"ef\x07\x07\x07\x07\x07\x07", "what was read across the end")
}

/// A write in the middle changes its own bytes and neither the others nor the length.
pub fn overwriting_leaves_the_rest(storage: &dyn Storage) -> Result<(), String> {
    let mut content = pattern(10_000, 2);
    let file = create(storage, "a", &content)?;
    for (offset, len) in [(0, 1), (500, 20), (4000, 4200), (9999, 1)] {
        let bytes = pattern(len, 3);
        ok(write_all(&*file, offset as u64, &bytes), "write")?;
        for (target, byte) in content.iter_mut().skip(offset).zip(bytes) {
            *target = byte;
        }
        expect_content(&*file, &content)?;
    }
    expect(ok(file.write_at(3, &[]), "write")?, 0, "bytes written from an empty buffer")?;
    expect_content(&*file, &content)
}

/// A write behind the end fills the gap with zeros.
pub fn gaps_read_as_zeros(storage: &dyn Storage) -> Result<(), String> {
    let file = create(storage, "a", b"abc")?;
    ok(write_all(&*file, 9000, b"xyz"), "write")?;
    let mut content = b"abc".to_vec();
    content.resize(9000, 0);
    content.extend_from_slice(b"xyz");
    expect_content(&*file, &content)
}

/// `set_len` cuts; what it cut off is zero when the file is extended again.
pub fn set_len_cuts_and_extends(storage: &dyn Storage) -> Result<(), String> {
    let mut content = pattern(9000, 4);
    let file = create(storage, "a", &content)?;
    for len in [9000, 5000, 8192, 700, 100, 0, 600] {
        ok(file.set_len(len), "set_len")?;
        content.resize(offset_index(len), 0);
        expect_content(&*file, &content)?;
    }
    Ok(())
}

/// Allocating extends the file with zeros and leaves all bytes before the old end as they are, also
/// those inside the range.
pub fn allocate_keeps_bytes(storage: &dyn Storage) -> Result<(), String> {
    for (name, how) in [("a", Allocation::Zeros), ("b", Allocation::Reserve)] {
        let mut content = pattern(5001, 5);
        let file = create(storage, name, &content)?;
        for (offset, len) in [(0, 6000), (5990, 20_000), (30_000, 5000)] {
            let done = ok(file.allocate(offset, len, how), "allocate")?;
            if done != how && done != Allocation::Sparse {
                return Err(format!("asked for {how:?}, it did {done:?}"));
            }
            content.resize(offset_index(offset + len), 0);
            expect_content(&*file, &content)?;
        }
        ok(write_all(&*file, 7000, b"abc"), "write")?;
        let mut written = [0; 3];
        ok(read_full(&*file, 7000, &mut written), "read")?;
        expect(written, *b"abc", "bytes written into allocated space")?;
    }
    Ok(())
}

/// Allocating a range that the file has already changes neither bytes nor length, nor does an empty
/// range.
pub fn allocate_within_changes_nothing(storage: &dyn Storage) -> Result<(), String> {
    let content = pattern(5000, 6);
    let file = create(storage, "a", &content)?;
    for how in [Allocation::Zeros, Allocation::Reserve] {
        for (offset, len) in [(0, 5000), (1000, 100), (4999, 1), (0, 0), (9000, 0)] {
            ok(file.allocate(offset, len, how), "allocate")?;
            expect_content(&*file, &content)?;
        }
    }
    Ok(())
}

/// A handle for reading refuses to change anything.
pub fn reading_handles_do_not_write(storage: &dyn Storage) -> Result<(), String> {
    create(storage, "a", b"abc")?;
    let file = ok(storage.open("a", Access::Read), "open")?;
    let refused = file.write_at(0, b"x").is_err()
        && file.set_len(1).is_err()
        && file.allocate(0, 10, Allocation::Zeros).is_err()
        && file.allocate(0, 10, Allocation::Reserve).is_err();
    expect(refused, true, "whether all changes are refused")?;
    expect_content(&*file, b"abc")
}

/// What one handle does another sees at once.
pub fn handles_see_each_other(storage: &dyn Storage) -> Result<(), String> {
    let first = create(storage, "a", b"abc")?;
    let second = ok(storage.open("a", Access::ReadWrite), "open")?;
    let reader = ok(storage.open("a", Access::Read), "open")?;
    ok(write_all(&*second, 1, b"xyz"), "write")?;
    expect_content(&*first, b"axyz")?;
    ok(first.set_len(2), "set_len")?;
    expect_content(&*second, b"ax")?;
    expect_content(&*reader, b"ax")
}

/// A renamed file is there under its new name only.
pub fn rename_moves(storage: &dyn Storage) -> Result<(), String> {
    create(storage, "a", b"abc")?;
    ok(storage.rename("a", "b"), "rename")?;
    expect(names(storage)?, vec!["b".to_owned()], "names")?;
    expect_file(storage, "b", b"abc")?;
    ok(storage.rename("b", "b"), "rename to itself")?;
    expect_file(storage, "b", b"abc")
}

/// Renaming onto a taken name replaces what it held.
pub fn rename_replaces(storage: &dyn Storage) -> Result<(), String> {
    create(storage, "a", b"new")?;
    create(storage, "b", b"old and longer")?;
    ok(storage.rename("a", "b"), "rename")?;
    expect(names(storage)?, vec!["b".to_owned()], "names")?;
    expect_file(storage, "b", b"new")?;
    create(storage, "a", b"another")?;
    expect_file(storage, "b", b"new")
}

/// A handle stays with its file when the file is renamed.
pub fn a_handle_follows_a_rename(storage: &dyn Storage) -> Result<(), String> {
    let file = create(storage, "a", b"abc")?;
    ok(storage.rename("a", "b"), "rename")?;
    ok(write_all(&*file, 3, b"def"), "write")?;
    expect_file(storage, "b", b"abcdef")
}

/// A removed name is free again, and a new file of that name is empty.
pub fn remove_removes(storage: &dyn Storage) -> Result<(), String> {
    drop(create(storage, "a", b"abc")?);
    ok(storage.remove("a"), "remove")?;
    expect(names(storage)?, Vec::new(), "names")?;
    expect_content(&*create(storage, "a", b"")?, b"")
}

/// The list has every file, with kind, length and link count.
pub fn list_tells_kind_length_and_links(storage: &dyn Storage) -> Result<(), String> {
    expect(ok(storage.list(), "list")?, Vec::new(), "entries of an empty storage")?;
    create(storage, "b", b"")?;
    create(storage, "a", b"abc")?;
    let mut entries = ok(storage.list(), "list")?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let file = |name: &str, len| Entry { name: name.to_owned(), kind: EntryKind::File, len, links: 1 };
    expect(entries, vec![file("a", 3), file("b", 0)], "entries")
}

/// A lock is held once, in this process too, and by its name only; dropping it lets go.
pub fn a_lock_excludes(storage: &dyn Storage) -> Result<(), String> {
    let held = ok(storage.lock("lock"), "lock")?;
    match storage.lock("lock") {
        Err(LockError::Held { .. }) => {}
        other => return Err(format!("a second lock gave {other:?}")),
    }
    drop(ok(storage.lock("other"), "lock of another name")?);
    drop(held);
    drop(ok(storage.lock("lock"), "lock after the first was dropped")?);
    ok(storage.lock("lock"), "lock once more").map(drop)
}

/// The lock file is a file in the directory, and stays there.
pub fn a_lock_leaves_its_file(storage: &dyn Storage) -> Result<(), String> {
    let held = ok(storage.lock("lock"), "lock")?;
    expect(names(storage)?, vec!["lock".to_owned()], "names while locked")?;
    drop(held);
    expect(names(storage)?, vec!["lock".to_owned()], "names after unlocking")
}

/// Two draws differ, and all of the buffer is filled.
pub fn random_bytes_differ(storage: &dyn Storage) -> Result<(), String> {
    let mut draws = [[0; 67]; 4];
    for draw in &mut draws {
        ok(storage.random(draw), "random")?;
    }
    let [first, second, ..] = draws;
    expect(first == second, false, "whether two draws are the same")?;
    let untouched = (0..67).any(|place| draws.iter().all(|draw| draw.get(place) == Some(&0)));
    // By chance this happens once in sixty million runs.
    expect(untouched, false, "whether a byte stays zero in all draws")?;
    ok(storage.random(&mut []), "random bytes into an empty buffer")
}

/// Files and the directory can be synced, changed or not, through any handle that writes.
pub fn syncs_succeed(storage: &dyn Storage) -> Result<(), String> {
    ok(storage.sync_dir(), "sync_dir of an empty storage")?;
    let file = create(storage, "a", b"abc")?;
    ok(file.sync(), "sync")?;
    ok(file.sync(), "second sync")?;
    ok(storage.sync_dir(), "sync_dir")?;
    ok(storage.rename("a", "b"), "rename")?;
    ok(file.sync(), "sync after a rename")?;
    ok(storage.sync_dir(), "sync_dir after a rename")?;
    expect_file(storage, "b", b"abc")
}

/// There is room, and the storage has a name for reports.
pub fn space_and_name_are_told(storage: &dyn Storage) -> Result<(), String> {
    expect(ok(storage.free_bytes(), "free_bytes")? > 0, true, "whether there is room")?;
    expect(storage.describe().is_empty(), false, "whether the description is empty")
}

/// Threads share a handle, each reading and writing its own part.
pub fn reads_and_writes_run_side_by_side(storage: &dyn Storage) -> Result<(), String> {
    const PART_BYTES: usize = 3000;
    let file = create(storage, "a", &vec![0; 4 * PART_BYTES])?;
    let file = &*file;
    thread::scope(|scope| {
        let threads = [0_u8, 1, 2, 3].map(|part| {
            scope.spawn(move || {
                let offset = (usize::from(part) * PART_BYTES) as u64;
                for round in 0..50 {
                    let bytes = pattern(PART_BYTES, part.wrapping_mul(50).wrapping_add(round));
                    ok(write_all(file, offset, &bytes), "write")?;
                    let mut found = vec![0; PART_BYTES];
                    ok(read_full(file, offset, &mut found), "read")?;
                    if found != bytes {
                        return Err("a thread read what it did not write".to_owned());
                    }
                }
                Ok(())
            })
        });
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    })
}

fn create(storage: &dyn Storage, name: &str, content: &[u8]) -> Result<Box<dyn StorageFile>, String> {
    let file = ok(storage.create(name), "create")?;
    ok(write_all(&*file, 0, content), "write")?;
    Ok(file)
}

fn names(storage: &dyn Storage) -> Result<Vec<String>, String> {
    let entries = ok(storage.list(), "list")?;
    let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
    names.sort();
    Ok(names)
}

fn write_all(file: &dyn StorageFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write_at(offset + done as u64, rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => done += written,
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &dyn StorageFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(offset + done as u64, rest)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

fn expect_file(storage: &dyn Storage, name: &str, content: &[u8]) -> Result<(), String> {
    expect_content(&*ok(storage.open(name, Access::Read), "open")?, content)
}

fn expect_content(file: &dyn StorageFile, content: &[u8]) -> Result<(), String> {
    expect(ok(file.len(), "len")?, content.len() as u64, "length")?;
    // Room for one byte too many, so that a file that goes on is noticed.
    let mut found = vec![0; content.len() + 1];
    let len = ok(read_full(file, 0, &mut found), "read")?;
    expect(len, content.len(), "bytes read")?;
    match found.iter().zip(content).position(|(found, wanted)| found != wanted) {
        Some(place) => Err(format!("byte {place} of {} is not what it should be", content.len())),
        None => Ok(()),
    }
}

fn expect<T: PartialEq + Debug>(found: T, wanted: T, what: &str) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?} instead of {wanted:?}")) }
}

fn expect_kind<T: Debug>(result: io::Result<T>, kind: io::ErrorKind, what: &str) -> Result<(), String> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        other => Err(format!("{what} gave {other:?} instead of {kind:?}")),
    }
}

fn ok<T, E: Debug>(result: Result<T, E>, what: &str) -> Result<T, String> {
    result.map_err(|error| format!("{what} failed: {error:?}"))
}

/// Bytes that differ from place to place and from seed to seed, none of them zero.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (1..=251_u8).cycle().skip(usize::from(seed)).take(len).collect()
}

fn offset_index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::storage::{Fault, FaultStorage, MemStorage, Op};

    /// A suite that lets everything pass checks nothing: each of these storages breaks one promise.
    #[test]
    fn broken_storages_are_caught() {
        let broken = [
            Fault::lie().at(Op::Write, 1).sticky(),
            Fault::lie().at(Op::SetLen, 1).sticky(),
            Fault::lie().at(Op::Allocate, 1).sticky(),
            Fault::lie().at(Op::Rename, 1).sticky(),
            Fault::lie().at(Op::Remove, 1).sticky(),
            Fault::bit_flip(3).at(Op::Write, 1).sticky(),
            Fault::bit_flip(3).at(Op::Read, 1).sticky(),
            Fault::short_read(0).at(Op::Read, 1).sticky(),
            Fault::error(io::ErrorKind::Other).at(Op::Sync, 1).sticky(),
            Fault::error(io::ErrorKind::Other).at(Op::SyncDir, 1).sticky(),
            Fault::error(io::ErrorKind::Other).at(Op::Lock, 2).sticky(),
            Fault::error(io::ErrorKind::Other).at(Op::Open, 1).sticky(),
        ];
        for fault in broken {
            let result = check(|| {
                let storage = FaultStorage::new(Arc::new(MemStorage::new(1)));
                storage.inject(fault.clone());
                Arc::new(storage)
            });
            assert!(result.is_err(), "{fault:?}");
        }
    }

    /// Short counts are allowed, so a storage that gives them conforms.
    #[test]
    fn short_reads_and_writes_conform() {
        check(|| {
            let storage = FaultStorage::new(Arc::new(MemStorage::new(1)));
            storage.inject(Fault::short_write(100).at(Op::Write, 1).sticky());
            storage.inject(Fault::short_read(70).at(Op::Read, 1).sticky());
            Arc::new(storage)
        })
        .unwrap();
    }
}
