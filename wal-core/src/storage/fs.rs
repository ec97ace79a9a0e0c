//! The file system as a [`Storage`]: one directory, positioned reads and writes, real syncs.
//!
//! It is thin, because all that is clever about durability lives above the trait. What it does add
//! are the guards that a shared directory needs: nothing but regular files is opened, links are
//! never followed, files are readable by their owner only, and a lock is checked to be the one that
//! the name stands for.
//!
//! Written for Linux. On macOS a sync is the full one that reaches the medium (the standard library
//! sees to that). On Windows directories are not synced, permissions are inherited, link counts read
//! as 1, and free space is not known.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::{Access, Allocation, Entry, EntryKind, LockError, Storage, StorageFile, StorageLock};

/// A directory of the file system.
///
/// Making one touches nothing; [`make_dir`](Self::make_dir) creates the directory.
#[derive(Debug, Clone)]
pub struct FsStorage {
    dir: PathBuf,
}

impl FsStorage {
    /// The storage in the directory `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Creates the directory (0700) and its missing parents, and answers whether it was missing.
    ///
    /// When it returns, the directory's own entry is durable: the parent is synced, also when the
    /// directory was there already, as whoever made it may have died before syncing.
    ///
    /// # Errors
    ///
    /// Whatever the file system says; `NotADirectory` if the path is taken by something else.
    pub fn make_dir(&self) -> io::Result<bool> {
        make_durable_dir(&self.dir)
    }

    fn entry_path(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.dir.join(name))
    }
}

impl Storage for FsStorage {
    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for found in fs::read_dir(&self.dir)? {
            let found = found?;
            // This does not follow links. What went since the name was read is simply not there.
            match found.metadata() {
                Ok(metadata) => entries.push(describe_entry(&found.file_name(), &metadata)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let path = self.entry_path(name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        guard(&mut options);
        let file = options.open(path)?;
        Ok(Box::new(FsFile { file }))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
        let path = self.entry_path(name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        let file = open_regular(&path, &mut options)?;
        Ok(Box::new(FsFile { file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.entry_path(from)?, self.entry_path(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.entry_path(name)?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        sync_directory(&self.dir)
    }

    fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError> {
        let path = self.entry_path(name)?;
        for _ in 0..LOCK_TRIES {
            let file = open_lock_file(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let holder = read_holder(&file);
                    return Err(LockError::Held { holder });
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // Between opening and locking the name may have been given to another file, whose lock
            // somebody else can hold: then ours keeps nobody out.
            if is_still_named(&path, &file)? {
                leave_holder(&file);
                return Ok(Box::new(FsLock { file }));
            }
        }
        Err(io::Error::other("the lock file was replaced again and again").into())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        free_bytes_of(&self.dir)
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        fill_random(bytes)
    }

    fn describe(&self) -> String {
        self.dir.display().to_string()
    }
}

/// An open regular file.
#[derive(Debug)]
struct FsFile {
    file: File,
}

impl StorageFile for FsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| read_file_at(&self.file, buffer, offset))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let written = uninterrupted(|| write_file_at(&self.file, bytes, offset))?;
        if written == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(written)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> io::Result<Allocation> {
        let end = range_end(offset, len)?;
        let old_len = self.len()?;
        if len == 0 {
            return Ok(how);
        }
        let done = match how {
            Allocation::Zeros => self.write_zeros(offset.max(old_len), end),
            Allocation::Reserve => self.reserve(offset, len, old_len),
            Allocation::Sparse => self.extend(old_len, end),
        };
        if done.is_err() && self.len().is_ok_and(|len| len > old_len) {
            // Half a preparation is of no use to anybody, and on a full disk it is in the way. The
            // error to report is the first one.
            let _ = self.file.set_len(old_len);
        }
        done
    }

    fn sync(&self) -> io::Result<()> {
        // Never tried again: after a failed sync the kernel may call dirty pages clean, and a second
        // sync would say Ok about bytes that are lost.
        self.file.sync_data()
    }
}

impl FsFile {
    fn write_zeros(&self, start: u64, end: u64) -> io::Result<Allocation> {
        let piece = end.saturating_sub(start).min(ZEROS_PIECE_BYTES);
        let zeros = vec![0; usize::try_from(piece).unwrap_or(0)];
        let mut position = start;
        while position < end {
            let wanted = usize::try_from(end - position).unwrap_or(usize::MAX);
            let bytes = zeros.get(..wanted).unwrap_or(&zeros);
            position += self.write_at(position, bytes)? as u64;
        }
        Ok(Allocation::Zeros)
    }

    /// Blocks for the whole range, where the file system can; holes before the old end are filled.
    fn reserve(&self, offset: u64, len: u64, old_len: u64) -> io::Result<Allocation> {
        if reserve_blocks(&self.file, offset, len)? {
            return Ok(Allocation::Reserve);
        }
        self.extend(old_len, offset.saturating_add(len))
    }

    fn extend(&self, old_len: u64, end: u64) -> io::Result<Allocation> {
        if end > old_len {
            self.file.set_len(end)?;
        }
        Ok(Allocation::Sparse)
    }
}

/// The lock, held by an open file description.
#[derive(Debug)]
struct FsLock {
    file: File,
}

impl StorageLock for FsLock {}

impl Drop for FsLock {
    fn drop(&mut self) {
        // Closing would do, but for a child process that was forked meanwhile and shares the
        // description.
        let _ = self.file.unlock();
    }
}

/// Refuses what is not a plain file name: a name must never lead out of the directory.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is not a plain file name"),
        ));
    }
    Ok(())
}

/// Where a range ends, if files can be that long.
pub(super) fn range_end(offset: u64, len: u64) -> io::Result<u64> {
    offset
        .checked_add(len)
        .filter(|end| i64::try_from(*end).is_ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the range ends beyond any file"))
}

/// The refusal to open `name`, which is `what`.
pub(super) fn refusal(name: &str, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is {what}, not a regular file"))
}

fn make_durable_dir(dir: &Path) -> io::Result<bool> {
    let parent = match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        // The root has no entry that could be lost.
        None => return Ok(false),
    };
    if dir.is_dir() {
        return match sync_directory(parent) {
            // A parent that we may not open is not ours, nor is its entry our doing.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            synced => synced.map(|()| false),
        };
    }
    if !parent.is_dir() {
        make_durable_dir(parent)?;
    }
    let created = match create_private_dir(dir) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => false,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{} is there and is no directory", dir.display()),
            ));
        }
        Err(error) => return Err(error),
    };
    sync_directory(parent)?;
    Ok(created)
}

fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    guard(options);
    let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = match options.open(path) {
        Ok(file) => file,
        // Links, sockets and directories are refused by the system in words of its own (ELOOP,
        // ENXIO, EISDIR): say what is there instead.
        Err(error) => {
            return Err(match fs::symlink_metadata(path) {
                Ok(metadata) if !metadata.is_file() => refusal(&name(), kind_name(kind_of(&metadata))),
                _ => error,
            });
        }
    };
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(file) } else { Err(refusal(&name(), kind_name(kind_of(&metadata)))) }
}

fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open_regular(path, &mut options)
}

/// The process id that the holder left, if it left one.
fn read_holder(file: &File) -> Option<u32> {
    let mut buffer = [0; HOLDER_BYTES];
    let len = uninterrupted(|| read_file_at(file, &mut buffer, 0)).ok()?;
    std::str::from_utf8(buffer.get(..len)?).ok()?.trim().parse().ok()
}

/// Leaves our process id in the lock file.
///
/// The lock is what counts: on a full disk the id is left out, and it goes before a new one comes, so
/// that the file never names a process that is gone.
fn leave_holder(file: &File) {
    if file.set_len(0).is_ok() {
        let id = std::process::id().to_string();
        let _ = uninterrupted(|| write_file_at(file, id.as_bytes(), 0));
    }
}

fn describe_entry(name: &std::ffi::OsStr, metadata: &fs::Metadata) -> Entry {
    let kind = kind_of(metadata);
    Entry {
        name: name.to_string_lossy().into_owned(),
        kind,
        len: if kind == EntryKind::File { metadata.len() } else { 0 },
        links: link_count(metadata),
    }
}

fn kind_of(metadata: &fs::Metadata) -> EntryKind {
    let kind = metadata.file_type();
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Directory
    } else if kind.is_symlink() {
        EntryKind::Link
    } else {
        EntryKind::Other
    }
}

/// What an entry is called in refusals.
pub(super) fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "a regular file",
        EntryKind::Directory => "a directory",
        EntryKind::Link => "a symbolic link",
        EntryKind::Other => "a socket, pipe or device",
    }
}

/// Repeats a read or a write that a signal interrupted before it moved a byte.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

const LOCK_TRIES: usize = 8;
const HOLDER_BYTES: usize = 32;
const ZEROS_PIECE_BYTES: u64 = 1 << 20;

#[cfg(unix)]
use unix::*;

#[cfg(unix)]
mod unix {
    use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
    use std::path::Path;

    use rustix::fs::{FallocateFlags, OFlags};
    use rustix::io::Errno;

