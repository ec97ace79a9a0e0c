//! Values on the command line that are not plain numbers.

use std::num::IntErrorKind;

use planewal::{Durability, Lsn, SegmentId};

/// How safe a record is when its commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Level {
    /// In the writer's memory: survives nothing
    Buffered,
    /// Handed to the operating system: survives the death of the process
    Written,
    /// On the disk: survives a loss of power
    Synced,
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Buffered => "buffered",
            Level::Written => "written",
            Level::Synced => "synced",
        }
    }

    pub(crate) fn durability(self) -> Durability {
        match self {
            Level::Buffered => Durability::Buffered,
            Level::Written => Durability::Written,
            Level::Synced => Durability::Synced,
        }
    }
}

/// What `explain` is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Record(Lsn),
    Segment(SegmentId),
}

/// A plane or a kind: 1 to 255, decimal or `0x` and hexadecimal.
pub(crate) fn tag(text: &str) -> Result<u8, String> {
    match number(text)?.try_into() {
        Ok(0) => Err("zero is never valid; planes and kinds are 1 to 255".to_owned()),
        Ok(tag) => Ok(tag),
        Err(_) => Err("planes and kinds are 1 to 255".to_owned()),
    }
}

/// An LSN: 1 or more.
pub(crate) fn lsn(text: &str) -> Result<Lsn, String> {
    let allowed = || format!("LSNs are 1 to {}", Lsn::MAX_NUMBER);
    let number = number(text).map_err(|error| format!("{error}; {}", allowed()))?;
    Lsn::new(number).ok_or_else(allowed)
}

/// A number of bytes, with `K`, `M` or `G` for powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let plain = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let (digits, shift) = match plain.strip_suffix(['K', 'k']).map(|digits| (digits, 10)) {
        Some(found) => found,
        None => match plain.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 20),
            None => plain.strip_suffix(['G', 'g']).map_or((plain, 0), |digits| (digits, 30)),
        },
    };
    number(digits)?.checked_mul(1 << shift).ok_or_else(|| "more bytes than can be counted".to_owned())
}

/// An LSN, `segment:N`, or the name of a segment file.
pub(crate) fn subject(text: &str) -> Result<Subject, String> {
    if let Some(id) = text.strip_prefix("segment:") {
        return SegmentId::new(number(id)?)
            .map(Subject::Segment)
            .ok_or_else(|| "segments are numbered from 1".to_owned());
    }
    if let Some(id) = SegmentId::from_file_name(text) {
        return Ok(Subject::Segment(id));
    }
    match lsn(text) {
        Ok(lsn) => Ok(Subject::Record(lsn)),
        Err(error) => Err(format!("{error}; or name a segment, as segment:N or by its file name")),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
        Some(_) => return Err("not a number".to_owned()),
        None => text.parse(),
    };
    parsed.map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => "larger than any number here can be".to_owned(),
        _ => "not a number".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_decimal_or_hexadecimal_and_never_zero() {
        assert_eq!(tag("128"), Ok(128));
        assert_eq!(tag("0x80"), Ok(128));
        assert_eq!(tag("0XfF"), Ok(255));
        for wrong in ["0", "0x0", "256", "-1", "", "0x", "0x+1", "abc", "1.5"] {
            assert!(tag(wrong).is_err(), "{wrong}");
        }
        assert!(tag("0").is_err_and(|error| error.contains("zero is never valid")));
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64K"), Ok(64 << 10));
        assert_eq!(bytes("1MiB"), Ok(1 << 20));
        assert_eq!(bytes("1g"), Ok(1 << 30));
        for wrong in ["", "K", "1T", "-1", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_subject_is_an_lsn_or_a_segment() {
        assert_eq!(subject("7").ok(), Lsn::new(7).map(Subject::Record));
        assert_eq!(subject("segment:3").ok(), SegmentId::new(3).map(Subject::Segment));
        assert_eq!(subject("00000000000000000003.wal").ok(), SegmentId::new(3).map(Subject::Segment));
        for wrong in ["0", "segment:0", "segment:", "3.wal", "00000000000000000000.wal"] {
            assert!(subject(wrong).is_err(), "{wrong}");
        }
    }
}
