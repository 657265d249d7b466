//! PMI-1 lines: commands from a rank, and the answers to it.
//!
//! `cmd=name key=value key=value…` and a newline. Only a spawn command has several lines, from
//! `mcmd=spawn` to `endcmd`. Values are bytes, not text: a value may contain any byte except a
//! blank and a newline. Only an abort's message, which is last, may contain blanks.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// Largest length of a line from a rank, in bytes, without its newline. MPICH's longest is 1023.
pub const LINE_BYTES_MAX: usize = 8192;
/// `kvsname_max`, in bytes.
pub const KVSNAME_BYTES_MAX: usize = 256;
/// `keylen_max`, in bytes.
pub const KEY_BYTES_MAX: usize = 64;
/// `vallen_max`, in bytes.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Longest `PMI_process_mapping` that is sent by PMI-1, in bytes: MPICH reads a line into 1024
/// bytes, which must also hold `cmd=get_result rc=0 value=`, newline and NUL. For a longer one the
/// answer is *not found*, and MPICH compares host names instead.
pub const MAPPING_BYTES_MAX: usize = 996;

/// The key with which a rank asks which ranks share a node.
pub(crate) const MAPPING_KEY: &[u8] = b"PMI_process_mapping";

/// A command in one line from a rank. `Refused` stands for one that only gets this answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    InitAck { rank: Option<u32> },
    Init { version: u32, subversion: u32 },
    GetMaxes,
    GetAppnum,
    GetMyKvsname,
    GetUniverseSize,
    Put { pair: Key<'a>, value: &'a [u8] },
    Get { pair: Key<'a> },
    GetByIndex { kvsname: Option<&'a [u8]>, index: Option<usize> },
    GetRanksToHosts,
    BarrierIn,
    Finalize,
    Abort { code: i32, message: Option<&'a [u8]> },
    Publish { name: &'a [u8], port: &'a [u8] },
    Unpublish { name: &'a [u8] },
    Lookup { name: &'a [u8] },
    Refused(Reply<'a>),
    SpawnBegin,
}

/// A key, and the name of the key-value space sent with it (`None`: the launch's own).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<'a> {
    pub kvsname: Option<&'a [u8]>,
    /// Empty if the line has no key.
    pub key: &'a [u8],
}

/// Why a line is not a valid command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Garbage<'a> {
    #[error("sent a line that is not PMI: {}", Excerpt(.0))]
    NotPmi(&'a [u8]),
    #[error("sent the PMI command {}, which this server does not know", Excerpt(.0))]
    UnknownCommand(&'a [u8]),
}

/// Formats bytes from a rank for people: escaped and shortened.
pub(crate) struct Excerpt<'a>(pub &'a [u8]);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES_MAX: usize = 80;
        let cut = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        let dots = if cut.len() < self.0.len() { "…" } else { "" };
        write!(f, "\"{}{dots}\"", cut.escape_ascii())
    }
}

/// The `key=value` words of a line; `None` for a word of another form.
fn words(line: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).map(|word| {
        let equals = word.iter().position(|byte| *byte == b'=')?;
        (equals > 0).then(|| (&word[..equals], &word[equals + 1..]))
    })
}

/// Parses a word's value as a decimal number.
pub(crate) fn number<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Parses one line without its newline.
pub(crate) fn parse(line: &[u8]) -> Result<Command<'_>, Garbage<'_>> {
    let garbage = Garbage::NotPmi(line);
    let (first, name) = words(line).next().flatten().ok_or(garbage)?;
    if (first, name) == (b"cmd", b"abort") {
        return Ok(abort(line));
    }
    if words(line).any(|word| word.is_none()) {
        return refused_name(first, name).map(Command::Refused).ok_or(garbage);
    }
    let value = |wanted: &[u8]| words(line).flatten().find(|(key, _)| *key == wanted).map(|(_, value)| value);
    let pair = || Key { kvsname: value(b"kvsname"), key: value(b"key").unwrap_or_default() };
    let name_of = || value(b"service").unwrap_or_default();
    match (first, name) {
        (b"mcmd", b"spawn") => return Ok(Command::SpawnBegin),
        (b"cmd", _) => {}
        _ => return Err(garbage),
    }
    Ok(match name {
        b"init" => Command::Init {
            version: value(b"pmi_version").and_then(number).ok_or(garbage)?,
            subversion: value(b"pmi_subversion").and_then(number).ok_or(garbage)?,
        },
        b"get_maxes" => Command::GetMaxes,
        b"get_appnum" => Command::GetAppnum,
        b"get_my_kvsname" => Command::GetMyKvsname,
        b"get_universe_size" => Command::GetUniverseSize,
        b"put" => Command::Put { pair: pair(), value: value(b"value").unwrap_or_default() },
        b"get" => Command::Get { pair: pair() },
        b"getbyidx" => Command::GetByIndex { kvsname: value(b"kvsname"), index: value(b"idx").and_then(number) },
        b"get_ranks2hosts" => Command::GetRanksToHosts,
        b"barrier_in" => Command::BarrierIn,
        b"finalize" => Command::Finalize,
        b"publish_name" => Command::Publish { name: name_of(), port: value(b"port").unwrap_or_default() },
        b"unpublish_name" => Command::Unpublish { name: name_of() },
        b"lookup_name" => Command::Lookup { name: name_of() },
        b"initack" => Command::InitAck { rank: value(b"pmiid").and_then(number) },
        _ => return Err(Garbage::UnknownCommand(name)),
    })
}

/// Reads an abort. MPICH sends its message last and unquoted, so the message is the rest of the
/// line, with its blanks.
fn abort(line: &[u8]) -> Command<'_> {
    const MESSAGE: &[u8] = b" message=";
    let begin = line.windows(MESSAGE.len()).position(|window| window == MESSAGE);
    let (leading, message) = begin.map_or((line, &[][..]), |at| (&line[..at], &line[at + MESSAGE.len()..]));
    let code = words(leading).flatten().find(|(key, _)| *key == b"exitcode").and_then(|(_, code)| number(code));
    Command::Abort { code: code.unwrap_or(1), message: Some(message).filter(|message| !message.is_empty()) }
}

