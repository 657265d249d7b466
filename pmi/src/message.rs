//! PMI-2 messages: framing, parsing and encoding.
//!
//! ```text
//!   message = length (6 characters: digits, blanks on either side) · cmd=name; · thrid=…; · key=value; …
//! ```
//!
//! The length counts the bytes after it. A `;` within a value is doubled. A client with several
//! threads sends `thrid` to match answers that arrive out of order: the answer repeats it
//! unchanged. Values are bytes, not text.

use crate::wire::Excerpt;
use thiserror::Error;

/// Largest size of a message from a rank, in bytes, without its length prefix; the clients' own
/// limit.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Number of characters of the length prefix.
pub(crate) const LENGTH_BYTES: usize = 6;
/// Largest size of `thrid`, in bytes: clients send a pointer.
const THREAD_BYTES_MAX: usize = 64;

/// Why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Garbage {
    #[error("sent an invalid length of a PMI-2 message: {}", Excerpt(.0))]
    NoLength([u8; LENGTH_BYTES]),
    #[error("sent a message of {0} bytes, and PMI-2 has at most {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    #[error("sent an invalid PMI-2 message: {}", Excerpt(.0))]
    NoMessage(Vec<u8>),
}

/// Parses a length prefix.
pub(crate) fn length(header: [u8; LENGTH_BYTES]) -> Result<usize, Garbage> {
    let digits = header.trim_ascii();
    let number = || std::str::from_utf8(digits).ok()?.parse().ok();
    match number().filter(|_| digits.iter().all(u8::is_ascii_digit)) {
        None => Err(Garbage::NoLength(header)),
        Some(length) if length > MESSAGE_BYTES_MAX => Err(Garbage::TooLong(length)),
        Some(length) => Ok(length),
    }
}

/// A message as received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// The command's name.
    pub name: Vec<u8>,
    pairs: Vec<(&'a [u8], Vec<u8>)>,
}

impl<'a> Message<'a> {
    /// Parses a message without its length prefix. An unterminated last pair is ignored: MPICH 4.0
    /// announces six bytes more than the message has, and sends six more bytes.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, Garbage> {
        let garbage = || Garbage::NoMessage(body.to_vec());
        let mut rest = body;
        let (_, name) = next_pair(&mut rest).filter(|(key, _)| *key == b"cmd").ok_or_else(garbage)?;
        let pairs: Vec<_> = std::iter::from_fn(|| next_pair(&mut rest)).collect();
        let message = Self { name, pairs };
        if message.name.is_empty() || message.thread().is_some_and(|thread| thread.len() > THREAD_BYTES_MAX) {
            return Err(garbage());
        }
        Ok(message)
    }

    /// The value of the first pair with this key.
    pub(crate) fn get(&self, wanted: &str) -> Option<&[u8]> {
        self.pairs.iter().find(|(key, _)| *key == wanted.as_bytes()).map(|(_, value)| &**value)
    }

    /// Whether the value of the first pair with this key is `TRUE`.
    pub(crate) fn is_true(&self, wanted: &str) -> bool {
        self.get(wanted) == Some(b"TRUE")
    }

    /// The `thrid` of the requesting thread, if the client sent one.
    pub(crate) fn thread(&self) -> Option<&[u8]> {
        self.get("thrid")
    }
}

/// Splits off the next terminated pair; `None`: there is none, and `rest` is unchanged.
fn next_pair<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Vec<u8>)> {
    let bytes = *rest;
    let equals = bytes.iter().position(|byte| *byte == b'=')?;
    let (key, mut at) = (&bytes[..equals], equals + 1);
    let mut value = Vec::new();
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (b';', Some(b';')) => {
                value.push(b';');
                at += 2;
            }
            (b';', _) => {
                *rest = &bytes[at + 1..];
                return Some((key, value));
            }
            (byte, _) => {
                value.push(*byte);
                at += 1;
            }
        }
    }
}

/// Codes for `rc`, from `pmi2.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    NoMemory = 2,
    InvalidArgument = 3,
    InvalidKey = 4,
    InvalidKeyLength = 5,
    InvalidValueLength = 7,
    Other = 14,
}

