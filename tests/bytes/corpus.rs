//! The fuzzers' committed corpus, on stable.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

use planewal_core::fuzzing::{self, Scene};

use crate::support::{CONTROL, frames, segment, u32_at};

/// Seeds that are made, not found. `PLANEWAL_WRITE_SEEDS=1` writes those that are not there yet.
fn write_missing() {
    static ONCE: Once = Once::new();
    if std::env::var_os("PLANEWAL_WRITE_SEEDS").is_none() {
        return;
    }
    ONCE.call_once(|| {
        for (target, name, bytes) in seeds() {
            let folder = folder(target);
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join(name);
            if !path.exists() {
                fs::write(path, bytes).unwrap();
            }
        }
    });
}

type Seed = (&'static str, String, Vec<u8>);

fn seeds() -> Vec<Seed> {
    let closed = fuzzing::sample(Scene::Closed, 7).storage;
    let sieved = fuzzing::sample(Scene::Sieved, 7).storage;
    let mut seeds: Vec<Seed> = Vec::new();
    // Log id, file id, offset; then the bytes of a body.
    let mut body = |name: &str, offset: usize, bytes: &[u8]| {
        let mut seed = vec![1, 1];
        seed.extend((offset as u64).to_le_bytes());
        seed.extend_from_slice(bytes);
        seeds.push(("frame_parser", name.to_owned(), seed));
    };
    for (log, storage, id) in [("closed", &closed, 2), ("sieved", &sieved, 3)] {
        let bytes = storage.read(&segment(id)).unwrap();
        for frame in frames(&bytes).into_iter().filter(|frame| frame.body < 2000) {
            let name = format!("{log}-kind-{}-at-{}", frame.kind, frame.offset);
            body(&name, frame.offset, &bytes[frame.offset + 32..][..frame.body]);
        }
        body(&format!("{log}-header"), 0, &bytes[16..160]);
        body(&format!("{log}-frame"), 4096, &bytes[4096..4200]);
        let control = storage.read(CONTROL).unwrap();
        body(&format!("{log}-slot"), 0, &control[28..u32_at(&control, 20) as usize]);
    }
    // Mode, due; then a small file, or changes to a sound one.
    let mut scan = |name: &str, bytes: &[u8]| seeds.push(("segment_scan", name.to_owned(), bytes.to_vec()));
    scan("empty", &[]);
    scan("zeros", &[0; 200]);
    scan("text", &[b'x'; 200]);
    scan("sound", &[1, 13]);
    scan("sound-by-chunks", &[5, 13]);
    scan("sound-unaligned", &[3, 13]);
    scan("flipped", &[1, 13, 0, 0x90, 0x10, 0, 1]);
    scan("flipped-twice", &[1, 13, 0, 0xa0, 0x10, 0, 1, 0, 0x00, 0x12, 0, 4]);
    scan("cut", &[1, 13, 1, 0x07, 0x11, 0]);
    scan("zeroed", &[1, 13, 2, 0x60, 0x10, 0, 0x80, 0]);
    scan("repeated", &[1, 13, 3, 0x00, 0x10, 0, 0, 2]);
    let mut forged = vec![1, 13, 4, 0x58, 0x10, 0];
    forged.extend(u32::MAX.to_le_bytes());
    forged.extend(13_u64.to_le_bytes());
    forged.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    scan("forged-length", &forged);
    // Scene, whether it went on, then operations: what, which file, where.
    for (scene, kind) in Scene::ALL.iter().enumerate() {
        let name = format!("{kind:?}").to_lowercase();
        let mut seed = |what: &str, bytes: &[u8]| {
            let mut all = vec![scene as u8];
            all.extend_from_slice(bytes);
            seeds.push(("open_directory", format!("{name}-{what}"), all));
        };
        seed("sound", &[0]);
        seed("flip", &[0, 1, 0, 0x80, 0x82, 0]);
        seed("foreign", &[1, 7, 0]);
        seed("twin", &[0, 8, 1]);
        seed("earlier", &[1, 9, 1]);
        seed("gone", &[1, 10, 0]);
    }
    let operations: [(&str, &[u8]); 12] = [
        ("cut", &[0, 0, 1, 0x50, 0x10, 0]),
        ("zeros", &[0, 3, 2, 0x00, 0x10, 0, 0, 1]),
        ("repeat", &[0, 4, 1, 0x00, 0x10, 0, 0x00, 0x12, 0, 0x40, 0]),
        ("swap", &[0, 5, 0, 1]),
        ("copy", &[0, 6, 1, 4]),
        ("rename", &[0, 11, 1, 3]),
        ("highest-name", &[0, 6, 0, 5]),
        ("version", &[0, 12, 0, 0, 1, 2]),
        ("frame", &[0, 13, 0, 2, 24, 0, 0, 1, 8]),
        ("garbage-slot", &[0, 14, 1, 2, 3, 4]),
        ("directory", &[0, 15, 1]),
        ("link", &[0, 16, 2]),
    ];
    for (name, bytes) in operations {
        let mut all = vec![0];
        all.extend_from_slice(bytes);
        seeds.push(("open_directory", format!("closed-{name}"), all));
    }
    seeds.push(("open_directory", "random".to_owned(), b"\x09\x01\x0c\x04\xff\x01\x00\x00\x05\x09\x08\x01\x07\x40\x02\x06\x11\x00\x07\x02\x01\x05\x03\x03\x01\x01\x20\x00\x01".to_vec()));
    seeds
}

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

fn replay(target: &str, run: fn(&[u8])) {
    write_missing();
    let folder = folder(target);
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
