//! Questions about one record or segment are answered.

use crate::support::{Home, fed, lines, planewal};

#[test]
fn a_record_is_found_and_its_proof_told() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "4"], &lines(10)).ends(0);
    let told = planewal(["explain", &home.dir(), "6", "--json"]).ends(0).json();
    assert_eq!(
        (told["state"].as_str(), told["durable"].as_str(), told["segment"].as_u64()),
        (Some("there"), Some("proved"), Some(1))
    );
    assert_eq!(
        (told["frame_first"].as_u64(), told["frame_last"].as_u64(), told["payload_bytes"].as_u64()),
        (Some(5), Some(8), Some(6))
    );
    assert!(!told["why"].as_array().unwrap().is_empty());
    assert!(planewal(["explain", &home.dir(), "6"]).ends(0).text().contains("proved"));
    let ahead = planewal(["explain", &home.dir(), "11", "--json"]).ends(0).json();
    assert_eq!(
        (ahead["state"].as_str(), ahead["durable"].as_str()),
        (Some("not given out yet"), Some("not proved"))
    );
}

#[test]
fn a_segment_is_known_by_number_and_by_name() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(10)).ends(0);
    for name in ["segment:1", "00000000000000000001.wal"] {
        let told = planewal(["explain", &home.dir(), name, "--json"]).ends(0).json();
        assert_eq!(
            (told["state"].as_str(), told["last_lsn"].as_u64(), told["durable"].as_str()),
            (Some("part of the log"), Some(10), Some("proved"))
        );
        planewal(["explain", &home.dir(), name]).ends(0);
    }
    assert!(planewal(["explain", &home.dir(), "segment:99"]).ends(2).err.contains("no segment 99"));
    planewal(["explain", &home.dir(), "perhaps"]).ends(2);
}

#[test]
fn what_was_only_written_is_not_proved() {
    let home = Home::new();
    fed(["append", &home.dir(), "--durability", "written", "--no-close"], &lines(3)).ends(0);
    let told = planewal(["explain", &home.dir(), "3", "--json"]).ends(0).json();
    assert_eq!((told["state"].as_str(), told["durable"].as_str()), (Some("there"), Some("not proved")));
}
