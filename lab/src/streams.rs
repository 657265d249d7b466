//! `lattice-lab pmi-streams`: the baseline for a fence. The bytes of a finished fence go down the same tree of nodes,
//! by the agents' own mesh and in frames of its protocol, between separate processes beside the agents; then each
//! confirms that all nodes below it have them.
//!
//! ```text
//!   rank 0 ── FenceDone ──▶ rank 1 ── FenceDone ──▶ rank 2      one rank on each node, with the node's own certificate
//!          ◀── Serving ────        ◀── Serving ────
//! ```
//!
//! A frame is forwarded once it has arrived completely, as agents do. Nothing is merged, decoded or delivered.

use crate::cluster::Cluster;
use crate::fences::{Wire, noise};
use crate::pmi1::Pmi;
use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use lattice_mesh::branch::{Down, Up};
use lattice_mesh::frame::{self, Frame};
use lattice_mesh::{Incoming, Mesh};
use lattice_pki::credentials::Credentials;
use lattice_pki::tls::TlsFiles;
use lattice_pmi::{Subtree, fanout_for};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// What is sent.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The cluster's folder
    #[arg(long)]
    pub dir: PathBuf,
    /// Times that are measured, after one that is not
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub times: u32,
    /// Bytes of the whole fence
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    pub bytes: u32,
}

/// The output of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankReport {
    /// From the first byte until rank 0 has the confirmation that every node has all of it.
    pub took_ms: Vec<f64>,
    /// By node: the traffic of its network during all measurements, including unrelated traffic.
    pub wire: BTreeMap<String, Wire>,
}

/// Runs one rank.
pub fn run(options: &Options) -> Result<()> {
    let mut pmi = Pmi::connect()?;
    // As many threads as an agent has.
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).clamp(1, 8));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let wire = runtime.block_on(pass_on(options, &mut pmi))?;
    Wire::put_since(wire.before, &mut pmi)?;
    pmi.fence()?;
    if pmi.rank == 0 {
        let report = RankReport { took_ms: wire.took_ms, wire: Wire::of_all(&mut pmi)? };
        println!("{}", serde_json::to_string(&report)?);
    }
    pmi.finalize()
}

/// The result of one rank.
struct Passed {
    /// Only the root has them.
    took_ms: Vec<f64>,
    before: Wire,
}

async fn pass_on(options: &Options, pmi: &mut Pmi) -> Result<Passed> {
    let cluster = Cluster::load(&options.dir)?;
    let name = std::env::var("LATTICE_NODE").context("LATTICE_NODE is not set")?;
    let dir = cluster.dir.join(&name);
    let (cert, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    let files = TlsFiles { ca: cluster.dir.join("ca/ca.crt"), cert, key };
    let credentials = Credentials::new(files.read()?)?;
    let host: SocketAddr = cluster.node(&name)?.mesh.parse().context("where the node's mesh is")?;
    // A port that is free now: no other process takes one in this network meanwhile.
    let address = std::net::UdpSocket::bind((host.ip(), 0))?.local_addr()?;
    let (mesh, mut incoming) = Mesh::listen(address, &credentials, CancellationToken::new())?;
    pmi.put(&format!("mesh-{}", pmi.rank), &format!("{name}@{address}"))?;
    pmi.fence()?;

    let fanout = fanout_for(pmi.size);
    let children = subtree(pmi.rank, pmi.size, fanout)?.children(fanout);
    let blob = noise(0, options.bytes as usize).into_bytes();
    let mut below = Vec::new();
    for child in children {
        let at = pmi.get(&format!("mesh-{}", child.first))?;
        let (node, address) = at.split_once('@').context("where a rank's mesh is")?;
        below.push(mesh.open(&node.parse()?, address).await?);
    }
    let mut parent: Option<Incoming> = None;
    let mut passed = Passed { took_ms: Vec::new(), before: Wire::now()? };
    for time in 0..=options.times {
        if time == 1 {
            passed.before = Wire::now()?;
        }
        let began = Instant::now();
        let frame = if pmi.rank == 0 {
            Frame::of(&Down::FenceDone { number: time + 1, blob: blob.clone(), packed_from: None })?
        } else {
            if parent.is_none() {
                parent = Some(incoming.recv().await.context("the mesh ended")?);
            }
            let parent = parent.as_mut().context("a parent")?;
            Frame::read(&mut parent.recv).await?
        };
        try_join_all(below.iter_mut().map(|(send, recv)| {
            let frame = frame.clone();
            async move {
                frame.send(send).await?;
                match frame::read::<Up, _>(recv).await? {
                    Up::Serving => anyhow::Ok(()),
                    other => bail!("unexpected message of a rank below: {other:?}"),
                }
            }
        }))
        .await?;
        if let Some(parent) = &mut parent {
            frame::write(&mut parent.send, &Up::Serving).await?;
        } else if time > 0 {
            passed.took_ms.push(began.elapsed().as_secs_f64() * 1000.0);
        }
    }
    // A rank that ends before this would lose its last message.
    pmi.fence()?;
    mesh.close().await;
    Ok(passed)
}

/// The part of the tree that a rank serves.
fn subtree(rank: u32, size: u32, fanout: u32) -> Result<Subtree> {
    let mut at = Subtree::whole(size);
    while at.first != rank {
        at = at.children(fanout).find(|child| child.contains(Subtree::single(rank))).with_context(|| format!("there is no rank {rank}"))?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_serves_what_its_parent_has_for_it() {
        // 0 ─┬─ 1 ─┬─ 2 …
        let served: Vec<(u32, u32)> = (0..7).map(|rank| subtree(rank, 7, 2).unwrap()).map(|s| (s.first, s.end)).collect();
        assert_eq!(served, [(0, 7), (1, 4), (2, 3), (3, 4), (4, 7), (5, 6), (6, 7)]);
        assert!(subtree(7, 7, 2).is_err());
    }
}
