//! A read-only view: takes no lock, changes no byte and no modification time, and works beside a live
//! writer.
//!
//! Beside a live writer a survey is a series of reads and not one moment, so whatever is not clean is
//! believed only when a second survey repeats it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::chain::Chain;
use crate::control::ControlState;
use crate::error::{OpenError, ReadError, StorageError};
use crate::follow::Follow;
use crate::lsn::Lsn;
use crate::reader::{Cursor, LOOKS, Position, Reader, seek};
use crate::report::SurveyReport;
use crate::storage::{FsStorage, Storage};
use crate::survey::Survey;
use crate::usage::DiskUsage;

/// A log as it was at one moment, for reading.
///
/// It opens whatever the verdict is: a damaged log can be looked at, and read up to the damage. Opening
/// reads and checks the whole log; a view's readers do not see what is appended later, for which there is
/// [`View::follow`]. Beside a live writer the end may look torn: a group is being written there.
#[derive(Debug)]
pub struct View {
    pub(crate) chain: Arc<Chain>,
    /// What the slots said then.
    pub(crate) control: Option<ControlState>,
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
        let survey = Survey::settled(&*storage).map_err(|error| unread(&*storage, error))?;
        if survey.is_blank() {
            return Err(OpenError::Missing { dir: storage.describe() });
        }
        let report = SurveyReport::new(&survey);
        let control = survey.control.clone();
        Ok(View { chain: Arc::new(Chain::surveyed(storage, survey)), control, report, past_damage: false })
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

    /// What lies in the directory, in bytes, by what it is.
    ///
    /// # Errors
    /// What the storage answers.
    pub fn disk_usage(&self) -> Result<DiskUsage, StorageError> {
        DiskUsage::of(&self.chain)
    }

    /// Reads from an LSN on, up to what was there when the view was opened.
    ///
    /// # Errors
    /// [`ReadError::Retired`] below the first LSN kept, [`ReadError::Ahead`] above the next one.
    pub fn read(&self, from: Lsn) -> Result<Reader, ReadError> {
        let reader = self.ask(|chain| Reader::new(Arc::clone(chain), from, self.past_damage))?;
        Ok(reader.looking_again(look_again))
    }

    /// Reads from where another reader stood.
    ///
    /// # Errors
    /// As [`View::read`], and [`ReadError::Diverged`].
    pub fn read_from(&self, cursor: &Cursor) -> Result<Reader, ReadError> {
        let reader = self.ask(|chain| Reader::resume(Arc::clone(chain), cursor, self.past_damage))?;
        Ok(reader.looking_again(look_again))
    }

    /// Follows the log from an LSN on, beside its writer: what is proved durable now, and what will be.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn follow(&self, from: Lsn) -> Result<Follow, ReadError> {
        let past_damage = self.past_damage;
        self.ask(|chain| {
            let start = |chain| Reader::new(chain, from, past_damage);
            Follow::new(chain, self.mark().max(chain.durable()), past_damage, start, 0)
        })
    }

    /// Follows from where a reader or another follower stood.
    ///
    /// # Errors
    /// As [`View::read_from`].
    pub fn follow_from(&self, cursor: &Cursor) -> Result<Follow, ReadError> {
        let past_damage = self.past_damage;
        self.ask(|chain| {
            let start = |chain| Reader::resume(chain, cursor, past_damage);
            let mark = self.mark().max(chain.durable());
            Follow::new(chain, mark, past_damage, start, cursor.next().number() - 1)
        })
    }

    /// The highest durable mark; 0 if none.
    fn mark(&self) -> u64 {
        self.report.durable.map_or(0, Lsn::number)
    }

    /// Where the record with this LSN lies.
    ///
    /// # Errors
    /// [`ReadError::Ahead`], [`ReadError::Retired`], [`ReadError::Lost`] or [`ReadError::Broken`] if it is not to be had.
    pub fn seek(&self, lsn: Lsn) -> Result<Position, ReadError> {
        self.ask(|chain| seek(chain, lsn))
    }

    /// Asks the chain; where a file of it is gone, as it was retired since, the log as it is now.
    fn ask<T>(&self, ask: impl Fn(&Arc<Chain>) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let mut outcome = ask(&self.chain);
        for _ in 0..LOOKS {
            match &outcome {
                Err(ReadError::Storage(error)) if error.source.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
            let Some(now) = look_again(&self.chain.storage) else { break };
            outcome = ask(&Arc::new(now));
        }
        outcome
    }
}

/// A writer that opened the log meanwhile may have moved its tail: what does not check any more is looked
/// at again before it is called damage.
fn look_again(storage: &Arc<dyn Storage>) -> Option<Chain> {
    let survey = Survey::settled(&**storage).ok()?;
    Some(Chain::surveyed(Arc::clone(storage), survey))
}

fn unread(storage: &dyn Storage, error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::NotFound {
        OpenError::Missing { dir: storage.describe() }
    } else {
        OpenError::Storage(StorageError::new("read", storage.describe(), error))
    }
}
