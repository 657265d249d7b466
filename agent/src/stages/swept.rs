//! The third stage: nothing is left that the journal does not know.

use super::adopted::Adopted;
use super::base::Base;
use super::connections::Connections;
use super::saved_state::SavedState;
use super::wiring::{Channels, DriverEnds};
use crate::driver;
use crate::driver::Outputs;
use crate::gpus::{GpuWatching, Offering};
use crate::session::Registration;
use anyhow::{anyhow, bail};
use lattice_machine::bounds;
use lattice_machine::health::Finds;
use lattice_machine::wipe::Wiping;
use lattice_meshd::context::Context;
use lattice_model::{NodeAddresses, Resources};
use lattice_observe::traces::Traces;
use lattice_output::spool::Spools;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Work that the journal does not know has been ended.
pub struct Swept {
    pub(super) base: Base,
    pub(super) saved: SavedState,
    pub(super) gpus: GpuWatching,
    pub(super) size: Resources,
    pub(super) connections: Connections,
    pub(super) channels: Channels,
    pub(super) driver_ends: DriverEnds,
    pub(super) context: Arc<Context>,
    pub(super) spools: Spools,
    pub(super) traces: Traces,
    pub(super) finds: Finds,
}

impl Swept {
    /// Begins the driver, and waits until every allocation of the journal has its task.
    pub async fn adopt(self) -> anyhow::Result<Adopted> {
        let Self { base, saved, mut gpus, size, connections, mut channels, driver_ends, context, spools, traces, finds } = self;
        let SavedState { boot, journal, brain, same_boot } = saved;
        let config = &base.config;
        let offering = Offering::begin(&gpus, size, config, &context);
        let offer = offering.offer();
        let registration = Registration {
            boot,
            offer: offer.clone(),
            addresses: NodeAddresses { mesh: config.mesh.advertise().to_owned(), gossip: config.gossip.advertise().to_owned() },
            schedulable: config.schedulable,
            topology_group: config.known_topology_group(),
            unenforced_limits: bounds::unlimited(&context.machine.bounds.controllers)
                .into_iter()
                .chain(context.machine.data.unlimited())
                .collect(),
            previous: brain.incarnation(),
            found: brain.found(),
            has_wipe_hook: config.hooks.wipe.is_configured(),
        };
        let (wiping, wipes) = Wiping::new(config, &base.me, channels.view.clone());
        base.tasks.spawn(wiping.run(base.stop.child_token()));
        let (reports_out, reports) = watch::channel(Arc::new(Vec::new()));
        let outputs = Outputs { reports: reports_out, view: driver_ends.view };
        gpus.publish(&context, &offering).await;
        let journal_counts = journal.counts();
        let driver_stop = CancellationToken::new();
        let (for_driver, for_stop, queue) = (Arc::clone(&context.work), driver_stop.clone(), driver_ends.queue);
        let runtime = tokio::runtime::Handle::current();
        let driver = std::thread::Builder::new().name("driver".to_owned()).spawn(move || {
            let _entered = runtime.enter();
            driver::run(brain, journal, same_boot, &for_driver, queue, &outputs, &for_stop)
        })?;
        // No request is answered before every allocation of the journal has its task: "not here"
        // would be taken as evidence.
        if channels.view.changed().await.is_err() {
            driver.join().map_err(|_| anyhow!("the driver panicked"))??;
            bail!("the driver ended before it began");
        }
        base.tasks.spawn_blocking(move || {
            spools.resume();
            spools.trim();
        });
        Ok(Adopted {
            base,
            gpus,
            connections,
            channels,
            context,
            traces,
            finds,
            offering,
            offer,
            registration,
            wipes,
            reports,
            journal_counts,
            driver,
            driver_stop,
        })
    }
}
