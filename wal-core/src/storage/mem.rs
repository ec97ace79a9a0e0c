//! A simulated disk that knows what is durable and what is not.
//!
//! It exists to take the power away at any instant. Live content and durable content are kept apart,
//! sector by sector; a file's length is durable on its own, and so is each change of the directory.
//! A crash image is the durable state plus any choice among what was pending, while the original
//! goes on.
//!
//! What is pending has a stable order: files by age, in each its unsynced sectors from the front and
//! then its length, and last the directory changes in the order in which they were made. An unsynced
//! sector survives in its newest version or as it was at the last sync.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::fs::{check_name, kind_name, range_end, refusal};
use super::{Access, Allocation, Entry, LockError, Storage, StorageFile, StorageLock};

mod content;
mod disk;

use content::{File, Image, SECTOR_BYTES, index};
use disk::{Change, Disk, Place};

/// A disk in memory. Clones are the same disk.
///
/// A lock file appears in the directory, empty and durable at once, so that it adds nothing to what
/// is pending.
#[derive(Clone)]
pub struct MemStorage {
    disk: Arc<RwLock<Disk>>,
}

impl MemStorage {
    /// An empty disk without a bound, whose random bytes follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::of(Disk { random: seed, ..Disk::default() })
    }

    /// The same disk, with room for `bytes` only; see [`set_capacity`](Self::set_capacity).
    #[must_use]
    pub fn with_capacity(self, bytes: u64) -> Self {
        self.set_capacity(Some(bytes));
        self
    }

    /// Bounds the bytes that all files together may have allocated, in sectors of 512.
    ///
    /// Beyond it creating and allocating fail with `StorageFull`; a write writes what fits, or fails
    /// if nothing does. A write into allocated space never fails. A hole (made by extending a file
    /// with `set_len` or by writing far behind its end) has nothing allocated.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk.write().capacity = bytes;
    }

    /// The disk after a loss of power at this instant, of which `plan` says what survived. The
    /// original is not changed. Locks do not survive, names that were planted do.
    pub fn crash(&self, plan: &CrashPlan) -> MemStorage {
        Self::of(self.disk.read().crash(plan))
    }

    /// How many things are pending: what a [`CrashPlan`] chooses from.
    pub fn pending(&self) -> usize {
        self.disk.read().pending()
    }

    /// An exact copy of the live state, all of it durable, without locks: what a process finds after
    /// another one died, as the cache outlives it.
    pub fn fork_live(&self) -> MemStorage {
        Self::of(self.disk.read().fork_live())
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.disk.read().live.keys().cloned().collect()
    }

    /// The live content of a file; `None` if there is no such file.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk.read();
        let image = &disk.named(name)?.live;
        let mut bytes = vec![0; index(image.len)];
        image.read(0, &mut bytes);
        Some(bytes)
    }

    /// The live length of a file in bytes; `None` if there is no such file.
    pub fn len(&self, name: &str) -> Option<u64> {
        Some(self.disk.read().named(name)?.live.len)
    }

    /// Puts a whole file there, durable at once, whatever the capacity. A file of that name gets new
    /// content; handles see it.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let mut disk = self.disk.write();
        let inode = match disk.live.get(name) {
            Some(Place::File(inode)) => *inode,
            _ => disk.plant_file(name),
        };
        if let Some(file) = disk.files.get_mut(&inode) {
            file.cut(0);
            file.write(0, bytes);
            file.sync();
        }
    }

    /// Flips one bit of a file, counted from the front, low bit of a byte first, both in the live and
    /// in the durable content. False if there is no such bit.
    pub fn flip_bit(&self, name: &str, bit_offset: u64) -> bool {
        self.tamper(name, |image| image.flip(bit_offset))
    }

    /// Cuts a file or extends it with zeros, durable at once. False if there is no such file.
    pub fn truncate(&self, name: &str, len: u64) -> bool {
        let mut disk = self.disk.write();
        let Some(file) = disk.named_mut(name) else {
            return false;
        };
        let nothing_pending = file.pending() == 0;
        file.set_len(len);
        file.durable.cut(len);
        file.durable.len = len;
        if nothing_pending {
            file.dirty.clear();
        }
        true
    }

    /// Removes a name, durable at once. False if there is none.
    pub fn remove_file(&self, name: &str) -> bool {
        let mut disk = self.disk.write();
        disk.durable.remove(name);
        let removed = disk.live.remove(name).is_some();
        disk.collect();
        removed
    }

    /// Gives a file a second name (a hard link), durable with the next `sync_dir`.
    ///
    /// # Errors
    ///
    /// `NotFound` if `from` is no file, `AlreadyExists` if `to` is taken.
    pub fn link(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(to)?;
        let mut disk = self.disk.write();
        let Some(Place::File(inode)) = disk.live.get(from).copied() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        disk.add(to, inode)
    }

    /// Puts a directory there, durable at once.
    pub fn plant_directory(&self, name: &str) {
        self.disk.write().plant(name, Place::Directory);
    }

    /// Puts a dangling symbolic link there, durable at once.
    pub fn plant_link(&self, name: &str) {
        self.disk.write().plant(name, Place::Link);
    }

    fn of(disk: Disk) -> Self {
        Self { disk: Arc::new(RwLock::new(disk)) }
    }

    fn tamper(&self, name: &str, mut change: impl FnMut(&mut Image) -> bool) -> bool {
        let mut disk = self.disk.write();
        let Some(file) = disk.named_mut(name) else {
            return false;
        };
        let durable = change(&mut file.durable);
        change(&mut file.live) || durable
    }

    fn handle(&self, disk: &mut Disk, inode: u64, access: Access) -> Box<dyn StorageFile> {
        if let Some(file) = disk.files.get_mut(&inode) {
            file.handles += 1;
        }
        Box::new(MemFile { storage: self.clone(), inode, access })
    }
}

