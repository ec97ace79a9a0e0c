//! Losses are accepted, written down, and told.

use crate::support::{Home, fed, flip, lines, planewal};

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
