//! `lattice-lab pmi-ring`: a ring of TCP connections between ranks that find each other over PMI-1, for machines
//! without an MPI and for tests that need a rank to misbehave. The protocol is in MPICH's `src/pmi/maint/pmi-1.txt`.
//!
//! Where its neighbour is gone it waits for ever, as ranks of an MPI program do: ending them is the launcher's duty.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest line that PMI-1 allows its client, in bytes.
const LINE_BYTES_MAX: usize = 1024;

/// What one rank does besides the ring.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Lines that every rank prints.
    #[arg(default_value_t = 80)]
    pub lines: u32,
    /// Milliseconds between two lines.
    #[arg(default_value_t = 100)]
    pub interval_ms: u64,
    /// A file that must begin with TEXT.
    #[arg(requires = "text")]
    pub file: Option<std::path::PathBuf>,
    /// How that file begins.
    pub text: Option<String>,
    /// The rank that misbehaves.
    #[arg(long, value_name = "RANK")]
    pub culprit: Option<u32>,
    /// How it does, after the line of --at-line.
    #[arg(long, value_enum, requires = "culprit", default_value_t = Deed::Exit)]
    pub deed: Deed,
    /// After which line; 0: right after the connections are made.
    #[arg(long, default_value_t = 0)]
    pub at_line: u32,
    /// A PMI fence of all ranks after every so many lines; 0: none.
    #[arg(long, default_value_t = 0)]
    pub fence_every: u32,
}

/// Ways to misbehave after PMI init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Deed {
    /// Exits with 3, without finalize.
    Exit,
    /// Kills itself with SIGKILL.
    Kill,
    /// Says PMI abort with exit code 7.
    Abort,
    /// Sends bytes that are no PMI.
    Garbage,
    /// Exits with 0, without finalize.
    Leave,
    /// Goes on living, and comes to no fence any more.
    Stay,
}

/// Runs one rank.
pub fn run(options: &Options) -> Result<()> {
    let mut pmi = Pmi::connect()?;
    if let (Some(file), Some(text)) = (&options.file, &options.text) {
        let have = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        if !have.starts_with(text.as_str()) {
            bail!("{} does not begin with {text:?}", file.display());
        }
    }
    let mut ring = Ring::connect(&mut pmi)?;
    let node = std::env::var("LATTICE_NODE").unwrap_or_else(|_| "?".to_owned());
    misbehave(options, 0, &mut pmi)?;
    for line in 1..=options.lines {
        std::thread::sleep(Duration::from_millis(options.interval_ms));
        let n = u64::from(pmi.size);
        let sum = ring.sum(u64::from(pmi.rank) + u64::from(line)).unwrap_or_else(|error| wait_for_the_end(&error));
        let expected = n * (n - 1) / 2 + n * u64::from(line);
        if sum != expected {
            bail!("rank {} line {line}: the sum is {sum}, expected {expected}", pmi.rank);
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "rank {} of {} line {line} on {node}", pmi.rank, pmi.size)?;
        out.flush()?;
        misbehave(options, line, &mut pmi)?;
        if options.fence_every > 0 && line % options.fence_every == 0 {
            pmi.put(&format!("line-{}-{line}", pmi.rank), "written")?;
            pmi.fence()?;
        }
    }
    pmi.finalize()
}

fn wait_for_the_end(error: &anyhow::Error) -> ! {
    eprintln!("a neighbour is gone ({error:#}); waiting to be brought down");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn misbehave(options: &Options, line: u32, pmi: &mut Pmi) -> Result<()> {
    if options.culprit != Some(pmi.rank) || options.at_line != line {
        return Ok(());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis());
    eprintln!("rank {} misbehaves at {now} ms", pmi.rank);
    match options.deed {
        Deed::Exit => std::process::exit(3),
        Deed::Leave => std::process::exit(0),
        Deed::Kill => nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).context("SIGKILL"),
        Deed::Stay => wait_for_the_end(&anyhow::anyhow!("it stays away from fences")),
        Deed::Abort => {
            pmi.say("cmd=abort exitcode=7")?;
            wait_for_the_end(&anyhow::anyhow!("abort was said"))
        }
        Deed::Garbage => {
            pmi.stream.get_mut().write_all(b"\xff\xfe\x00 this is no PMI \x01=\x02\n")?;
            wait_for_the_end(&anyhow::anyhow!("garbage was sent"))
        }
    }
}

/// One rank's connection to its PMI-1 server.
struct Pmi {
    stream: BufReader<UnixStream>,
    rank: u32,
    size: u32,
    kvs: String,
}

impl Pmi {
    fn connect() -> Result<Self> {
        let number = |name: &str| -> Result<u32> {
            let text =
                std::env::var(name).with_context(|| format!("{name} is not set: start this with `lattice launch` or `lattice submit`"))?;
            text.parse().with_context(|| format!("{name}={text} is no number"))
        };
        let (fd, rank, size) = (number("PMI_FD")?, number("PMI_RANK")?, number("PMI_SIZE")?);
        let fd = i32::try_from(fd)?;
        // SAFETY: F_GETFD only asks whether the descriptor is open.
        if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            bail!("PMI_FD={fd} is no open descriptor of its own");
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

    fn say(&mut self, line: &str) -> Result<()> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).context("the PMI server is gone")
    }

    fn ask(&mut self, line: &str, expected: &str) -> Result<String> {
        self.say(line)?;
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

    fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let line = format!("cmd=put kvsname={} key={key} value={value}", self.kvs);
        self.ask(&line, "put_result").map(drop)
    }

    fn get(&mut self, key: &str) -> Result<String> {
        let line = format!("cmd=get kvsname={} key={key}", self.kvs);
        let answer = self.ask(&line, "get_result")?;
        Ok(field(&answer, "value").with_context(|| format!("{key} has no value: {answer:?}"))?.to_owned())
    }

    fn fence(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    fn finalize(mut self) -> Result<()> {
        self.fence()?;
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }
}

/// One `key=value` of a line.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|pair| pair.split_once('=').filter(|(k, _)| *k == key).map(|(_, v)| v))
}

/// Connections to the neighbours; a single rank has none.
struct Ring {
    rank: u32,
    sides: Option<(TcpStream, TcpStream)>,
}

impl Ring {
    fn connect(pmi: &mut Pmi) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        pmi.put(&format!("ring-{}", pmi.rank), &listener.local_addr()?.to_string())?;
        pmi.fence()?;
        if pmi.size < 2 {
            return Ok(Self { rank: pmi.rank, sides: None });
        }
        let address = pmi.get(&format!("ring-{}", (pmi.rank + 1) % pmi.size))?;
        let next = TcpStream::connect(&address).with_context(|| format!("cannot reach the next rank at {address}"))?;
        let (previous, _) = listener.accept()?;
        next.set_nodelay(true)?;
        Ok(Self { rank: pmi.rank, sides: Some((previous, next)) })
    }

    /// The sum over all ranks: once around to add, once around to tell.
    fn sum(&mut self, mine: u64) -> Result<u64> {
        let Some((previous, next)) = &mut self.sides else { return Ok(mine) };
        let mut read = || -> Result<u64> {
            let mut bytes = [0; 8];
            previous.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        if self.rank == 0 {
            next.write_all(&mine.to_le_bytes())?;
            let total = read()?;
            next.write_all(&total.to_le_bytes())?;
            read()
        } else {
            let so_far = read()?;
            next.write_all(&(so_far + mine).to_le_bytes())?;
            let total = read()?;
            next.write_all(&total.to_le_bytes())?;
            Ok(total)
        }
    }
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
