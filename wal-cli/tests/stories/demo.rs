//! The main job on real input: kill it, and count.

use std::fs;
use std::process::Command;

use crate::support::{Home, PROGRAM, planewal};

#[test]
fn what_was_acknowledged_survives_the_death_of_the_process() {
    let home = Home::new();
    let output = Command::new(PROGRAM)
        .args(["demo", "--kills", "3", "--seed", "11", "--json"])
        .env("TMPDIR", home.root())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let told: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        (told["lost"].as_u64(), told["invented"].as_u64(), told["kills"].as_u64(), told["seed"].as_u64()),
        (Some(0), Some(0), Some(3), Some(11))
    );
    let (acknowledged, recovered) =
        (told["acknowledged"].as_u64().unwrap(), told["recovered"].as_u64().unwrap());
    assert!(acknowledged > 0 && recovered >= acknowledged, "presence is shown before absence: {told}");
    assert!(told["torn_tails"].is_u64() && told["dir"].is_null());
    assert_eq!(fs::read_dir(home.root()).unwrap().count(), 0, "the temporary directory is removed");
}

#[test]
fn buffered_shows_a_loss() {
    let home = Home::new();
    let told = planewal(["demo", "--kills", "3", "--durability", "buffered", "--json", "--dir", &home.dir()])
        .ends(1)
        .json();
    assert!(told["lost"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(told["invented"].as_u64(), Some(0));
    assert_eq!(told["dir"].as_str(), Some(home.dir().as_str()));
    planewal(["verify", &home.dir()]).ends(0);
}

#[test]
fn synced_runs_too_and_the_report_says_what_is_proved() {
    let home = Home::new();
    let input = home.root().join("input");
    fs::write(&input, "one\n\nthree").unwrap();
    let run = planewal([
        "demo",
        "--kills",
        "2",
        "--durability",
        "synced",
        "--input",
        input.to_str().unwrap(),
        "--dir",
        &home.dir(),
    ])
    .ends(0);
    assert!(run.text().contains("kill 2: ") && run.text().contains("lost 0, invented 0"), "{}", run.text());
    assert!(run.text().contains("simulated disk"), "{}", run.text());
    let first = planewal(["dump", &home.dir(), "--raw", "--to", "4"]).ends(0);
    assert_eq!(first.text(), "1.1:one\n1.2:\n1.3:three\n1.4:one\n");
}

#[test]
fn the_demo_wants_a_directory_of_its_own_and_a_text() {
    let home = Home::new();
    fs::write(home.root().join("mine"), "").unwrap();
    let root = home.root().to_str().unwrap();
    assert!(planewal(["demo", "--dir", root]).ends(2).err.contains("not empty"));
    planewal(["demo", "--input", &home.dir()]).ends(2);
    assert!(
        planewal(["demo", "--input", home.root().join("mine").to_str().unwrap()])
            .ends(2)
            .err
            .contains("no line")
    );
    planewal(["demo", "--kills", "0"]).ends(2);
}
