//! `docs/operations.md` names every option, every metric and every error that there is.

use std::fs;

use crate::root;

fn source(name: &str) -> String {
    fs::read_to_string(root().join("wal-core/src").join(name)).unwrap()
}

fn rows() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// What stands between the line that begins an item and the one that ends it.
fn item(text: &str, head: &str) -> String {
    let body = text.split(&format!("{head} {{\n")).nth(1).unwrap_or_else(|| panic!("{head}"));
    body.split("\n}").next().unwrap().to_owned()
}

fn assert_rows(wanted: &[String], cells: usize) {
    let rows = rows();
    for name in wanted {
        let found: Vec<_> = rows.iter().filter(|row| row[0] == format!("`{name}`")).collect();
        assert_eq!(found.len(), 1, "{name} has one row");
        assert_eq!(found[0].len(), cells, "{name}: {:?}", found[0]);
    }
}

#[test]
fn every_option_is_on_the_operations_page() {
    let fields: Vec<String> = item(&source("options.rs"), "pub struct Options")
        .lines()
        .filter_map(|line| Some(line.trim().strip_prefix("pub ")?.split(':').next()?.to_owned()))
        .collect();
    assert!(fields.len() >= 14, "{fields:?}");
    assert_rows(&fields, 5);
}

#[test]
fn every_metric_is_on_the_operations_page() {
    let stats = source("stats.rs");
    let names: Vec<String> =
        stats.split("see(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    assert!(names.len() >= 23, "{names:?}");
    let rows = rows();
    for name in &names {
        assert_eq!(rows.iter().filter(|row| row[0] == format!("`{name}`")).count(), 1, "{name} has one row");
    }
    let told = rows.iter().filter(|row| row[0].starts_with("`planewal_")).count();
    assert_eq!(told, names.len(), "the page names a metric that there is not");
}

#[test]
fn every_error_is_on_the_operations_page() {
    let errors = source("error.rs");
    let mut wanted = Vec::new();
    for part in errors.split("\npub enum ").skip(1) {
        let name = part.split(' ').next().unwrap();
        // Variants stand four spaces in, and begin with a capital.
        let variants = item(&errors, &format!("pub enum {name}"));
        let variants = variants.lines().filter_map(|line| line.strip_prefix("    "));
        for line in variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase())) {
            let variant: String = line.chars().take_while(|c| c.is_alphanumeric()).collect();
            wanted.push(format!("{name}::{variant}"));
        }
    }
    assert!(wanted.len() > 70, "{}", wanted.len());
    assert_rows(&wanted, 3);
    let told = rows().iter().filter(|row| row[0].contains("::")).count();
    assert_eq!(told, wanted.len(), "the page names an error that there is not");
}
