//! The `planewal` program: a write-ahead log's directory, seen and used from a shell.
//!
//! It uses the public API only, so whatever it can do a host can do. Data alone goes to standard
//! output; everything said about it goes to standard error.

mod commands;
mod outcome;
mod parse;
mod render;

use std::process::ExitCode;

use clap::Parser;

const LONG_ABOUT: &str = "\
Appends to, reads, verifies, explains, repairs and backs up planewal write-ahead logs.

Everything but append, bench, demo, repair and restore only reads the log, takes no lock of it, and runs
beside a live writer.";

const AFTER_HELP: &str = "\
Exit codes: 0 sound (a torn tail is sound, and reported), 1 damage found, 2 could not run.";

#[derive(Debug, Parser)]
#[command(name = "planewal", version, about = "Appends to, reads and verifies planewal write-ahead logs", long_about = LONG_ABOUT, after_help = AFTER_HELP)]
struct Cli {
    /// Write JSON for machines to standard output
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    outcome::exit_code(cli.command.run(cli.json))
}
