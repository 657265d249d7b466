//! Handling of PMI-2 messages from ranks (source: `pmi-2.0.txt` of MPICH, and what the clients of
//! MPICH and Slurm read).

use super::{ABORT_CODE, Action, Asked, Asker, Gathering, Phase, RING_PREFIX, Server, WAITS_MAX, Wait, answer};
use crate::message::{Answer, Code, Message};
use crate::names::Ask;
use crate::wire::{Excerpt, KEY_BYTES_MAX, Key, KeyRefused, MAPPING_KEY, VALUE_BYTES_MAX, number};

/// The error code and reason of a refused command.
type Refused = (Code, &'static str);

impl Server {
    pub(super) fn message(&mut self, local: u32, body: &[u8], out: &mut Vec<Action>) {
        let message = match Message::parse(body) {
            Ok(message) => message,
            Err(garbage) => return self.abort_for(local, ABORT_CODE, &garbage.to_string(), out),
        };
        if self.session(local).phase == Phase::Finalized {
            return self.abort_for(local, ABORT_CODE, "sent a PMI command after finalize", out);
        }
        let fenced = matches!(self.session(local).phase, Phase::Fenced(_));
        let thread = message.thread();
        let reply = match &message.name[..] {
            b"abort" => return self.handle_abort(local, &message, out),
            // Other threads of the rank may send further commands meanwhile.
            b"kvs-fence" | b"ring" | b"finalize" if fenced => {
                let why = format!("sent {} while it waited in a fence", Excerpt(&message.name));
                return self.abort_for(local, ABORT_CODE, &why, out);
            }
            b"kvs-fence" => {
                let gathering = Gathering::Fence { thread: thread.map(<[u8]>::to_vec) };
                return self.enter_fence(local, gathering, out);
            }
            b"ring" => match self.put_ring(local, &message) {
                Ok(()) => return self.enter_fence(local, Gathering::Ring { thread: thread.map(<[u8]>::to_vec) }, out),
                Err(refused) => Err(refused),
            },
            b"finalize" => {
                answer(local, Answer::done(b"finalize", thread), out);
                return self.finalized(local, out);
            }
            b"info-putnodeattr" => return self.put_attribute(local, &message, out),
            b"info-getnodeattr" => match self.get_attribute(local, &message) {
                Ok(None) => return,
                Ok(Some(found)) => Ok(found),
                Err(refused) => Err(refused),
            },
            name @ (b"name-publish" | b"name-unpublish" | b"name-lookup") => {
                let how = Asked::Message { name: name.to_vec(), thread: thread.map(<[u8]>::to_vec) };
                return self.ask_name(Asker { local, how }, ask_of(&message), out);
            }
            _ => self.reply(local, &message),
        };
        let reply = reply.unwrap_or_else(|(code, why)| Answer::refused(&message.name, thread, code, why));
        answer(local, reply, out);
    }

    /// The answer to a command that is answered immediately.
    fn reply(&mut self, local: u32, message: &Message<'_>) -> Result<Answer, Refused> {
        let done = || Answer::done(&message.name, message.thread());
        let get = |key: &str| message.get(key).unwrap_or_default();
        match &message.name[..] {
            b"fullinit" => self.full_init(local, message),
            b"job-getid" => Ok(done().with("jobid", self.job.kvsname.as_bytes())),
            b"info-getjobattr" => {
                let size = self.job.size.to_string();
                let value = match get("key") {
                    b"universeSize" => Some(size.as_bytes()),
                    MAPPING_KEY => self.mapping(VALUE_BYTES_MAX),
                    _ => None,
                };
                Ok(found(done(), value))
            }
            b"kvs-put" => {
                self.put(Key { kvsname: None, key: get("key") }, get("value")).map_err(of_key)?;
                Ok(done())
            }
            b"kvs-get" => {
                let jobid = message.get("jobid").filter(|jobid| !jobid.is_empty());
                match self.get(Key { kvsname: jobid, key: get("key") }, VALUE_BYTES_MAX) {
                    Ok(value) => Ok(found(done(), Some(value))),
                    Err(KeyRefused::NotFound) => Ok(found(done(), None)),
                    Err(why) => Err(of_key(why)),
                }
            }
            b"spawn" => Err((Code::Other, "spawn is not supported")),
            b"job-connect" | b"job-disconnect" => Err((Code::Other, "connections between launches are not supported")),
            _ => Err((Code::Other, "this server does not know the command")),
        }
    }

    fn full_init(&self, local: u32, message: &Message<'_>) -> Result<Answer, Refused> {
        let rank = self.rank(local);
        let claimed_rank = message.get("pmirank").or_else(|| message.get("srcid"));
        if claimed_rank.is_some_and(|claimed_rank| number(claimed_rank) != Some(rank)) {
            return Err((Code::InvalidArgument, "PMI_RANK or PMI_ID is that of another rank"));
        }
        let answer = Answer::done(b"fullinit", message.thread()).with("pmi-version", b"2").with("pmi-subversion", b"0");
        let answer = answer.with("rank", rank.to_string().as_bytes()).with("size", self.job.size.to_string().as_bytes());
        let answer = answer.with("appnum", self.job.appnum(local).to_string().as_bytes());
        Ok(answer.with("debugged", b"FALSE").with("pmiverbose", b"FALSE"))
    }

    /// The client ends after this command, with an exit code that only newer clients send in it.
    fn handle_abort(&mut self, local: u32, message: &Message<'_>, out: &mut Vec<Action>) {
        let text = message.get("msg").or_else(|| message.get("message")).filter(|text| !text.is_empty());
        let detail = text.map(|text| format!(": {}", Excerpt(text))).unwrap_or_default();
        if let Some(code) = message.get("exitcode").and_then(number) {
            return self.abort_for(local, code, &format!("aborted the launch with code {code}{detail}"), out);
        }
        self.session(local).phase = Phase::Aborting { detail };
        out.push(Action::LastCommand { local });
    }

    fn put_attribute(&mut self, local: u32, message: &Message<'_>, out: &mut Vec<Action>) {
        let key = message.get("key").unwrap_or_default();
        let value = message.get("value").unwrap_or_default();
        let checked = match (key.len(), value.len()) {
            (1..=KEY_BYTES_MAX, ..=VALUE_BYTES_MAX) => self.attributes.put(key, value).map_err(|_| KeyRefused::Full),
            (1..=KEY_BYTES_MAX, _) => Err(KeyRefused::ValueTooLong),
            _ => Err(KeyRefused::BadKeyLength),
        };
        let thread = message.thread();
        if let Err((code, why)) = checked.map_err(of_key) {
            return answer(local, Answer::refused(&message.name, thread, code, why), out);
        }
        answer(local, Answer::done(&message.name, thread), out);
        for (local, session) in (0u32..).zip(&mut self.ranks) {
            for wait in session.waits.extract_if(.., |wait| wait.key == key) {
                answer(local, found(Answer::done(b"info-getnodeattr", wait.thread.as_deref()), Some(value)), out);
            }
        }
    }

    /// `None`: the answer is sent when the attribute is put.
    fn get_attribute(&mut self, local: u32, message: &Message<'_>) -> Result<Option<Answer>, Refused> {
        let key = message.get("key").unwrap_or_default();
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(of_key(KeyRefused::BadKeyLength));
        }
        let value = self.attributes.get(key);
        if value.is_some() || !message.is_true("wait") {
            return Ok(Some(found(Answer::done(&message.name, message.thread()), value)));
        }
        let wait = Wait { key: key.to_vec(), thread: message.thread().map(<[u8]>::to_vec) };
        let waits = &mut self.session(local).waits;
        if waits.len() >= WAITS_MAX {
            return Err((Code::NoMemory, "too many threads wait for node attributes"));
        }
        waits.push(wait);
        Ok(None)
    }

    /// Clients send the same value for both neighbours.
    fn put_ring(&mut self, local: u32, message: &Message<'_>) -> Result<(), Refused> {
        let value = message.get("ring-left").unwrap_or_default();
        if value.len() > VALUE_BYTES_MAX {
            return Err(of_key(KeyRefused::ValueTooLong));
        }
        let key = ring_key(u64::from(self.fences) + 1, self.rank(local));
        self.put_known(&key, value).map_err(of_key)
    }

    /// The neighbours' values at the fence that has just completed. The error is the neighbour that
    /// came to another kind of fence.
    pub(super) fn ring_answer(&self, local: u32, thread: Option<&[u8]>) -> Result<Answer, u64> {
        let (rank, size) = (self.rank(local), u64::from(self.job.size));
        let value = |rank: u64| self.kvs.get(&ring_key(u64::from(self.fences), rank)).ok_or(rank);
        let (left, right) = (value((rank + size - 1) % size)?, value((rank + 1) % size)?);
        let answer = Answer::done(b"ring", thread).with("ring-count", rank.to_string().as_bytes());
        Ok(answer.with("ring-left", left).with("ring-right", right))
    }
}

