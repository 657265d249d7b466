//! `lattice doctor`: what this machine can do for Lattice. It tries things rather than guesses.

mod health;
mod network_api;
mod telemetry;
mod tried;

pub use health::Health;

use lattice_agent_common::config::AgentConfig;
use lattice_machine::bounds;
use lattice_machine::data_plane::{Scratch, mount_namespace, scratch_of, unlimited};
use lattice_machine::devices::DeviceFilter;
use lattice_machine::features;
use lattice_machine::hardware::{self, memory_bytes};
use lattice_machine::pmix;
use lattice_machine::unsupported;
use lattice_model::topology::GpuVendor;
use lattice_model::{AllocationId, NodeTopology, Principal, with_causes};
use lattice_objects::ObjectsError;
use lattice_output::log_store::{LogStore, StoreError};
use lattice_pki::credentials::{Credentials, rough};
use lattice_pki::tls::TlsFiles;
use lattice_runtime::cgroup::controllers::Controllers;
use lattice_runtime::cgroup::{CgroupError, Slice};
use lattice_runtime::pty;
use lattice_runtime::topology::Discovered;
use serde::Serialize;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The least width of a line's text, in characters, on any screen.
const TEXT_CHARS_MIN: usize = 24;

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was examined.
    pub subject: &'static str,
    /// The result.
    pub health: Health,
    /// Details, with a remedy if something is missing.
    pub text: String,
}

impl Finding {
    /// The finding for people: on one line, or wrapped to `columns` characters, with the text
    /// aligned.
    pub fn lines(&self, columns: Option<usize>) -> String {
        let head = format!("{:<12} {:<17} ", self.health, self.subject);
        let indent = head.chars().count();
        let most = columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(TEXT_CHARS_MIN));
        let (mut text, mut used) = (head, 0);
        for word in self.text.split(' ') {
            let length = word.chars().count();
            if used > 0 && used + 1 + length > most {
                text += "\n";
                text += &" ".repeat(indent);
                used = 0;
            } else if used > 0 {
                text.push(' ');
                used += 1;
            }
            text += word;
            used += length;
        }
        text.push('\n');
        text
    }
}

/// Adds a finding.
type Add<'a> = &'a mut dyn FnMut(&'static str, Health, String);

/// Makes all checks. `config`: the agent's configuration, for checks that depend on it.
pub fn examine(config: &AgentConfig) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut add = |subject, health, text: String| out.push(Finding { subject, health, text });
    if nix::unistd::geteuid().is_root() {
        add("privilege", Health::Ok, "running as root: work can be started as its user".to_owned());
    } else {
        add("privilege", Health::Missing, "not root: images cannot be mounted nor work started as other users; run it as root".to_owned());
    }
    let slice = probe_slice(&config.cgroup.root);
    match &slice {
        Ok(slice) => add("cgroup scopes", Health::Ok, format!("cgroup v2 slice {}", slice.path().display())),
        Err(why) => add("cgroup scopes", Health::Degraded, why.to_string()),
    }
    let slice = slice.ok();
    let (controllers, missing) = bounds::controllers(config, slice.as_ref());
    let filter = DeviceFilter::find(slice.as_ref(), &controllers);
    let [measured, in_kernel, audits] = telemetry::measured(config, slice.as_ref(), &controllers);
    controllers.remove_roots();
    limits(&controllers, slice.as_ref(), missing, &mut add);
    let machine = hardware::look(&config.simulated_gpus);
    scratch(config, &machine.topology, &mut add);
    hooks(config, &mut add);
    kernel(&filter, &mut add);
    programs(config, &mut add);
    stores(config, &mut add);
    for (subject, (health, text)) in
        [("measures", measured), ("kernel probes", in_kernel), ("audits", audits), ("energy", telemetry::energy(Path::new("/")))]
    {
        add(subject, health, text);
    }
    if let Some((health, text)) = telemetry::served(config) {
        add("metrics", health, text);
    }
    if let Some((health, text)) = telemetry::pushed(config) {
        add("metrics store", health, text);
    }
    if let Some((health, text)) = network_api::served(config) {
        add("network API", health, text);
    }
    mpi(config, &mut add);
    network(config, &mut add);
    add("CSIG", Health::Unsupported, format!("congestion signals of the network: {}", unsupported::csig(features::has_cxi())));
    gpus(config, &machine, &filter, &mut add);
    local(config, &mut add);
    out
}

