//! Typed keys, from the bytes that a raw terminal sends. Crossterm is not used, because its reader spins for ever when
//! the terminal is gone.

/// A key that the screen knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// The most bytes of one sequence; longer input is not a sequence.
const SEQUENCE_BYTES_MAX: usize = 32;

/// Collects bytes until they are keys.
#[derive(Debug, Default)]
pub struct KeyParser {
    rest: Vec<u8>,
}

impl KeyParser {
    /// The keys in further bytes. A part of a key is kept for the next call; a lone escape is the key Escape, because a
    /// terminal sends a sequence at once.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut at = 0;
        while at < self.rest.len() {
            match next(&self.rest[at..]) {
                Next::Key(key, used) => {
                    keys.extend(key);
                    at += used;
                }
                Next::Incomplete => break,
            }
        }
        self.rest.drain(..at);
        keys
    }
}

enum Next {
    /// A key, or a sequence without a meaning, and its length in bytes.
    Key(Option<Key>, usize),
    Incomplete,
}

fn next(bytes: &[u8]) -> Next {
    match bytes {
        [0x1b] => Next::Key(Some(Key::Escape), 1),
        [0x1b, b'[' | b'O', rest @ ..] => sequence(rest),
        [0x1b, ..] => Next::Key(Some(Key::Escape), 1),
        [b'\r' | b'\n', ..] => Next::Key(Some(Key::Enter), 1),
        [b'\t', ..] => Next::Key(Some(Key::Tab), 1),
        [0x7f | 0x08, ..] => Next::Key(Some(Key::Backspace), 1),
        [0x03, ..] => Next::Key(Some(Key::Interrupt), 1),
        [0x1a, ..] => Next::Key(Some(Key::Suspend), 1),
        [0x0c, ..] => Next::Key(Some(Key::Redraw), 1),
        [control, ..] if *control < 0x20 => Next::Key(None, 1),
        _ => character(bytes),
    }
}

/// What follows `ESC [` or `ESC O`.
fn sequence(rest: &[u8]) -> Next {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        return if rest.len() < SEQUENCE_BYTES_MAX { Next::Incomplete } else { Next::Key(None, rest.len() + 2) };
    };
    // A modifier follows a semicolon: `ESC [ 1 ; 5 A` is Ctrl-Up.
    let number = rest[..end].split(|byte| *byte == b';').next().unwrap_or_default();
    let key = match (rest[end], number) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (b'Z', _) => Some(Key::BackTab),
        (b'M', _) => Some(Key::Enter),
        _ => None,
    };
    Next::Key(key, end + 3)
}

/// One character in UTF-8; a byte that begins none is left out.
fn character(bytes: &[u8]) -> Next {
    let first = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(first) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => std::str::from_utf8(&first[..error.valid_up_to()]).unwrap_or_default(),
        Err(error) if error.error_len().is_none() => return Next::Incomplete,
        Err(_) => return Next::Key(None, 1),
    };
    match valid.chars().next() {
        Some(c) => Next::Key((!c.is_control()).then_some(Key::Char(c)), c.len_utf8()),
        None => Next::Key(None, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_keys_whichever_way_they_are_cut() {
        let typed = "qé\r\t\x7f\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[Z\x1b[1;5A\x1b[99~\x03\x1a\x0cj".as_bytes();
        let want = [
            Key::Char('q'),
            Key::Char('é'),
            Key::Enter,
            Key::Tab,
            Key::Backspace,
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::BackTab,
            Key::Up,
            Key::Interrupt,
            Key::Suspend,
            Key::Redraw,
            Key::Char('j'),
        ];
        assert_eq!(KeyParser::default().feed(typed), want);
        // A cut directly after an escape makes it the key Escape.
        for cut in (1..typed.len()).filter(|cut| typed[cut - 1] != 0x1b) {
            let mut parser = KeyParser::default();
            let mut keys = parser.feed(&typed[..cut]);
            keys.extend(parser.feed(&typed[cut..]));
            assert_eq!(keys, want, "cut at {cut}");
        }
    }

    #[test]
    fn a_lone_escape_is_a_key_and_nonsense_is_none() {
        let keys = |bytes: &[u8]| KeyParser::default().feed(bytes);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1bj"), [Key::Escape, Key::Char('j')]);
        assert_eq!(keys(b"\xff\x00j"), [Key::Char('j')]);
        assert_eq!(keys(&[&b"\x1b["[..], &[b'1'; 40]].concat()), Vec::<Key>::new());
    }
}