/// The request in a command about a name.
fn ask_of(message: &Message<'_>) -> Ask {
    let get = |key: &str| message.get(key).unwrap_or_default().to_vec();
    match &message.name[..] {
        b"name-publish" => Ask::Publish { name: get("name"), value: get("port") },
        b"name-unpublish" => Ask::Unpublish { name: get("name") },
        _ => Ask::Lookup { name: get("name") },
    }
}

fn ring_key(fence: u64, rank: u64) -> Vec<u8> {
    [RING_PREFIX, format!("{fence} {rank}").as_bytes()].concat()
}

fn found(answer: Answer, value: Option<&[u8]>) -> Answer {
    match value {
        Some(value) => answer.with("found", b"TRUE").with("value", value),
        None => answer.with("found", b"FALSE"),
    }
}

fn of_key(why: KeyRefused) -> Refused {
    let code = match why {
        KeyRefused::NotFound | KeyRefused::Reserved => Code::InvalidKey,
        KeyRefused::UnknownKvsname => Code::InvalidArgument,
        KeyRefused::BadKeyLength => Code::InvalidKeyLength,
        KeyRefused::ValueTooLong => Code::InvalidValueLength,
        KeyRefused::Full | KeyRefused::NotALine => Code::NoMemory,
    };
    (code, why.message())
}
