//! Where the log of a measurement lies: a new directory, which goes with whatever was made for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use planewal::SegmentId;
use tempfile::TempDir;

use crate::outcome::Failure;

/// A new directory below the one given. Dropping it removes all that was made, also on the way out of an error.
#[derive(Debug)]
pub(super) struct Place {
    work: Option<TempDir>,
    /// Directories that were missing, the innermost first.
    made: Vec<PathBuf>,
}

impl Place {
    pub(super) fn new(dir: &Path) -> Result<Place, Failure> {
        let failed =
            |error: io::Error| Failure::new(format_args!("cannot measure in {}: {error}", dir.display()));
        let mut place = Place { work: None, made: missing(dir).map_err(failed)? };
        // From here on dropping it removes what was made.
        fs::create_dir_all(dir).map_err(failed)?;
        if holds_a_log(dir).map_err(failed)? {
            return Err(Failure::new(format_args!(
                "{}: there is a log here, which is not touched; name another directory on the same disk",
                dir.display()
            )));
        }
        let work = tempfile::Builder::new().prefix("planewal-bench-").tempdir_in(dir);
        place.work = Some(work.map_err(failed)?);
        Ok(place)
    }

    /// A directory of this name, which is not there yet.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.work.as_ref().map_or_else(PathBuf::new, |work| work.path().join(name))
    }

    /// Removes everything, and tells if it cannot.
    pub(super) fn leave(mut self) -> Result<(), Failure> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let path = work.path().to_owned();
        work.close().map_err(|error| {
            Failure::new(format_args!(
                "cannot remove {}: {error}; remove it yourself, it is of no further use",
                path.display()
            ))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.work.take());
        for dir in &self.made {
            // Somebody else may have put something there meanwhile: then it stays.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// The directory and those above it that are not there, the innermost first.
fn missing(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        match fs::symlink_metadata(ancestor) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(ancestor.to_owned()),
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}

/// Whether some file here has a name that only a log gives.
fn holds_a_log(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == "planewal.ctl" || name == "planewal.lock" || SegmentId::from_file_name(&name).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
