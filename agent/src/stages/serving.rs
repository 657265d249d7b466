//! The last stage: all requests are served, until the agent must stop.

use crate::journal::{JournalError, StateDir};
use crate::supervisor;
use anyhow::{Context as _, anyhow, bail};
use futures::future::OptionFuture;
use lattice_meshd::context::Context;
use lattice_model::with_causes;
use lattice_placing::Leases;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport;

/// All tasks run.
pub struct Serving {
    pub(super) stop: CancellationToken,
    /// The API.
    pub(super) serving: tokio::task::JoinHandle<Result<(), transport::Error>>,
    /// The API on the network, if this agent serves it.
    pub(super) network: Option<tokio::task::JoinHandle<()>>,
    /// Cuts the connections to the API.
    pub(super) cut: CancellationToken,
    pub(super) tasks: TaskTracker,
    pub(super) driver: JoinHandle<Result<(), JournalError>>,
    pub(super) driver_stop: CancellationToken,
    pub(super) context: Arc<Context>,
    /// If this agent is no scheduler, keeps the channel of leases open: its watchers wait for
    /// changes that never come.
    pub(super) idle_leases: Option<watch::Sender<Leases>>,
    /// Locks the state directory against other agents until this one has ended.
    pub(super) state_dir: StateDir,
}

impl Serving {
    /// Waits until the agent must stop, the driver cannot continue, or a server of the API has ended
    /// by itself: without it nobody could reach the node's work. Then stops the API, the roles and
    /// the session, the mesh, the driver, and the tasks of work and requests, in this order: a task
    /// that would report the end of another one stops before it.
    pub async fn until_stopped(self) -> anyhow::Result<()> {
        let Self { stop, serving, network, cut, tasks, driver, driver_stop, context, idle_leases, state_dir } = self;
        let driver_over = tokio::task::spawn_blocking(move || driver.join());
        tokio::pin!(driver_over);
        let (mut serving, mut network, mut failure) = (Some(serving), network, None);
        let early = tokio::select! {
            // `stop` first: the servers end with it.
            biased;
            () = stop.cancelled() => None,
            over = &mut driver_over => Some(over),
            result = ended(&mut serving) => {
                failure = Some(server_failure("this node's socket", result));
                None
            }
            result = ended(&mut network) => {
                failure = Some(server_failure("the network", result.map(Ok)));
                None
            }
        };
        stop.cancel();
        supervisor::stopping();
        let served = async { (OptionFuture::from(serving).await, OptionFuture::from(network).await) };
        let _ = tokio::time::timeout(Duration::from_secs(2), served).await;
        cut.cancel();
        tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(3), tasks.wait()).await;
        context.work.mesh.close().await;
        driver_stop.cancel();
        let over = match early {
            Some(over) => Some(over),
            None => tokio::time::timeout(Duration::from_secs(2), driver_over).await.ok(),
        };
        context.work.tasks.end(Duration::from_secs(1)).await;
        let _ = std::fs::remove_file(&context.setup.socket);
        drop((idle_leases, state_dir));
        match over {
            Some(Ok(Ok(Err(error)))) => Err(error).context("the node's state cannot be written: the agent stops, and the work continues"),
            Some(Ok(Ok(Ok(())))) | None => failure.map_or(Ok(()), Err),
            Some(Ok(Err(_)) | Err(_)) => bail!("the driver panicked: the agent stops, and the work continues"),
        }
    }
}

/// Waits until the server has ended, and forgets it. Waits for ever if there is none.
async fn ended<T>(server: &mut Option<tokio::task::JoinHandle<T>>) -> Result<T, JoinError> {
    match server {
        Some(running) => {
            let result = running.await;
            *server = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// The error of an agent whose API nobody reaches any more. `at`: where it was served.
fn server_failure(at: &str, result: Result<Result<(), transport::Error>, JoinError>) -> anyhow::Error {
    let why = match result {
        Ok(Ok(())) => "it accepts no connections any more".to_owned(),
        Ok(Err(error)) => with_causes(&error),
        Err(error) => with_causes(&error),
    };
    anyhow!("the API server on {at} ended: {why}; the agent exits, to be started again; its work continues")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_server_that_ends_is_noticed_once_and_named() {
        let mut server = Some(tokio::spawn(async { Ok(()) }));
        let result = ended(&mut server).await;
        let failure = server_failure("the network", result).to_string();
        assert!(failure.starts_with("the API server on the network ended: it accepts no connections any more"), "{failure}");
        assert!(server.is_none() && ended(&mut server).now_or_never().is_none(), "it is awaited no more");
        let mut stuck = Some(tokio::spawn(std::future::pending::<Result<(), transport::Error>>()));
        assert!(ended(&mut stuck).now_or_never().is_none() && stuck.is_some());
        stuck.iter().for_each(tokio::task::JoinHandle::abort);
        let failure = server_failure("this node's socket", ended(&mut stuck).await).to_string();
        assert!(failure.contains("cancelled"), "{failure}");
    }
}
