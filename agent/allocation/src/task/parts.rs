//! This node's parts of launches: beginning them for their heads, and passing messages between
//! heads and the shim.

use super::AllocationTask;
use crate::local_launch::LocalLaunch;
use crate::node_environment;
use lattice_mesh::call::WireCall;
use lattice_mesh::input::WireInputChunk;
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_mesh::terminal::{self, ToTerminal};
use lattice_model::{Call, LaunchId, LaunchSpec};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::ToShim;
use tokio::sync::mpsc;

/// How many bytes of keyboard input wait for launches to begin; beyond that the oldest input is
/// dropped.
const TYPED_AHEAD_BYTES_MAX: usize = 64 * 1024;

impl AllocationTask {
    pub(super) async fn attach(&mut self, launch: LaunchSpec, to_head: mpsc::Sender<ToHead>) {
        let id = launch.id;
        let local = self.launches.entry(id).or_insert_with(|| LocalLaunch::new(launch));
        local.attach(to_head, self.walltime.is_over());
        if local.begun {
            self.send(ToShim::ResendRequests { launch: id }).await;
        }
        if self.line.is_synced() {
            self.begin_launches().await;
        }
    }

    /// Requests every launch that the shim has not confirmed. A repeated request starts nothing
    /// twice.
    pub(super) async fn begin_launches(&mut self) {
        if !self.lease.may_begin() {
            return;
        }
        let missing: Vec<LaunchSpec> = self.launches.values().filter(|l| !l.begun).map(|l| l.spec.clone()).collect();
        for mut launch in missing {
            node_environment::of_this_node(&mut launch.env, &self.share, &self.context);
            if launch.shape.slurm_env {
                launch.env.extend(node_environment::slurm_of_this_node(&self.share, &self.context, true));
            }
            self.context.machine.hwloc.add_environment(&mut launch.env, &self.share, &self.context.machine.topology());
            self.send(ToShim::StartLaunch { launch }).await;
            failpoint::pass(Point::LaunchAsked);
        }
    }

    pub(super) async fn obey_head(&mut self, launch: LaunchId, message: ToPart) {
        match message {
            ToPart::FenceDone { number, blob } => self.send(ToShim::FenceDone { launch, number, blob }).await,
            ToPart::Input(piece) => {
                let WireInputChunk { offset, bytes, last } = *piece;
                self.send(ToShim::Input { launch, offset, bytes, last }).await;
            }
            ToPart::Call(call) => self.call(launch, *call).await,
            ToPart::NameAbsent => self.send(ToShim::NameAbsent { launch }).await,
            ToPart::Abort { code, why } => self.send(ToShim::Abort { launch, code, why }).await,
            ToPart::Forget => {
                if self.launches.get(&launch).is_some_and(|l| l.is_over(&self.context.setup.me)) {
                    self.launches.remove(&launch);
                    self.send(ToShim::Forget { launch }).await;
                }
            }
        }
    }

    /// Passes a call, or an answer, from another part's PMI server to the shim.
    async fn call(&mut self, launch: LaunchId, call: WireCall) {
        if let Ok(call) = Call::try_from(call) {
            self.send(ToShim::Call { launch, call }).await;
        }
    }

    /// Keyboard input for a launch that does not run yet waits for it. Input that comes while the
    /// shim is not connected is lost, as if the program had not read it.
    pub(super) async fn typed(&mut self, launch: LaunchId, message: ToTerminal) {
        if self.launches.get(&launch).is_none_or(|l| !l.begun) {
            self.typed_ahead.push_back((launch, message));
            while self.typed_ahead.iter().map(|(_, message)| message.bytes()).sum::<usize>() > TYPED_AHEAD_BYTES_MAX {
                self.typed_ahead.pop_front();
            }
            return;
        }
        match message {
            ToTerminal::Input(bytes) => self.send(ToShim::Typed { launch, bytes }).await,
            ToTerminal::Size { rows, columns } => self.send(ToShim::Resized { launch, size: terminal::size(rows, columns) }).await,
            ToTerminal::EndOfInput => {}
        }
    }

    /// Applies a change to the launch, and publishes its end here if that was the last rank.
    pub(super) fn with_launch(&mut self, launch: LaunchId, change: impl FnOnce(&mut LocalLaunch)) {
        // After a lapse of the lease nothing is reported: the ranks were killed, and the head learns
        // that from the quorum.
        if self.lease.is_lapsed() {
            return;
        }
        let Some(local) = self.launches.get_mut(&launch) else { return };
        change(local);
        if local.is_over(&self.context.setup.me) {
            let number = local.spec.number;
            self.mark_over(number);
        }
    }

    /// The shim started none of the launch's ranks here.
    pub(super) fn refused(&mut self, launch: LaunchId, why: &str) {
        let me = self.context.setup.me.clone();
        self.with_launch(launch, |local| local.refused(&me, why));
    }

    /// No rank of this launch is left here: readers may reach the end of its output.
    pub(super) fn mark_over(&self, number: u32) {
        self.senders.activity.send_if_modified(|activity| activity.over.insert(number));
    }
}