/// What limits work to its share.
fn limits(controllers: &Controllers, slice: Option<&Slice>, missing: Vec<String>, add: Add<'_>) {
    if !controllers.describe().is_empty() {
        add("cgroup limits", Health::Ok, controllers.describe());
    }
    let weights = controllers.io_weights();
    if !weights.is_empty() {
        let files: Vec<&str> = weights.iter().map(|weight| weight.file).collect();
        let text = format!("shares are weighed against each other by {}", files.join(" and "));
        let mount = slice.map(Slice::tree);
        if weights.iter().any(|weight| weight.counts_somewhere(mount)) {
            add("disk shares", Health::Ok, text);
        } else {
            let remedy = "echo bfq > /sys/block/DEVICE/queue/scheduler, or enable=1 for it in the root's io.cost.qos where that is there";
            add("disk shares", Health::Degraded, format!("{text}, which no device enforces now: {remedy}"));
        }
    }
    for why in missing {
        add("cgroup limits", Health::Degraded, why);
    }
}

/// Room for temporary files of work.
fn scratch(config: &AgentConfig, topology: &NodeTopology, add: Add<'_>) {
    let memory_bytes = memory_bytes(&topology.memory, config.cgroup.memory_reserved_bytes).unwrap_or_default();
    let scratch = scratch_of(config, memory_bytes, mount_namespace().err().map(|error| error.to_string()).as_deref());
    match (&scratch, unlimited(&scratch)) {
        (Scratch::None(_), _) => add("scratch", Health::Degraded, scratch.to_string()),
        (Scratch::Disk(_), Some(why)) => add("scratch", Health::Degraded, format!("{scratch}; {why}")),
        (Scratch::Disk(_), None) => add("scratch", Health::Ok, format!("{scratch}, a requested size is enforced by project quota")),
        (Scratch::Memory { .. }, _) => add("scratch", Health::Ok, scratch.to_string()),
    }
}

/// What the kernel must support.
fn kernel(filter: &DeviceFilter, add: Add<'_>) {
    let mut look = |subject, (health, text): tried::Look| add(subject, health, text);
    look("kernel", tried::kernel());
    look("mount namespaces", tried::mount_namespace());
    look("mount attributes", tried::mount_attributes());
    look("other namespaces", tried::other_namespaces());
    look("loop devices", tried::loop_device());
    look("squashfs", tried::squashfs());
    look("BPF", bpf(filter));
    look("tracefs", tried::tracefs());
}

/// Terminals, and the program beside each allocation.
fn programs(config: &AgentConfig, add: Add<'_>) {
    match terminal() {
        Ok(()) => add("terminals", Health::Ok, "one can be made".to_owned()),
        Err(error) => add(
            "terminals",
            Health::Degraded,
            format!("{error}: lattice attach and launch --pty fail here; mount a devpts at /dev/pts, with /dev/ptmx"),
        ),
    }
    match config.shim_program() {
        Ok(path) if path.is_file() => add("shim", Health::Ok, path.display().to_string()),
        Ok(path) => add("shim", Health::Missing, format!("{} does not exist: install lattice-shim or set `shim`", path.display())),
        Err(error) => add("shim", Health::Missing, error.to_string()),
    }
}

/// The agent's certificate, and where output and checkpoints go.
fn stores(config: &AgentConfig, add: Add<'_>) {
    if let Some((health, text)) = certificate(config) {
        add("certificate", health, text);
    }
    match log_store(config) {
        Ok(Some(url)) => add("log store", Health::Ok, format!("{url}: written to, read and removed")),
        Ok(None) => {
            let text = "none is configured (logs.store): output stays on its node, within logs.spool_max_bytes, and is lost with it";
            add("log store", Health::Degraded, text.to_owned());
        }
        Err(why) => add("log store", Health::Missing, format!("{why}; output stays on its node meanwhile")),
    }
    if let Some((health, text)) = checkpoints(config) {
        add("checkpoints", health, text);
    }
}

