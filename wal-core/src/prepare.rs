//! Making segment files: ahead of their use, under a temporary name, whole before they get their own.
//!
//! A renamed segment has a header that is durable, in a directory that is durable, and is known to
//! the control file; so a damaged header or a missing file is never the work of a crash.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::control::{BegunRow, ControlFile, FileRow};
use crate::error::StorageError;
use crate::io_util::{read_full, write_full};
use crate::lsn::SegmentId;
use crate::options::Options;
use crate::segment::{HEADER_PAGE_BYTES, HeaderPage, LINK_FRAME_BYTES, SegmentHeader};
use crate::spare::{is_fit, spares};
use crate::storage::{Access, Allocation, Storage, StorageFile};
use crate::sync::Mutex;
use crate::wire::len_usize;

/// A segment that is made and not yet used.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) name: String,
    /// How far it has real room.
    pub(crate) room: u64,
    /// How that was made.
    pub(crate) how: Allocation,
}

/// A segment file that is being written.
///
/// It has two handles: one for groups and their syncs, one for making room ahead. A sync tells an
/// error once per handle, so neither can swallow what the other has to learn.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    file: Box<dyn StorageFile>,
    room: Box<dyn StorageFile>,
    name: String,
    /// Set for ever by the first sync that fails; held while syncing, so that no two syncs of one
    /// handle overlap and one of them misses the error.
    failed: Mutex<Option<io::ErrorKind>>,
    how: Allocation,
}

impl SegmentFile {
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        write_full(&*self.file, offset, bytes).map_err(|error| StorageError::new("write", &self.name, error))
    }

    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        let mut failed = self.failed.lock();
        let result = match *failed {
            Some(kind) => Err(io::Error::new(kind, "a sync of this file failed before")),
            None => self.file.sync(),
        };
        result.map_err(|error| {
            *failed = Some(error.kind());
            StorageError::new("sync", &self.name, error)
        })
    }

    pub(crate) fn cut(&self, length: u64) -> Result<(), StorageError> {
        self.file.set_len(length).map_err(|error| StorageError::new("cut", &self.name, error))
    }

    /// Makes room for the bytes `from..to`, durably.
    pub(crate) fn make_room(&self, from: u64, to: u64) -> Result<Allocation, StorageError> {
        let how = self
            .room
            .allocate(from, to - from, self.how)
            .map_err(|error| StorageError::new("allocate", &self.name, error))?;
        self.room.sync().map_err(|error| StorageError::new("sync", &self.name, error))?;
        Ok(how)
    }
}

/// Draws a file id that is not zero.
pub(crate) fn draw_id(storage: &dyn Storage) -> Result<u64, StorageError> {
    loop {
        let mut bytes = [0; 8];
        storage
            .random(&mut bytes)
            .map_err(|error| StorageError::new("draw random bytes for", storage.describe(), error))?;
        let id = u64::from_le_bytes(bytes);
        if id != 0 {
            return Ok(id);
        }
    }
}

/// Draws a log id that is not zero.
pub(crate) fn draw_log_id(storage: &dyn Storage) -> Result<[u8; 16], StorageError> {
    loop {
        let mut bytes = [0; 16];
        storage
            .random(&mut bytes)
            .map_err(|error| StorageError::new("draw random bytes for", storage.describe(), error))?;
        if bytes != [0; 16] {
            return Ok(bytes);
        }
    }
}

/// A header for the next segment; takes its id out of the control state.
pub(crate) fn draw_header(
    storage: &dyn Storage,
    control: &mut ControlFile,
    options: &Options,
    capacity: u64,
) -> Result<SegmentHeader, StorageError> {
    let file_id = draw_id(storage)?;
    let segment_id = control.state.next_segment_id;
    control.state.next_segment_id += 1;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(SegmentHeader {
        log_id: control.state.log_id,
        segment_id,
        file_id,
        epoch: control.state.epoch,
        capacity,
        created_ns: u64::try_from(created).unwrap_or(0),
        reused: false,
        label: options.label.clone(),
    })
}

