//! How a command ended, and the exit code for it.
//!
//! There are three codes, and every command keeps to them: 0 sound, 1 damage found, 2 could not
//! run. A reader of our output that has seen enough (`| head`) is no failure.

use std::fmt::Display;
use std::process::ExitCode;

use planewal::{SurveyReport, Verdict};

/// What a command found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sound,
    Damage,
}

impl Outcome {
    pub(crate) fn of(report: &SurveyReport) -> Outcome {
        let damaged =
            is_damage(report.verdict) || report.findings.iter().any(|finding| is_damage(finding.verdict));
        Outcome::damage_if(damaged)
    }

    pub(crate) fn damage_if(damaged: bool) -> Outcome {
        if damaged { Outcome::Damage } else { Outcome::Sound }
    }

    pub(crate) fn and(self, other: Outcome) -> Outcome {
        Outcome::damage_if(self == Outcome::Damage || other == Outcome::Damage)
    }

    /// The exit code as a number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Outcome::Sound => 0,
            Outcome::Damage => 1,
        }
    }
}

/// Why a command did not run to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Said on standard error, in one line.
    CouldNotRun(String),
    /// Whoever read standard output has seen enough.
    OutputGone,
}

impl Failure {
    pub(crate) fn new(message: impl Display) -> Failure {
        Failure::CouldNotRun(message.to_string())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error)
    }
}

/// Says what has to be said, and answers with the exit code.
pub(crate) fn exit_code(result: Result<Outcome, Failure>) -> ExitCode {
    match result {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(Failure::OutputGone) => ExitCode::SUCCESS,
        Err(Failure::CouldNotRun(message)) => {
            crate::render::say(message);
            ExitCode::from(2)
        }
    }
}

/// Whether a verdict is damage. A verdict that this version does not know is.
pub(crate) fn is_damage(verdict: Verdict) -> bool {
    !matches!(verdict, Verdict::Clean | Verdict::TornTail)
}
