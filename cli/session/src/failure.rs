//! Failures: what happened, what to do, and the exit code.

use crate::message::{harmless, write_message};
use lattice_api::client::ConnectError;
use lattice_cli_syntax::UsageError;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use tonic::{Code, Status};

/// Exit codes. Commands such as `launch` and `logs -f` return the program's own code, and 125 for a failure of Lattice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Any other failure.
    Other = 1,
    /// The command line, a directive or a value is wrong.
    Usage = 2,
    /// The allocation or node does not exist.
    NotFound = 3,
    /// The request was understood and refused.
    Refused = 4,
    /// No agent, no quorum, or no answer in time.
    Unavailable = 5,
    /// A failure of Lattice in a command that otherwise returns the program's code.
    BesideProgram = 125,
}

/// A shell's exit code for a program that ended because the reader of its output is gone.
pub const BROKEN_PIPE: u8 = 141;

/// Whether a retry may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It would fail again.
    No,
    /// The connection broke during a call: connect again.
    LostConnection,
    /// The user has too many open streams: one of them may end.
    StreamLimit,
    /// The agent does not accept the token: a login may get a new one.
    NewToken,
}

/// A command that did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// Reported on stderr.
    Reported {
        /// The exit code.
        exit: Exit,
        /// What happened, and to which object.
        what: String,
        /// What to do next.
        hint: Option<String>,
        /// Whether a retry may help.
        retry: Retry,
    },
    /// The reader of our output is gone (`| head`): the command ends without a message. A command that follows its own
    /// work first ends that work, and exits with [`BROKEN_PIPE`].
    ReaderGone,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self::Reported { exit, what: what.into(), hint: None, retry: Retry::No }
    }

    /// The command line is wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// Any other failure.
    pub fn other(what: impl Into<String>) -> Self {
        Self::new(Exit::Other, what)
    }

    /// Adds what to do next.
    pub fn hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Reported { exit, what, hint: _, retry } => Self::Reported { exit, what, hint: Some(text.into()), retry },
            Self::ReaderGone => Self::ReaderGone,
        }
    }

    /// The same failure, prefixed with its subject.
    pub fn about(self, what: &str) -> Self {
        match self {
            // A text that begins with the subject already is not prefixed.
            Self::Reported { exit, what: why, hint, retry } if why.starts_with(what) => Self::Reported { exit, what: why, hint, retry },
            Self::Reported { exit, what: why, hint, retry } => Self::Reported { exit, what: format!("{what}: {why}"), hint, retry },
            Self::ReaderGone => Self::ReaderGone,
        }
    }

    /// Whether the connection broke during a call.
    pub fn is_lost_connection(&self) -> bool {
        matches!(self, Self::Reported { retry: Retry::LostConnection, .. })
    }

    /// Whether it was refused because the user has too many streams open.
    pub fn is_stream_limit(&self) -> bool {
        matches!(self, Self::Reported { retry: Retry::StreamLimit, .. })
    }

    /// Whether the agent did not accept the token.
    pub fn is_refused_token(&self) -> bool {
        matches!(self, Self::Reported { retry: Retry::NewToken, .. })
    }

    /// The same failure for a command that otherwise returns a program's exit code.
    pub fn beside_a_program(self) -> Self {
        match self {
            // A wrong command line is detected before there is any program.
            Self::Reported { exit: Exit::Usage, .. } | Self::ReaderGone => self,
            Self::Reported { exit: _, what, hint, retry } => Self::Reported { exit: Exit::BesideProgram, what, hint, retry },
        }
    }

    /// Reports it on stderr, if there is something to report, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Reported { exit, .. } => {
                write_message(self.text());
                ExitCode::from(*exit as u8)
            }
            Self::ReaderGone => ExitCode::SUCCESS,
        }
    }

    /// The exit code alone.
    pub fn exit(&self) -> u8 {
        match self {
            Self::Reported { exit, .. } => *exit as u8,
            Self::ReaderGone => 0,
        }
    }

    /// What happened, on one line.
    pub fn what(&self) -> String {
        match self {
            Self::Reported { what, .. } => harmless(what).replace('\n', " "),
            Self::ReaderGone => String::new(),
        }
    }

    /// The lines for stderr.
    pub fn text(&self) -> String {
        match self {
            Self::Reported { what, hint: None, .. } => harmless(&format!("error: {what}\n")),
            Self::Reported { what, hint: Some(hint), .. } => harmless(&format!("error: {what}\nhint: {hint}\n")),
            Self::ReaderGone => String::new(),
        }
    }
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Self::Reported { exit: Exit::Usage, what: error.what, hint: error.hint, retry: Retry::No }
    }
}

impl From<Status> for Failure {
    /// A server's own hint follows its message on a line `hint: …`.
    fn from(status: Status) -> Self {
        // A status from the transport has a source; a status that a server sent has none.
        let lost = status.source().is_some();
        let exit = if lost { Exit::Unavailable } else { exit_of_status(status.code()) };
        let (what, hint) = match status.message().split_once("\nhint: ") {
            Some((what, hint)) => (what.to_owned(), Some(hint.to_owned())),
            // An empty message means that the agent does not know this call.
            None if status.code() == Code::Unimplemented && status.message().is_empty() => {
                (String::new(), Some("this agent has an older version: use another agent with --endpoint, or upgrade it".to_owned()))
            }
            None => (status.message().to_owned(), hint_for(status.code()).map(str::to_owned)),
        };
        if lost {
            let hint = Some("the agent may have stopped or be restarting: check with `lattice node status`".to_owned());
            let what = format!("the connection to the agent broke: {what}");
            return Self::Reported { exit, what, hint, retry: Retry::LostConnection };
        }
        let what = if what.is_empty() { format!("the agent refused: {:?}", status.code()) } else { what };
        let retry = match status.code() {
            Code::ResourceExhausted => Retry::StreamLimit,
            Code::Unauthenticated => Retry::NewToken,
            _ => Retry::No,
        };
        Self::Reported { exit, what, hint, retry }
    }
}

