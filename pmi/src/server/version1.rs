//! Handling of PMI-1 lines from ranks.

use super::{ABORT_CODE, Action, Asked, Asker, Gathering, Phase, Server, Version, send};
use crate::names::Ask;
use crate::wire::{self, Command, Excerpt, Key, KeyRefused, MAPPING_BYTES_MAX, Reply};

impl Server {
    pub(super) fn line(&mut self, local: u32, line: &[u8], out: &mut Vec<Action>) {
        if let Phase::Spawning { total, so_far } = self.session(local).phase {
            return self.spawn_line(local, line, total, so_far, out);
        }
        match wire::parse(line) {
            Ok(command) => self.command(local, command, out),
            Err(garbage) => self.abort_for(local, ABORT_CODE, &garbage.to_string(), out),
        }
    }

    fn command(&mut self, local: u32, command: Command<'_>, out: &mut Vec<Action>) {
        if let Command::Abort { code, message } = command {
            let detail = message.map(|text| format!(": {}", Excerpt(text))).unwrap_or_default();
            return self.abort_for(local, code, &format!("aborted the launch with code {code}{detail}"), out);
        }
        match (&self.session(local).phase, command) {
            (Phase::Fresh, Command::InitAck { rank }) => self.init_ack(local, rank, out),
            (Phase::Fresh, Command::Init { version, subversion }) => self.init(local, version, subversion, out),
            (Phase::Fresh, _) => self.abort_for(local, ABORT_CODE, "sent a PMI command before init", out),
            (Phase::Left(_) | Phase::Aborting { .. }, _) => {
                self.abort_for(local, ABORT_CODE, "ended between MPI_Init and MPI_Finalize", out);
            }
            (Phase::Joined | Phase::Spawning { .. }, command) => self.joined(local, command, out),
            (Phase::Naming, _) => self.abort_for(local, ABORT_CODE, "sent a PMI command while it waited for the answer about a name", out),
            (Phase::Fenced(_), _) => self.abort_for(local, ABORT_CODE, "sent a PMI command while it waited in a fence", out),
            (Phase::Finalized, _) => self.abort_for(local, ABORT_CODE, "sent a PMI command after finalize", out),
        }
    }

    /// The first command of clients that connect by port and know their number.
    fn init_ack(&mut self, local: u32, claimed_rank: Option<u32>, out: &mut Vec<Action>) {
        let rank = self.rank(local);
        if claimed_rank.is_none_or(|claimed_rank| u64::from(claimed_rank) != rank) {
            return self.abort_for(local, ABORT_CODE, "sent initack with the number of another rank: do not set PMI_ID", out);
        }
        send(local, Reply::InitAck { size: self.job.size, rank }, out);
    }

    fn init(&mut self, local: u32, version: u32, subversion: u32, out: &mut Vec<Action>) {
        let spoken = match version {
            1 => Version::One,
            2 => Version::Two,
            _ => {
                send(local, Reply::Init { version: 1, subversion: 1, rc: -1 }, out);
                return self.abort_for(local, ABORT_CODE, &format!("requests PMI version {version}; this server supports 1 and 2"), out);
            }
        };
        let session = self.session(local);
        (session.phase, session.version) = (Phase::Joined, spoken);
        let subversion = if spoken == Version::One { 1 } else { subversion };
        send(local, Reply::Init { version, subversion, rc: 0 }, out);
    }

