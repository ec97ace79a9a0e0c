//! A read-only view: takes no lock, changes no byte and no modification time, and works beside a live
//! writer.
//!
//! Beside a live writer a survey is a series of reads and not one moment, so damage is believed only
//! when a second survey repeats it.

use std::path::Path;
use std::sync::Arc;

use crate::chain::Chain;
use crate::error::{OpenError, ReadError, StorageError};
use crate::lsn::Lsn;
use crate::reader::{Cursor, Position, Reader, seek};
use crate::report::SurveyReport;
use crate::storage::{FsStorage, Storage};
use crate::survey::Survey;
use crate::verdict::Verdict;

/// Most surveys for one view.
const LOOKS: u32 = 8;

/// A log as it was at one moment, for reading.
///
/// It opens whatever the verdict is: a damaged log can be looked at, and read up to the damage.
#[derive(Debug)]
pub struct View {
    chain: Arc<Chain>,
    report: SurveyReport,
    past_damage: bool,
}

impl View {
    /// Looks at the log in a directory.
    ///
    /// # Errors
    /// [`OpenError::Missing`] where there is no log, [`OpenError::Storage`] where it cannot be read at all. A
    /// bad verdict is no error here.
    pub fn open(dir: impl AsRef<Path>) -> Result<View, OpenError> {
        View::open_on(Arc::new(FsStorage::new(dir.as_ref())))
    }

    /// Looks at the log on a storage.
    ///
    /// # Errors
    /// As [`View::open`].
    pub fn open_on(storage: Arc<dyn Storage>) -> Result<View, OpenError> {
        let mut survey = look(&storage)?;
        for _ in 1..LOOKS {
            if matches!(survey.verdict, Verdict::Clean | Verdict::TornTail) {
                break;
            }
            let again = look(&storage)?;
            let same = again.findings == survey.findings;
            survey = again;
            if same {
                break;
            }
        }
        if survey.is_blank() {
            return Err(OpenError::Missing { dir: storage.describe() });
        }
        let report = SurveyReport::new(&survey);
        let refusals = survey.findings.iter().filter(|finding| !finding.harmless).cloned().collect();
        let durable = survey.durable.min(survey.last);
        let chain =
            Chain::new(storage, survey.chain, survey.next, durable, survey.control.as_ref(), refusals);
        Ok(View { chain: Arc::new(chain), report, past_damage: false })
    }

    /// Whether readers go on behind damage, telling what is missing as [`ReadError::Lost`]. The default is no.
    #[must_use]
    pub fn past_damage(mut self, yes: bool) -> View {
        self.past_damage = yes;
        self
    }

    /// What the directory says about its log.
    #[must_use]
    pub fn report(&self) -> &SurveyReport {
        &self.report
    }

    /// Reads from an LSN on, up to what was there when the view was opened.
    ///
    /// # Errors
    /// [`ReadError::Retired`] below the first LSN kept, [`ReadError::Ahead`] above the next one.
    pub fn read(&self, from: Lsn) -> Result<Reader, ReadError> {
        Reader::new(Arc::clone(&self.chain), from, self.past_damage)
    }

    /// Reads from where another reader stood.
    ///
    /// # Errors
    /// As [`View::read`], and [`ReadError::Diverged`].
    pub fn read_from(&self, cursor: &Cursor) -> Result<Reader, ReadError> {
        Reader::resume(Arc::clone(&self.chain), cursor, self.past_damage)
    }

    /// Where the record with this LSN lies.
    ///
    /// # Errors
    /// [`ReadError::Ahead`], [`ReadError::Retired`], [`ReadError::Lost`] or [`ReadError::Broken`] if it is not to be had.
    pub fn seek(&self, lsn: Lsn) -> Result<Position, ReadError> {
        seek(&self.chain, lsn)
    }
}

fn look(storage: &Arc<dyn Storage>) -> Result<Survey, OpenError> {
    Survey::new(&**storage).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            OpenError::Missing { dir: storage.describe() }
        } else {
            OpenError::Storage(StorageError::new("read", storage.describe(), error))
        }
    })
}
