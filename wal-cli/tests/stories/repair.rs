//! Losses are accepted, written down, and told.

use crate::support::{Home, cut, fed, flip, lines, planewal};

#[test]
fn repair_accepts_a_loss_and_everybody_is_told() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "1"], &lines(30)).ends(0);
    let told = planewal(["explain", &home.dir(), "10", "--json"]).ends(0).json();
    flip(&home.newest().0, told["frame_offset"].as_u64().unwrap() as usize + 33, 0);
    let before = home.files();
    let plan = planewal(["repair", &home.dir(), "--dry-run", "--json"]).ends(1).json();
    assert_eq!(
        (plan["nothing_to_do"].as_bool(), plan["lost"][0]["first"].as_u64(), plan["new_log_id"].is_null()),
        (Some(false), Some(10), true)
    );
    assert_eq!(home.files(), before, "a plan changes nothing");
    let done = planewal(["repair", &home.dir(), "--json"]).ends(0).json();
    assert_eq!((done["lost"].clone(), done["new_log_id"].is_string()), (plan["lost"].clone(), true));
    let segments = |files: Vec<(String, Vec<u8>)>| {
        files.into_iter().filter(|(name, _)| name.contains(".wal")).collect::<Vec<_>>()
    };
    assert_eq!(segments(home.files()), segments(before), "segments stay as they are");
    let verified = planewal(["verify", &home.dir(), "--json"]).ends(0).json();
    assert_eq!(verified["lost"], plan["lost"]);
    let dumped = planewal(["dump", &home.dir(), "--raw"]).ends(0);
    assert_eq!(dumped.text().lines().count(), 29);
    assert!(dumped.err.contains("LSN 10 to 10 were lost and given up by repair"), "{}", dumped.err);
    assert!(planewal(["explain", &home.dir(), "10"]).ends(0).text().contains("given up by repair"));
    fed(["append", &home.dir()], b"next\n").ends(0);
    assert_eq!(planewal(["dump", &home.dir(), "--raw"]).ends(0).text().lines().last(), Some("next"));
    assert!(planewal(["repair", &home.dir()]).ends(0).text().contains("nothing to repair"));
}

#[test]
fn repair_gives_up_no_more_than_two_neighbouring_holes() {
    let home = Home::new();
    fed(["append", &home.dir(), "--batch", "7", "--segment-bytes", "16K"], &lines(2400)).ends(0);
    let listed = planewal(["segments", &home.dir(), "--json"]).ends(0).json();
    let files: Vec<String> = listed["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|segment| segment["file"].as_str().unwrap().to_owned())
        .collect();
    assert!(files.len() > 3);
    let kept_from = listed["segments"][2]["base_lsn"].as_u64().unwrap();
    cut(&home.path().join(&files[0]), 12_400);
    std::fs::remove_file(home.path().join(&files[1])).unwrap();
    let plan = planewal(["repair", &home.dir(), "--dry-run", "--json"]).ends(1).json();
    for range in plan["lost"].as_array().unwrap() {
        assert!(
            range["last"].as_u64().unwrap() < kept_from,
            "records from {kept_from} on can be read: {plan}"
        );
    }
    planewal(["repair", &home.dir()]).ends(0);
    let first_line = format!("line {kept_from}");
    let dumped = planewal(["dump", &home.dir(), "--raw"]).ends(0);
    assert!(dumped.text().lines().any(|line| line == first_line));
    assert_eq!(dumped.text().lines().last(), Some("line 2400"));
    planewal(["verify", &home.dir()]).ends(0);
}
