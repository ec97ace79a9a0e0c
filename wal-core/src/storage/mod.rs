//! The disk as a small trait: everything that the log does to files goes through here.
//!
//! It is small so that a test disk can know what is durable and what is not, and so that every
//! call the log makes can be made to fail. [`FsStorage`] is the file system; with the feature
//! `testing` there are `MemStorage`, `FaultStorage` and a conformance suite for storages of your
//! own.
//!
//! A storage is one flat directory. Names are plain file names without separators.
//!
//! What the log assumes of it: rewriting a sector never harms bytes in it that stay the same. What
//! it does not assume: any order between writes without a sync, atomicity above a sector, or that
//! a failed sync left the cache honest.

use std::fmt::Debug;
use std::io;

#[cfg(any(test, feature = "testing"))]
mod fault;
mod fs;
#[cfg(any(test, feature = "testing"))]
mod mem;
#[cfg(any(test, feature = "testing"))]
pub mod suite;

#[cfg(any(test, feature = "testing"))]
pub use fault::{Fault, FaultStorage, Op, OpCounts};
pub use fs::FsStorage;
#[cfg(any(test, feature = "testing"))]
pub use mem::{CrashPlan, MemStorage};

/// A directory of files. Methods take `&self` and may be called from any thread.
///
/// Errors are `io::Error`; the log looks at the kind only to tell "no room" (`StorageFull`,
/// `QuotaExceeded`) and "not there" (`NotFound`) from everything else.
pub trait Storage: Debug + Send + Sync + 'static {
    /// Every entry of the directory, in no particular order, without following links.
    fn list(&self) -> io::Result<Vec<Entry>>;

    /// Creates a file for reading and writing, readable by its owner only (0600). Fails with
    /// `AlreadyExists` if the name is taken by anything at all.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;

    /// Opens an existing regular file. A directory, a link or anything else is an error.
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>>;

    /// Renames within the directory, replacing what the new name held. Atomic for a process that
    /// looks on; durable only after [`sync_dir`](Self::sync_dir).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file's name. Durable only after [`sync_dir`](Self::sync_dir).
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals so far durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// Takes the exclusive lock named `name`, without waiting; it lasts until the guard is
    /// dropped. The lock file itself is never removed.
    fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError>;

    /// Bytes that could still be allocated.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Fills `bytes` with random bytes: log ids and file ids are drawn here. Simulations make it
    /// repeatable.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// How the directory is called in errors and reports.
    fn describe(&self) -> String;
}

/// An open file of a [`Storage`]. Positions are explicit; there is no cursor.
#[allow(clippy::len_without_is_empty, reason = "a length that can fail has no cheap emptiness")]
pub trait StorageFile: Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Reads at `offset`. May return fewer bytes than asked for; 0 means end of file (or an empty
    /// buffer).
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes at `offset`. May write fewer bytes than given, but not none.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Cuts the file or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes real room for the bytes `offset..offset + len`, extending the file; bytes behind the
    /// old end read as zero, bytes before it are left as they are. Returns what was really done.
    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> io::Result<Allocation>;

    /// Makes content and length durable (what `fdatasync` does).
    fn sync(&self) -> io::Result<()>;
}

/// A held lock; dropping it lets go.
pub trait StorageLock: Debug + Send + Sync {}

/// One directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The file name. Names that are not UTF-8 are given with replacement characters; the log
    /// touches none of them.
    pub name: String,
    /// What it is, links not followed.
    pub kind: EntryKind,
    /// Length in bytes; 0 for what is not a regular file.
    pub len: u64,
    /// Number of names (hard links) that the file has.
    pub links: u64,
}

/// What a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, dangling or not.
    Link,
    /// A socket, pipe or device.
    Other,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only: never creates, never changes a byte or a modification time.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// How room is made ahead of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Allocation {
    /// Zeros are written: commits into written blocks sync fastest on common file systems.
    #[default]
    Zeros,
    /// Blocks are reserved without writing them (`fallocate`), where the file system can; where it
    /// cannot, the answer is [`Sparse`](Self::Sparse).
    Reserve,
    /// Only the length was set: there is no room behind it yet, so a write can still find the disk
    /// full. Never asked for; an answer only.
    Sparse,
}

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody holds it.
    #[error("held by {}", holder.map_or_else(|| "a process that left no id".to_owned(), |pid| format!("process {pid}")))]
    Held {
        /// Process id of the holder, if it could be read.
        holder: Option<u32>,
    },
    /// The lock file could not be opened or locked.
    #[error(transparent)]
    Io(#[from] io::Error),
}
