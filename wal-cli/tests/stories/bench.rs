//! A disk is measured, and nothing of it stays.

use std::fs;

use crate::support::{Home, fed, lines, planewal};

#[test]
fn each_level_is_measured_and_nothing_stays() {
    let home = Home::new();
    let dir = home.root().join("not/there/yet");
    let told = planewal([
        "bench",
        dir.to_str().unwrap(),
        "--records",
        "601",
        "--threads",
        "4",
        "--size",
        "1K",
        "--seconds",
        "60",
        "--json",
    ])
    .ends(0)
    .json();
    assert_eq!((told["size"].as_u64(), told["threads"].as_u64()), (Some(1024), Some(4)));
    let levels = told["levels"].as_array().unwrap();
    let names: Vec<&str> = levels.iter().map(|level| level["durability"].as_str().unwrap()).collect();
    assert_eq!(names, ["buffered", "written", "synced"]);
    for level in levels {
        assert_eq!(level["records"].as_u64(), Some(601), "{level}");
        let call = |share: &str| level["call_ns"][share].as_u64().unwrap();
        let shares = ["p50", "p90", "p99", "p999", "max"].map(call);
        assert!(shares.is_sorted() && shares[0] > 0, "{level}");
        assert!(level["records_per_second"].as_f64().unwrap() > 0.0);
        assert!(level["bytes_per_second"].as_f64() > level["records_per_second"].as_f64());
    }
    let synced = &levels[2];
    let syncs = synced["syncs"]["count"].as_u64().unwrap();
    assert!((1..=601).contains(&syncs) && synced["commits_per_sync"].as_f64().unwrap() >= 1.0, "{synced}");
    assert!(synced["group_bytes"]["max"].as_u64().unwrap() > 1024 && synced["writes"]["count"].is_u64());
    assert_eq!(fs::read_dir(home.root()).unwrap().count(), 0, "all that was made is removed");
}

#[test]
fn a_level_ends_with_its_time() {
    let home = Home::new();
    fs::write(home.root().join("mine"), "kept").unwrap();
    let root = home.root().to_str().unwrap();
    let run = planewal([
        "bench",
        root,
        "--durability",
        "synced",
        "--seconds",
        "1",
        "--records",
        "1000000000",
        "--size",
        "1",
    ]);
    let run = run.ends(0);
    let row = run.text().lines().find(|line| line.trim_start().starts_with("synced")).unwrap();
    assert!(row.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() > 0, "{}", run.text());
    assert!(!run.text().contains("buffered"), "{}", run.text());
    assert_eq!(fs::read_dir(home.root()).unwrap().count(), 1, "what was there stays");
}

#[test]
fn a_log_is_not_touched_and_numbers_have_ranges() {
    let home = Home::new();
    fed(["append", &home.dir()], &lines(3)).ends(0);
    let before = home.files();
    let refused = planewal(["bench", &home.dir()]).ends(2);
    assert!(
        refused.err.contains(&home.dir()) && refused.err.contains("another directory"),
        "{}",
        refused.err
    );
    assert_eq!(home.files(), before);
    let place = home.root().join("new");
    let place = place.to_str().unwrap();
    for (option, value) in [
        ("--records", "0"),
        ("--records", "1000000001"),
        ("--size", "0"),
        ("--size", "17M"),
        ("--threads", "0"),
        ("--threads", "257"),
        ("--seconds", "0"),
        ("--seconds", "3601"),
        ("--durability", "perhaps"),
    ] {
        planewal(["bench", place, option, value]).ends(2);
    }
    let much = planewal(["bench", place, "--records", "1000000", "--size", "1M"]).ends(2);
    assert!(much.err.contains("64G"), "{}", much.err);
    assert!(!home.root().join("new").exists(), "a wrong number makes no directory");
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_made_goes_where_the_answer_is_not_wanted_or_cannot_be_written() {
    use std::process::{Command, Stdio};

    use crate::support::PROGRAM;

    let home = Home::new();
    let dir = home.root().join("new");
    let bench = |out: Stdio| {
        let args = ["bench", dir.to_str().unwrap(), "--records", "10", "--durability", "written"];
        Command::new(PROGRAM).args(args).stdout(out).output().unwrap()
    };
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = bench(full.into());
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("standard output"));
    assert!(!dir.exists());
}