/// Processors and GPUs.
fn gpus(config: &AgentConfig, machine: &Discovered, filter: &DeviceFilter, add: Add<'_>) {
    add("CUPTI", Health::Unsupported, format!("profiles of kernels on GPUs: {}", unsupported::cupti(&machine.topology.gpu)));
    add("processors", Health::Ok, processors(&machine.topology));
    match gpu_shortcoming(machine) {
        Some(why) => add("GPUs", Health::Degraded, why),
        None if machine.found.is_empty() => add("GPUs", Health::Ok, "none on this machine".to_owned()),
        None => add("GPUs", Health::Ok, machine.found.join("; ")),
    }
    if !machine.topology.gpu.gpus.is_empty() {
        let (health, text) = telemetry::gpu_loads(&config.simulated_gpus, &machine.topology.gpu.gpus);
        add("GPU measures", health, text);
        match (filter.shortcoming(&machine.topology.gpu), filter) {
            (Some(why), _) => add("GPU isolation", Health::Degraded, why),
            (None, DeviceFilter::V1) => add("GPU isolation", Health::Ok, "by the controller devices of cgroup version 1".to_owned()),
            (None, DeviceFilter::Bpf | DeviceFilter::None { .. }) => {
                add("GPU isolation", Health::Ok, "by a BPF device filter on each scope".to_owned());
            }
        }
    }
    if let Some(why) = gpu_memory(&machine.topology) {
        add("GPU memory", Health::Degraded, why);
    }
}

/// The clock, the disk, and what the agent has of its own.
fn local(config: &AgentConfig, add: Add<'_>) {
    let mut look = |subject, (health, text): tried::Look| add(subject, health, text);
    look("clock", tried::clock());
    look("disk", tried::disk(config));
    look("open files", tried::open_files());
    look("boot id", tried::boot_id());
    if let Some(kept) = tried::kept_aside(config) {
        look("kept states", kept);
    }
}

/// Where work saves its checkpoints, if there is a store for them.
fn checkpoints(config: &AgentConfig) -> Option<tried::Look> {
    let stored = config.checkpoint_store().is_some();
    match config.makes_checkpoints() {
        Ok(_) => Some((Health::Ok, format!("work saves itself below {}", config.checkpoint_dir().display()))),
        Err(why) if config.wants_checkpoints() => Some((Health::Missing, format!("{why}; the agent does not start"))),
        Err(why) => stored.then(|| (Health::Degraded, format!("none are made here: {why}"))),
    }
}

/// The result of loading a BPF program and attaching it to a scope.
fn bpf(filter: &DeviceFilter) -> tried::Look {
    let remedy = "give the agent CAP_BPF and CAP_NET_ADMIN, and a kernel with CONFIG_CGROUP_BPF";
    match filter {
        DeviceFilter::Bpf => (Health::Ok, "a program was loaded and attached to a scope".to_owned()),
        DeviceFilter::V1 => (Health::Degraded, format!("no program could be attached to a scope; {remedy}")),
        DeviceFilter::None { why } => (Health::Degraded, format!("{why}; {remedy}")),
    }
}

/// What is wrong with this machine's GPUs: unusable ones and simulated ones.
pub fn gpu_shortcoming(machine: &Discovered) -> Option<String> {
    let simulated = machine.topology.gpu.gpus.iter().filter(|g| g.vendor == GpuVendor::Simulated).count();
    let simulated = (simulated > 0).then(|| format!("{simulated} of them SIMULATED: not there, but in the configuration (simulated_gpus)"));
    let all: Vec<String> = machine.lacking.iter().cloned().chain(simulated).collect();
    (!all.is_empty()).then(|| format!("GPUs: {}", all.join("; ")))
}

/// A warning, if there are GPUs, that their memory is not cleared when an allocation ends. The
/// vendors' management libraries have no call for that (NVML and ROCm SMI only reset a whole
/// device, which must be idle and takes seconds).
pub fn gpu_memory(topology: &NodeTopology) -> Option<String> {
    let text = "is not cleared between allocations, since no driver's library has a call for that: what the next program can find there is \
                the driver's doing; a site that must be sure resets the GPUs in its epilogue (nvidia-smi --gpu-reset, rocm-smi --gpureset)";
    (!topology.gpu.gpus.is_empty()).then(|| text.to_owned())
}

