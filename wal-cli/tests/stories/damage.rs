//! A torn tail is told apart from damage.

use crate::support::{Home, cut, fed, flip, lines, planewal};

/// The lines that are there before the last one.
const BEFORE: u64 = 199;

/// File of the last frame, where that frame begins, and where it ends.
fn last_frame(home: &Home) -> (std::path::PathBuf, u64, u64) {
    let (file, end) = home.newest();
    let told = planewal(["explain", &home.dir(), "200", "--json"]).ends(0).json();
    assert_eq!((told["frame_first"].as_u64(), told["frame_last"].as_u64()), (Some(200), Some(200)), "{told}");
    (file, told["frame_offset"].as_u64().unwrap(), end)
}

#[test]
fn after_a_crash_a_cut_last_frame_is_a_torn_tail() {
    let home = Home::new();
    fed(["append", &home.dir(), "--no-close", "--batch", "1"], &lines(BEFORE + 1)).ends(0);
    let whole = planewal(["verify", &home.dir(), "--json"]).ends(0).json();
    assert_eq!(
        (whole["verdict"].as_str(), whole["closed_cleanly"].as_bool(), whole["last_lsn"].as_u64()),
        (Some("Clean"), Some(false), Some(200))
    );
    let (file, from, end) = last_frame(&home);
    for at in from..end {
        let twin = home.twin();
        cut(&twin.path().join(file.file_name().unwrap()), at);
        let verified = planewal(["verify", &twin.dir(), "--json"]).ends(0).json();
        let verdict = (verified["verdict"].as_str().unwrap(), verified["proof"].as_str().unwrap());
        assert!(
            verdict == ("TornTail", "Unproved") || (at == from && verdict == ("Clean", "Unproved")),
            "cut at {at}: {verdict:?}"
        );
        assert_eq!(planewal(["dump", &twin.dir(), "--raw"]).ends(0).out, lines(BEFORE), "cut at {at}");
        let appended = fed(["append", &twin.dir(), "--json"], b"next\n").ends(0).json();
        assert_eq!(
            (appended["first_lsn"].as_u64(), appended["torn_tail"].is_object()),
            (Some(200), verdict.0 == "TornTail"),
            "cut at {at}"
        );
        let mut all = lines(BEFORE);
        all.extend_from_slice(b"next\n");
        assert_eq!(planewal(["dump", &twin.dir(), "--raw"]).ends(0).out, all, "cut at {at}");
        assert_eq!(planewal(["verify", &twin.dir(), "--json"]).ends(0).json()["verdict"], "Clean");
    }
}

#[test]
fn after_a_clean_close_the_same_cuts_are_damage() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1"], &lines(BEFORE + 1)).ends(0);
    let (file, from, end) = last_frame(&home);
    for at in from..end {
        let twin = home.twin();
        cut(&twin.path().join(file.file_name().unwrap()), at);
        let verified = planewal(["verify", &twin.dir(), "--json"]).ends(1).json();
        assert_eq!(
            (verified["verdict"].as_str(), verified["proof"].as_str()),
            (Some("Damaged"), Some("Proved")),
            "cut at {at}"
        );
        let run = planewal(["dump", &twin.dir(), "--raw"]).ends(1);
        assert_eq!(run.out, lines(BEFORE), "cut at {at}");
        assert!(run.err.contains("Damaged"), "{}", run.err);
        fed(["append", &twin.dir()], b"next\n").ends(2);
    }
}

#[test]
fn a_flipped_bit_is_found_and_a_writing_open_refuses() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1", "--durability", "written"], &lines(3000)).ends(0);
    let (file, end) = home.newest();
    let name = file.file_name().unwrap().to_str().unwrap();
    for offset in (0..usize::try_from(end / 2).unwrap()).step_by(97) {
        let bit = (offset % 8) as u8;
        flip(&file, offset, bit);
        let verified = planewal(["verify", &home.dir(), "--json"]).ends(1).json();
        let findings = verified["findings"].as_array().unwrap();
        assert!(
            findings.iter().any(|finding| finding["file"] == name
                && finding["offset"].is_u64()
                && finding["evidence"].is_string()),
            "offset {offset}: {findings:?}"
        );
        let told = findings[0]["offset"].as_u64().unwrap() as usize;
        // The longest frame here is the link, with 88 bytes.
        assert!(
            told <= offset && (offset < 4096 || told + 88 > offset),
            "the flip at {offset} is told as {told}"
        );
        let refused = fed(["append", &home.dir()], b"next\n").ends(2);
        assert!(refused.err.contains(name), "{}", refused.err);
        flip(&file, offset, bit);
    }
    planewal(["verify", &home.dir()]).ends(0);
}

#[test]
fn what_lies_behind_damage_is_shown_on_demand() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1"], &lines(30)).ends(0);
    let told = planewal(["explain", &home.dir(), "10", "--json"]).ends(0).json();
    flip(&home.newest().0, told["frame_offset"].as_u64().unwrap() as usize + 33, 0);
    assert_eq!(planewal(["dump", &home.dir(), "--raw"]).ends(1).out, lines(9));
    let past = planewal(["dump", &home.dir(), "--raw", "--past-damage"]).ends(1);
    let expected: String =
        (1..=30).filter(|&number| number != 10).map(|number| format!("line {number}\n")).collect();
    assert_eq!(past.text(), expected);
    assert!(past.err.contains("LSN 10 to 10 are lost to damage"), "{}", past.err);
    let verified = planewal(["verify", &home.dir(), "--json"]).ends(1).json();
    let finding = &verified["findings"][0];
    assert_eq!(
        (finding["lsn"].as_u64(), finding["missing"]["last"].as_u64(), finding["harmless"].as_bool()),
        (Some(10), Some(10), Some(false))
    );
    let why = planewal(["explain", &home.dir(), "10"]).ends(1);
    assert!(why.text().contains("damaged") && why.text().contains("records-damaged"), "{}", why.text());
}