    fn joined(&mut self, local: u32, command: Command<'_>, out: &mut Vec<Action>) {
        match command {
            Command::Init { .. } | Command::InitAck { .. } => self.abort_for(local, ABORT_CODE, "sent init twice", out),
            Command::GetMaxes => send(local, Reply::Maxes, out),
            Command::GetAppnum => send(local, Reply::Appnum(self.job.appnum(local)), out),
            Command::GetMyKvsname => send(local, Reply::MyKvsname(&self.job.kvsname), out),
            Command::GetUniverseSize => send(local, Reply::UniverseSize(self.job.size), out),
            Command::Put { pair, value } => {
                let result = self.put(pair, value);
                send(local, Reply::Put(result), out);
            }
            Command::Get { pair } => {
                let reply = match self.get(pair, MAPPING_BYTES_MAX) {
                    Ok(value) if has_newline(value) => Reply::NotGot { key: pair.key, why: KeyRefused::NotALine },
                    Ok(value) => Reply::Got(value),
                    Err(why) => Reply::NotGot { key: pair.key, why },
                };
                send(local, reply, out);
            }
            Command::GetByIndex { kvsname, index } => self.get_by_index(local, kvsname, index, out),
            Command::GetRanksToHosts => {
                let (hosts, text) = self.hosts();
                send(local, Reply::RanksToHosts { hosts, text }, out);
            }
            Command::Publish { name, port } => {
                self.line_of_name(local, Asked::Publish, Ask::Publish { name: name.to_vec(), value: port.to_vec() }, out);
            }
            Command::Unpublish { name } => self.line_of_name(local, Asked::Unpublish, Ask::Unpublish { name: name.to_vec() }, out),
            Command::Lookup { name } => self.line_of_name(local, Asked::Lookup, Ask::Lookup { name: name.to_vec() }, out),
            Command::Refused(reply) => send(local, reply, out),
            Command::SpawnBegin => self.session(local).phase = Phase::Spawning { total: 1, so_far: 1 },
            Command::BarrierIn => self.enter_fence(local, Gathering::Barrier, out),
            Command::Finalize => {
                send(local, Reply::FinalizeAck, out);
                self.finalized(local, out);
            }
            Command::Abort { .. } => unreachable!("answered in every phase alike"),
        }
    }

    /// A PMI-1 client has one request at a time: it sends nothing before it has the answer.
    fn line_of_name(&mut self, local: u32, how: Asked, ask: Ask, out: &mut Vec<Action>) {
        self.session(local).phase = Phase::Naming;
        self.ask_name(Asker { local, how }, ask, out);
    }

    /// A client that iterates over all pairs asks for consecutive numbers, so the next pair is
    /// found without a search.
    fn get_by_index(&mut self, local: u32, kvsname: Option<&[u8]>, index: Option<usize>, out: &mut Vec<Action>) {
        let known = self.known_key(Key { kvsname, key: b"any" });
        let (Ok(()), Some(index)) = (known, index) else {
            return send(local, Reply::NotByIndex(known.err().map_or("no_index", |why| why.message())), out);
        };
        let pair = match &self.ranks[local as usize].by_index {
            Some((next, last)) if *next == index => self.kvs.after(last),
            _ => self.kvs.nth(index),
        };
        let Some((key, value)) = pair else { return send(local, Reply::NotByIndex("no_more_keyvals"), out) };
        if has_newline(key) || has_newline(value) {
            return send(local, Reply::NotByIndex(KeyRefused::NotALine.message()), out);
        }
        let next = index.saturating_add(1);
        send(local, Reply::ByIndex { next, key, value }, out);
        let last = key.into();
        self.session(local).by_index = Some((next, last));
    }

    /// Reads a spawn command to its end and refuses it; its arguments are ignored.
    fn spawn_line(&mut self, local: u32, line: &[u8], total: u32, so_far: u32, out: &mut Vec<Action>) {
        let value_of = |name: &[u8]| line.strip_prefix(name).and_then(wire::number);
        let total = value_of(b"totspawns=").unwrap_or(total);
        let so_far = value_of(b"spawnssofar=").unwrap_or(so_far);
        let ended = line == b"endcmd";
        self.session(local).phase = if ended { Phase::Joined } else { Phase::Spawning { total, so_far } };
        if ended && so_far >= total {
            send(local, Reply::NoSpawn, out);
        }
    }
}

/// Whether the text contains a byte that cannot occur in a line's value.
fn has_newline(text: &[u8]) -> bool {
    text.contains(&b'\n')
}
