//! Running the program, and wrecking what it left.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_planewal");

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Run {
    /// Demands an exit code.
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Run {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out.escape_ascii(), self.err);
        self
    }

    /// The JSON object on the last line of standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let text = std::str::from_utf8(&self.out).unwrap();
        serde_json::from_str(text.lines().last().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }
}

pub(crate) fn planewal<const N: usize>(args: [&str; N]) -> Run {
    fed(args, b"")
}

/// A run with something on standard input.
pub(crate) fn fed<const N: usize>(args: [&str; N], input: &[u8]) -> Run {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Whoever fails at once does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A place for a log that is not there yet.
#[derive(Debug)]
pub(crate) struct Home {
    root: TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        Home { root: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root.path().join("log")
    }

    pub(crate) fn dir(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// The same files in another place.
    pub(crate) fn twin(&self) -> Home {
        let twin = Home::new();
        fs::create_dir(twin.path()).unwrap();
        for entry in fs::read_dir(self.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), twin.path().join(entry.file_name())).unwrap();
        }
        twin
    }

    /// Every file with its bytes, by name.
    pub(crate) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(self.path()).unwrap().map(Result::unwrap);
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    /// The newest segment with records, its file and where its frames end.
    pub(crate) fn newest(&self) -> (PathBuf, u64) {
        let listed = planewal(["segments", &self.dir(), "--json"]).ends(0).json();
        let segment = listed["segments"].as_array().unwrap().last().unwrap().clone();
        (self.path().join(segment["file"].as_str().unwrap()), segment["end"].as_u64().unwrap())
    }
}

/// `line 1` to `line n`, each with its newline.
pub(crate) fn lines(count: u64) -> Vec<u8> {
    (1..=count).flat_map(|number| format!("line {number}\n").into_bytes()).collect()
}

/// Cuts a file.
pub(crate) fn cut(file: &Path, bytes: u64) {
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

/// Flips one bit of a file.
pub(crate) fn flip(file: &Path, offset: usize, bit: u8) {
    let mut bytes = fs::read(file).unwrap();
    bytes[offset] ^= 1 << bit;
    fs::write(file, bytes).unwrap();
}
