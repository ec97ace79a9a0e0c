//! Little-endian reading and writing of small fields: the one place where bytes become numbers.
//!
//! Reading is total: a [`Cursor`] answers `None` where bytes are missing and never looks past the
//! end, so that every parser above it can be a chain of `?`.

/// A bounded reading position in some bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes `count` reserved bytes, which have to be zero.
    pub(crate) fn zeros(&mut self, count: usize) -> Option<()> {
        self.bytes(count)?.iter().all(|&byte| byte == 0).then_some(())
    }

    /// Takes a varint of at most 32 bits in its shortest form.
    #[inline]
    pub(crate) fn varint32(&mut self) -> Option<u32> {
        let mut value: u64 = 0;
        for index in 0..5_u32 {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                let shortest = index == 0 || byte != 0;
                return if shortest { u32::try_from(value).ok() } else { None };
            }
        }
        None
    }
}

/// Appending of fields to a buffer.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn put_zeros(&mut self, count: usize) {
        for _ in 0..count {
            self.put_u8(0);
        }
    }
}

impl Put for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends a varint of at most 32 bits, in its shortest form.
#[inline]
pub(crate) fn put_varint32(out: &mut Vec<u8>, mut value: u32) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Bytes that [`put_varint32`] takes for `value`.
pub(crate) const fn varint32_bytes(value: u32) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        0x20_0000..=0xfff_ffff => 4,
        _ => 5,
    }
}

/// `length` rounded up to a multiple of 8.
pub(crate) const fn padded(length: u64) -> u64 {
    length.div_ceil(8) * 8
}

/// CRC-32C of `bytes`, continued from the finished CRC `seed`.
#[inline]
pub(crate) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// A `usize` as a file's number. Targets where this could fail do not exist.
pub(crate) fn len64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A file's number as a `usize`, saturating: what does not fit cannot be in memory either.
pub(crate) fn len_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn varints_have_one_form() {
        for value in
            [0, 1, 63, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455, 268_435_456, u32::MAX]
        {
            let mut out = Vec::new();
            put_varint32(&mut out, value);
            assert_eq!(out.len(), varint32_bytes(value));
            assert_eq!(Cursor::new(&out).varint32(), Some(value));
            assert_eq!(Cursor::new(&out[..out.len() - 1]).varint32(), None);
        }
        assert_eq!(Cursor::new(&[0x80, 0x00]).varint32(), None, "longer than needed");
        assert_eq!(Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0x1f]).varint32(), None, "33 bits");
        assert_eq!(Cursor::new(&[0xff; 9]).varint32(), None);
    }

    #[test]
    fn crc_continues() {
        assert_eq!(crc(0, b"123456789"), 0xe306_9283, "the check value of CRC-32C");
        assert_eq!(crc(crc(0, b"1234"), b"56789"), crc(0, b"123456789"));
    }
}
