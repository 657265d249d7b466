//! Colours of states, for a terminal. Texts are measured and padded without them.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether states are coloured. Like the width of the terminal, this is one fact of the whole process; it is set once,
/// from the settings.
static IS_ON: AtomicBool = AtomicBool::new(false);

const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";
const DIM: &str = "\u{1b}[2m";
const RESET: &str = "\u{1b}[0m";

/// Headings of columns, and labels of blocks, whose values are states.
const STATES: [&str; 3] = ["STATE", "State", "LIVENESS"];

/// Turns colours on if the settings want them and standard output is a terminal that shows them.
pub fn set_up(is_wanted: bool) {
    let is_on = is_wanted && shows_colours(io::stdout().is_terminal(), |name| env::var(name).ok());
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// Whether colours are on.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

fn shows_colours(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    is_terminal && variable("NO_COLOR").is_none_or(|value| value.is_empty()) && variable("TERM").is_none_or(|term| term != "dumb")
}

/// The codes before and after a value of a column with this heading, or of a row with this label; `None`: no colour.
pub fn codes(heading: &str, value: &str) -> Option<(&'static str, &'static str)> {
    if !STATES.contains(&heading) {
        return None;
    }
    // A cell may say more: `Failed (3)`, `held, 10 s left`.
    let word = value.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let colour = match word {
        "Running" | "Ready" | "alive" => GREEN,
        "Failed" | "Down" | "down" => RED,
        "Pending" | "Staging" | "Suspended" | "Booting" | "Degraded" | "Draining" | "Drained" | "suspect" => YELLOW,
        "Completed" | "Cancelled" | "Removed" | "left" => DIM,
        _ => return None,
    };
    Some((colour, RESET))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_colours_and_other_texts_have_none() {
        let of = |heading, value| codes(heading, value).map(|(before, _)| before);
        assert_eq!(of("STATE", "Running"), Some(GREEN));
        assert_eq!(of("STATE", "Failed (3)"), Some(RED));
        assert_eq!(of("State", "Pending"), Some(YELLOW));
        assert_eq!(of("STATE", "Completed"), Some(DIM));
        assert_eq!(of("STATE", "Draining"), Some(YELLOW));
        assert_eq!(of("LIVENESS", "down"), Some(RED));
        assert_eq!((of("STATE", "R"), of("NAME", "Running"), of("STATE", "")), (None, None, None));
    }

    #[test]
    fn colours_are_for_a_terminal_that_shows_them() {
        let shows = |is_terminal, set: &[(&str, &str)]| {
            shows_colours(is_terminal, |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(shows(true, &[]) && shows(true, &[("TERM", "xterm"), ("NO_COLOR", "")]));
        assert!(!shows(false, &[("TERM", "xterm")]), "a pipe has no colours");
        assert!(!shows(true, &[("TERM", "dumb")]) && !shows(true, &[("NO_COLOR", "1")]));
    }
}
