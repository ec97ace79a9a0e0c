//! What fuzzers do with bytes, and logs whose content is known.
//!
//! The bodies of the fuzz targets are plain functions, so that the same code runs under the fuzzer,
//! over the committed corpus and from named tests. Each asserts what has to hold for any bytes at
//! all: nothing panics, no walk stands still, nothing that was not appended is read, and nothing is
//! lost without a word.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a broken expectation here is a finding"
)]

mod crafted;
mod decoders;
mod directory;
mod mutation;
mod sample;

pub use crafted::{add_beacon, add_section, retire_head, sieved_log};
pub use decoders::{frame_parser, segment_scan};
pub use directory::open_directory;
pub use sample::{Sample, Scene, Sent, options, sample, set_creation_time};

/// Fuzzer bytes as a stream of choices; where they end, every choice is zero.
#[derive(Debug)]
struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices { bytes }
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u64(&mut self) -> u64 {
        (0..8).fold(0, |number, at| number | u64::from(self.u8()) << (8 * at))
    }

    /// A number below `bound`; 0 if that is 0.
    fn below(&mut self, bound: u64) -> u64 {
        // Three bytes reach every offset of the small files here.
        let number = u64::from(self.u16()) | u64::from(self.u8()) << 16;
        number.checked_rem(bound).unwrap_or(0)
    }
}