/// The answer to a command about a name if a word of it has no `=`: MPICH does not quote names, so one with a blank
/// cannot be read.
fn refused_name(first: &[u8], name: &[u8]) -> Option<Reply<'static>> {
    let why = NameRefused::HasBlank;
    match (first, name) {
        (b"cmd", b"publish_name") => Some(Reply::Published(Err(why))),
        (b"cmd", b"unpublish_name") => Some(Reply::Unpublished(Err(why))),
        (b"cmd", b"lookup_name") => Some(Reply::LookedUp(Err(why))),
        _ => None,
    }
}

/// An answer to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    InitAck { size: u32, rank: u64 },
    Init { version: u32, subversion: u32, rc: i32 },
    Maxes,
    Appnum(u32),
    MyKvsname(&'a str),
    UniverseSize(u32),
    Put(Result<(), KeyRefused>),
    Got(&'a [u8]),
    NotGot { key: &'a [u8], why: KeyRefused },
    ByIndex { next: usize, key: &'a [u8], value: &'a [u8] },
    NotByIndex(&'static str),
    RanksToHosts { hosts: usize, text: &'a str },
    BarrierOut,
    FinalizeAck,
    Published(Result<(), NameRefused>),
    Unpublished(Result<(), NameRefused>),
    LookedUp(Result<&'a [u8], NameRefused>),
    NoSpawn,
}

/// Why a put or get is answered with rc=-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRefused {
    NotFound,
    UnknownKvsname,
    BadKeyLength,
    ValueTooLong,
    Reserved,
    Full,
    /// The value was put by PMI-2 and contains bytes that no PMI-1 line can carry.
    NotALine,
}

/// Why a name cannot be published, unpublished or looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NameRefused {
    /// The server of the launch's first node does not provide names, or its answer is invalid.
    Unserved,
    Published,
    NotPublished,
    BadLength,
    /// There are too many, or their values are too long for one answer.
    Full,
    /// Only for a PMI-1 line; not sent between nodes.
    HasBlank,
}

impl NameRefused {
    /// The message, without blanks.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Unserved => "names_are_not_served_by_the_first_node_of_the_launch",
            Self::Published => "name_is_published_already",
            Self::NotPublished => "name_is_not_published_in_this_launch",
            Self::BadLength => "name_or_port_missing_or_longer_than_vallen_max",
            Self::Full => "too_many_names",
            Self::HasBlank => "name_or_port_has_a_blank",
        }
    }
}

impl KeyRefused {
    /// The message, without blanks.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::UnknownKvsname => "unknown_kvsname",
            Self::BadKeyLength => "key_missing_or_longer_than_keylen_max",
            Self::ValueTooLong => "value_longer_than_vallen_max",
            Self::Reserved => "key_is_reserved",
            Self::Full => "key_value_space_is_full",
            Self::NotALine => "value_has_several_lines_and_cannot_be_sent_by_pmi_1",
        }
    }
}

