//! One round, seen from outside: start a child, listen to it, kill it at a random moment, and hear what it
//! had said to its last word.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Args;
use super::random::Random;
use super::text::Text;
use crate::outcome::Failure;
use crate::parse::Level;

/// Lines of a batch whose commit has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ack {
    /// LSN of the first.
    pub(super) lsn: u64,
    pub(super) count: u64,
    /// Number of the first.
    pub(super) line: u64,
}

impl Ack {
    pub(super) fn last_line(&self) -> u64 {
        self.line + self.count - 1
    }

    pub(super) fn to_line(self) -> String {
        format!("ack {} {} {}\n", self.lsn, self.count, self.line)
    }

    fn parse(line: &str) -> Option<Ack> {
        let mut fields = line.strip_prefix("ack ")?.split(' ').map(|field| field.parse().ok());
        let ack = Ack { lsn: fields.next()??, count: fields.next()??, line: fields.next()?? };
        (fields.next().is_none() && ack.count > 0).then_some(ack)
    }
}

/// What a recovery came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opened {
    /// The last line recovered; 0 if none.
    pub(super) line: u64,
    pub(super) torn: bool,
    pub(super) took: Duration,
}

impl Opened {
    pub(super) fn to_line(self) -> String {
        format!("open {} {} {}", self.line, u8::from(self.torn), self.took.as_micros())
    }

    fn parse(line: &str) -> Option<Opened> {
        let mut fields = line.strip_prefix("open ")?.split(' ').map(|field| field.parse().ok());
        let (line, torn, took): (u64, u64, u64) = (fields.next()??, fields.next()??, fields.next()??);
        fields.next().is_none().then_some(Opened { line, torn: torn > 0, took: Duration::from_micros(took) })
    }
}

/// A child's life.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` if it was killed before its log was open.
    pub(super) opened: Option<Opened>,
    pub(super) acks: Vec<Ack>,
    pub(super) lived: Duration,
}

/// When a child is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// After so many acknowledged lines, and a little later.
    Acknowledged { lines: u64, then: Duration },
    /// So long after its start: perhaps while it recovers.
    Early(Duration),
}

impl Moment {
    fn draw(round: u32, level: Level, random: &mut Random) -> Moment {
        if rests(round, level) {
            return Moment::Acknowledged { lines: 1, then: Duration::from_micros(random.below(25_000)) };
        }
        // The first child has nothing to recover, and should get somewhere.
        if round > 1 && random.below(8) == 0 {
            return Moment::Early(Duration::from_micros(random.below(12_000)));
        }
        let lines = 1 + random.below(9_000);
        Moment::Acknowledged { lines, then: Duration::from_micros(random.below(25_000)) }
    }
}

/// The first writer of `buffered` comes to rest after a few lines, as real writers do, and is killed then:
/// with so little staged nothing was written yet, so a loss is certain to be seen.
fn rests(round: u32, level: Level) -> bool {
    round == 1 && level == Level::Buffered
}

/// A child that acknowledges slowly is killed no later than this after its start.
const ROUND_MAX: Duration = Duration::from_millis(350);

/// A child that has acknowledged nothing gets this long.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub(super) fn play(
    round: u32,
    args: &Args,
    dir: &Path,
    text: &Text,
    random: &mut Random,
) -> Result<Ended, Failure> {
    let moment = Moment::draw(round, args.durability, random);
    let started = Instant::now();
    let mut child = Running(spawn(round, args, dir, random)?);
    let pipes = child.0.stdin.take().zip(child.0.stdout.take());
    let Some((input, output)) = pipes else { return Err(Failure::new("a child without pipes")) };
    let acknowledged = AtomicU64::new(0);
    let heard = thread::scope(|scope| {
        let listener = scope.spawn(|| listen(BufReader::new(output), &acknowledged));
        scope.spawn(|| feed(input, text));
        let killed = wait_for(moment, started, &acknowledged, || listener.is_finished());
        let ended_by_itself = !killed;
        let lived = started.elapsed();
        child.kill();
        // What the child wrote before it died is still in the pipe, and counts.
        let heard = listener.join().unwrap_or_default();
        (!ended_by_itself).then_some((heard, lived))
    });
    match heard {
        Some((heard, lived)) => Ok(Ended { opened: heard.opened, acks: heard.acks, lived }),
        None => {
            Err(Failure::new(format_args!("the writer of round {round} was not killed but ended by itself")))
        }
    }
}

