//! `lattice-lab pmi-fence`: ranks that only enter PMI fences, and report how long those take.
//!
//! ```text
//!   rank 0 puts a start time ─▶ fence ─▶ each rank puts its bytes, and sleeps until that time ─▶ the measured fence
//! ```
//!
//! All nodes share one clock, because they are namespaces of one machine.

use crate::pmi1::Pmi;
use anyhow::{Context, Result, bail, ensure};
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Time from rank 0's message to the common start. Within it, all ranks must get the message and sleep again.
const START_DELAY_NS: u64 = 400_000_000;
/// A pair shorter than this fits with its command into a PMI-1 line of 1023 bytes.
const PAIR_BYTES_MAX: usize = 1023 - 64;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of measured fences; one fence before them is not measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub fences: u32,
    /// Bytes that each rank contributes to each measured fence, including its key
    #[arg(long, default_value_t = 448, value_parser = clap::value_parser!(u32).range(16..=900))]
    pub bytes: u32,
}

/// The output of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankReport {
    /// The measured fences.
    pub fences: Vec<Fence>,
    /// By node: the traffic of its network from the first to the last measured fence, including other traffic.
    pub wire: BTreeMap<String, Wire>,
}

/// One fence.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fence {
    /// From rank 0's entry until its answer.
    pub first_ms: f64,
    /// From the common start until the last rank's answer.
    pub last_ms: f64,
}

/// Bytes on all of a node's interfaces except the loopback, including headers and acknowledgements.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Wire {
    pub received: u64,
    pub sent: u64,
}

impl Wire {
    /// The counts of this process's network since its creation.
    pub fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/self/net/dev").context("/proc/self/net/dev")?;
        Ok(Self::of(&text))
    }

    /// Puts the traffic of this node's network since `before`. One rank of each node calls it.
    pub fn put_since(before: Self, pmi: &mut Pmi) -> Result<()> {
        let node = std::env::var("LATTICE_NODE").context("LATTICE_NODE is not set")?;
        let now = Self::now()?;
        let (received, sent) = (now.received.saturating_sub(before.received), now.sent.saturating_sub(before.sent));
        pmi.put(&format!("wire-{}", pmi.rank), &format!("{node}:{received}:{sent}"))
    }

    /// The values of all ranks that called [`Self::put_since`], by node.
    pub fn of_all(pmi: &mut Pmi) -> Result<BTreeMap<String, Self>> {
        let values: Vec<String> = (0..pmi.size).filter_map(|rank| pmi.get(&format!("wire-{rank}")).ok()).collect();
        let one = |value: &String| -> Result<(String, Self)> {
            let [node, received, sent] = value.split(':').collect::<Vec<_>>()[..] else { bail!("{value:?} is not NODE:RECEIVED:SENT") };
            Ok((node.to_owned(), Self { received: received.parse()?, sent: sent.parse()? }))
        };
        values.iter().map(one).collect()
    }

    fn of(text: &str) -> Self {
        let mut wire = Self { received: 0, sent: 0 };
        for (name, counts) in text.lines().filter_map(|line| line.split_once(':')) {
            if name.trim() != "lo" {
                let mut counts = counts.split_ascii_whitespace().map(|count| count.parse().unwrap_or(0));
                wire.received += counts.next().unwrap_or(0);
                wire.sent += counts.nth(7).unwrap_or(0);
            }
        }
        wire
    }
}

/// When a rank entered a fence, and when it got the answer.
#[derive(Clone, Copy)]
struct Passage {
    entered_ns: u64,
    answered_ns: u64,
}

impl Passage {
    fn read(text: &str) -> Result<Self> {
        let (entered, answered) = text.split_once(':').with_context(|| format!("{text:?} is not ENTERED:ANSWERED"))?;
        Ok(Self { entered_ns: entered.parse()?, answered_ns: answered.parse()? })
    }
}

