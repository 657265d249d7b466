//! The product from outside: real daemons, a real kernel, real MPI, through the CLI. Each group has one cluster; its
//! tests run in order, each on a healthy and empty cluster. A test that cannot run here is ignored with its reason, or
//! fails if `LATTICE_TEST_REQUIRE_ALL=1` requires everything to run.

mod access_table;
mod access_tokens;
mod accounting;
mod accounting_sinks;
mod admission;
mod attach;
mod auditing;
mod backfill;
mod backups;
mod broker;
mod certificates;
mod checkpoint;
mod checkpoint_full;
mod checkpoint_inside;
mod checkpoint_late;
mod checkpoint_modes;
mod checkpoint_mpi;
mod checkpoint_packing;
mod checkpoint_port;
mod checkpoint_signals;
mod checkpoint_uploads;
mod clocks;
mod cluster_screen;
mod commands;
mod conformance;
mod counting;
mod crash;
mod cuts;
mod daemon_logs;
mod dags;
mod data;
mod debugging;
mod demo;
mod dependencies;
mod dependency_kinds;
mod deploy;
mod devices;
mod disks;
mod documentation;
mod fabric;
mod fencing;
mod flood;
mod full_disk;
mod gossip;
mod gpus;
mod hangs;
mod harness;
mod health;
mod histories;
mod hoarding;
mod hooks;
mod hosts;
mod hung;
mod identity;
mod image_cache;
mod impersonation;
mod input;
mod isolation;
mod job_numbers;
mod jobs;
mod keys;
mod layout;
mod leases;
mod levels;
mod lifecycle;
mod lifetime;
mod log_times;
mod logs;
mod member_disk;
mod members;
mod monitoring;
mod moto;
mod mpi;
mod mpi4py;
mod mpi_launchers;
mod network;
mod network_api;
mod node_choices;
mod notifications;
mod oidc;
mod opens;
mod operators;
mod outage;
mod output_files;
mod partitions;
mod people;
mod pmix;
mod preemption;
mod priorities;
mod privacy;
mod privileges;
mod probe;
mod pruning;
mod recovery;
mod refusal;
mod remote_cli;
mod replays;
mod reservations;
mod rest_api;
mod rest_streams;
mod revocation;
mod roles;
mod scaled_services;
mod services;
mod sessions;
mod signals;
mod slurm_clients;
mod slurm_jobs;
mod slurm_launches;
mod slurm_queries;
mod start_times;
mod stored;
mod summaries;
mod supervisor;
mod survival;
mod task_commands;
mod task_groups;
mod telemetry;
mod tenants;
mod topology;
mod topology_groups;
mod tree;
mod tty;
mod uenv;
mod unprivileged;
mod usage;
mod user_limits;
mod vclusters;
mod walltimes;
mod watches;
mod whole;
mod wide;
mod wireup;

