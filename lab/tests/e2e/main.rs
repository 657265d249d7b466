//! The product from outside: real daemons, a real kernel, real MPI, through the CLI. One cluster a group; a group's
//! tests run in order, each on a healthy and empty cluster. What cannot run here is ignored with its reason, or
//! fails where `LATTICE_TEST_REQUIRE_ALL=1` says that everything must run.

mod attach;
mod auditing;
mod backups;
mod broker;
mod certificates;
mod checkpoint;
mod checkpoint_full;
mod checkpoint_inside;
mod checkpoint_late;
mod checkpoint_modes;
mod checkpoint_mpi;
mod checkpoint_port;
mod checkpoint_signals;
mod checkpoint_uploads;
mod clocks;
mod commands;
mod conformance;
mod counting;
mod crash;
mod cuts;
mod daemon_logs;
mod data;
mod debugging;
mod demo;
mod deploy;
mod devices;
mod disks;
mod fabric;
mod fencing;
mod full_disk;
mod gossip;
mod gpus;
mod hangs;
mod harness;
mod hatch;
mod health;
mod histories;
mod hooks;
mod hosts;
mod hung;
mod identity;
mod input;
mod isolation;
mod jobs;
mod keys;
mod layout;
mod leases;
mod levels;
mod lifecycle;
mod lifetime;
mod logs;
mod member_disk;
mod members;
mod monitoring;
mod moto;
mod mpi;
mod mpi4py;
mod network;
mod notifications;
mod opens;
mod outage;
mod partitions;
mod pmix;
mod preemption;
mod probe;
mod recovery;
mod refusal;
mod services;
mod sessions;
mod stored;
mod supervisor;
mod survival;
mod telemetry;
mod tenants;
mod topology;
mod tree;
mod tty;
mod uenv;
mod unprivileged;
mod vclusters;
mod watches;
mod whole;
mod wireup;

use libtest_mimic::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Clusters are heavy and the order within a group counts.
    args.test_threads = Some(1);
    lattice_lab::interrupt::watch();
    let trials = [
        jobs::trials(),
        lifetime::trials(),
        lifecycle::trials(),
        uenv::trials(),
        data::trials(),
        health::trials(),
        conformance::trials(),
        hooks::trials(),
        probe::trials(),
        network::trials(),
        fabric::trials(),
        services::trials(),
        refusal::trials(),
        identity::trials(),
        isolation::trials(),
        attach::trials(),
        mpi::trials(),
        mpi4py::trials(),
        hatch::trials(),
        layout::trials(),
        pmix::trials(),
        wireup::trials(),
        survival::trials(),
        outage::trials(),
        checkpoint::trials(),
        checkpoint_uploads::trials(),
        checkpoint_mpi::trials(),
        checkpoint_modes::trials(),
        checkpoint_port::trials(),
        checkpoint_signals::trials(),
        checkpoint_inside::trials(),
        checkpoint_full::trials(),
        checkpoint_late::trials(),
        preemption::trials(),
        broker::trials(),
        fencing::trials(),
        input::trials(),
        tree::trials(),
        notifications::trials(),
        watches::trials(),
        member_disk::trials(),
        members::trials(),
        tenants::trials(),
        vclusters::trials(),
        sessions::trials(),
        backups::trials(),
        auditing::trials(),
        certificates::trials(),
        gossip::trials(),
        keys::trials(),
        leases::trials(),
        levels::trials(),
        recovery::trials(),
        supervisor::trials(),
        full_disk::trials(),
        unprivileged::trials(),
        crash::trials(),
        cuts::trials(),
        partitions::trials(),
        clocks::trials(),
        disks::trials(),
        histories::trials(),
        topology::trials(),
        gpus::trials(),
        telemetry::trials(),
        counting::trials(),
        stored::trials(),
        debugging::trials(),
        opens::trials(),
        monitoring::trials(),
        hangs::trials(),
        deploy::trials(),
        daemon_logs::trials(),
        devices::trials(),
        logs::trials(),
        whole::trials(),
        commands::trials(),
        demo::trials(),
    ];
    let conclusion = libtest_mimic::run(&args, trials.into_iter().flatten().collect());
    harness::close();
    moto::close();
    conclusion.exit_code()
}
