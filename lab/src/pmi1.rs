//! A rank's side of PMI-1. The protocol is in MPICH's `src/pmi/maint/pmi-1.txt`.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The longest line that PMI-1 allows its client, in bytes.
const LINE_BYTES_MAX: usize = 1024;

/// One rank's connection to its PMI-1 server.
pub struct Pmi {
    stream: BufReader<UnixStream>,
    /// Its number, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    kvs: String,
}

impl Pmi {
    /// Connects as the launcher's environment says.
    pub fn connect() -> Result<Self> {
        let number = |name: &str| -> Result<u32> {
            let text =
                std::env::var(name).with_context(|| format!("{name} is not set: start this with `lattice launch` or `lattice submit`"))?;
            text.parse().with_context(|| format!("{name}={text} is not a number"))
        };
        let (fd, rank, size) = (number("PMI_FD")?, number("PMI_RANK")?, number("PMI_SIZE")?);
        let fd = i32::try_from(fd)?;
        // SAFETY: F_GETFD only asks whether the descriptor is open.
        if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            bail!("PMI_FD={fd} is not an open descriptor of this process");
        }
        // SAFETY: the launcher handed this open descriptor to this process alone, and it is taken once, here.
        let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut pmi = Self { stream: BufReader::new(stream), rank, size, kvs: String::new() };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        pmi.ask("cmd=get_maxes", "maxes")?;
        let answer = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.kvs = field(&answer, "kvsname").context("get_my_kvsname was answered without a name")?.to_owned();
        Ok(pmi)
    }

    /// Writes the bytes unchanged.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(bytes).context("the PMI server is gone")
    }

    /// Sends a line that gets no answer.
    pub fn send(&mut self, line: &str) -> Result<()> {
        self.write(format!("{line}\n").as_bytes())
    }

    fn ask(&mut self, line: &str, expected: &str) -> Result<String> {
        self.send(line)?;
        let mut answer = String::new();
        let read = (&mut self.stream).take(LINE_BYTES_MAX as u64).read_line(&mut answer).context("the PMI server is gone")?;
        if read == 0 {
            bail!("the PMI server closed the connection after {line:?}");
        }
        let answer = answer.trim_end().to_owned();
        if field(&answer, "cmd") != Some(expected) {
            bail!("{line:?} was answered with {answer:?}, not {expected}");
        }
        match field(&answer, "rc") {
            None | Some("0") => Ok(answer),
            Some(rc) => bail!("{line:?} was answered with rc={rc}: {answer:?}"),
        }
    }

    /// Publishes a value for the others, from the next fence on.
    pub fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let line = format!("cmd=put kvsname={} key={key} value={value}", self.kvs);
        self.ask(&line, "put_result").map(drop)
    }

    /// A value that any rank put before the last fence.
    pub fn get(&mut self, key: &str) -> Result<String> {
        let line = format!("cmd=get kvsname={} key={key}", self.kvs);
        let answer = self.ask(&line, "get_result")?;
        Ok(field(&answer, "value").with_context(|| format!("{key} has no value: {answer:?}"))?.to_owned())
    }

    /// Waits for all ranks.
    pub fn fence(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    /// Ends the use of PMI, after a last fence.
    pub fn finalize(mut self) -> Result<()> {
        self.fence()?;
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }
}

/// The value of one `key=value` in a line.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|pair| pair.split_once('=').filter(|(k, _)| *k == key).map(|(_, v)| v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whole() {
        let line = "cmd=get_result rc=0 value=(vector,(0,2,2)) x=";
        assert_eq!(field(line, "value"), Some("(vector,(0,2,2))"));
        assert_eq!(field(line, "x"), Some(""));
        assert_eq!(field(line, "val"), None);
    }
}
