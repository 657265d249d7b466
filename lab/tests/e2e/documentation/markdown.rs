//! Commands and scripts in the code blocks of a page.
//!
//! A block `sh` is a script if it begins with `#!`, else commands. A block `console` has commands after `$ `, and below
//! each its output.

/// The languages of blocks. Only `sh` and `console` have commands.
const LANGUAGES: [&str; 8] = ["sh", "console", "python", "c", "yaml", "json", "ini", "text"];

/// One command as it is written.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// Its line in the page, from 1.
    pub line: usize,
    pub text: String,
    /// The output in the page; `None`: the page shows none.
    pub shows: Option<String>,
}

impl Command {
    /// Fails if the output has another shape than in the page: ids, numbers and times may differ.
    pub fn assert_shape(&self, place: &str, output: &str) {
        if let Some(shows) = &self.shows {
            assert_eq!(shape(output), shape(shows), "{place}: `{}` shows this:\n{output}\nand the page this:\n{shows}", self.text);
        }
    }
}

/// The words of each line; a word with a digit, or a hexadecimal one like an id, becomes `#`.
fn shape(output: &str) -> Vec<Vec<&str>> {
    let is_id = |word: &str| word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let word = move |word| if is_id(word) || word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word };
    output.trim_end().lines().map(|line| line.split_whitespace().map(word).collect()).collect()
}

/// The blocks of one language: the number of each block's first line, and its lines, without the
/// indentation of a block in a list.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<(usize, Vec<&'a str>)> {
    let mut found = Vec::new();
    let mut open: Option<(bool, &str, usize, Vec<&str>)> = None;
    for (number, line) in page.lines().enumerate() {
        let trimmed = line.trim_start();
        match (open.take(), trimmed.strip_prefix("```")) {
            (None, Some(opened)) => {
                assert!(LANGUAGES.contains(&opened), "line {}: a block of the unknown language {opened:?}", number + 1);
                open = Some((opened == language, &line[..line.len() - trimmed.len()], number + 2, Vec::new()));
            }
            (None, None) => {}
            (Some((wanted, _, first, lines)), Some(_)) => {
                if wanted {
                    found.push((first, lines));
                }
            }
            (Some((wanted, indentation, first, mut lines)), None) => {
                lines.push(line.strip_prefix(indentation).unwrap_or(line));
                open = Some((wanted, indentation, first, lines));
            }
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

fn is_script(lines: &[&str]) -> bool {
    lines.first().is_some_and(|line| line.starts_with("#!"))
}

/// The blocks that are scripts.
pub fn scripts(page: &str) -> Vec<String> {
    blocks(page, "sh").into_iter().filter(|(_, lines)| is_script(lines)).map(|(_, lines)| lines.join("\n") + "\n").collect()
}

/// The commands of a page, in its order.
pub fn commands(page: &str) -> Vec<Command> {
    let plain = blocks(page, "sh").into_iter().filter(|(_, lines)| !is_script(lines)).flat_map(|(first, lines)| plain(first, &lines));
    let shown = blocks(page, "console").into_iter().flat_map(|(first, lines)| shown(first, &lines));
    let mut all: Vec<Command> = plain.chain(shown).collect();
    all.sort_by_key(|command| command.line);
    all
}

/// A command ends with its line or its comment, except after a `\` at the end, in a here-document
/// and in a loop.
fn plain(first: usize, lines: &[&str]) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let mut here_end: Option<&str> = None;
    let (mut continues, mut loops) = (false, false);
    for (number, line) in lines.iter().enumerate() {
        if here_end.is_some() || continues || loops {
            let last = commands.last_mut().expect("the command that goes on");
            last.text = format!("{}\n{line}", last.text);
            here_end = here_end.filter(|end| end != line);
            loops = loops && *line != "done";
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            let text = line.split_once(" #").map_or(*line, |(text, _)| text.trim_end());
            commands.push(Command { line: first + number, text: text.to_owned(), shows: None });
            here_end = line.split_once("<<").map(|(_, end)| end.trim_matches('\''));
            loops = line.ends_with("; do");
        }
        continues = here_end.is_none() && line.ends_with('\\');
    }
    commands
}

fn shown(first: usize, lines: &[&str]) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        match line.strip_prefix("$ ") {
            Some(text) => commands.push(Command { line: first + number, text: text.to_owned(), shows: Some(String::new()) }),
            None => {
                let shows = commands.last_mut().and_then(|command| command.shows.as_mut()).expect("a console block begins with a command");
                shows.push_str(line);
                shows.push('\n');
            }
        }
    }
    commands
}
