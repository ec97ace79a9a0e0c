//! Log sequence numbers and the identities of logs, segments and files.
//!
//! They are types of their own, and cannot hold what is not one: LSNs and segment ids start at 1,
//! zero is never valid, and "nothing yet" is `None`.

use std::fmt;
use std::num::NonZeroU64;

/// The position of a record in its log: dense, counted from 1, never given out again once it was
/// proved durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(NonZeroU64);

impl Lsn {
    /// The first LSN of every log.
    pub const FIRST: Lsn = Lsn(NonZeroU64::MIN);

    /// The highest number that the format allows, 2^63 - 1.
    pub const MAX_NUMBER: u64 = i64::MAX.cast_unsigned();

    /// The LSN with this number; `None` for 0 and for numbers above [`Lsn::MAX_NUMBER`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Lsn> {
        match NonZeroU64::new(number) {
            Some(n) if number <= Lsn::MAX_NUMBER => Some(Lsn(n)),
            _ => None,
        }
    }

    /// Its number, 1 or more.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// The LSN after this one.
    ///
    /// # Panics
    /// After the highest LSN of the format: at a billion records a second, in 292 years.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn::new(self.number() + 1).expect("a log never gets to its 2^63rd record")
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({})", self.0)
    }
}

/// The number in a segment file's name: given once, ascending in the order of creation, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(NonZeroU64);

impl SegmentId {
    /// The highest number that is counted, 2^62. Names with higher ones are nobody's: a log that made a
    /// million segments a second would get there in 146,000 years.
    pub const MAX_NUMBER: u64 = 1 << 62;

    /// The segment id with this number; `None` for 0.
    #[must_use]
    pub const fn new(number: u64) -> Option<SegmentId> {
        match NonZeroU64::new(number) {
            Some(n) => Some(SegmentId(n)),
            None => None,
        }
    }

    /// Its number, 1 or more.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// The name of its file: 20 digits and `.wal`.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("{:020}.wal", self.0)
    }

    /// The segment that a file name belongs to, if it is one of [`SegmentId::file_name`].
    #[must_use]
    pub fn from_file_name(name: &str) -> Option<SegmentId> {
        let digits = name.strip_suffix(".wal")?;
        if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        SegmentId::new(digits.parse().ok()?)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentId({})", self.0)
    }
}

/// 128 random bits, drawn once when a log is made and once more when `repair` or `restore` starts a
/// branch of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId([u8; 16]);

impl LogId {
    /// The id with these bytes; `None` if all are zero.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<LogId> {
        (bytes != [0; 16]).then_some(LogId(bytes))
    }

    /// Its bytes, as they lie on disk.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Reads the 32 hexadecimal digits that `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<LogId> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        LogId::new(u128::from_str_radix(text, 16).ok()?.to_be_bytes())
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogId({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn zero_is_no_lsn_and_no_segment() {
        assert_eq!(Lsn::new(0), None);
        assert_eq!(Lsn::new(u64::MAX), None);
        assert_eq!(SegmentId::new(0), None);
        assert_eq!(LogId::new([0; 16]), None);
    }

    #[test]
    fn names_are_twenty_digits_and_nothing_else() {
        let id = SegmentId::new(42).unwrap();
        assert_eq!(id.file_name(), "00000000000000000042.wal");
        assert_eq!(SegmentId::from_file_name(&id.file_name()), Some(id));
        for name in [
            "42.wal",
            "00000000000000000042.wal.tmp",
            "00000000000000000000.wal",
            "+0000000000000000042.wal",
            "99999999999999999999.wal",
        ] {
            assert_eq!(SegmentId::from_file_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_log_id_reads_back_as_printed() {
        let id = LogId::new([7; 16]).unwrap();
        assert_eq!(LogId::parse(&id.to_string()), Some(id));
        assert_eq!(LogId::parse("07"), None);
    }
}