use libtest_mimic::{Arguments, Trial};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Groups that measure how fast a cluster reacts to a fault: `.ci/run` runs them with less load beside them than the others.
const TIMED: [&str; 6] = ["clocks", "cuts", "disks", "flood", "outage", "partitions"];

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Clusters need many resources, and the order within a group matters.
    args.test_threads = Some(1);
    lattice_lab::interrupt::watch();
    let trials = [
        // The longest first: no process ends long after the others.
        preemption::trials(),
        priorities::trials(),
        replays::trials(),
        telemetry::trials(),
        scaled_services::trials(),
        checkpoint::trials(),
        wireup::trials(),
        crash::trials(),
        walltimes::trials(),
        demo::trials(),
        admission::trials(),
        jobs::trials(),
        reservations::trials(),
        task_commands::trials(),
        lifetime::trials(),
        lifecycle::trials(),
        uenv::trials(),
        image_cache::trials(),
        hoarding::trials(),
        data::trials(),
        health::trials(),
        conformance::trials(),
        hooks::trials(),
        probe::trials(),
        network::trials(),
        network_api::trials(),
        fabric::trials(),
        services::trials(),
        refusal::trials(),
        identity::trials(),
        privileges::trials(),
        privacy::trials(),
        isolation::trials(),
        attach::trials(),
        remote_cli::trials(),
        mpi::trials(),
        mpi4py::trials(),
        mpi_launchers::trials(),
        layout::trials(),
        pmix::trials(),
        survival::trials(),
        dependencies::trials(),
        dependency_kinds::trials(),
        dags::trials(),
        task_groups::trials(),
        outage::trials(),
        checkpoint_uploads::trials(),
        checkpoint_mpi::trials(),
        checkpoint_modes::trials(),
        checkpoint_port::trials(),
        checkpoint_signals::trials(),
        checkpoint_inside::trials(),
        checkpoint_full::trials(),
        checkpoint_packing::trials(),
        checkpoint_late::trials(),
        broker::trials(),
        fencing::trials(),
        input::trials(),
        wide::trials(),
        tree::trials(),
        notifications::trials(),
        oidc::trials(),
        watches::trials(),
        member_disk::trials(),
        members::trials(),
        tenants::trials(),
        usage::trials(),
        accounting::trials(),
        accounting_sinks::trials(),
        user_limits::trials(),
        flood::trials(),
        vclusters::trials(),
        sessions::trials(),
        signals::trials(),
        backfill::trials(),
        backups::trials(),
        pruning::trials(),
        auditing::trials(),
        certificates::trials(),
        gossip::trials(),
        keys::trials(),
        impersonation::trials(),
        leases::trials(),
        levels::trials(),
        recovery::trials(),
        supervisor::trials(),
        full_disk::trials(),
        unprivileged::trials(),
        cuts::trials(),
        partitions::trials(),
        clocks::trials(),
        disks::trials(),
        histories::trials(),
        topology::trials(),
        topology_groups::trials(),
        gpus::trials(),
        counting::trials(),
        stored::trials(),
        summaries::trials(),
        debugging::trials(),
        opens::trials(),
        operators::trials(),
        revocation::trials(),
        rest_api::trials(),
        rest_streams::trials(),
        roles::trials(),
        job_numbers::trials(),
        output_files::trials(),
        start_times::trials(),
        node_choices::trials(),
        slurm_jobs::trials(),
        slurm_launches::trials(),
        slurm_queries::trials(),
        people::trials(),
        cluster_screen::trials(),
        slurm_clients::trials(),
        access_table::trials(),
        access_tokens::trials(),
        monitoring::trials(),
        hangs::trials(),
        deploy::trials(),
        daemon_logs::trials(),
        devices::trials(),
        logs::trials(),
        log_times::trials(),
        whole::trials(),
        commands::trials(),
        documentation::trials(),
    ];
    let passed = match std::env::var_os("LATTICE_TEST_CLAIMS") {
        Some(claims) => run_unclaimed(&args, Vec::from(trials), Path::new(&claims)),
        None => !libtest_mimic::run(&args, trials.into_iter().flatten().collect()).has_failed(),
    };
    harness::close();
    moto::close();
    oidc::close();
    if passed { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// Whether a group belongs to the part that `LATTICE_TEST_PART` names: `timed`, `untimed`; without it, every group does.
fn is_in_part(theme: &str) -> bool {
    match std::env::var("LATTICE_TEST_PART").as_deref() {
        Ok("timed") => TIMED.contains(&theme),
        Ok("untimed") => !TIMED.contains(&theme),
        Ok(other) => panic!("LATTICE_TEST_PART is {other:?}: timed or untimed"),
        Err(_) => true,
    }
}

/// Runs each group that no other process has claimed in the directory `claims`: several processes share the groups, and
/// no test runs twice. Prints how long each group took.
fn run_unclaimed(args: &Arguments, groups: Vec<Vec<Trial>>, claims: &Path) -> bool {
    let mut passed = true;
    for (number, mut group) in groups.into_iter().enumerate() {
        group.retain(|trial| !args.is_filtered_out(trial));
        let Some(theme) = group.first().map(|trial| trial.name().split("::").next().unwrap_or_default().to_owned()) else { continue };
        if !is_in_part(&theme) {
            continue;
        }
        match std::fs::File::create_new(claims.join(format!("{number}-{theme}"))) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(e) => panic!("cannot claim the tests of {theme} in {}: {e}", claims.display()),
        }
        let began = Instant::now();
        passed &= !libtest_mimic::run(args, group).has_failed();
        println!("group {theme}: {:.0} s", began.elapsed().as_secs_f64());
    }
    passed
}