/// Whether somebody has put something where the segment is to get its name: a rename would replace it.
fn is_taken(storage: &dyn Storage, header: &SegmentHeader) -> Result<bool, StorageError> {
    let name = SegmentId::new(header.segment_id).map_or_else(String::new, SegmentId::file_name);
    match storage.open(&name, Access::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // What is there and is no file.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(true),
        Err(error) => Err(StorageError::new("open", name, error)),
        Ok(_) => Ok(true),
    }
}

/// Creates the temporary file of a segment with its header page.
pub(crate) fn create_temporary(
    storage: &dyn Storage,
    header: &SegmentHeader,
) -> Result<(Box<dyn StorageFile>, String, String), StorageError> {
    let name = SegmentId::new(header.segment_id).map_or_else(String::new, SegmentId::file_name);
    let temporary = format!("{name}.tmp");
    let file = storage.create(&temporary).map_err(|error| StorageError::new("create", &temporary, error))?;
    let written = write_full(&*file, 0, &header.encode())
        .map_err(|error| StorageError::new("write", &temporary, error));
    if let Err(error) = written {
        discard(storage, &temporary);
        return Err(error);
    }
    Ok((file, name, temporary))
}

/// Removes a file that nothing depends on; if that fails, the next open removes it.
pub(crate) fn discard(storage: &dyn Storage, name: &str) {
    let _ = storage.remove(name);
}

/// Gives a whole and synced temporary file its name, durably.
pub(crate) fn give_name(storage: &dyn Storage, temporary: &str, name: &str) -> Result<(), StorageError> {
    storage.rename(temporary, name).map_err(|error| StorageError::new("rename", temporary, error))?;
    storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))
}

/// A segment file that is whole, synced, and has its name, which is not durable yet.
struct Made {
    header: SegmentHeader,
    file: Box<dyn StorageFile>,
    room: Box<dyn StorageFile>,
    name: String,
    room_bytes: u64,
    how: Allocation,
}

/// Prepares a segment of `capacity` bytes, with room for the first `room` of them (at least for header and link), and makes it
/// known. It may be made in place of another that is ready, which stays known until it is removed. A spare is
/// used where one is fit. An error that is not "full" leaves the control file's state in doubt.
pub(crate) fn prepare(
    storage: &Arc<dyn Storage>,
    control: &Mutex<ControlFile>,
    options: &Options,
    capacity: u64,
    room: u64,
    durable: u64,
    replaces: bool,
) -> Result<Prepared, StorageError> {
    let mut control = control.lock();
    let mut header = draw_header(&**storage, &mut control, options, capacity)?;
    while is_taken(&**storage, &header)? {
        header = draw_header(&**storage, &mut control, options, capacity)?;
    }
    let room_bytes = room.clamp(HEADER_PAGE_BYTES + LINK_FRAME_BYTES, capacity);
    let mut made = None;
    if options.spares > 0 {
        made = make_of_spare(&**storage, options, &header, room_bytes)?;
        control.spare_use.note(made.is_some());
    }
    let Made { header, file, room, name, room_bytes, how } = match made {
        Some(made) => made,
        None => make_anew(&**storage, options, header, room_bytes)?,
    };
    storage.sync_dir().map_err(|error| StorageError::new("sync", storage.describe(), error))?;
    let row = FileRow { segment_id: header.segment_id, file_id: header.file_id };
    control.state.begun.push(BegunRow { file: row, must_exist: true });
    // Older ones are named by links that are durable: a third segment is not begun while two are not.
    let surplus = control.state.begun.len().saturating_sub(if replaces { 4 } else { 3 });
    control.state.begun.drain(..surplus);
    control.state.durable = control.state.durable.max(durable);
    control.write_both()?;
    let asked = if how == Allocation::Sparse { Allocation::Reserve } else { options.preparation };
    let file = SegmentFile { file, room, name: name.clone(), failed: Mutex::new(None), how: asked };
    Ok(Prepared { header, file: Arc::new(file), name, room: room_bytes, how })
}

