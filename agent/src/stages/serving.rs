//! The last stage: all requests are served, until the agent must stop.

use crate::journal::{JournalError, StateDir};
use crate::supervisor;
use anyhow::{Context as _, bail};
use futures::future::OptionFuture;
use lattice_meshd::context::Context;
use lattice_placing::Leases;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
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
    /// Waits until the agent must stop, or the driver cannot go on; then stops the API, the roles
    /// and the session, the mesh, the driver, and the tasks of work and requests, in this order:
    /// first whoever would pass on that another task has ended.
    pub async fn until_stopped(self) -> anyhow::Result<()> {
        let Self { stop, serving, network, cut, tasks, driver, driver_stop, context, idle_leases, state_dir } = self;
        let driver_over = tokio::task::spawn_blocking(move || driver.join());
        tokio::pin!(driver_over);
        let early = tokio::select! {
            () = stop.cancelled() => None,
            over = &mut driver_over => Some(over),
        };
        stop.cancel();
        supervisor::stopping();
        let served = async { (serving.await, OptionFuture::from(network).await) };
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
            Some(Ok(Ok(Err(error)))) => Err(error).context("the node's state cannot be written: the agent stops, its work goes on"),
            Some(Ok(Ok(Ok(())))) | None => Ok(()),
            Some(Ok(Err(_)) | Err(_)) => bail!("the driver panicked: the agent stops, its work goes on"),
        }
    }
}
