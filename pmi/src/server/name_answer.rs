//! Answers to PMI-2 commands about names.

use crate::message::{Answer, Code};
use crate::names::Answered;
use crate::wire::NameRefused;

/// The answer to a command about a name. For a lookup, MPICH's client reads `port`, Slurm's reads
/// `value`.
pub(super) fn answer_of_name(name: &[u8], thread: Option<&[u8]>, answered: Answered) -> Answer {
    match answered {
        Answered::Done => Answer::done(name, thread),
        Answered::Found(port) => Answer::done(name, thread).with("port", &port).with("value", &port),
        Answered::Refused(why) => {
            let (code, why) = of_name(why);
            Answer::refused(name, thread, code, why)
        }
    }
}

fn of_name(why: NameRefused) -> (Code, &'static str) {
    let code = match why {
        NameRefused::Unserved | NameRefused::Published | NameRefused::NotPublished => Code::Other,
        NameRefused::BadLength | NameRefused::HasBlank => Code::InvalidArgument,
        NameRefused::Full => Code::NoMemory,
    };
    (code, why.message())
}
