//! The script or command of an allocation.

use lattice_api::v1;

/// Characters of a command that are shown; the JSON has all of it.
const COMMAND_CHARS_MAX: usize = 400;

/// The script's name and length; the JSON has its text.
pub fn script(a: &v1::Allocation) -> String {
    match a.script.lines().count() {
        0 => String::new(),
        1 => format!("{} (1 line; -o json has it)", a.name),
        lines => format!("{} ({lines} lines; -o json has them)", a.name),
    }
}

/// The command, or the script's arguments, in a shell's syntax.
pub fn command(a: &v1::Allocation) -> String {
    command_line(&a.command)
}

/// Words in a shell's syntax, at most the first [`COMMAND_CHARS_MAX`] characters.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = |word: &String| {
        let is_plain = !word.is_empty() && word.chars().all(plain);
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let words: Vec<String> = words.iter().map(quoted).collect();
    let text = words.join(" ");
    if text.chars().count() <= COMMAND_CHARS_MAX { text } else { text.chars().take(COMMAND_CHARS_MAX).chain(['…']).collect() }
}