/// Opens a terminal like an attached one, and closes it.
fn terminal() -> std::io::Result<()> {
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let us = Principal { name: String::new(), uid, gid, groups: Vec::new() };
    pty::open(&us, pty::Size::default(), pty::Modes { echo: true, cooked_output: true }).map(drop)
}

fn processors(topology: &NodeTopology) -> String {
    let packages: BTreeSet<u32> = topology.cpu.cores.iter().map(|c| c.package).collect();
    let [packages, cores, cpus, domains] =
        [packages.len(), topology.cpu.cores.len(), topology.cpu.cpus().len(), topology.memory.domains.len()];
    format!("{packages} package(s), {cores} cores, {cpus} processors; {domains} memory domain(s)")
}

/// The name in the agent's certificate, and how long the certificate is valid.
fn certificate(config: &AgentConfig) -> Option<tried::Look> {
    let kept = config.certificate_file();
    if config.tls == TlsFiles::default() && !kept.exists() {
        return None;
    }
    let material = match Credentials::open(&config.tls, &kept) {
        Ok(credentials) => Arc::clone(&credentials.material().borrow()),
        Err(error) => return Some((Health::Missing, format!("{}; see `tls` in the configuration", with_causes(&error)))),
    };
    let remedy = format!(
        "`lattice quorum ca renew --dir DIR --cert {} --key {}` where the authority's key is, and nothing needs a restart",
        config.tls.cert.display(),
        config.tls.key.display()
    );
    let who = format!("{} (role {})", material.own.name, material.own.role);
    let Some(left) = material.valid.left() else {
        return Some((Health::Missing, format!("{who} has ended: {remedy}")));
    };
    let left = rough(left.as_secs().cast_signed());
    Some(if material.own.name != config.node_id {
        (Health::Missing, format!("it is {who}'s, and the configured node_id is {}: see `tls` in the configuration", config.node_id))
    } else if let Err(error) = material.verified() {
        (Health::Missing, format!("{who}: {}: {remedy}", with_causes(&error)))
    } else if material.valid.is_due() {
        (Health::Degraded, format!("{who} holds for {left} more and was not renewed by the quorum; {remedy}"))
    } else {
        (Health::Ok, format!("{who} holds for {left} more"))
    })
}

