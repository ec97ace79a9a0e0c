//! The fuzzers' committed corpus, on stable.

use std::fs;
use std::path::Path;

use planewal_core::fuzzing;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "{count} files in {}", folder.display());
}

#[test]
fn the_corpus_of_frame_parser_does_no_harm() {
    replay("frame_parser", fuzzing::frame_parser);
}

#[test]
fn the_corpus_of_segment_scan_does_no_harm() {
    replay("segment_scan", fuzzing::segment_scan);
}

#[test]
fn the_corpus_of_open_directory_does_no_harm() {
    replay("open_directory", fuzzing::open_directory);
}