/// A builder for an answer.
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// The answer to a successful command.
    pub(crate) fn done(name: &[u8], thread: Option<&[u8]>) -> Self {
        Self::begun(name, thread).with("rc", b"0")
    }

    /// The answer to a refused command, with the reason for people.
    pub(crate) fn refused(name: &[u8], thread: Option<&[u8]>, code: Code, why: &str) -> Self {
        Self::begun(name, thread).with("rc", (code as u8).to_string().as_bytes()).with("errmsg", why.as_bytes())
    }

    fn begun(name: &[u8], thread: Option<&[u8]>) -> Self {
        let answer = Self(Vec::new()).with("cmd", &[name, b"-response"].concat());
        match thread {
            Some(thread) => answer.with("thrid", thread),
            None => answer,
        }
    }

    /// Adds a pair.
    pub(crate) fn with(mut self, key: &str, value: &[u8]) -> Self {
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b'=');
        for byte in value {
            self.0.extend(std::iter::repeat_n(*byte, if *byte == b';' { 2 } else { 1 }));
        }
        self.0.push(b';');
        self
    }

    /// The encoded message with its length prefix.
    pub(crate) fn bytes(self) -> Vec<u8> {
        [format!("{:<LENGTH_BYTES$}", self.0.len()).as_bytes(), &self.0].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_may_have_blanks_on_either_side() {
        assert_eq!(length(*b"123   "), Ok(123));
        assert_eq!(length(*b"   123"), Ok(123));
        assert_eq!(length(*b"000123"), Ok(123));
        assert_eq!(length(*b" 65536"), Ok(MESSAGE_BYTES_MAX));
        assert_eq!(length(*b" 65537"), Err(Garbage::TooLong(65537)));
        for header in [*b"      ", *b"cmd=in", *b"12 345", *b"  -123", *b"  +123", *b"12345\0"] {
            assert_eq!(length(header), Err(Garbage::NoLength(header)), "{}", header.escape_ascii());
        }
    }

    #[test]
    fn reads_what_clients_send() {
        let put = Message::parse(b"cmd=kvs-put;thrid=0x7f;key=a=b;value=x;;y;;;").unwrap();
        assert_eq!((&put.name[..], put.thread()), (&b"kvs-put"[..], Some(&b"0x7f"[..])));
        assert_eq!((put.get("key"), put.get("value"), put.get("other")), (Some(&b"a=b"[..]), Some(&b"x;y;"[..]), None));
    }

    #[test]
    fn an_unterminated_tail_is_ignored() {
        let message = Message::parse(b"cmd=kvs-fence;thrid=1;\0\xff=xyz").unwrap();
        assert_eq!((&message.name[..], message.pairs.len()), (&b"kvs-fence"[..], 1));
        for body in [&b""[..], b"cmd", b"cmd=", b"cmd=x", b"cmd=;", b"key=k;cmd=x;", b"=;"] {
            assert_eq!(Message::parse(body), Err(Garbage::NoMessage(body.to_vec())), "{}", body.escape_ascii());
        }
        let long = [b"cmd=x;thrid=", &[b'1'; 65][..], b";"].concat();
        assert!(Message::parse(&long).is_err(), "it would be kept and sent back");
    }

    #[test]
    fn answers_are_messages() {
        assert_eq!(Answer::done(b"finalize", None).bytes(), b"27    cmd=finalize-response;rc=0;".to_vec());
        let refused = Answer::refused(b"spawn", Some(b"7"), Code::Other, "no; never").bytes();
        assert_eq!(refused, b"51    cmd=spawn-response;thrid=7;rc=14;errmsg=no;; never;".to_vec());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in prop::collection::vec(any::<u8>(), 0..50), thread in prop::collection::vec(any::<u8>(), 0..9)) {
            let bytes = Answer::done(b"kvs-get", Some(&thread)).with("value", &value).bytes();
            let (header, body) = bytes.split_first_chunk().unwrap();
            prop_assert_eq!(length(*header), Ok(body.len()));
            let read = Message::parse(body).unwrap();
            prop_assert_eq!((&read.name[..], read.thread(), read.get("value")), (&b"kvs-get-response"[..], Some(&thread[..]), Some(&value[..])));
        }

        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..100), cmd in any::<bool>()) {
            let body = if cmd { [b"cmd=x;", &body[..]].concat() } else { body };
            if let Ok(message) = Message::parse(&body) {
                prop_assert!(message.pairs.len() <= body.len());
            }
        }
    }
}