impl fmt::Debug for MemStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.disk.read();
        formatter
            .debug_struct("MemStorage")
            .field("names", &disk.live.keys().collect::<Vec<_>>())
            .field("pending", &disk.pending())
            .field("capacity", &disk.capacity)
            .finish_non_exhaustive()
    }
}

impl Storage for MemStorage {
    fn list(&self) -> io::Result<Vec<Entry>> {
        let disk = self.disk.read();
        Ok(disk.live.iter().map(|(name, place)| disk.entry(name, *place)).collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        check_name(name)?;
        let mut disk = self.disk.write();
        if disk.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if disk.free_bytes() < SECTOR_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = disk.new_file();
        disk.add(name, inode)?;
        Ok(self.handle(&mut disk, inode, Access::ReadWrite))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn StorageFile>> {
        check_name(name)?;
        let mut disk = self.disk.write();
        match disk.place(name)? {
            Place::File(inode) => Ok(self.handle(&mut disk, inode, access)),
            other => Err(refusal(name, kind_name(other.kind()))),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.disk.write().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let mut disk = self.disk.write();
        let place = disk.place(name)?;
        if place == Place::Directory {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        disk.live.remove(name);
        disk.changes.push(Change::Remove { name: name.to_owned(), place });
        disk.collect();
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut disk = self.disk.write();
        disk.durable = disk.live.clone();
        disk.changes.clear();
        disk.collect();
        Ok(())
    }

    fn lock(&self, name: &str) -> Result<Box<dyn StorageLock>, LockError> {
        check_name(name)?;
        let mut disk = self.disk.write();
        match disk.live.get(name) {
            Some(Place::File(_)) => {}
            Some(other) => return Err(refusal(name, kind_name(other.kind())).into()),
            None => {
                disk.plant_file(name);
            }
        }
        if !disk.locks.insert(name.to_owned()) {
            return Err(LockError::Held { holder: Some(std::process::id()) });
        }
        Ok(Box::new(MemLock { storage: self.clone(), name: name.to_owned() }))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.read().free_bytes())
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut disk = self.disk.write();
        for piece in bytes.chunks_mut(8) {
            disk.random = disk.random.wrapping_add(GOLDEN);
            let drawn = scramble(disk.random).to_le_bytes();
            for (byte, random) in piece.iter_mut().zip(drawn) {
                *byte = random;
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

/// What survives a loss of power, among the [`pending`](MemStorage::pending) things, which are
/// numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashPlan {
    /// Only what was durable.
    Nothing,
    /// All of it: the live state.
    Everything,
    /// The first so many.
    Prefix(usize),
    /// Those marked true; what the list does not reach is lost.
    Subset(Vec<bool>),
    /// Of the 64 from number `first` on those whose bit is set (lowest bit first), and of all others
    /// all or none.
    Mask {
        /// Number of the thing that the lowest bit decides.
        first: usize,
        /// One bit for each.
        bits: u64,
        /// Whether everything else survives.
        others: bool,
    },
    /// A choice that follows from the seed: how many, and which.
    Seeded(u64),
}

impl CrashPlan {
    fn survives(&self, number: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Prefix(count) => number < *count,
            Self::Subset(chosen) => chosen.get(number).copied().unwrap_or(false),
            Self::Mask { first, bits, others } => match number.checked_sub(*first) {
                Some(bit @ 0..=63) => bits >> bit & 1 == 1,
                _ => *others,
            },
            Self::Seeded(seed) => {
                // Half of everything is only one kind of crash: nearly all and nearly nothing come
                // up as often.
                let share = scramble(seed.wrapping_sub(GOLDEN)) & 0xff;
                let drawn = scramble(seed.wrapping_add(GOLDEN).wrapping_add(scramble(number as u64)));
                drawn & 0xff < share
            }
        }
    }
}

/// An open file.
struct MemFile {
    storage: MemStorage,
    inode: u64,
    access: Access,
}

impl MemFile {
    fn look<T>(&self, at: impl FnOnce(&File) -> T) -> io::Result<T> {
        self.storage.disk.read().files.get(&self.inode).map(at).ok_or_else(gone)
    }

    /// Changes the file, given the bytes that may still be allocated.
    fn change<T>(&self, by: impl FnOnce(&mut File, u64) -> io::Result<T>) -> io::Result<T> {
        if self.access == Access::Read {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading only"));
        }
        let mut disk = self.storage.disk.write();
        let room = disk.free_bytes();
        disk.files.get_mut(&self.inode).ok_or_else(gone).and_then(|file| by(file, room))
    }
}

impl fmt::Debug for MemFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MemFile")
            .field("inode", &self.inode)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        let mut disk = self.storage.disk.write();
        if let Some(file) = disk.files.get_mut(&self.inode) {
            file.handles -= 1;
            if file.handles == 0 {
                disk.collect();
            }
        }
    }
}

impl StorageFile for MemFile {
    fn len(&self) -> io::Result<u64> {
        self.look(|file| file.live.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.look(|file| file.live.read(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        range_end(offset, bytes.len() as u64)?;
        self.change(|file, room| {
            let fitting = file.live.fitting(offset, bytes.len(), room);
            if fitting == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.write(offset, bytes.get(..fitting).unwrap_or(bytes));
            Ok(fitting)
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        range_end(len, 0)?;
        self.change(|file, _| {
            file.set_len(len);
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> io::Result<Allocation> {
        let end = range_end(offset, len)?;
        self.change(|file, room| {
            if len == 0 {
                return Ok(how);
            }
            let start = match how {
                Allocation::Zeros => offset.max(file.live.len),
                Allocation::Reserve => offset,
                Allocation::Sparse => end,
            };
            if start < end {
                let wanted = usize::try_from(end - start).map_err(|_| io::ErrorKind::StorageFull)?;
                if file.live.fitting(start, wanted, room) < wanted {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                file.grow(end);
                file.make_room(start, wanted);
            }
            file.grow(end);
            Ok(how)
        })
    }

    fn sync(&self) -> io::Result<()> {
        // A handle for reading syncs, too: it is the file that is synced, not the handle.
        let mut disk = self.storage.disk.write();
        disk.files.get_mut(&self.inode).ok_or_else(gone)?.sync();
        Ok(())
    }
}

/// A held lock.
struct MemLock {
    storage: MemStorage,
    name: String,
}

impl StorageLock for MemLock {}

impl fmt::Debug for MemLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MemLock").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.storage.disk.write().locks.remove(&self.name);
    }
}

/// One step of `SplitMix64` (Steele, Lea and Flood, 2014).
fn scramble(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

fn gone() -> io::Error {
    io::Error::other("the file is gone")
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]
mod tests {
    use std::collections::BTreeSet;

    use super::content::SECTOR_LEN;
    use super::*;
    use crate::storage::EntryKind;
    use crate::storage::suite;

    /// A disk with one durable file "a" that holds two sectors of ones.
    fn disk() -> (MemStorage, Box<dyn StorageFile>) {
        let disk = MemStorage::new(1);
        disk.write("a", &[1; 1024]);
        let file = disk.open("a", Access::ReadWrite).unwrap();
        assert_eq!(disk.pending(), 0);
        (disk, file)
    }

    fn subset(chosen: &[u8]) -> CrashPlan {
        CrashPlan::Subset(chosen.iter().map(|bit| *bit == 1).collect())
    }

    fn content(disk: &MemStorage) -> Vec<(String, Option<Vec<u8>>)> {
        disk.names().into_iter().map(|name| (name.clone(), disk.read(&name))).collect()
    }

    fn accounts_are_right(disk: &MemStorage) -> bool {
        let disk = disk.disk.read();
        let images = disk.files.values().flat_map(|file| [&file.live, &file.durable]);
        images.into_iter().all(|image| {
            let sectors = image.blocks.values().map(|slot| slot.allocated.count_ones());
            u64::from(sectors.sum::<u32>()) == image.allocated_sectors
        })
    }

    #[test]
    fn keeps_the_contract() {
        suite::check(|| Arc::new(MemStorage::new(7))).unwrap();
        suite::check(|| Arc::new(MemStorage::new(7).with_capacity(1 << 24))).unwrap();
    }

    #[test]
    fn what_is_not_synced_is_lost_and_what_is_synced_stays() {
        let (disk, file) = disk();
        file.write_at(0, &[2; 512]).unwrap();
        assert_eq!(disk.pending(), 1);
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap(), [1; 1024]);
        file.sync().unwrap();
        assert_eq!(disk.pending(), 0);
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap()[..512], [2; 512]);
    }

    #[test]
    fn sectors_survive_one_by_one() {
        let (disk, file) = disk();
        file.write_at(500, &[2; 24]).unwrap();
        assert_eq!(disk.pending(), 2);
        let image = disk.crash(&subset(&[0, 1])).read("a").unwrap();
        assert_eq!(image[..512], [1; 512]);
        assert_eq!(image[512..524], [2; 12]);
        assert_eq!(image[524..], [1; 500]);
    }

    #[test]
    fn length_and_content_are_independent() {
        let (disk, file) = disk();
        file.write_at(1024, &[2; 600]).unwrap();
        assert_eq!(disk.pending(), 3);
        let short = disk.crash(&subset(&[1, 1, 0]));
        assert_eq!(short.read("a").unwrap(), [1; 1024]);
        // What is out of reach stays so when the file grows again.
        short.open("a", Access::ReadWrite).unwrap().set_len(2000).unwrap();
        assert_eq!(short.read("a").unwrap()[1024..], [0; 976]);
        let hollow = disk.crash(&subset(&[0, 1, 1])).read("a").unwrap();
        assert_eq!(hollow.len(), 1624);
        assert_eq!(hollow[1024..1536], [0; 512]);
        assert_eq!(hollow[1536..], [2; 88]);
    }

    #[test]
    fn a_cut_is_lost_or_kept_and_what_returns_is_zero() {
        let (disk, file) = disk();
        file.set_len(700).unwrap();
        assert_eq!(disk.pending(), 2);
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap(), [1; 1024]);
        assert_eq!(disk.crash(&subset(&[0, 1])).read("a").unwrap(), [1; 700]);
        let half = disk.crash(&subset(&[1, 0])).read("a").unwrap();
        assert_eq!((half.len(), &half[..700], &half[700..]), (1024, &[1; 700][..], &[0; 324][..]));

        file.set_len(100).unwrap();
        file.set_len(1024).unwrap();
        assert_eq!(disk.pending(), 2);
        assert_eq!(disk.read("a").unwrap()[100..], [0; 924]);
        assert_eq!(disk.crash(&subset(&[1, 0])).read("a").unwrap()[512..], [1; 512]);
        file.sync().unwrap();
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a"), disk.read("a"));
    }

    #[test]
    fn a_name_needs_sync_dir() {
        let disk = MemStorage::new(1);
        let file = disk.create("a").unwrap();
        file.write_at(0, b"abc").unwrap();
        file.sync().unwrap();
        assert_eq!(disk.pending(), 1);
        assert!(disk.crash(&CrashPlan::Nothing).names().is_empty());
        assert_eq!(disk.crash(&CrashPlan::Everything).read("a").unwrap(), b"abc");
        disk.sync_dir().unwrap();
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap(), b"abc");
        // And the name alone is not the content.
        file.write_at(0, b"xyz").unwrap();
        disk.sync_dir().unwrap();
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap(), b"abc");
    }

    #[test]
    fn a_removal_needs_sync_dir() {
        let (disk, _file) = disk();
        disk.remove("a").unwrap();
        assert_eq!(disk.crash(&CrashPlan::Nothing).names(), ["a"]);
        assert!(disk.crash(&CrashPlan::Everything).names().is_empty());
        disk.sync_dir().unwrap();
        assert!(disk.crash(&CrashPlan::Nothing).names().is_empty());
        assert_eq!(disk.pending(), 0);
    }

    #[test]
    fn a_rename_is_atomic() {
        let (disk, _file) = disk();
        disk.write("b", b"old");
        disk.rename("a", "b").unwrap();
        assert_eq!(disk.pending(), 1);
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("b").unwrap(), b"old");
        let image = disk.crash(&CrashPlan::Everything);
        assert_eq!((image.names(), image.len("b")), (vec!["b".to_owned()], Some(1024)));
    }

    #[test]
    fn directory_changes_keep_their_order_and_their_sense() {
        let disk = MemStorage::new(1);
        disk.create("tmp").unwrap();
        disk.rename("tmp", "a").unwrap();
        assert!(disk.crash(&subset(&[0, 1])).names().is_empty());
        assert_eq!(disk.crash(&subset(&[1, 0])).names(), ["tmp"]);
        assert_eq!(disk.crash(&subset(&[1, 1])).names(), ["a"]);

        // A rename moves the file that it moved, not another one of that name.
        disk.sync_dir().unwrap();
        disk.remove("a").unwrap();
        disk.create("a").unwrap();
        disk.rename("a", "b").unwrap();
        assert_eq!(disk.crash(&subset(&[0, 0, 1])).names(), ["a"]);
    }

    #[test]
    fn everything_is_the_live_state() {
        let (disk, file) = disk();
        for round in 0..40_u64 {
            let bytes = vec![round as u8; 1 + (round as usize * 997) % 9000];
            file.write_at(round * 1313 % 20_000, &bytes).unwrap();
            match round % 10 {
                3 => file.set_len(round * 211).unwrap(),
                5 => file.sync().unwrap(),
                7 => drop(disk.create(&format!("f{round}")).unwrap()),
                8 => disk.rename(&format!("f{}", round - 1), "g").unwrap(),
                9 => disk.sync_dir().unwrap(),
                _ => {}
            }
            let live = content(&disk);
            assert_eq!(content(&disk.crash(&CrashPlan::Everything)), live);
            assert_eq!(content(&disk.fork_live()), live);
            assert_eq!(content(&disk.crash(&CrashPlan::Prefix(disk.pending()))), live);
            assert_eq!(disk.crash(&CrashPlan::Everything).pending(), 0);
        }
    }

    #[test]
    fn images_agree_with_a_model() {
        // The model keeps whole copies and rebuilds a crash image byte by byte.
        let (disk, file) = disk();
        let mut synced = vec![1; 1024];
        let mut random = 5_u64;
        let mut draw = |bound: u64| {
            random = scramble(random.wrapping_add(GOLDEN));
            random % bound
        };
        for _ in 0..400 {
            match draw(6) {
                0 => file.set_len(draw(12_000)).unwrap(),
                1 => {
                    file.sync().unwrap();
                    synced = disk.read("a").unwrap();
                }
                _ => {
                    let bytes = vec![draw(256) as u8; 1 + draw(5000) as usize];
                    file.write_at(draw(9000), &bytes).unwrap();
                }
            }
            let live = disk.read("a").unwrap();
            assert!(accounts_are_right(&disk));
            assert!(accounts_are_right(&disk.crash(&CrashPlan::Seeded(draw(u64::MAX)))));
            assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap(), synced);
            let image = disk.crash(&CrashPlan::Seeded(draw(u64::MAX))).read("a").unwrap();
            assert!(image.len() == live.len() || image.len() == synced.len());
            for (number, sector) in image.chunks(SECTOR_LEN).enumerate() {
                let padded = |bytes: &[u8]| -> Vec<u8> {
                    let from = number * SECTOR_LEN;
                    (from..from + sector.len()).map(|at| bytes.get(at).copied().unwrap_or(0)).collect()
                };
                assert!(sector == padded(&live) || sector == padded(&synced));
            }
        }
    }

    #[test]
    fn a_seed_always_chooses_the_same() {
        let disk = MemStorage::new(1);
        disk.write("a", &[1; 60_000]);
        let file = disk.open("a", Access::ReadWrite).unwrap();
        file.write_at(0, &[9; 60_000]).unwrap();
        let images: BTreeSet<Vec<u8>> = (0..50)
            .map(|seed| {
                let image = disk.crash(&CrashPlan::Seeded(seed)).read("a").unwrap();
                assert_eq!(disk.crash(&CrashPlan::Seeded(seed)).read("a").unwrap(), image);
                image
            })
            .collect();
        assert!(images.len() > 40);
    }

    #[test]
    fn a_mask_decides_a_window() {
        let (disk, file) = disk();
        file.write_at(0, &[2; 1024]).unwrap();
        file.write_at(1024, &[2; 512]).unwrap();
        let plan = |first, bits, others| CrashPlan::Mask { first, bits, others };
        assert_eq!(disk.crash(&plan(0, 0b10, false)).read("a").unwrap()[512..], [2; 512]);
        assert_eq!(disk.crash(&plan(3, 0, true)).read("a").unwrap(), [2; 1024]);
        let image = disk.crash(&plan(1, 0b110, false)).read("a").unwrap();
        assert_eq!((image.len(), image[0], image[512], image[1024]), (1536, 1, 1, 2));
    }

    #[test]
    fn the_original_goes_on_and_the_image_is_apart() {
        let (disk, file) = disk();
        file.write_at(0, b"abc").unwrap();
        let image = disk.crash(&CrashPlan::Everything);
        file.write_at(0, b"xyz").unwrap();
        image.open("a", Access::ReadWrite).unwrap().write_at(1, b"!").unwrap();
        assert_eq!(image.read("a").unwrap()[..3], *b"a!c");
        assert_eq!(disk.read("a").unwrap()[..3], *b"xyz");
    }

    #[test]
    fn locks_do_not_survive_a_crash() {
        let disk = MemStorage::new(1);
        let lock = disk.lock("lock").unwrap();
        assert!(matches!(disk.lock("lock"), Err(LockError::Held { holder: Some(_) })));
        disk.fork_live().lock("lock").unwrap();
        disk.crash(&CrashPlan::Nothing).lock("lock").unwrap();
        assert_eq!((disk.names(), disk.pending()), (vec!["lock".to_owned()], 0));
        drop(lock);
        disk.lock("lock").unwrap();
    }

    #[test]
    fn a_full_disk_says_so() {
        let disk = MemStorage::new(1).with_capacity(4096);
        let full = |error: io::Error| error.kind() == io::ErrorKind::StorageFull;
        let file = disk.create("a").unwrap();
        assert_eq!(file.allocate(0, 2048, Allocation::Zeros).unwrap(), Allocation::Zeros);
        assert_eq!(disk.free_bytes().unwrap(), 2048);
        assert!(full(file.allocate(0, 5000, Allocation::Zeros).unwrap_err()));
        assert!(full(file.allocate(0, 5000, Allocation::Reserve).unwrap_err()));
        assert_eq!(disk.len("a"), Some(2048));
        file.set_len(1 << 40).unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 2048);
        assert_eq!(file.write_at(2000, &[1; 4096]).unwrap(), 2096);
        assert!(full(file.write_at(4096, &[1; 10]).unwrap_err()));
        assert!(full(disk.create("b").unwrap_err()));
        assert_eq!(file.write_at(0, &[3; 4096]).unwrap(), 4096);
        file.sync().unwrap();
        disk.sync_dir().unwrap();
        assert_eq!(disk.crash(&CrashPlan::Nothing).free_bytes().unwrap(), 0);

        file.set_len(1000).unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 3072);
        disk.create("b").unwrap();
        disk.remove("a").unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 3072);
        drop(file);
        assert_eq!(disk.free_bytes().unwrap(), 4096);
        disk.set_capacity(None);
        assert_eq!(disk.free_bytes().unwrap(), u64::MAX);
    }

    #[test]
    fn planted_names_are_refused_and_listed() {
        let disk = MemStorage::new(1);
        disk.plant_directory("directory");
        disk.plant_link("link");
        for name in ["directory", "link"] {
            assert_eq!(disk.open(name, Access::Read).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(disk.create(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert!(matches!(disk.lock(name), Err(LockError::Io(_))));
        }
        let kinds: Vec<_> = disk.list().unwrap().iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [EntryKind::Directory, EntryKind::Link]);
        assert_eq!(disk.crash(&CrashPlan::Nothing).names(), ["directory", "link"]);
    }

    #[test]
    fn links_are_counted() {
        let (disk, file) = disk();
        disk.link("a", "b").unwrap();
        assert!(disk.list().unwrap().iter().all(|entry| entry.links == 2 && entry.len == 1024));
        assert_eq!(disk.crash(&CrashPlan::Nothing).names(), ["a"]);
        file.write_at(0, b"new").unwrap();
        assert_eq!(disk.read("b").unwrap()[..3], *b"new");
        let image = disk.crash(&CrashPlan::Everything);
        image.open("a", Access::ReadWrite).unwrap().write_at(0, b"one").unwrap();
        assert_eq!(image.read("b").unwrap()[..3], *b"one");
        assert_eq!(disk.link("c", "d").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(disk.link("a", "b").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn tampering_is_durable() {
        let (disk, _file) = disk();
        assert!(disk.flip_bit("a", 8 * 600 + 1));
        assert!(!disk.flip_bit("a", 8 * 1024));
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap()[600], 3);
        assert!(disk.truncate("a", 700));
        assert_eq!(disk.crash(&CrashPlan::Nothing).len("a"), Some(700));
        assert!(disk.truncate("a", 1000));
        assert_eq!(disk.pending(), 0);
        assert_eq!(disk.crash(&CrashPlan::Nothing).read("a").unwrap()[700..], [0; 300]);
        assert!(disk.remove_file("a"));
        assert!(!disk.remove_file("a"));
        assert!(disk.crash(&CrashPlan::Everything).names().is_empty());
        assert!(disk.read("a").is_none());
    }

    #[test]
    fn random_bytes_follow_from_the_seed() {
        let draw = |seed| {
            let mut bytes = [0; 20];
            MemStorage::new(seed).random(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn big_files_are_cheap_to_crash() {
        let disk = MemStorage::new(1);
        let file = disk.create("big").unwrap();
        file.allocate(0, 64 << 20, Allocation::Zeros).unwrap();
        file.sync().unwrap();
        disk.sync_dir().unwrap();
        for round in 0..2000_u64 {
            file.write_at(round * 700, &[1; 700]).unwrap();
            disk.crash(&CrashPlan::Seeded(round));
            file.sync().unwrap();
        }
    }
}