/// A new file.
fn make_anew(
    storage: &dyn Storage,
    options: &Options,
    header: SegmentHeader,
    room_bytes: u64,
) -> Result<Made, StorageError> {
    let (file, name, temporary) = create_temporary(storage, &header)?;
    let made = file
        .allocate(HEADER_PAGE_BYTES, room_bytes - HEADER_PAGE_BYTES, options.preparation)
        .map_err(|error| StorageError::new("allocate", &temporary, error))
        .and_then(|how| {
            file.sync().map(|()| how).map_err(|error| StorageError::new("sync", &temporary, error))
        });
    let opened = made.and_then(|how| {
        let room = storage.open(&temporary, Access::ReadWrite);
        room.map(|room| (how, room)).map_err(|error| StorageError::new("open", &temporary, error))
    });
    let (how, room) = opened.inspect_err(|_| discard(storage, &temporary))?;
    storage.rename(&temporary, &name).map_err(|error| StorageError::new("rename", &temporary, error))?;
    Ok(Made { header, file, room, name, room_bytes, how })
}

/// A spare, under a new header and a new name. What it holds behind the header stays as it is: no frame of
/// its former life checks with the new salt, and the header says that there may be some.
///
/// The spare's new name is durable before a byte of it is overwritten. `None` if there is no spare or it
/// cannot be used; what stands in the way is out of the way then, and a new file is made. Only a failed sync
/// is an error.
fn make_of_spare(
    storage: &dyn Storage,
    options: &Options,
    header: &SegmentHeader,
    room_bytes: u64,
) -> Result<Option<Made>, StorageError> {
    let name = SegmentId::new(header.segment_id).map_or_else(String::new, SegmentId::file_name);
    let temporary = format!("{name}.tmp");
    let Ok(entries) = storage.list() else { return Ok(None) };
    // Who has linked to it since it was retired has a copy that is not to be written over.
    let fit = spares(&entries).into_iter().filter(|entry| is_fit(entry, options.segment_bytes));
    let Some(spare) = fit.max_by_key(|entry| entry.len) else { return Ok(None) };
    if entries.iter().any(|entry| entry.name == temporary || entry.name == name)
        || storage.rename(&spare.name, &temporary).is_err()
    {
        return Ok(None);
    }
    let synced =
        |result: io::Result<()>, file: &str| result.map_err(|error| StorageError::new("sync", file, error));
    synced(storage.sync_dir(), &storage.describe())?;
    let Ok(made) = write_over(storage, options, header, &temporary, spare.len, room_bytes) else {
        discard(storage, &temporary);
        return Ok(None);
    };
    synced(made.file.sync(), &temporary).inspect_err(|_| discard(storage, &temporary))?;
    if storage.rename(&temporary, &name).is_err() {
        discard(storage, &temporary);
        return Ok(None);
    }
    Ok(Some(Made { name, ..made }))
}

/// Writes a header that has another salt than the one it replaces, and extends the file if it is too short.
fn write_over(
    storage: &dyn Storage,
    options: &Options,
    header: &SegmentHeader,
    temporary: &str,
    length: u64,
    room_bytes: u64,
) -> io::Result<Made> {
    let file = storage.open(temporary, Access::ReadWrite)?;
    let mut page = vec![0; len_usize(HEADER_PAGE_BYTES)];
    let read = read_full(&*file, 0, &mut page)?;
    let HeaderPage::Valid(former) = SegmentHeader::check(page.get(..read).unwrap_or_default()) else {
        // Without it nobody knows with which salt the bytes in it were written.
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut header = SegmentHeader { reused: true, ..header.clone() };
    while header.salt() == former.salt() {
        header.file_id = draw_id(storage).map_err(|error| error.source)?;
    }
    write_full(&*file, 0, &header.encode())?;
    let mut how = options.preparation;
    if length < room_bytes {
        how = file.allocate(length, room_bytes - length, how)?;
    }
    let room = storage.open(temporary, Access::ReadWrite)?;
    Ok(Made { header, file, room, name: String::new(), room_bytes: room_bytes.max(length), how })
}