fn spawn(round: u32, args: &Args, dir: &Path, random: &mut Random) -> Result<Child, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot find this program: {error}")))?;
    let mut command = Command::new(program);
    command
        .arg("demo-child")
        .arg("--round")
        .arg(round.to_string())
        .arg("--durability")
        .arg(args.durability.name());
    command
        .arg("--segment-bytes")
        .arg(args.segment_bytes.to_string())
        .arg("--seed")
        .arg(random.below(u64::MAX).to_string());
    if rests(round, args.durability) {
        command.arg("--rests");
    }
    command.arg("--").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| Failure::new(format_args!("cannot start a child: {error}")))
}

/// Gives the child its text. A child that is killed before it has read all of it is no failure.
fn feed(mut input: ChildStdin, text: &Text) {
    let _ = input.write_all(text.bytes());
}

#[derive(Debug, Default)]
struct Heard {
    opened: Option<Opened>,
    acks: Vec<Ack>,
}

/// Listens until the pipe is empty and its writer gone. A last word that was cut short does not count.
fn listen(mut output: impl BufRead, acknowledged: &AtomicU64) -> Heard {
    let mut heard = Heard::default();
    let mut line = String::new();
    while output.read_line(&mut line).is_ok_and(|read| read > 0) {
        let Some(said) = line.strip_suffix('\n') else { break };
        if let Some(ack) = Ack::parse(said) {
            heard.acks.push(ack);
            acknowledged.fetch_add(ack.count, Ordering::Relaxed);
        } else if let Some(opened) = Opened::parse(said) {
            heard.opened = Some(opened);
        }
        line.clear();
    }
    heard
}

/// Waits for the moment; answers no if the child ended before it.
fn wait_for(moment: Moment, started: Instant, acknowledged: &AtomicU64, ended: impl Fn() -> bool) -> bool {
    loop {
        if ended() {
            return false;
        }
        let so_far = acknowledged.load(Ordering::Relaxed);
        let lived = started.elapsed();
        match moment {
            Moment::Early(when) if lived >= when => return true,
            Moment::Acknowledged { lines, then } if so_far >= lines || (so_far > 0 && lived >= ROUND_MAX) => {
                thread::sleep(then);
                return !ended();
            }
            _ if lived >= SILENCE_MAX => return true,
            _ => thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// A child that does not outlive its parent's interest in it.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn kill(&mut self) {
        // On Unix this is SIGKILL. A child that is gone already cannot be killed, and need not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_says_is_understood() {
        let ack = Ack { lsn: 7, count: 3, line: 9 };
        assert_eq!(Ack::parse(ack.to_line().trim_end()), Some(ack));
        assert_eq!(ack.last_line(), 11);
        let opened = Opened { line: 5, torn: true, took: Duration::from_micros(42) };
        assert_eq!(Opened::parse(&opened.to_line()), Some(opened));
        for wrong in ["", "ack", "ack 1 2", "ack 1 0 3", "ack 1 2 3 4", "open 1 x 2"] {
            assert_eq!((Ack::parse(wrong), Opened::parse(wrong)), (None, None), "{wrong}");
        }
    }

    #[test]
    fn a_word_that_was_cut_short_does_not_count() {
        let heard = listen(&b"open 0 0 12\nack 1 2 1\nack 3 1"[..], &AtomicU64::new(0));
        assert_eq!(heard.acks, [Ack { lsn: 1, count: 2, line: 1 }]);
        assert!(heard.opened.is_some());
    }
}