/// The exit code of a status that a server sent.
pub fn exit_of_status(code: Code) -> Exit {
    match code {
        Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
        Code::NotFound => Exit::NotFound,
        Code::FailedPrecondition
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Unimplemented => Exit::Refused,
        Code::Unavailable | Code::DeadlineExceeded => Exit::Unavailable,
        Code::Ok | Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => Exit::Other,
    }
}

fn hint_for(code: Code) -> Option<&'static str> {
    match code {
        Code::NotFound => Some("`lattice status` lists your allocations, `lattice nodes` the nodes"),
        Code::Unavailable => Some("`lattice node status` shows what this agent knows without the quorum"),
        Code::Unauthenticated => Some("`lattice login --server URL` gets a new token; a program needs a new LATTICE_TOKEN"),
        _ => None,
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let because = error.source().map(|source| innermost(source).to_string());
        let exit = match error {
            ConnectError::Endpoint { .. }
            | ConnectError::Authorities { .. }
            | ConnectError::OwnCertificate { .. }
            | ConnectError::NoAuthorities
            | ConnectError::Token => Exit::Usage,
            ConnectError::NoAgent { .. }
            | ConnectError::Denied { .. }
            | ConnectError::Transport { .. }
            | ConnectError::UnknownHost { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::Timeout { .. }
            | ConnectError::Untrusted { .. }
            | ConnectError::OtherName { .. }
            | ConnectError::NotValidNow { .. }
            | ConnectError::Handshake { .. }
            | ConnectError::Tls { .. } => Exit::Unavailable,
        };
        // The texts have the form "what\nhint: what to do", or "what: is ...?".
        let text = error.to_string();
        let (what, hint) = match (text.split_once("\nhint: "), text.split_once(": is ")) {
            (Some((what, hint)), _) => (what.to_owned(), Some(hint.to_owned())),
            (None, Some((what, question))) => (what.to_owned(), Some(format!("is {question}"))),
            (None, None) => (text, None),
        };
        let what = match because {
            Some(because) => format!("{what} ({because})"),
            None => what,
        };
        Self::Reported { exit, what, hint, retry: Retry::No }
    }
}

fn innermost<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

/// Errors of writing our output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::ReaderGone } else { Self::other(format!("cannot write the output: {error}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_give_the_documented_codes() {
        let exit = |code| Failure::from(Status::new(code, "x")).exit();
        for (want, codes) in [
            (2, vec![Code::InvalidArgument, Code::OutOfRange]),
            (3, vec![Code::NotFound]),
            (4, vec![Code::FailedPrecondition, Code::PermissionDenied, Code::AlreadyExists, Code::ResourceExhausted, Code::Unimplemented]),
            (5, vec![Code::Unavailable, Code::DeadlineExceeded]),
            (1, vec![Code::Internal, Code::Unknown, Code::DataLoss]),
        ] {
            for code in codes {
                assert_eq!(exit(code), want, "{code:?}");
            }
        }
    }

    #[test]
    fn a_servers_hint_has_its_own_line() {
        let failure = Failure::from(Status::failed_precondition("no\nhint: do that"));
        assert_eq!(failure.text(), "error: no\nhint: do that\n");
        assert_eq!(Failure::from(Status::permission_denied("no")).text(), "error: no\n");
    }

    #[test]
    fn failures_of_lattice_are_125_beside_a_program_and_a_wrong_command_line_stays_2() {
        assert_eq!(Failure::new(Exit::NotFound, "x").beside_a_program().exit(), 125);
        assert_eq!(Failure::usage("x").beside_a_program().exit(), 2);
    }

    #[test]
    fn a_usage_error_keeps_its_hint() {
        let error = UsageError { what: "-u: no".to_owned(), hint: Some("yes".to_owned()) };
        assert_eq!((Failure::from(error.clone()).exit(), Failure::from(error).text().as_str()), (2, "error: -u: no\nhint: yes\n"));
    }

    #[test]
    fn a_refused_token_has_a_remedy_and_may_be_replaced() {
        let failure = Failure::from(Status::unauthenticated("the token has expired"));
        assert!(failure.is_refused_token() && !failure.is_lost_connection());
        assert_eq!(failure.exit(), 4);
        assert!(failure.text().starts_with("error: the token has expired\nhint: `lattice login"), "{}", failure.text());
        assert!(!Failure::from(Status::permission_denied("no")).is_refused_token());
    }

    #[test]
    fn what_to_do_about_a_connection_has_its_own_line() {
        let text = |error: ConnectError| Failure::from(error).text();
        let source = || io::Error::other("UnknownIssuer");
        let untrusted = text(ConnectError::Untrusted { endpoint: "https://head:1".into(), source: source() });
        assert!(untrusted.starts_with("error: the certificate of https://head:1 is not trusted (UnknownIssuer)\nhint: name the file"));
        let no_agent = text(ConnectError::NoAgent { endpoint: "unix:/x".into(), source: source() });
        assert!(no_agent.starts_with("error: no agent answers at unix:/x (UnknownIssuer)\nhint: is lattice-agent"), "{no_agent}");
    }

    #[test]
    fn a_broken_transport_may_be_tried_again() {
        let broken = Status::from_error(Box::new(io::Error::other("reset")));
        let failure = Failure::from(broken);
        assert!(failure.is_lost_connection());
        assert_eq!(failure.exit(), 5);
        assert!(!Failure::from(Status::unavailable("no quorum")).is_lost_connection());
    }
}
