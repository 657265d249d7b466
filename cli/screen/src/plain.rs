//! Texts of others on the screen.

/// A text without control codes: colours of a terminal's text, and whatever a name of a user contains.
pub fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' if rest.clone().next() == Some('[') => {
                // A sequence ends with a letter.
                let _ = rest.by_ref().find(char::is_ascii_alphabetic);
            }
            '\n' => plain.push('\n'),
            c if c.is_control() => plain.push(' '),
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_codes_are_removed() {
        assert_eq!(plain("State:  \u{1b}[32mRunning\u{1b}[0m\nName:\ta\u{7}\u{1b}b"), "State:  Running\nName: a  b");
    }
}
