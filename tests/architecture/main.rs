//! The architecture, as a test: imports run one way, between crates and between the modules of one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod faults;
mod operations;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without its comments and its tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("\nmod tests {").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The top-level modules that each top-level module of a crate uses.
fn uses(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources(src) {
        let module = path.strip_prefix(src).unwrap().components().next().unwrap();
        let module = module.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
        // The root of a crate and the harness for fuzzers stand above all rooms.
        if module == "lib" || module == "fuzzing" {
            continue;
        }
        let code = code(&path);
        let used = code.match_indices("crate::").map(|(at, word)| {
            code[at + word.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect::<String>()
        });
        let used: BTreeSet<String> = used.filter(|name| *name != module).collect();
        uses.entry(module).or_default().extend(used);
    }
    uses
}

/// Removes modules whose uses are all removed; what stays is in a circle.
fn circles(mut uses: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let free: Vec<String> = uses
            .iter()
            .filter(|(_, used)| used.iter().all(|name| !uses.contains_key(name)))
            .map(|(module, _)| module.clone())
            .collect();
        if free.is_empty() {
            return uses.into_keys().collect();
        }
        for module in free {
            uses.remove(&module);
        }
    }
}

#[test]
fn the_modules_of_core_form_no_circle() {
    let uses = uses(&root().join("wal-core/src"));
    assert!(uses.len() > 15, "{uses:?}");
    assert_eq!(circles(uses), Vec::<String>::new());
}

#[test]
fn a_circle_would_be_seen() {
    let uses = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let uses = uses.map(|(module, used)| (module.to_owned(), BTreeSet::from([used.to_owned()])));
    assert_eq!(circles(BTreeMap::from(uses)), ["a", "b", "c", "d"]);
}

#[test]
fn crates_import_one_way() {
    let order = ["wal-core", "wal-records", "wal-recycle", ".", "wal-cli"];
    let names = ["planewal-core", "planewal-records", "planewal-recycle", "planewal", "planewal-cli"];
    for (at, dir) in order.iter().enumerate() {
        let manifest = fs::read_to_string(root().join(dir).join("Cargo.toml")).unwrap();
        let manifest = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = manifest.split("\n[").next().unwrap();
        for name in &names[at..] {
            let imported = dependencies
                .lines()
                .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', ' ', '='])));
            assert!(!imported, "{dir} depends on {name}");
        }
    }
}

// Mapping a file is unsafe, so no full disk and no file that was cut can be met as a signal.
// faults: B027, B091
#[test]
fn there_is_no_unsafe_code() {
    for crate_dir in ["wal-core", "wal-records", "wal-recycle", "wal-cli", "."] {
        for path in sources(&root().join(crate_dir).join("src")) {
            assert!(!code(&path).contains("unsafe "), "{}", path.display());
        }
    }
}

/// Creation times in headers, and nothing else.
// faults: B069, B071
#[test]
fn no_wall_clock_but_for_creation_times() {
    let mut seen = Vec::new();
    for crate_dir in ["wal-core", "wal-records", "wal-recycle", "."] {
        for path in sources(&root().join(crate_dir).join("src")) {
            if code(&path).contains("SystemTime") {
                seen.push(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    assert_eq!(seen, ["wal-core/src/prepare.rs"]);
}
