//! `lattice-lab pmi-ring`: a ring of TCP connections between ranks that find each other over PMI-1, for machines
//! without an MPI and for tests that need a rank to misbehave.
//!
//! A rank whose neighbour is gone waits for ever, as ranks of an MPI program do: the launcher must end it.

use crate::hub;
use crate::pmi1::Pmi;
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

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
    /// The text that the file must begin with.
    pub text: Option<String>,
    /// The rank that misbehaves.
    #[arg(long, value_name = "RANK")]
    pub culprit: Option<u32>,
    /// What it does after the line of --at-line.
    #[arg(long, value_enum, requires = "culprit", default_value_t = Deed::Exit)]
    pub deed: Deed,
    /// The line after which it does that; 0: as soon as the ring is connected.
    #[arg(long, default_value_t = 0)]
    pub at_line: u32,
    /// Number of lines between two PMI fences of all ranks; 0: no fences.
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
    /// Calls PMI abort with exit code 7.
    Abort,
    /// Sends bytes that are not PMI.
    Garbage,
    /// Exits with 0, without finalize.
    Leave,
    /// Continues to run, but joins no further fence.
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
    eprintln!("a neighbour is gone ({error:#}); waiting until the launcher ends this rank");
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
        Deed::Stay => wait_for_the_end(&anyhow::anyhow!("it joins no more fences")),
        Deed::Abort => {
            pmi.send("cmd=abort exitcode=7")?;
            wait_for_the_end(&anyhow::anyhow!("abort was sent"))
        }
        Deed::Garbage => {
            pmi.write(b"\xff\xfe\x00 this is no PMI \x01=\x02\n")?;
            wait_for_the_end(&anyhow::anyhow!("garbage was sent"))
        }
    }
}

/// Connections to the neighbours; a single rank has none.
struct Ring {
    rank: u32,
    sides: Option<(TcpStream, TcpStream)>,
}

impl Ring {
    fn connect(pmi: &mut Pmi) -> Result<Self> {
        let listener = TcpListener::bind((hub::own_address(), 0))?;
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

    /// The sum over all ranks: one round to add, one round to distribute the result.
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