/// Runs one rank.
pub fn run(options: &Options) -> Result<()> {
    let mut pmi = Pmi::connect()?;
    let is_first_here = std::env::var("MPI_LOCALRANKID").is_ok_and(|local| local == "0");
    let (mut began_ns, mut each, mut before) = (Vec::new(), Vec::new(), None);
    for fence in 0..=options.fences {
        let key = format!("start-{fence}");
        if pmi.rank == 0 {
            pmi.put(&key, &(now_ns()? + START_DELAY_NS).to_string())?;
        }
        pmi.fence()?;
        let at_ns: u64 = pmi.get(&key)?.parse().context("rank 0's start time")?;
        let (key, bytes) = (format!("{fence:02}-{:07}", pmi.rank), options.bytes as usize);
        ensure!(key.len() < bytes && bytes < PAIR_BYTES_MAX, "--bytes {bytes} is not possible");
        pmi.put(&key, &noise(u64::from(pmi.rank) << 8 | u64::from(fence), bytes - key.len()))?;
        sleep_until(at_ns)?;
        // Fence 0 only opens the connections.
        if fence == 1 && is_first_here {
            before = Some(Wire::now()?);
        }
        let entered_ns = now_ns()?;
        pmi.fence()?;
        began_ns.push(at_ns);
        each.push(Passage { entered_ns, answered_ns: now_ns()? });
    }
    // After this fence, every rank has its answer to the last measured one.
    pmi.fence()?;
    let texts: Vec<String> = each.iter().map(|passage| format!("{}:{}", passage.entered_ns, passage.answered_ns)).collect();
    pmi.put(&format!("passages-{}", pmi.rank), &texts.join(","))?;
    if let Some(before) = before {
        Wire::put_since(before, &mut pmi)?;
    }
    pmi.fence()?;
    if pmi.rank == 0 {
        let report = read_report(&mut pmi, &began_ns)?;
        println!("{}", serde_json::to_string(&report)?);
    }
    pmi.finalize()
}

/// Rank 0's report, from the values that all ranks put.
fn read_report(pmi: &mut Pmi, began_ns: &[u64]) -> Result<RankReport> {
    let (mut first, mut last_ns) = (Vec::new(), vec![0; began_ns.len()]);
    for rank in 0..pmi.size {
        let text = pmi.get(&format!("passages-{rank}"))?;
        let passages: Vec<Passage> = text.split(',').map(Passage::read).collect::<Result<_>>()?;
        ensure!(passages.len() == began_ns.len(), "rank {rank} reports {} fences of {}", passages.len(), began_ns.len());
        for (last, passage) in last_ns.iter_mut().zip(&passages) {
            *last = passage.answered_ns.max(*last);
        }
        if rank == 0 {
            first = passages;
        }
    }
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let each = first.iter().zip(&last_ns).zip(began_ns);
    let fences =
        each.skip(1).map(|((first, last), began)| Fence { first_ms: ms(first.entered_ns, first.answered_ns), last_ms: ms(*began, *last) });
    Ok(RankReport { fences: fences.collect(), wire: Wire::of_all(pmi)? })
}

fn now_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?)
}

fn sleep_until(at_ns: u64) -> Result<()> {
    let at = std::time::Duration::from_nanos(at_ns).into();
    clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at)?;
    Ok(())
}

/// Random printable bytes. Compression saves less than a quarter of them, so a fence is sent uncompressed.
pub fn noise(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'!' + u8::try_from((state >> 32) % 94).unwrap_or(0))
    };
    (0..bytes).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_traffic_is_not_counted() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
                    lo:    1000      10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0\n  \
                    net0:  200       2    0    0    0     0          0         0      300       3    0    0    0     0       0          0\n";
        let wire = Wire::of(text);
        assert_eq!((wire.received, wire.sent), (200, 300));
    }

    #[test]
    fn noise_is_printable_and_differs_by_seed() {
        let (one, other) = (noise(1, 400), noise(2, 400));
        assert!(one != other && one.len() == 400 && one.chars().all(|c| c.is_ascii_graphic()), "{one}");
    }
}
