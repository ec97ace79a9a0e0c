//! The table of faults in `docs/testing.md` is honest: it names tests that exist, and says of each what the test
//! says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{root, sources};

/// Numbers of the list that were never given to a fault of a log.
const GAPS: [u32; 47] = [
    4, 6, 9, 14, 16, 18, 21, 26, 30, 34, 40, 43, 48, 50, 54, 58, 60, 63, 65, 70, 73, 78, 84, 86, 90, 93, 97,
    101, 104, 110, 112, 116, 121, 123, 126, 130, 133, 138, 141, 143, 146, 149, 151, 153, 157, 159, 165,
];

/// Where a row goes that no test here covers, or not yet.
const LATER: [&str; 10] = [
    "records",
    "recycle",
    "speed",
    "(this issue: permits)",
    "(this issue: tail)",
    "(this issue: follow)",
    "(this issue: holds)",
    "(this issue: spares)",
    "(this issue: backup)",
    "(this issue: stats)",
];

/// How the table calls the tests of a file: by folder and file, by folder alone for its `main.rs`, by file alone
/// where it is a binary of its own.
fn folder_and_file(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap().with_extension("");
    let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
    match parts[..] {
        [.., folder, "main"] => folder.to_owned(),
        ["wal-core", "tests", file] => file.to_owned(),
        [.., folder, file] => format!("{folder}::{file}"),
        _ => unreachable!("a source lies in a folder"),
    }
}

/// Every test of the project, with the faults that it cites.
fn tests() -> BTreeMap<String, BTreeSet<u32>> {
    let mut tests = BTreeMap::new();
    for folder in [
        "tests",
        "wal-cli/tests",
        "wal-core/tests",
        "wal-core/src",
        "wal-records/src",
        "wal-recycle/src",
        "wal-cli/src",
    ] {
        for path in sources(&root().join(folder)) {
            let mut cited = BTreeSet::new();
            let mut is_test = false;
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim_start) {
                if let Some(rows) = line.strip_prefix("// faults: ") {
                    cited.extend(
                        rows.split(", ").map(|row| number(row).unwrap_or_else(|| panic!("{path:?}: {line}"))),
                    );
                } else if line == "#[test]" {
                    is_test = true;
                } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
                    let name = rest.split('(').next().unwrap();
                    tests.insert(format!("{}::{name}", folder_and_file(&path)), std::mem::take(&mut cited));
                    is_test = false;
                } else if !line.starts_with("//") && !line.starts_with("#[") {
                    assert!(cited.is_empty(), "{path:?}: a citation of no test before {line:?}");
                }
            }
            assert!(cited.is_empty(), "{path:?}: a citation of no test");
        }
    }
    tests
}

fn number(row: &str) -> Option<u32> {
    row.strip_prefix('B').filter(|digits| digits.len() == 3)?.parse().ok()
}

/// The rows of the table, each with its tests and its other words, one for each row number.
fn table() -> Vec<(u32, BTreeSet<String>, Vec<String>)> {
    let page = fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let mut rows = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| B")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [row, fault, covered] = cells[..] else { panic!("{line}") };
        assert!(!fault.is_empty(), "{line}");
        let (mut tests, mut others) = (BTreeSet::new(), Vec::new());
        for word in covered.split("; ") {
            match word.strip_prefix('`') {
                Some(test) => assert!(tests.insert(test.trim_end_matches('`').to_owned()), "{line}"),
                None => others.push(word.to_owned()),
            }
        }
        rows.push((number(row).unwrap_or_else(|| panic!("{line}")), tests, others));
    }
    rows
}

#[test]
fn every_fault_has_one_row() {
    let rows: Vec<u32> = table().into_iter().map(|(row, ..)| row).collect();
    let due: Vec<u32> = (1..=167).filter(|row| !GAPS.contains(row)).collect();
    assert_eq!(due.len(), 120);
    assert_eq!(rows, due);
}

#[test]
fn every_fault_has_a_test_or_a_reason() {
    for (row, tests, others) in table() {
        assert!(!tests.is_empty() || !others.is_empty(), "B{row:03}");
        for other in others {
            let known = LATER.contains(&other.as_str()) || other.starts_with("cannot apply: ");
            assert!(known, "B{row:03}: {other:?}");
        }
    }
}

#[test]
fn the_table_of_faults_and_the_tests_say_the_same() {
    let tests = tests();
    let mut cited: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (test, rows) in &tests {
        for row in rows {
            cited.entry(*row).or_default().insert(test.clone());
        }
    }
    let mut wrong = Vec::new();
    for (row, named, _) in table() {
        let citing = cited.remove(&row).unwrap_or_default();
        for test in named.union(&citing) {
            if !tests.contains_key(test) {
                wrong.push(format!("B{row:03} names {test}, which is no test"));
            } else if !citing.contains(test) {
                wrong.push(format!("B{row:03} names {test}, which does not cite it"));
            } else if !named.contains(test) {
                wrong.push(format!("{test} cites B{row:03}, which does not name it"));
            }
        }
    }
    wrong.extend(cited.into_iter().map(|(row, tests)| format!("{tests:?} cite B{row:03}, which is no row")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Names in the table of scenarios and elsewhere on the page: `folder::test`, or a test alone.
#[test]
fn every_test_that_the_page_names_exists() {
    let tests = tests();
    let names: BTreeSet<&str> = tests.keys().filter_map(|test| test.rsplit("::").next()).collect();
    let page = fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let mut named = 0;
    for word in page.split('`').skip(1).step_by(2) {
        let last = word.rsplit("::").next().unwrap();
        // Sentences of several words, of which nothing else on the page has so many.
        let is_test = last.matches('_').count() >= 3
            && last.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
        named += usize::from(is_test);
        assert!(!is_test || names.contains(last), "{word}");
    }
    assert!(named > 100, "{named}");
}
