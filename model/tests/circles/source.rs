//! What one source file declares, imports and names.

use crate::tokens::{Placed, Token, shipped_tokens};
use std::collections::BTreeSet;

/// The names on the path from the crate's root to a module or an item in it.
pub type Path = Vec<String>;

/// The name of a glob import.
pub const GLOB: &str = "*";
/// Keywords before the name of an item.
const ITEMS: &[&str] = &["struct", "enum", "union", "fn", "trait", "type", "const", "static"];

#[derive(Default)]
pub struct Source {
    /// Child modules in files of their own.
    pub children: BTreeSet<String>,
    pub items: BTreeSet<String>,
    pub imports: Vec<Import>,
    /// Paths of at least two names, with their line numbers.
    pub paths: Vec<(Path, usize)>,
    /// All identifiers in its code, except in imports.
    pub words: BTreeSet<String>,
}

pub struct Import {
    pub path: Path,
    /// The local name, or `*`.
    pub name: String,
    pub is_public: bool,
    pub line: usize,
}

impl Source {
    pub fn parse(text: &str) -> Source {
        let tokens = shipped_tokens(text);
        let mut source = Source::default();
        let mut depth = 0;
        let mut at = 0;
        while at < tokens.len() {
            let Some(word) = word_at(&tokens, at) else {
                match tokens[at].0 {
                    Token::Mark('{') => depth += 1,
                    Token::Mark('}') => depth -= 1,
                    _ => {}
                }
                at += 1;
                continue;
            };
            match word {
                "use" if !is_mark(&tokens, at + 1, '<') => {
                    let first = source.imports.len();
                    let is_public = at > 0 && (word_at(&tokens, at - 1) == Some("pub") || is_mark(&tokens, at - 1, ')'));
                    at = source.add_imports(&tokens, at + 1, Path::new());
                    source.imports[first..].iter_mut().for_each(|import| import.is_public = is_public);
                }
                // The path in `pub(in …)` is not a use.
                "pub" if is_mark(&tokens, at + 1, '(') => {
                    while at < tokens.len() && !is_mark(&tokens, at, ')') {
                        at += 1;
                    }
                }
                "mod" if is_mark(&tokens, at + 2, ';') => {
                    source.children.extend(word_at(&tokens, at + 1).map(str::to_owned));
                    at += 2;
                }
                _ => {
                    if depth == 0 {
                        source.items.extend(declared_at(&tokens, at).map(str::to_owned));
                    }
                    at = source.add_path(&tokens, at);
                }
            }
        }
        source
    }

    /// Adds the imports of the use tree at `at`, below `prefix`. Returns the index after it.
    fn add_imports(&mut self, tokens: &[Placed], mut at: usize, prefix: Path) -> usize {
        let mut path = prefix;
        while at < tokens.len() {
            match &tokens[at].0 {
                Token::Word(name) => {
                    path.push(name.clone());
                    at += 1;
                    if tokens.get(at).is_some_and(|(token, _)| *token == Token::Separator) {
                        continue;
                    }
                    let line = tokens[at - 1].1;
                    // `a::{self}` is `a`.
                    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
                        path.pop();
                    }
                    let renamed = if word_at(tokens, at) == Some("as") { word_at(tokens, at + 1) } else { None };
                    at += if renamed.is_some() { 2 } else { 0 };
                    let name = renamed.unwrap_or(&path[path.len() - 1]).to_owned();
                    self.imports.push(Import { path, name, is_public: false, line });
                    return at;
                }
                Token::Mark('*') => {
                    self.imports.push(Import { path, name: GLOB.to_owned(), is_public: false, line: tokens[at].1 });
                    return at + 1;
                }
                Token::Mark('{') => {
                    at += 1;
                    while at < tokens.len() && !is_mark(tokens, at, '}') {
                        at = if is_mark(tokens, at, ',') { at + 1 } else { self.add_imports(tokens, at, path.clone()) };
                    }
                    return at + 1;
                }
                Token::Separator => at += 1,
                Token::Mark(_) | Token::Literal => return at + 1,
            }
        }
        at
    }

    /// Adds the path that begins at `at`. Returns the index after it.
    fn add_path(&mut self, tokens: &[Placed], first: usize) -> usize {
        let goes_on = first > 0 && (tokens[first - 1].0 == Token::Separator || is_mark(tokens, first - 1, '.'));
        let mut names = Path::new();
        let mut at = first;
        while let Some(name) = word_at(tokens, at) {
            names.push(name.to_owned());
            at += 1;
            if tokens.get(at).is_none_or(|(token, _)| *token != Token::Separator) || word_at(tokens, at + 1).is_none() {
                break;
            }
            at += 1;
        }
        self.words.extend(names.iter().cloned());
        if names.len() > 1 && !goes_on {
            self.paths.push((names, tokens[first].1));
        }
        at
    }
}

/// The name of the item that is declared at `at`.
fn declared_at(tokens: &[Placed], at: usize) -> Option<&str> {
    match word_at(tokens, at)? {
        "macro_rules" => word_at(tokens, at + 2),
        // A module with a file of its own is a child.
        "mod" => word_at(tokens, at + 1),
        word if ITEMS.contains(&word) => word_at(tokens, at + 1),
        _ => None,
    }
}

fn word_at(tokens: &[Placed], at: usize) -> Option<&str> {
    match &tokens.get(at)?.0 {
        Token::Word(word) => Some(word),
        Token::Separator | Token::Mark(_) | Token::Literal => None,
    }
}

fn is_mark(tokens: &[Placed], at: usize, mark: char) -> bool {
    tokens.get(at).is_some_and(|(token, _)| *token == Token::Mark(mark))
}
