//! PMI-1 lines: what a rank says and how it is answered.
//!
//! `cmd=name key=value key=value…` and a newline; no blanks in a value. Only spawning takes several lines, from
//! `mcmd=spawn` to `endcmd`. Bytes are not text: a value may hold any byte but a blank and a newline.

use std::fmt;
use thiserror::Error;

/// The longest line from a rank, in bytes, without its newline. MPICH's longest is 1023.
pub const LINE_BYTES_MAX: usize = 8192;
/// `kvsname_max`, in bytes.
pub const KVSNAME_BYTES_MAX: usize = 256;
/// `keylen_max`, in bytes.
pub const KEY_BYTES_MAX: usize = 64;
/// `vallen_max`, in bytes.
pub const VALUE_BYTES_MAX: usize = 1024;
/// The longest `PMI_process_mapping` that is handed out: MPICH reads a line into 1024 bytes, and must have room for
/// `cmd=get_result rc=0 value=`, newline and NUL. A longer one is *not found*; MPICH then compares host names.
pub const MAPPING_BYTES_MAX: usize = 996;

/// The key under which a rank asks which ranks share a node.
pub(crate) const MAPPING_KEY: &[u8] = b"PMI_process_mapping";

/// What a rank says in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Init { version: u32, subversion: u32 },
    GetMaxes,
    GetAppnum,
    GetMyKvsname,
    GetUniverseSize,
    Put { pair: Key<'a>, value: &'a [u8] },
    Get { pair: Key<'a> },
    GetByIndex,
    BarrierIn,
    Finalize,
    Abort { code: i32, message: Option<&'a [u8]> },
    Name(NameCommand),
    SpawnBegin,
}

/// Commands of the name service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameCommand {
    Publish,
    Unpublish,
    Lookup,
}

/// A key, and the space that it is said to be in (`None`: the launch's own).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<'a> {
    pub kvsname: Option<&'a [u8]>,
    /// Empty where none was sent.
    pub key: &'a [u8],
}

/// A line that is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Garbage<'a> {
    #[error("sent what is not PMI: {}", Excerpt(.0))]
    NotPmi(&'a [u8]),
    #[error("sent the PMI command {}, which this server does not know", Excerpt(.0))]
    UnknownCommand(&'a [u8]),
    #[error("connects by port (PMI_PORT), which is not offered here: it must inherit the socket of PMI_FD")]
    ByPort,
}

/// Bytes from a rank made fit to be read by a person: escaped and cut.
pub(crate) struct Excerpt<'a>(pub &'a [u8]);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        let cut = &self.0[..self.0.len().min(SHOWN)];
        let dots = if cut.len() < self.0.len() { "…" } else { "" };
        write!(f, "\"{}{dots}\"", cut.escape_ascii())
    }
}

/// The `key=value` words of a line, or `None` where one is not of that form.
fn words(line: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).map(|word| {
        let equals = word.iter().position(|byte| *byte == b'=')?;
        (equals > 0).then(|| (&word[..equals], &word[equals + 1..]))
    })
}

/// A decimal number, as the value of a word.
pub(crate) fn number<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Reads one line, without its newline.
pub(crate) fn parse(line: &[u8]) -> Result<Command<'_>, Garbage<'_>> {
    let garbage = Garbage::NotPmi(line);
    let (first, name) = words(line).next().flatten().ok_or(garbage)?;
    if words(line).any(|word| word.is_none()) {
        return Err(garbage);
    }
    let value = |wanted: &[u8]| words(line).flatten().find(|(key, _)| *key == wanted).map(|(_, value)| value);
    let pair = || Key { kvsname: value(b"kvsname"), key: value(b"key").unwrap_or_default() };
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
        b"getbyidx" => Command::GetByIndex,
        b"barrier_in" => Command::BarrierIn,
        b"finalize" => Command::Finalize,
        b"abort" => Command::Abort { code: value(b"exitcode").and_then(number).unwrap_or(1), message: value(b"message") },
        b"publish_name" => Command::Name(NameCommand::Publish),
        b"unpublish_name" => Command::Name(NameCommand::Unpublish),
        b"lookup_name" => Command::Name(NameCommand::Lookup),
        b"initack" => return Err(Garbage::ByPort),
        _ => return Err(Garbage::UnknownCommand(name)),
    })
}