    /// Owner only, no links, and no waiting for the other end of a pipe.
    pub(super) fn guard(options: &mut OpenOptions) {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
    }

    pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(dir)
    }

    /// `fsync(2)` answers EINVAL for what cannot be synced at all. Some network and user-space file
    /// systems say so of every directory; they have no better way to offer, so it passes. For files
    /// it never does.
    pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
        match File::open(dir)?.sync_all() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
            synced => synced,
        }
    }

    pub(super) fn is_still_named(path: &Path, file: &File) -> io::Result<bool> {
        let ours = file.metadata()?;
        match fs::symlink_metadata(path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn link_count(metadata: &Metadata) -> u64 {
        metadata.nlink()
    }

    pub(super) fn read_file_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    pub(super) fn write_file_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }

    /// False where the file system (or the system) cannot reserve.
    #[cfg(not(any(target_os = "netbsd", target_os = "openbsd", target_os = "dragonfly")))]
    pub(super) fn reserve_blocks(file: &File, offset: u64, len: u64) -> io::Result<bool> {
        loop {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), offset, len) {
                Ok(()) => return Ok(true),
                // It starts over from what was reserved so far.
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[cfg(any(target_os = "netbsd", target_os = "openbsd", target_os = "dragonfly"))]
    pub(super) fn reserve_blocks(_file: &File, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn free_bytes_of(dir: &Path) -> io::Result<u64> {
        let status = rustix::fs::statvfs(dir)?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn fill_random(mut bytes: &mut [u8]) -> io::Result<()> {
        use rustix::rand::{GetRandomFlags, getrandom};

        while !bytes.is_empty() {
            match getrandom(&mut *bytes, GetRandomFlags::empty()) {
                Ok(filled) => bytes = bytes.get_mut(filled..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
        io::Read::read_exact(&mut File::open("/dev/urandom")?, bytes)
    }
}

#[cfg(windows)]
use windows::*;

#[cfg(windows)]
mod windows {
    use std::collections::hash_map::RandomState;
    use std::fs::{self, File, Metadata, OpenOptions};
    use std::hash::BuildHasher;
    use std::io;
    use std::os::windows::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;

    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;

    pub(super) fn guard(options: &mut OpenOptions) {
        options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    }

    pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    /// NTFS journals directory changes by itself and offers no call for it.
    pub(super) fn sync_directory(_dir: &Path) -> io::Result<()> {
        Ok(())
    }

    /// An open file cannot lose its name here.
    pub(super) fn is_still_named(_path: &Path, _file: &File) -> io::Result<bool> {
        Ok(true)
    }

    pub(super) fn link_count(_metadata: &Metadata) -> u64 {
        1
    }

    pub(super) fn read_file_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buffer, offset)
    }

    pub(super) fn write_file_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(bytes, offset)
    }

    pub(super) fn reserve_blocks(_file: &File, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(false)
    }

    /// Not known here: a write that finds no room still says so.
    pub(super) fn free_bytes_of(_dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    /// The seeds of hash maps come from the system's random source, and are the only door to it that
    /// the standard library has.
    pub(super) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
        for (count, piece) in bytes.chunks_mut(8).enumerate() {
            let drawn = RandomState::new().hash_one(count).to_le_bytes();
            for (byte, random) in piece.iter_mut().zip(drawn) {
                *byte = random;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use super::*;
    use crate::storage::suite;

    fn storage() -> (tempfile::TempDir, FsStorage) {
        let dir = tempfile::tempdir().unwrap();
        let storage = FsStorage::new(dir.path().join("log"));
        assert!(storage.make_dir().unwrap());
        (dir, storage)
    }

    fn entry(storage: &FsStorage, name: &str) -> Entry {
        storage.list().unwrap().into_iter().find(|entry| entry.name == name).unwrap()
    }

    #[test]
    fn keeps_the_contract() {
        let dirs = RefCell::new(Vec::new());
        suite::check(|| {
            let (dir, storage) = storage();
            dirs.borrow_mut().push(dir);
            Arc::new(storage)
        })
        .unwrap();
    }

    #[test]
    fn make_dir_makes_parents_once() {
        let dir = tempfile::tempdir().unwrap();
        let storage = FsStorage::new(dir.path().join("a/b/c"));
        assert!(!storage.path().exists());
        assert!(storage.make_dir().unwrap());
        assert!(!storage.make_dir().unwrap());
        assert!(storage.path().is_dir());
        assert_eq!(storage.describe(), storage.path().display().to_string());
    }

    #[test]
    fn make_dir_refuses_a_file_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("log"), "x").unwrap();
        let error = FsStorage::new(dir.path().join("log")).make_dir().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[cfg(unix)]
    #[test]
    fn modes_are_private() {
        use std::os::unix::fs::PermissionsExt;

        let (_dir, storage) = storage();
        storage.create("a").unwrap();
        let _lock = storage.lock("lock").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(storage.path()), 0o700);
        assert_eq!(mode(&storage.path().join("a")), 0o600);
        assert_eq!(mode(&storage.path().join("lock")), 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_opened() {
        let (_dir, storage) = storage();
        let at = |name: &str| storage.path().join(name);
        storage.create("file").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        #[cfg(target_os = "linux")]
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();

        let mut names = vec!["link", "dangling", "directory", "socket"];
        if cfg!(target_os = "linux") {
            names.push("pipe");
        }
        for name in names {
            for access in [Access::Read, Access::ReadWrite] {
                let error = storage.open(name, access).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
                assert!(error.to_string().contains("not a regular file"), "{error}");
            }
            assert_eq!(storage.create(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert!(matches!(storage.lock(name), Err(LockError::Io(_))));
        }
        assert!(!at("nowhere").exists());
    }

    #[cfg(unix)]
    #[test]
    fn list_tells_what_is_there() {
        let (_dir, storage) = storage();
        let at = |name: &str| storage.path().join(name);
        storage.create("file").unwrap().write_at(0, b"abc").unwrap();
        fs::hard_link(at("file"), at("other")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let file = entry(&storage, "file");
        assert_eq!((file.kind, file.len, file.links), (EntryKind::File, 3, 2));
        assert_eq!(entry(&storage, "other").links, 2);
        assert_eq!(entry(&storage, "link").kind, EntryKind::Link);
        assert_eq!(entry(&storage, "directory").kind, EntryKind::Directory);
        assert_eq!(entry(&storage, "directory").len, 0);
    }

    #[test]
    fn names_do_not_lead_out() {
        let (_dir, storage) = storage();
        for name in ["", ".", "..", "a/b", "../a", "a\\b", "a\0b"] {
            assert_eq!(storage.create(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_held_lock_names_its_holder() {
        let (_dir, storage) = storage();
        fs::write(storage.path().join("lock"), "4294967295 and more of another life").unwrap();
        let lock = storage.lock("lock").unwrap();
        let again = FsStorage::new(storage.path()).lock("lock");
        match again {
            Err(LockError::Held { holder }) => assert_eq!(holder, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(lock);
        storage.lock("lock").unwrap();
    }

    #[test]
    fn a_lock_whose_name_went_to_another_file_is_noticed() {
        let (_dir, storage) = storage();
        let path = storage.path().join("lock");
        let file = open_lock_file(&path).unwrap();
        assert!(is_still_named(&path, &file).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!is_still_named(&path, &file).unwrap());
        fs::write(&path, "").unwrap();
        assert!(!is_still_named(&path, &file).unwrap());
    }

    #[test]
    fn reading_leaves_the_modification_time() {
        let (_dir, storage) = storage();
        storage.create("a").unwrap().write_at(0, b"abc").unwrap();
        let path = storage.path().join("a");
        let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        File::options().write(true).open(&path).unwrap().set_modified(past).unwrap();
        let file = storage.open("a", Access::Read).unwrap();
        let mut buffer = [0; 3];
        assert_eq!(file.read_at(0, &mut buffer).unwrap(), 3);
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
    }

    #[cfg(unix)]
    #[test]
    fn zeros_are_real_room() {
        use std::os::unix::fs::MetadataExt;

        let (_dir, storage) = storage();
        let file = storage.create("a").unwrap();
        file.write_at(0, b"abc").unwrap();
        let len = 3 * ZEROS_PIECE_BYTES + 5;
        assert_eq!(file.allocate(0, len, Allocation::Zeros).unwrap(), Allocation::Zeros);
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), len);
        let metadata = fs::metadata(storage.path().join("a")).unwrap();
        // A file system may compress zeros away, but then it is not the one to test on.
        assert!(metadata.blocks() * 512 >= len);
    }

    #[test]
    fn a_range_beyond_any_file_is_refused_and_changes_nothing() {
        let (_dir, storage) = storage();
        let file = storage.create("a").unwrap();
        file.write_at(0, b"abc").unwrap();
        for how in [Allocation::Zeros, Allocation::Reserve] {
            assert!(file.allocate(u64::MAX, 2, how).is_err());
            assert!(file.allocate(0, u64::MAX, how).is_err());
        }
        assert!(file.allocate(0, 1 << 62, Allocation::Reserve).is_err());
        assert_eq!(file.len().unwrap(), 3);
    }
}