/// The site's programs, where there are any.
fn hooks(config: &AgentConfig, add: Add<'_>) {
    for (subject, program) in [("prologue", &config.hooks.prologue.program), ("epilogue", &config.hooks.epilogue.program)] {
        if program.as_os_str().is_empty() {
            continue;
        }
        let about = std::fs::metadata(program).map(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        match about {
            Ok(true) => add(subject, Health::Ok, program.display().to_string()),
            Ok(false) => add(subject, Health::Missing, format!("{} is not an executable file: chmod 755", program.display())),
            Err(error) => add(subject, Health::Missing, format!("{}: {error}; install it or unset `hooks.{subject}`", program.display())),
        }
    }
}

fn mpi(config: &AgentConfig, add: Add<'_>) {
    let there = |name: &str| {
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
            .iter()
            .map(|d| Path::new(d).join(name))
            .find(|p| p.exists())
    };
    let (health, text) = match (there("libmpich.so.12"), there("libmpi.so.40")) {
        (Some(mpich), _) => (Health::Ok, format!("PMI-1 serves {}, and PMI-2 what speaks that", mpich.display())),
        (None, Some(other)) => (Health::Ok, format!("{} speaks PMIx alone (--pmi=pmix)", other.display())),
        (None, None) => (Health::Ok, "none installed; programs that bring MPICH (a uenv, for one) are served by PMI-1 or PMI-2".to_owned()),
    };
    add("MPI", health, text);
    let hwloc = lattice_runtime::topology::hwloc::LIBRARY;
    let text = match (config.work.hwloc_xml, there(hwloc)) {
        (false, _) => "each rank reads the machine itself (work.hwloc_xml: false)".to_owned(),
        (true, Some(path)) => format!("ranks of whole nodes get what {} read once (HWLOC_XMLFILE)", path.display()),
        (true, None) => format!("each rank reads the machine itself: for one file of all of them install hwloc 2 ({hwloc})"),
    };
    add("hwloc", Health::Ok, text);
    match pmix::library(config) {
        Ok(version) => add("PMIx", Health::Ok, format!("served with libpmix {version}")),
        Err(why) => {
            // Only Open MPI needs PMIx: without it, nothing is missing.
            let health = if there("libmpi.so.40").is_some() { Health::Degraded } else { Health::Ok };
            add("PMIx", health, format!("not served: {why}; --pmi=pmix is refused here (an agent looks when it starts)"));
        }
    }
}

/// Whether network domains isolate work on this machine.
fn network(config: &AgentConfig, add: Add<'_>) {
    let text = if features::has_cxi() && config.fabric_manager.is_configured() {
        return add("network domains", Health::Ok, format!("CXI devices are here, and keys are had from {}", config.fabric_manager.url));
    } else if features::has_cxi() {
        "CXI devices are here, and no fabric_manager is configured: a domain's VNI reaches work (FI_CXI_DEFAULT_VNI) and the site's hooks \
         (LATTICE_VNI), and holds where a prologue makes a service for it"
    } else {
        "no CXI device (Slingshot) is here, in /sys/class/cxi: a domain is a name and a number on this node and isolates nothing; work that \
         must be kept apart needs nodes with the feature cxi"
    };
    add("network domains", Health::Degraded, text.to_owned());
}

/// Why allocations get no cgroups of their own on this machine.
#[derive(Debug, Error)]
#[error("{}; mount cgroup2 and delegate {} to the agent", with_causes(.source), .root.display())]
pub struct NoScopes {
    root: PathBuf,
    source: CgroupError,
}

/// Why the log store cannot be used.
#[derive(Debug, Error)]
enum LogStoreFailed {
    #[error("{}", with_causes(.0))]
    Open(#[from] ObjectsError),
    #[error("{0}")]
    MakeRuntime(#[source] std::io::Error),
    #[error("{}", with_causes(.0))]
    Probe(#[from] StoreError),
    #[error("probing it panicked")]
    Panicked,
}

/// Finds the slice, and makes and removes a scope in it, because the slice must exist and be
/// writable.
pub fn probe_slice(root: &Path) -> Result<Slice, NoScopes> {
    let failed = |source| NoScopes { root: root.to_owned(), source };
    let slice = Slice::find(root).map_err(failed)?;
    let probe = AllocationId(uuid::Uuid::new_v4());
    let scope = slice.create_scope(probe).map_err(failed)?;
    let killed = scope.whole().kill().and_then(|()| scope.whole().wait_empty(Duration::from_secs(1)));
    scope.whole().remove().map_err(failed)?;
    killed.map_err(failed)?;
    Ok(slice)
}

/// Tries the log store on its own thread, because the caller may be inside a runtime.
fn log_store(config: &AgentConfig) -> Result<Option<String>, LogStoreFailed> {
    let Some(store) = LogStore::configured(config)? else { return Ok(None) };
    let probing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LogStoreFailed::MakeRuntime)?;
        runtime.block_on(store.probe())?;
        Ok(store.url().to_owned())
    });
    probing.join().map_err(|_| LogStoreFailed::Panicked)?.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_fits_on_a_narrow_screen_and_nothing_of_it_is_lost() {
        let text = "memory is not limited: work that uses too much can end other work and the node; mount the controller";
        let finding = Finding { subject: "cgroup limits", health: Health::Degraded, text: text.to_owned() };
        assert_eq!(finding.lines(None), format!("degraded     cgroup limits     {text}\n"));
        let lines = finding.lines(Some(80));
        assert!(lines.lines().count() == 3 && lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
        let words: Vec<&str> = lines.split_whitespace().collect();
        assert_eq!(words[..3], ["degraded", "cgroup", "limits"]);
        assert_eq!(words[3..].join(" "), text);
        assert!(lines.lines().skip(1).all(|line| line.starts_with(&" ".repeat(31))), "{lines}");
    }
}
