//! Where a backup goes: an empty place, held by its lock, and left empty if no backup comes of it.

use std::sync::Arc;

use crate::control::{CONTROL_NAME, ControlFile, ControlState};
use crate::error::{BackupError, StorageError};
use crate::io_util::{is_full, write_full};
use crate::open::{LOCK_NAME, lock};
use crate::prepare::discard;
use crate::storage::{LockError, Storage, StorageFile, StorageLock};
use crate::wire::len64;

/// Bytes written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A destination that is ours alone.
pub(super) struct Target {
    storage: Arc<dyn Storage>,
    /// Segments made so far.
    made: Vec<String>,
    /// Whether the control file was begun: it goes first.
    named: bool,
    keep: bool,
    _lock: Box<dyn StorageLock>,
}

/// A segment of the copy.
pub(super) struct CopyFile {
    storage: Arc<dyn Storage>,
    name: String,
    file: Box<dyn StorageFile>,
    offset: u64,
    pending: Vec<u8>,
}

impl Target {
    /// Takes an empty destination. It stays locked until it is dropped; the lock file stays, as everywhere,
    /// and one that is found counts for nothing.
    pub(super) fn take(source: &dyn Storage, storage: Arc<dyn Storage>) -> Result<Target, BackupError> {
        if std::ptr::addr_eq(source, &*storage) {
            return Err(BackupError::SameLog { dir: storage.describe() });
        }
        // Once before the lock, whose file is not left among other people's.
        check_empty(&*storage)?;
        let dir = storage.describe();
        let lock = lock(&*storage).map_err(|error| match error {
            LockError::Held { holder } => BackupError::Locked { dir: dir.clone(), holder },
            LockError::Io(source) => failed(&*storage, StorageError::new("lock", LOCK_NAME, source)),
        })?;
        check_empty(&*storage)?;
        Ok(Target { storage, made: Vec::new(), named: false, keep: false, _lock: lock })
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    pub(super) fn dir(&self) -> String {
        self.storage.describe()
    }

    pub(super) fn differs(&self, file: &str, difference: String) -> BackupError {
        BackupError::CopyDiffers { dir: self.dir(), file: file.to_owned(), difference }
    }

    pub(super) fn create(&mut self, name: &str) -> Result<CopyFile, BackupError> {
        let storage = Arc::clone(&self.storage);
        let file = storage
            .create(name)
            .map_err(|error| failed(&*storage, StorageError::new("create", name, error)))?;
        self.made.push(name.to_owned());
        let pending = Vec::with_capacity(CHUNK_BYTES);
        Ok(CopyFile { storage, name: name.to_owned(), file, offset: 0, pending })
    }

    /// Makes the names of the segments durable, and then the control file: from here on it is a backup.
    pub(super) fn finish(&mut self, state: ControlState) -> Result<(), BackupError> {
        let storage = &*self.storage;
        storage
            .sync_dir()
            .map_err(|error| failed(storage, StorageError::new("sync", storage.describe(), error)))?;
        self.named = true;
        ControlFile::create(storage, state).map_err(|error| failed(storage, error))?;
        Ok(())
    }

    /// It was verified.
    pub(super) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Target {
    /// What cannot be removed lacks its control file, or does not check.
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if self.named {
            discard(&*self.storage, CONTROL_NAME);
            discard(&*self.storage, &format!("{CONTROL_NAME}.tmp"));
            let _ = self.storage.sync_dir();
        }
        for name in self.made.iter().rev() {
            discard(&*self.storage, name);
        }
        let _ = self.storage.sync_dir();
    }
}

impl CopyFile {
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> Result<(), BackupError> {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.pending.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the rest and syncs the file.
    pub(super) fn finish(mut self) -> Result<(), BackupError> {
        self.flush()?;
        self.file.sync().map_err(|error| self.failed("sync", error))
    }

    fn flush(&mut self) -> Result<(), BackupError> {
        write_full(&*self.file, self.offset, &self.pending).map_err(|error| self.failed("write", error))?;
        self.offset += len64(self.pending.len());
        self.pending.clear();
        Ok(())
    }

    fn failed(&self, operation: &'static str, error: std::io::Error) -> BackupError {
        failed(&*self.storage, StorageError::new(operation, &self.name, error))
    }
}

/// Nothing of a failed backup is kept, so here a sync that finds no room is no worse than a write.
fn failed(storage: &dyn Storage, source: StorageError) -> BackupError {
    let dir = storage.describe();
    if is_full(&source.source) {
        BackupError::Full { dir, source }
    } else {
        BackupError::Destination { dir, source }
    }
}

fn check_empty(storage: &dyn Storage) -> Result<(), BackupError> {
    let entries = storage
        .list()
        .map_err(|error| failed(storage, StorageError::new("list", storage.describe(), error)))?;
    match entries.into_iter().find(|entry| entry.name != LOCK_NAME) {
        Some(entry) => Err(BackupError::NotEmpty { dir: storage.describe(), file: entry.name }),
        None => Ok(()),
    }
}