impl Reply<'_> {
    /// The line with its newline. A value from a put must fit MPICH's line buffer on the way back,
    /// so the text around it is never longer than in the put: hence no `msg=success`.
    pub(crate) fn line(&self) -> Vec<u8> {
        let text = match *self {
            Self::InitAck { size, rank } => format!("cmd=initack rc=0\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0"),
            Self::Init { version, subversion, rc } => {
                format!("cmd=response_to_init pmi_version={version} pmi_subversion={subversion} rc={rc}")
            }
            Self::Maxes => {
                format!("cmd=maxes rc=0 kvsname_max={KVSNAME_BYTES_MAX} keylen_max={KEY_BYTES_MAX} vallen_max={VALUE_BYTES_MAX}")
            }
            Self::Appnum(number) => format!("cmd=appnum rc=0 appnum={number}"),
            Self::MyKvsname(name) => format!("cmd=my_kvsname rc=0 kvsname={name}"),
            Self::UniverseSize(size) => format!("cmd=universe_size rc=0 size={size}"),
            Self::Put(Ok(())) => "cmd=put_result rc=0".to_owned(),
            Self::Put(Err(why)) => format!("cmd=put_result rc=-1 msg={}", why.message()),
            Self::Got(value) => return [b"cmd=get_result rc=0 value=", value, b"\n"].concat(),
            Self::NotGot { key, why: KeyRefused::NotFound } => {
                return [b"cmd=get_result rc=-1 msg=key_", key, b"_not_found value=unknown\n"].concat();
            }
            Self::NotGot { why, .. } => format!("cmd=get_result rc=-1 msg={} value=unknown", why.message()),
            Self::ByIndex { next, key, value } => {
                let head = format!("cmd=getbyidx_results rc=0 nextidx={next} key=");
                return [head.as_bytes(), key, b" val=", value, b"\n"].concat();
            }
            Self::NotByIndex(why) => format!("cmd=getbyidx_results rc=-1 reason={why}"),
            // Its clients expect the line without `cmd=`. Their count includes the newline and one
            // more byte.
            Self::RanksToHosts { hosts, text } => format!("put_ranks2hosts {} {hosts}\n{text}", text.len() + 2),
            Self::BarrierOut => "cmd=barrier_out rc=0".to_owned(),
            Self::FinalizeAck => "cmd=finalize_ack rc=0".to_owned(),
            Self::Published(result) => name_result("publish_result", result),
            Self::Unpublished(result) => name_result("unpublish_result", result),
            Self::LookedUp(Ok(port)) => return [b"cmd=lookup_result rc=0 info=ok port=", port, b"\n"].concat(),
            Self::LookedUp(Err(why)) => name_result("lookup_result", Err(why)),
            Self::NoSpawn => "cmd=spawn_result rc=-1 msg=spawn_is_not_supported".to_owned(),
        };
        (text + "\n").into_bytes()
    }
}

/// MPICH's client of version 4.0 checks and prints `info` and ignores `rc`; newer ones check `rc`.
fn name_result(reply: &str, result: Result<(), NameRefused>) -> String {
    match result {
        Ok(()) => format!("cmd={reply} rc=0 info=ok"),
        Err(why) => format!("cmd={reply} rc=-1 info={0} msg={0}", why.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_mpich_sends() {
        assert_eq!(parse(b"cmd=init pmi_version=1 pmi_subversion=1"), Ok(Command::Init { version: 1, subversion: 1 }));
        let pair = Key { kvsname: Some(b"kvs"), key: b"P0" };
        assert_eq!(parse(b"cmd=put kvsname=kvs key=P0 value=a=b#c"), Ok(Command::Put { pair, value: b"a=b#c" }));
        assert_eq!(parse(b"cmd=put kvsname=kvs key=P0 value="), Ok(Command::Put { pair, value: b"" }));
        assert_eq!(parse(b"cmd=get  kvsname=kvs key=P0 "), Ok(Command::Get { pair }), "blanks may be many");
        assert_eq!(parse(b"cmd=abort exitcode=-3"), Ok(Command::Abort { code: -3, message: None }));
        assert_eq!(parse(b"cmd=abort"), Ok(Command::Abort { code: 1, message: None }));
        let message = Some(&b"application called MPI_Abort(MPI_COMM_WORLD, 7) - process 0"[..]);
        let line = b"cmd=abort exitcode=7 message=application called MPI_Abort(MPI_COMM_WORLD, 7) - process 0";
        assert_eq!(parse(line), Ok(Command::Abort { code: 7, message }));
        let message = Some(&b"a  message=b exitcode=9"[..]);
        assert_eq!(parse(b"cmd=abort exitcode=7 message=a  message=b exitcode=9"), Ok(Command::Abort { code: 7, message }));
        assert_eq!(parse(b"cmd=abort exitcode=7 message="), Ok(Command::Abort { code: 7, message: None }));
        assert_eq!(parse(b"mcmd=spawn"), Ok(Command::SpawnBegin));
        assert_eq!(parse(b"cmd=initack pmiid=1"), Ok(Command::InitAck { rank: Some(1) }));
    }

    #[test]
    fn refuses_what_is_no_command() {
        for line in
            [&b""[..], b" ", b"GET / HTTP/1.1", b"=", b"cmd", b"x=1 cmd=init", b"cmd=get key", b"cmd=init", b"mcmd=other", b"\xff\0"]
        {
            assert_eq!(parse(line), Err(Garbage::NotPmi(line)), "{}", line.escape_ascii());
        }
        assert_eq!(parse(b"cmd=dance"), Err(Garbage::UnknownCommand(b"dance")));
    }

    #[test]
    fn a_reply_has_room_for_the_longest_mapping() {
        const MPICH_LINE_BYTES: usize = 1024;
        let line = Reply::Got(&[b'm'; MAPPING_BYTES_MAX]).line();
        assert_eq!(line.len() + 1, MPICH_LINE_BYTES, "and its NUL");
    }

    #[test]
    fn what_is_shown_is_printable_and_short() {
        assert_eq!(Garbage::NotPmi(b"\x1b[2J\n").to_string(), r#"sent a line that is not PMI: "\x1b[2J\n""#);
        assert_eq!(Excerpt(&[b'x'; 200]).to_string().chars().count(), 83);
    }
}
