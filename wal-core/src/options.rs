//! Options: every number that a user can set, with its range, checked before anything is touched.
//!
//! They are a plain struct with public fields and safe defaults: `Options { label: .., ..Default::default() }`.

use std::time::Duration;

use crate::error::OptionError;
use crate::frame::PAYLOAD_BYTES_MAX;
use crate::lsn::LogId;
use crate::segment::LABEL_BYTES_MAX;
use crate::spare::SPARES_MAX;
use crate::storage::Allocation;

/// How safe an appended record is when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// In the writer's memory: survives nothing.
    Buffered,
    /// Handed to the operating system: survives the death of the process (`kill -9`), not a loss of
    /// power.
    Written,
    /// On the disk, as far as the disk tells the truth: survives a loss of power.
    #[default]
    Synced,
}

/// Whether opening may make a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    /// The log has to be there.
    Never,
    /// A missing log is made, directory and all.
    #[default]
    IfMissing,
    /// There must be no log yet.
    MustBeNew,
}

/// What opening does about a torn tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Cuts it, once, and reports it. What is cut was acknowledged to nobody as durable.
    #[default]
    CutTornTail,
    /// Refuses to open.
    Refuse,
}

/// How a log is opened for writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whether opening may make the log. Default: if missing.
    pub create: Create,
    /// The log that has to be there; guards against a wrong disk mounted. Default: any.
    pub expect_log_id: Option<LogId>,
    /// A name in every segment header, for the host; at most 63 bytes. Default: empty.
    pub label: String,
    /// Durability of `append` and `commit`. Default: `Synced`.
    pub durability: Durability,
    /// Size of a segment, header and all, 16 KiB to 1 GiB; a batch that is larger gets a larger segment
    /// of its own. Default: 64 MiB.
    pub segment_bytes: u64,
    /// Most payload of one batch, and so of one record, 1 byte to 1 GiB; checked when it is committed. Default: 64 MiB.
    pub record_bytes_max: u64,
    /// Most bytes that one group carries, and so one write and one frame, 4 KiB to 16 MiB; a larger batch
    /// goes alone. A reader holds as much in memory. Default: 1 MiB.
    pub group_bytes: u64,
    /// Most bytes of records that wait in memory for their write, permits included, 64 KiB to 1 GiB; what
    /// comes then waits, or is refused if it asked for that. A batch that finds nothing staged is let in whatever
    /// its size and whatever permits hold, so the bound is this and one batch. Default: 8 MiB.
    pub staging_bytes: u64,
    /// What to do about a torn tail. Default: cut it.
    pub recovery: Recovery,
    /// How room is made ahead of the writer. Default: zeros are written.
    pub preparation: Allocation,
    /// Room made at a time, 4 KiB to 64 MiB; with less than this free, as much as is needed. Default: 1 MiB.
    pub prepare_bytes: u64,
    /// Files of retired segments that are kept to be written again, 0 to 8: a new segment needs no new room then,
    /// and no zeros are written. Kept is only a file with one hard link, not larger than `segment_bytes` and not
    /// smaller than half of it. Default: 1.
    pub spares: u32,
    /// How long after the last durable commit a beacon proves it to later readers, up to 60 s; zero: never. A
    /// beacon is written and not synced, and makes nothing durable. Default: 10 ms.
    pub beacon_idle: Duration,
    /// Whether the log may start its one thread, which prepares, seals, writes beacons, leads for
    /// tickets that are only polled, and writes `Buffered` records once 256 KiB of them stand. Without it whoever commits does the first two, and there are no beacons.
    /// Default: yes.
    pub io_thread: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create: Create::default(),
            expect_log_id: None,
            label: String::new(),
            durability: Durability::default(),
            segment_bytes: 64 << 20,
            record_bytes_max: 64 << 20,
            group_bytes: 1 << 20,
            staging_bytes: 8 << 20,
            recovery: Recovery::default(),
            preparation: Allocation::default(),
            prepare_bytes: 1 << 20,
            spares: 1,
            beacon_idle: Duration::from_millis(10),
            io_thread: true,
        }
    }
}

impl Options {
    /// Checks every range.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self) -> Result<(), OptionError> {
        let within = |option: &'static str, value: u64, low: u64, high: u64| {
            let range = || format!("{low} to {high}");
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(OptionError { option, value: value.to_string(), range: range() })
            }
        };
        within("segment_bytes", self.segment_bytes, 16 << 10, 1 << 30)?;
        within("record_bytes_max", self.record_bytes_max, 1, PAYLOAD_BYTES_MAX)?;
        within("group_bytes", self.group_bytes, 4 << 10, 16 << 20)?;
        within("staging_bytes", self.staging_bytes, 64 << 10, 1 << 30)?;
        within("prepare_bytes", self.prepare_bytes, 4 << 10, 64 << 20)?;
        within("spares", self.spares.into(), 0, SPARES_MAX.into())?;
        if self.beacon_idle > Duration::from_secs(60) {
            return Err(OptionError {
                option: "beacon_idle",
                value: format!("{:?}", self.beacon_idle),
                range: "0 to 60 s".to_owned(),
            });
        }
        if self.label.len() > LABEL_BYTES_MAX {
            return Err(OptionError {
                option: "label",
                value: format!("{} bytes", self.label.len()),
                range: format!("at most {LABEL_BYTES_MAX} bytes"),
            });
        }
        if self.preparation == Allocation::Sparse {
            return Err(OptionError {
                option: "preparation",
                value: "Sparse".to_owned(),
                range: "Zeros or Reserve".to_owned(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_checked() {
        assert_eq!(Options::default().check(), Ok(()));
        let wrong = [
            Options { segment_bytes: 1, ..Options::default() },
            Options { segment_bytes: (1 << 30) + 1, ..Options::default() },
            Options { record_bytes_max: 0, ..Options::default() },
            Options { record_bytes_max: (1 << 30) + 1, ..Options::default() },
            Options { group_bytes: 1, ..Options::default() },
            Options { staging_bytes: (64 << 10) - 1, ..Options::default() },
            Options { prepare_bytes: 0, ..Options::default() },
            Options { spares: 9, ..Options::default() },
            Options { beacon_idle: Duration::from_secs(61), ..Options::default() },
            Options { label: "x".repeat(64), ..Options::default() },
            Options { preparation: Allocation::Sparse, ..Options::default() },
        ];
        for options in wrong {
            assert!(options.check().is_err(), "{options:?}");
        }
    }
}
