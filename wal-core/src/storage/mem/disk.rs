//! The state of the simulated disk: files, the directory, and what is pending of it.
//!
//! The durable directory and the changes since lead to the live one, so that a crash can leave out
//! any of them; a change that rests on one that was left out is passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::CrashPlan;
use super::content::{File, Image, SECTOR_BYTES};
use crate::storage::{Entry, EntryKind};

/// The whole disk.
#[derive(Default)]
pub(super) struct Disk {
    /// By age: numbers are given once.
    pub(super) files: BTreeMap<u64, File>,
    pub(super) last_inode: u64,
    pub(super) live: BTreeMap<String, Place>,
    pub(super) durable: BTreeMap<String, Place>,
    /// What leads from the durable directory to the live one.
    pub(super) changes: Vec<Change>,
    pub(super) capacity: Option<u64>,
    pub(super) locks: BTreeSet<String>,
    pub(super) random: u64,
}

impl Disk {
    pub(super) fn named(&self, name: &str) -> Option<&File> {
        self.files.get(&self.live.get(name)?.inode()?)
    }

    pub(super) fn named_mut(&mut self, name: &str) -> Option<&mut File> {
        self.files.get_mut(&self.live.get(name)?.inode()?)
    }

    pub(super) fn place(&self, name: &str) -> io::Result<Place> {
        self.live.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn entry(&self, name: &str, place: Place) -> Entry {
        let file = place.inode().and_then(|inode| self.files.get(&inode));
        Entry {
            name: name.to_owned(),
            kind: place.kind(),
            len: file.map_or(0, |file| file.live.len),
            links: match place {
                Place::File(_) => self.live.values().filter(|other| **other == place).count() as u64,
                _ => 1,
            },
        }
    }

    pub(super) fn new_file(&mut self) -> u64 {
        self.last_inode += 1;
        self.files.insert(self.last_inode, File::default());
        self.last_inode
    }

    pub(super) fn add(&mut self, name: &str, inode: u64) -> io::Result<()> {
        if self.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let place = Place::File(inode);
        self.live.insert(name.to_owned(), place);
        self.changes.push(Change::Add { name: name.to_owned(), place });
        Ok(())
    }

    pub(super) fn plant(&mut self, name: &str, place: Place) {
        self.live.insert(name.to_owned(), place);
        self.durable.insert(name.to_owned(), place);
        self.collect();
    }

    pub(super) fn plant_file(&mut self, name: &str) -> u64 {
        let inode = self.new_file();
        self.plant(name, Place::File(inode));
        inode
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let place = self.place(from)?;
        match self.live.get(to) {
            // Two names of one file: POSIX has nothing happen.
            Some(taken) if *taken == place && matches!(place, Place::File(_)) => return Ok(()),
            Some(Place::Directory) => return Err(io::ErrorKind::IsADirectory.into()),
            _ => {}
        }
        self.live.remove(from);
        self.live.insert(to.to_owned(), place);
        let (from, to) = (from.to_owned(), to.to_owned());
        self.changes.push(Change::Rename { from, to, place });
        self.collect();
        Ok(())
    }

    /// Room that is left. Files that have neither a live name nor a handle have given theirs back.
    pub(super) fn free_bytes(&self) -> u64 {
        let Some(capacity) = self.capacity else {
            return u64::MAX;
        };
        let named: BTreeSet<u64> = self.live.values().filter_map(|place| place.inode()).collect();
        let used: u64 = self
            .files
            .iter()
            .filter(|(inode, file)| file.handles > 0 || named.contains(inode))
            .map(|(_, file)| file.live.allocated_sectors * SECTOR_BYTES)
            .sum();
        capacity.saturating_sub(used)
    }

    /// The files that a crash could leave a name.
    pub(super) fn reachable(&self) -> BTreeSet<u64> {
        let changed = self.changes.iter().map(Change::place);
        let named = self.durable.values().chain(self.live.values()).copied();
        named.chain(changed).filter_map(Place::inode).collect()
    }

    /// Forgets the files that nothing leads to any more.
    pub(super) fn collect(&mut self) {
        let reachable = self.reachable();
        self.files.retain(|inode, file| file.handles > 0 || reachable.contains(inode));
    }

    pub(super) fn pending(&self) -> usize {
        let files = self.reachable().into_iter().filter_map(|inode| self.files.get(&inode));
        files.map(File::pending).sum::<usize>() + self.changes.len()
    }

    pub(super) fn crash(&self, plan: &CrashPlan) -> Disk {
        let mut first = 0;
        let mut firsts = BTreeMap::new();
        for inode in self.reachable() {
            firsts.insert(inode, first);
            first += self.files.get(&inode).map_or(0, File::pending);
        }
        let mut directory = self.durable.clone();
        for (number, change) in self.changes.iter().enumerate() {
            if plan.survives(first + number) {
                change.apply(&mut directory);
            }
        }
        self.image(directory, |inode, file| file.crash(firsts.get(&inode).copied().unwrap_or(0), plan))
    }

    pub(super) fn fork_live(&self) -> Disk {
        self.image(self.live.clone(), |_, file| file.live.clone())
    }

    /// A disk on which `directory` and the contents given for its files are durable.
    pub(super) fn image(
        &self,
        directory: BTreeMap<String, Place>,
        content: impl Fn(u64, &File) -> Image,
    ) -> Disk {
        let inodes: BTreeSet<u64> = directory.values().filter_map(|place| place.inode()).collect();
        let files = inodes.into_iter().filter_map(|inode| {
            let image = content(inode, self.files.get(&inode)?);
            Some((inode, File { live: image.clone(), durable: image, ..File::default() }))
        });
        Disk {
            files: files.collect(),
            last_inode: self.last_inode,
            live: directory.clone(),
            durable: directory,
            changes: Vec::new(),
            capacity: self.capacity,
            locks: BTreeSet::new(),
            random: self.random,
        }
    }
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    File(u64),
    Directory,
    Link,
}

impl Place {
    pub(super) fn inode(self) -> Option<u64> {
        match self {
            Self::File(inode) => Some(inode),
            _ => None,
        }
    }

    pub(super) fn kind(self) -> EntryKind {
        match self {
            Self::File(_) => EntryKind::File,
            Self::Directory => EntryKind::Directory,
            Self::Link => EntryKind::Link,
        }
    }
}

/// A change of the directory that is not durable yet. Each survives whole or not at all.
#[derive(Debug)]
pub(super) enum Change {
    Add { name: String, place: Place },
    Remove { name: String, place: Place },
    Rename { from: String, to: String, place: Place },
}

impl Change {
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Add { place, .. } | Self::Remove { place, .. } | Self::Rename { place, .. } => *place,
        }
    }

    /// Applies it, unless an earlier change that it rests on was lost.
    pub(super) fn apply(&self, directory: &mut BTreeMap<String, Place>) {
        match self {
            Self::Add { name, place } => {
                directory.insert(name.clone(), *place);
            }
            Self::Remove { name, place } => {
                if directory.get(name) == Some(place) {
                    directory.remove(name);
                }
            }
            Self::Rename { from, to, place } => {
                if directory.get(from) == Some(place) {
                    directory.remove(from);
                    directory.insert(to.clone(), *place);
                }
            }
        }
    }
}
