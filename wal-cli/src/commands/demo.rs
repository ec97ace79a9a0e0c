//! `demo`: the main job on real input. A child process appends and is killed, again and again; at the
//! end everything that it had acknowledged has to be there, and nothing else.
//!
//! What an acknowledgement promises is checked from outside of the process that gave it: the parent
//! reads acknowledgements from a pipe, so it knows them even though the child is gone. Payloads
//! carry the number of their round, so that a line which was lost and appended again by a later child
//! does not hide the loss.

mod child;
mod ledger;
mod random;
mod round;
mod text;

use std::path::{Path, PathBuf};

use planewal::{Options, View, Wal};
use serde_json::json;
use tempfile::TempDir;

use crate::outcome::{Failure, Outcome};
use crate::parse::{self, Level};
use crate::render::{Out, say};

pub(crate) use child::{ChildArgs, run_child};
use ledger::{Ledger, Tally};
use random::Random;
use round::{Ended, Opened};
use text::Text;

/// Kill a writer again and again, and compare what it acknowledged with what is there
///
/// A child process appends the lines of the input in order, again from the top as often as needed,
/// and reports each line that was acknowledged. It is killed with SIGKILL at random moments; the
/// next child opens the log, which recovers it, and goes on behind the last line recovered. At the end
/// acknowledged and recovered lines are compared. Exit code 1 if anything acknowledged was lost or
/// anything is there that no child appended.
///
/// This proves the level `written`, which survives the death of the process. `synced` runs too, but what
/// it adds, surviving a loss of power, no killed process can show: that is proved on a simulated
/// disk in the project's tests. `buffered` promises nothing, and has to show a loss: if it did
/// not, this check would prove nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text whose lines are appended [default: one that comes with the program]
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// How often the writer is killed
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,

    /// How safe a line is when it is acknowledged
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "written")]
    durability: Level,

    /// Seed of the random moments [default: random, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// New or empty directory for the log, which is kept [default: a temporary one, removed when all is well]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Size of a segment, 16K to 1G
    #[arg(long, value_name = "BYTES", default_value = "512K", value_parser = parse::bytes)]
    segment_bytes: u64,
}

/// What is proved, and what is not.
const SCOPE: &str = "This proves `written`, which survives the death of the process. What `synced` adds, surviving a loss of power, is proved on a simulated disk in the tests.";

/// Options of all writers of the demo.
fn options(level: Level, segment_bytes: u64) -> Options {
    Options {
        durability: level.durability(),
        segment_bytes,
        label: "demo".to_owned(),
        record_bytes_max: 1 << 30,
        ..Options::default()
    }
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let text = Text::load(args.input.as_deref())?;
    options(args.durability, args.segment_bytes).check()?;
    let home = Home::new(args.dir.as_deref())?;
    let seed = args.seed.unwrap_or_else(random::seed);
    let mut demo = Demo {
        args,
        text,
        seed,
        ledger: Ledger::default(),
        torn_tails: 0,
        pending: Vec::new(),
        voice: Voice::new(json),
    };
    let result = demo.run(home.path());
    let well = matches!(result, Ok(tally) if tally.is_well());
    let unheard = matches!(result, Err(Failure::OutputGone));
    let damaged = result.is_err()
        && !unheard
        && View::open(home.path()).is_ok_and(|view| Outcome::of(view.report()) == Outcome::Damage);
    let kept = home.leave(well || unheard);
    let tally = match result {
        Ok(tally) => tally,
        Err(failure) => {
            if let Some(dir) = kept.as_ref().filter(|_| !unheard) {
                say(format_args!("the log is kept in {}", dir.display()));
            }
            return match failure {
                // The log does not open or read any more: that is what the demo looks for.
                Failure::CouldNotRun(message) if damaged => {
                    say(message);
                    Ok(Outcome::Damage)
                }
                failure => Err(failure),
            };
        }
    };
    demo.report(tally, kept.as_deref())?;
    Ok(Outcome::damage_if(!well))
}

/// Where the log lies, and whether it stays there.
#[derive(Debug)]
enum Home {
    Given(PathBuf),
    Temporary(TempDir),
}

impl Home {
    fn new(dir: Option<&Path>) -> Result<Home, Failure> {
        let Some(dir) = dir else {
            let made = tempfile::Builder::new().prefix("planewal-demo-").tempdir();
            return made
                .map(Home::Temporary)
                .map_err(|error| Failure::new(format_args!("cannot make a temporary directory: {error}")));
        };
        match std::fs::read_dir(dir).map(|entries| entries.count()) {
            Ok(0) => Ok(Home::Given(dir.to_owned())),
            Ok(_) => Err(Failure::new(format_args!(
                "{}: not empty; the demo needs a directory of its own",
                dir.display()
            ))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Home::Given(dir.to_owned())),
            Err(error) => Err(Failure::new(format_args!("{}: {error}; name a directory", dir.display()))),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Home::Given(dir) => dir,
            Home::Temporary(dir) => dir.path(),
        }
    }

