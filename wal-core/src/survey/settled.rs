//! A survey that can be believed beside a live writer.
//!
//! A survey is a series of reads and not one moment. So it counts only if neither slots nor names have
//! changed meanwhile, and what is not clean counts only if a second survey repeats it.

use std::io;

use super::{Survey, read_slots, sorted_names};
use crate::storage::Storage;
use crate::verdict::Verdict;

/// Most surveys before the last one is taken as it is.
const LOOKS: u32 = 32;

impl Survey {
    /// Surveys until the directory has held still for it.
    pub(crate) fn settled(storage: &dyn Storage) -> io::Result<Survey> {
        Survey::looked(storage, LOOKS).map(|(survey, _)| survey)
    }

    /// As [`settled`](Self::settled) with so many looks, and whether the directory did hold still.
    pub(crate) fn looked(storage: &dyn Storage, looks: u32) -> io::Result<(Survey, bool)> {
        let mut survey = Survey::new(storage)?;
        for _ in 1..looks {
            let slots = read_slots(storage).unwrap_or_else(|_| survey.slots.clone());
            let still = survey.slots == slots && survey.names == sorted_names(&storage.list()?);
            if still && survey.verdict == Verdict::Clean {
                return Ok((survey, true));
            }
            let again = Survey::new(storage)?;
            let same = still && again.findings == survey.findings && again.names == survey.names;
            survey = again;
            if same {
                return Ok((survey, true));
            }
        }
        Ok((survey, false))
    }
}