/// An answer to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    Init { version: u32, subversion: u32, rc: i32 },
    Maxes,
    Appnum,
    MyKvsname(&'a str),
    UniverseSize(u32),
    Put(Result<(), KeyRefused>),
    Got(&'a [u8]),
    NotGot { key: &'a [u8], why: KeyRefused },
    NoIndex,
    BarrierOut,
    FinalizeAck,
    NoName(NameCommand),
    NoSpawn,
}

/// Why a put or a get is answered with rc=-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRefused {
    NotFound,
    UnknownKvsname,
    BadKeyLength,
    ValueTooLong,
    Reserved,
    Full,
}

impl KeyRefused {
    /// For `msg=`: without blanks.
    fn message(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::UnknownKvsname => "unknown_kvsname",
            Self::BadKeyLength => "key_missing_or_longer_than_keylen_max",
            Self::ValueTooLong => "value_longer_than_vallen_max",
            Self::Reserved => "key_is_reserved",
            Self::Full => "key_value_space_is_full",
        }
    }
}

impl Reply<'_> {
    /// The line with its newline. Values that were put fit MPICH's line buffer coming back, because nothing is said
    /// around them that was not longer in the put: hence no `msg=success`.
    pub(crate) fn line(&self) -> Vec<u8> {
        let text = match *self {
            Self::Init { version, subversion, rc } => {
                format!("cmd=response_to_init pmi_version={version} pmi_subversion={subversion} rc={rc}")
            }
            Self::Maxes => {
                format!("cmd=maxes rc=0 kvsname_max={KVSNAME_BYTES_MAX} keylen_max={KEY_BYTES_MAX} vallen_max={VALUE_BYTES_MAX}")
            }
            Self::Appnum => "cmd=appnum rc=0 appnum=0".to_owned(),
            Self::MyKvsname(name) => format!("cmd=my_kvsname rc=0 kvsname={name}"),
            Self::UniverseSize(size) => format!("cmd=universe_size rc=0 size={size}"),
            Self::Put(Ok(())) => "cmd=put_result rc=0".to_owned(),
            Self::Put(Err(why)) => format!("cmd=put_result rc=-1 msg={}", why.message()),
            Self::Got(value) => return [b"cmd=get_result rc=0 value=", value, b"\n"].concat(),
            Self::NotGot { key, why: KeyRefused::NotFound } => {
                return [b"cmd=get_result rc=-1 msg=key_", key, b"_not_found value=unknown\n"].concat();
            }
            Self::NotGot { why, .. } => format!("cmd=get_result rc=-1 msg={} value=unknown", why.message()),
            Self::NoIndex => "cmd=getbyidx_results rc=-1 reason=getbyidx_is_not_offered".to_owned(),
            Self::BarrierOut => "cmd=barrier_out rc=0".to_owned(),
            Self::FinalizeAck => "cmd=finalize_ack rc=0".to_owned(),
            // MPICH's client looks at `info`, not at `rc`, and prints it.
            Self::NoName(NameCommand::Publish) => no_name("publish_result"),
            Self::NoName(NameCommand::Unpublish) => no_name("unpublish_result"),
            Self::NoName(NameCommand::Lookup) => no_name("lookup_result"),
            Self::NoSpawn => "cmd=spawn_result rc=-1 msg=spawn_is_not_offered_yet".to_owned(),
        };
        (text + "\n").into_bytes()
    }
}

fn no_name(reply: &str) -> String {
    format!("cmd={reply} rc=-1 info=not_offered_yet msg=name_service_is_not_offered_yet")
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
        assert_eq!(parse(b"mcmd=spawn"), Ok(Command::SpawnBegin));
    }

    #[test]
    fn refuses_what_is_no_command() {
        for line in
            [&b""[..], b" ", b"GET / HTTP/1.1", b"=", b"cmd", b"x=1 cmd=init", b"cmd=get key", b"cmd=init", b"mcmd=other", b"\xff\0"]
        {
            assert_eq!(parse(line), Err(Garbage::NotPmi(line)), "{}", line.escape_ascii());
        }
        assert_eq!(parse(b"cmd=dance"), Err(Garbage::UnknownCommand(b"dance")));
        assert_eq!(parse(b"cmd=initack pmiid=1"), Err(Garbage::ByPort));
    }

    #[test]
    fn a_reply_has_room_for_the_longest_mapping() {
        const MPICH_LINE_BYTES: usize = 1024;
        let line = Reply::Got(&[b'm'; MAPPING_BYTES_MAX]).line();
        assert_eq!(line.len() + 1, MPICH_LINE_BYTES, "and its NUL");
    }

    #[test]
    fn what_is_shown_is_printable_and_short() {
        assert_eq!(Garbage::NotPmi(b"\x1b[2J\n").to_string(), r#"sent what is not PMI: "\x1b[2J\n""#);
        assert_eq!(Excerpt(&[b'x'; 200]).to_string().chars().count(), 83);
    }
}
