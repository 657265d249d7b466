//! Clients in closed loops: each sends its next command when the last one was answered.

use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

/// A client that commits small commands, one after the other.
pub trait Client: Send + 'static {
    /// Commits the next command; returns when it is acknowledged as durable.
    fn commit(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The result of a load.
#[derive(Debug, Default)]
pub struct Load {
    /// The latency of each command in milliseconds, in no order.
    pub latencies_ms: Vec<f64>,
    /// From the first command to the last answer.
    pub took: Duration,
}

impl Load {
    /// Commands a second.
    pub fn rate(&self) -> f64 {
        self.latencies_ms.len() as f64 / self.took.as_secs_f64()
    }

    /// The latency that this fraction (0 to 1) of the commands stayed below, in milliseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.latencies_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * part) as usize).copied().unwrap_or(f64::NAN)
    }
}

/// Runs all clients at once for this long. The first command that fails is the load's failure.
pub async fn run<C: Client>(clients: &mut Vec<C>, lasts: Duration) -> Result<Load> {
    let began = Instant::now();
    let tasks: Vec<_> = clients
        .drain(..)
        .map(|mut client| {
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                let mut failed = None;
                while began.elapsed() < lasts && failed.is_none() {
                    let sent = Instant::now();
                    failed = client.commit().await.err();
                    latencies.push(sent.elapsed().as_secs_f64() * 1e3);
                }
                (client, latencies, failed)
            })
        })
        .collect();
    let mut load = Load::default();
    let mut failures = Vec::new();
    for task in tasks {
        let (client, latencies, failed) = task.await.context("a client's task")?;
        clients.push(client);
        load.latencies_ms.extend(latencies);
        failures.extend(failed);
    }
    load.took = began.elapsed();
    ensure!(failures.is_empty(), "{} of {} clients failed, the first: {:#}", failures.len(), clients.len(), failures[0]);
    Ok(load)
}
