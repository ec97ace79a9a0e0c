//! The lines that are appended: line n of the log is line n of the text, repeated without end.

use std::path::Path;

use crate::outcome::Failure;

/// The text that comes with the program.
const BUILT_IN: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/lines.txt"));

/// Lines, without their newlines; at least one.
#[derive(Debug)]
pub(super) struct Text {
    bytes: Vec<u8>,
    /// Where each line begins and ends.
    spans: Vec<(usize, usize)>,
}

impl Text {
    pub(super) fn load(file: Option<&Path>) -> Result<Text, Failure> {
        let Some(file) = file else { return Text::new(BUILT_IN.to_vec()) };
        let bytes = std::fs::read(file)
            .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", file.display())))?;
        Text::new(bytes).map_err(|_| Failure::new(format_args!("{}: no line to append", file.display())))
    }

    pub(super) fn new(bytes: Vec<u8>) -> Result<Text, Failure> {
        let mut spans = Vec::new();
        let mut start = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let newline = usize::from(line.ends_with(b"\n"));
            spans.push((start, start + line.len() - newline));
            start += line.len();
        }
        if spans.is_empty() {
            return Err(Failure::new("the text holds no line"));
        }
        Ok(Text { bytes, spans })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn lines(&self) -> usize {
        self.spans.len()
    }

    /// Line `number` of the endless text, counted from 1.
    pub(super) fn line(&self, number: u64) -> &[u8] {
        let count = u64::try_from(self.spans.len()).unwrap_or(u64::MAX);
        let at = usize::try_from(number.wrapping_sub(1) % count).unwrap_or_default();
        self.spans.get(at).and_then(|&(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }
}

/// A payload: the round and the number of the line before the line itself.
pub(super) fn put_payload(payload: &mut Vec<u8>, round: u32, number: u64, line: &[u8]) {
    payload.clear();
    payload.extend_from_slice(format!("{round}.{number}:").as_bytes());
    payload.extend_from_slice(line);
}

/// Reads back [`put_payload`]: round, number and line.
pub(super) fn parse_payload(payload: &[u8]) -> Option<(u32, u64, &[u8])> {
    let colon = payload.iter().position(|&byte| byte == b':')?;
    let (head, line) = payload.split_at_checked(colon)?;
    let (round, number) = std::str::from_utf8(head).ok()?.split_once('.')?;
    Some((round.parse().ok()?, number.parse().ok()?, line.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_repeat_without_end() {
        let text = Text::new(b"a\n\nlast".to_vec()).unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(text.lines(), 3);
        let first: Vec<&[u8]> = (1..=5).map(|number| text.line(number)).collect();
        assert_eq!(first, [&b"a"[..], b"", b"last", b"a", b""]);
        assert!(Text::new(Vec::new()).is_err());
    }

    #[test]
    fn the_built_in_text_has_lines_of_many_lengths() {
        let text = Text::load(None).unwrap_or_else(|failure| panic!("{failure:?}"));
        let lengths = (1..=u64::try_from(text.lines()).unwrap_or(0)).map(|number| text.line(number).len());
        let mut lengths: Vec<usize> = lengths.collect();
        lengths.sort_unstable();
        lengths.dedup();
        assert!(
            lengths.len() > 60 && lengths.first() == Some(&0) && lengths.last() > Some(&8192),
            "{lengths:?}"
        );
    }

    #[test]
    fn a_payload_reads_back() {
        let mut payload = Vec::new();
        put_payload(&mut payload, 3, 1234, b"a:b");
        assert_eq!(payload, b"3.1234:a:b");
        assert_eq!(parse_payload(&payload), Some((3, 1234, &b"a:b"[..])));
        for wrong in [&b""[..], b":", b"3:", b"x.1:a", b"3.1"] {
            assert_eq!(parse_payload(wrong), None);
        }
    }
}