    /// Removes a temporary directory if all is well; answers with what is kept.
    fn leave(self, well: bool) -> Option<PathBuf> {
        match self {
            Home::Given(dir) => Some(dir),
            Home::Temporary(dir) if well => {
                if let Err(error) = dir.close() {
                    say(format_args!("a temporary directory was not removed: {error}"));
                }
                None
            }
            Home::Temporary(dir) => Some(dir.keep()),
        }
    }
}

/// The human report: on standard output, or on standard error when JSON goes there.
#[derive(Debug)]
struct Voice {
    out: Option<Out>,
}

impl Voice {
    fn new(json: bool) -> Voice {
        Voice { out: (!json).then(Out::new) }
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        match &mut self.out {
            Some(out) => {
                out.line(format_args!("{line}"))?;
                out.flush()
            }
            None => {
                use std::io::Write;
                let _ = writeln!(std::io::stderr().lock(), "{line}");
                Ok(())
            }
        }
    }
}

struct Demo<'a> {
    args: &'a Args,
    text: Text,
    seed: u64,
    ledger: Ledger,
    torn_tails: u32,
    /// Kills after which no open has come far enough to report.
    pending: Vec<String>,
    voice: Voice,
}

impl Demo<'_> {
    fn run(&mut self, dir: &Path) -> Result<Tally, Failure> {
        let level = self.args.durability.name();
        self.voice.line(&format!(
            "{} lines, {} kills, durability {level}, seed {}",
            self.text.lines(),
            self.args.kills,
            self.seed
        ))?;
        let mut random = Random::new(self.seed);
        for number in 1..=self.args.kills {
            let round = round::play(number, self.args, dir, &self.text, &mut random)?;
            if let Some(opened) = &round.opened {
                self.recovered(opened)?;
            }
            self.pending.push(describe(number, &round));
            self.ledger.acknowledge(number, &round.acks);
        }
        self.last_open(dir)
    }

    /// A recovery has reported: the kills before it can be told.
    fn recovered(&mut self, opened: &Opened) -> Result<(), Failure> {
        self.torn_tails += u32::from(opened.torn);
        let tail = if opened.torn { "a torn tail was cut" } else { "no torn tail" };
        let acknowledged = self.ledger.last_line();
        let missing = match acknowledged.checked_sub(opened.line) {
            Some(missing) if missing > 0 => format!(", {missing} acknowledged lines are missing"),
            _ => String::new(),
        };
        let after = format!(
            "recovered to line {} in {:.1} ms, {tail}{missing}",
            opened.line,
            opened.took.as_secs_f64() * 1000.0
        );
        for kill in std::mem::take(&mut self.pending) {
            self.voice.line(&format!("{kill}; {after}"))?;
        }
        self.ledger.restart(opened.line);
        Ok(())
    }

    /// The recovery after the last kill is done here, and everything is read and compared.
    fn last_open(&mut self, dir: &Path) -> Result<Tally, Failure> {
        let wal = Wal::open(dir, options(self.args.durability, self.args.segment_bytes))?;
        let opened = child::look(&wal)?;
        self.recovered(&opened)?;
        let tally = self.ledger.compare(&wal, &self.text)?;
        wal.close()?;
        Ok(tally)
    }

    fn report(&mut self, tally: Tally, kept: Option<&Path>) -> Result<(), Failure> {
        let Tally { acknowledged, recovered, lost, invented } = tally;
        let (kills, torn) = (self.args.kills, self.torn_tails);
        self.voice.line(&format!("acknowledged {acknowledged}, recovered {recovered}, lost {lost}, invented {invented}, kills {kills}, torn tails {torn}"))?;
        if self.args.durability == Level::Buffered {
            self.voice.line("`buffered` promises nothing, so a loss is what has to be seen: it shows that this check can see one.")?;
        }
        self.voice.line(SCOPE)?;
        if let Some(dir) = kept {
            self.voice.line(&format!("the log is kept in {}", dir.display()))?;
        }
        if self.voice.out.is_some() {
            return Ok(());
        }
        let mut out = Out::new();
        out.json(&json!({
            "acknowledged": acknowledged,
            "recovered": recovered,
            "lost": lost,
            "invented": invented,
            "kills": kills,
            "torn_tails": torn,
            "seed": self.seed,
            "durability": self.args.durability.name(),
            "dir": kept.map(|dir| dir.display().to_string()),
        }))?;
        out.flush()
    }
}

fn describe(number: u32, round: &Ended) -> String {
    let killed = match (&round.opened, round.acks.last()) {
        (None, _) => "while opening".to_owned(),
        (Some(_), None) => "before its first acknowledgement".to_owned(),
        (Some(_), Some(ack)) => format!("at acknowledged line {}", ack.last_line()),
    };
    format!("kill {number}: {killed}, {:.0} ms", round.lived.as_secs_f64() * 1000.0)
}
