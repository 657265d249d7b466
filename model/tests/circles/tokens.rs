//! Rust source as the tokens that show which names it uses. Comments, lifetimes, attributes and
//! test-only items are left out.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Word(String),
    /// `::`
    Separator,
    Mark(char),
    /// A string, a character or a number.
    Literal,
}

/// A token and the number of its line.
pub type Placed = (Token, usize);

/// The tokens of `source` without attributes and tests.
pub fn shipped_tokens(source: &str) -> Vec<Placed> {
    let tokens = Lexer { rest: source, line: 1 }.tokens();
    let mut shipped = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !is_attribute(&tokens, at) {
            shipped.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = group_end(&tokens, at + 1);
        at = if is_of_tests(&tokens[at..end]) { item_end(&tokens, end) } else { end };
    }
    shipped
}

/// The index after the group whose opening bracket is at `at`.
fn group_end(tokens: &[Placed], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at].0 {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

fn is_attribute(tokens: &[Placed], at: usize) -> bool {
    is_mark(tokens, at, '#') && is_mark(tokens, at + 1, '[')
}

fn is_mark(tokens: &[Placed], at: usize, mark: char) -> bool {
    tokens.get(at).is_some_and(|(token, _)| *token == Token::Mark(mark))
}

/// Whether an attribute is `#[cfg(test)]`, or a `#[cfg(all(test, …))]`.
fn is_of_tests(attribute: &[Placed]) -> bool {
    let has = |word: &str| attribute.iter().any(|(token, _)| matches!(token, Token::Word(found) if found == word));
    has("cfg") && has("test") && !has("not") && !has("any")
}

/// The index after the item that begins at `at`: a block, a declaration, a field or a variant.
fn item_end(tokens: &[Placed], mut at: usize) -> usize {
    let mut is_import = false;
    while at < tokens.len() {
        match &tokens[at].0 {
            Token::Mark('#') if is_attribute(tokens, at) => at = group_end(tokens, at + 1),
            Token::Mark('{') if !is_import => return group_end(tokens, at),
            Token::Mark('(' | '[' | '{') => at = group_end(tokens, at),
            Token::Mark(';' | ',') => return at + 1,
            Token::Mark(')' | ']' | '}') => return at,
            Token::Word(word) if word == "use" => {
                is_import = true;
                at += 1;
            }
            _ => at += 1,
        }
    }
    at
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl Lexer<'_> {
    fn tokens(mut self) -> Vec<Placed> {
        let mut tokens = Vec::new();
        while let Some(first) = self.rest.chars().next() {
            let line = self.line;
            let skipped = skipped_length(self.rest);
            if skipped > 0 {
                self.advance(skipped);
                continue;
            }
            let (token, length) = if let Some(length) = string_length(self.rest).or_else(|| character_length(self.rest)) {
                (Token::Literal, length)
            } else if is_of_word(first) {
                let length = word_length(self.rest);
                (if first.is_ascii_digit() { Token::Literal } else { Token::Word(self.rest[..length].to_owned()) }, length)
            } else if self.rest.starts_with("::") {
                (Token::Separator, 2)
            } else {
                (Token::Mark(first), first.len_utf8())
            };
            self.advance(length);
            tokens.push((token, line));
        }
        tokens
    }

    fn advance(&mut self, length: usize) {
        self.line += self.rest[..length].matches('\n').count();
        self.rest = &self.rest[length..];
    }
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn word_length(rest: &str) -> usize {
    rest.find(|character| !is_of_word(character)).unwrap_or(rest.len())
}

/// The length of the leading white space, comment or lifetime.
fn skipped_length(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if rest.starts_with('\'') && character_length(rest).is_none() {
        return 1 + word_length(&rest[1..]);
    }
    rest.len() - rest.trim_start().len()
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_length(rest: &str) -> Option<usize> {
    let after_prefix = rest.trim_start_matches(['b', 'c']);
    if let Some(raw) = after_prefix.strip_prefix('r') {
        let body = raw.trim_start_matches('#');
        let close = format!("\"{}", "#".repeat(raw.len() - body.len()));
        if let Some(body) = body.strip_prefix('"') {
            return Some(rest.len() - body.len() + body.find(&close)? + close.len());
        }
    }
    let body = after_prefix.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = body.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some(rest.len() - body.len() + end + 1)
}

fn character_length(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('\'')?;
    let opened = rest.len() - body.len();
    if let Some(escape) = body.strip_prefix('\\') {
        let escaped = escape.chars().next()?.len_utf8();
        return Some(opened + 1 + escaped + escape[escaped..].find('\'')? + 1);
    }
    let first = body.chars().next()?.len_utf8();
    body[first..].starts_with('\'').then_some(opened + first + 1)
}
