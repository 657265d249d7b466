//! What can be measured on this machine, and whether the metrics can be served and pushed.

use super::health::Health;
use super::tried::Look;
use lattice_agent_common::config::AgentConfig;
use lattice_ebpf::Probe;
use lattice_machine::questions::{Asked, OF_GPUS};
use lattice_model::gpu_load::GpuLoads;
use lattice_model::topology::GpuDevice;
use lattice_model::{AllocationId, Epoch, with_causes};
use lattice_observe::kernel_counts::{KernelCounts, NoAudits, NotCounting};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::cgroup::controllers::Controllers;
use lattice_runtime::topology::{Files, GpuLoadReader, SimulatedGpu};
use lattice_telemetry::push;
use lattice_telemetry::readers::{CgroupPaths, Listeners, Meter, Rapl, Text};
use lattice_telemetry::usage::{Distribution, Measure, Source, Usage};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout of the connection to the program that listens at the metrics port, and of each read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the GPUs' drivers may take to answer.
const GPUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the counters of an empty allocation. Reports where each number comes from, which programs
/// count in the kernel, and whether work can be audited.
pub fn measured(config: &AgentConfig, slice: Option<&Slice>, controllers: &Controllers) -> [Look; 3] {
    let probe = AllocationId(uuid::Uuid::new_v4());
    let scope = slice.map(|slice| slice.create_scope(probe)).and_then(Result::ok);
    let groups: Vec<_> = controllers.v1_groups(probe).into_iter().filter(|group| group.create().is_ok()).collect();
    let kernel = KernelCounts::default();
    if config.measuring.kernel_probes {
        kernel.begin(slice, None);
    } else {
        kernel.off("measuring.kernel_probes: false");
    }
    let places = CgroupPaths {
        v2: scope.as_ref().map(|scope| scope.work().path().to_owned()),
        v1: groups.iter().map(|group| group.path()).collect(),
    };
    let counted = places.v2.is_some().then(|| kernel.reader((probe, Epoch(1))));
    let mut meter = Meter::new(places, counted);
    let mut usage = meter.read(&mut Text::default()).unwrap_or_default();
    // The probe has no listener: only whether the kernel answers counts.
    let answer = scope.as_ref().and_then(|_| Listeners::default().look(Instant::now(), &BTreeSet::new()));
    usage.offer(Measure::AcceptQueue, answer.map(|_| 0.0), Source::SockDiag);
    // The next agent would sweep what is left.
    let _left = controllers.remove(probe, Duration::from_secs(1));
    let _left = scope.map(|scope| scope.whole().remove());
    let audits = audits(kernel.audits(), &kernel.audit_lacks(), config);
    [describe_usage(&usage), in_kernel(kernel.probes(), config.measuring.kernel_probes), audits]
}

/// Whether this machine can record which files work opens and which hosts it connects to.
fn audits(can: Result<(), NoAudits>, lacks: &[String], config: &AgentConfig) -> Look {
    match can {
        Err(why) if !config.measuring.kernel_probes => (Health::Ok, format!("switched off ({why})")),
        Err(why) => (Health::Degraded, format!("not available here: {why}; lattice telemetry --mode audit is refused")),
        Ok(()) if !config.logs.store.is_configured() => (
            Health::Degraded,
            "the kernel can record it, and there is no logs.store to keep it: lattice telemetry --mode audit is refused".to_owned(),
        ),
        Ok(()) if !lacks.is_empty() => (Health::Degraded, format!("files and connections of calls; not of io_uring: {}", lacks.join("; "))),
        Ok(()) => (Health::Ok, "files and connections, where somebody asks for it (lattice telemetry --mode audit)".to_owned()),
    }
}

fn describe_usage(usage: &Usage) -> Look {
    let mut by_source: BTreeMap<Source, Vec<&str>> = BTreeMap::new();
    for (name, source) in usage.sources() {
        by_source.entry(source).or_default().push(name);
    }
    let had = by_source.iter().map(|(source, names)| format!("by {source}: {}", names.join(", ")));
    let distributions = Distribution::ALL.into_iter().filter(|of| usage.distribution(*of).is_none()).map(Distribution::name);
    // Energy has lines of its own.
    let of_meters = [Measure::EnergyCpu, Measure::EnergyGpu];
    let lacks = Measure::ALL.into_iter().filter(|measure| usage.lacks(*measure) && !of_meters.contains(measure)).map(Measure::name);
    let lacks: Vec<&str> = lacks.chain(distributions).collect();
    let lacking = (!lacks.is_empty()).then(|| format!("not available here: {}", lacks.join(", ")));
    let text = had.chain(lacking).collect::<Vec<_>>().join("; ");
    if by_source.is_empty() {
        return (Health::Degraded, format!("nothing of allocations can be measured: there is no cgroup for them; {text}"));
    }
    (Health::Ok, text)
}

/// `wanted`: the configuration does not switch the programs off.
fn in_kernel(probes: Result<Vec<Probe>, NotCounting>, wanted: bool) -> Look {
    let probes = match probes {
        Ok(probes) => probes,
        Err(why) if !wanted => return (Health::Ok, format!("switched off ({why})")),
        Err(why) => return (Health::Degraded, format!("none counts: {why}; cgroups and /proc show what they can")),
    };
    let counting: Vec<&str> = probes.iter().filter(|probe| probe.why_not.is_none()).map(|probe| probe.name).collect();
    let lacking = probes.iter().filter_map(|probe| probe.why_not.as_ref().map(|why| format!("{} does not count: {why}", probe.name)));
    let text = std::iter::once(format!("counting: {}", counting.join(", "))).chain(lacking).collect::<Vec<_>>().join("; ");
    (if counting.len() == probes.len() { Health::Ok } else { Health::Degraded }, text)
}

/// The energy meters of the processors.
pub fn energy(root: &Path) -> Look {
    let rapl = Rapl::below(root);
    let names: Vec<&str> = rapl.names().collect();
    match (rapl.absent(), rapl.refused()) {
        // Many machines have none: that is no fault.
        (Some(why), _) => (Health::Unsupported, format!("of processors and memory: {why}")),
        (None, Some(why)) => (Health::Degraded, format!("RAPL cannot be read: {why}; there are: {}", names.join(", "))),
        (None, None) => (Health::Ok, format!("by RAPL: {}; of work on shared nodes an estimate by processor time", names.join(", "))),
    }
}

/// Queries the GPUs' drivers for their load, and reports which driver answered what.
pub fn gpu_loads(simulated: &[SimulatedGpu], devices: &[GpuDevice]) -> Look {
    let (simulated, devices) = (simulated.to_vec(), devices.to_vec());
    let read = move || GpuLoadReader::new(Files::below(Path::new("/")), &simulated).read(&devices);
    match OF_GPUS.ask(GPUS_TIMEOUT, read) {
        Asked::Answered(loads) => describe_gpus(&loads),
        Asked::Silent => {
            let text =
                format!("their driver does not answer within {} s: nvidia-smi or rocm-smi shows whether it hangs", GPUS_TIMEOUT.as_secs());
            (Health::Degraded, text)
        }
        Asked::TooMany => (Health::Degraded, "no thread could be started to ask their drivers".to_owned()),
    }
}

fn describe_gpus(loads: &GpuLoads) -> Look {
    let mut by_source: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut lacks: BTreeSet<&str> = BTreeSet::new();
    for (id, load) in &loads.gpus {
        let source = loads.sources.get(id).copied().unwrap_or_default();
        for (name, there) in [
            ("utilization", load.utilization.is_some()),
            ("memory", load.memory_used_bytes.is_some()),
            ("power", load.power_watts.is_some()),
            ("energy", load.energy_joules.is_some()),
            ("temperature", load.temperature_celsius.is_some()),
            ("clocks", load.sm_clock_hertz.is_some()),
            ("throttling", load.throttled.is_some()),
            ("ECC", load.ecc_uncorrected.is_some()),
            ("PCIe", load.pcie_sent_bytes.is_some()),
            ("NVLink", load.nvlink_sent_bytes.is_some()),
            ("processes", load.processes.is_some()),
        ] {
            if there {
                by_source.entry(source).or_default().insert(name);
            } else {
                lacks.insert(name);
            }
        }
    }
    let joined = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(", ");
    let had = by_source.iter().map(|(source, names)| format!("by {source}: {}", joined(names)));
    let lacking = (!lacks.is_empty()).then(|| format!("not of every GPU: {}", joined(&lacks)));
    let text: Vec<String> = had.chain(lacking).chain(loads.lacking.iter().map(|lacking| lacking.why.clone())).collect();
    (if loads.lacking.is_empty() { Health::Ok } else { Health::Degraded }, text.join("; "))
}

/// Whether `/metrics` is served, or could be; `None` if it is switched off.
pub fn served(config: &AgentConfig) -> Option<Look> {
    let listen = config.metrics_listen()?;
    let token = match config.telemetry.token() {
        Ok(Some(_)) => "; allocations for who shows the token".to_owned(),
        Ok(None) => "; without allocations: for them, set telemetry.metrics_token_file".to_owned(),
        Err(error) => return Some((Health::Degraded, format!("metrics_token_file: {}", with_causes(&error)))),
    };
    Some(match TcpListener::bind(listen) {
        Ok(_) => (Health::Ok, format!("http://{listen}/metrics can be served{token}")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => match build_info(listen) {
            Some(line) if line.contains(&format!("node_id=\"{}\"", config.node_id)) => {
                (Health::Ok, format!("http://{listen}/metrics is served by this node's agent{token}"))
            }
            _ => (Health::Degraded, format!("{listen} is in use by something else: set telemetry.metrics_listen to another address")),
        },
        Err(error) => (Health::Degraded, format!("{listen}: {error}: set telemetry.metrics_listen to an address of this machine")),
    })
}

/// The build information of the agent that listens there.
fn build_info(listen: SocketAddr) -> Option<String> {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(ip, listen.port()), ANSWER_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = Vec::new();
    // The listener may answer anything.
    let _ended = stream.take(1 << 20).read_to_end(&mut page);
    let page = String::from_utf8_lossy(&page);
    page.lines().find(|line| line.starts_with("lattice_build_info{")).map(str::to_owned)
}

/// The configuration of the metrics store. The store is not tried: `lattice_push_…` shows whether
/// it accepts metrics.
pub fn pushed(config: &AgentConfig) -> Option<Look> {
    // An error means that another caller installed the same provider first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store: Result<Option<push::Store>, _> = config.telemetry.store();
    match store {
        Ok(store) => {
            store.map(|store| (Health::Ok, format!("pushed every {} s to {}", config.telemetry.prod_interval_seconds, store.url())))
        }
        Err(error) => Some((Health::Degraded, format!("metrics are not pushed: {}", with_causes(&error)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::gpu_load::Lacking;
    use lattice_model::topology::GpuVendor;

    #[test]
    fn each_measure_is_shown_with_its_source_or_as_not_available() {
        let mut usage = Usage::default();
        usage.offer(Measure::CpuUser, Some(0.0), Source::CgroupV2);
        usage.offer(Measure::Memory, Some(0.0), Source::Procfs);
        let (health, text) = describe_usage(&usage);
        assert_eq!(health, Health::Ok);
        assert!(text.starts_with("by cgroup2: cpu_user; by procfs: memory; not available here: cpu_system, "), "{text}");
        assert!(text.contains(", network_sent") && text.ends_with(", block_write"), "{text}");
        assert_eq!(describe_usage(&Usage::default()).0, Health::Degraded);
    }

    #[test]
    fn energy_and_gpus_are_shown_with_their_source_and_what_is_unsupported() {
        let (health, text) = energy(Path::new("/nowhere"));
        assert!(health == Health::Unsupported && text.contains("no intel-rapl"), "{text}");
        let load = lattice_model::gpu_load::GpuLoad { utilization: Some(0.5), ..Default::default() };
        let mut loads = GpuLoads::default();
        loads.gpus.insert("SIM-0".to_owned(), load);
        loads.sources.insert("SIM-0".to_owned(), "simulated");
        let (health, text) = describe_gpus(&loads);
        assert!(health == Health::Ok && text.starts_with("by simulated: utilization; not of every GPU: ECC, NVLink, "), "{text}");
        let why = "GPU SIM-1: it is unreachable".to_owned();
        loads.lacking.push(Lacking { vendor: GpuVendor::Simulated, gpu: Some("SIM-1".to_owned()), why });
        assert_eq!(describe_gpus(&loads).0, Health::Degraded);
    }

    #[test]
    fn a_program_that_does_not_count_is_shown_with_its_reason() {
        let counts = Probe { name: "sched_switch", why_not: None };
        let lacks = Probe { name: "mark_victim", why_not: Some("another kernel".to_owned()) };
        let expected = "counting: sched_switch; mark_victim does not count: another kernel";
        assert_eq!(in_kernel(Ok(vec![counts.clone(), lacks]), true), (Health::Degraded, expected.to_owned()));
        assert_eq!(in_kernel(Ok(vec![counts]), true).0, Health::Ok);
        assert_eq!(in_kernel(Err(NotCounting::Off { why: "no root".to_owned() }), true).0, Health::Degraded);
        assert_eq!(
            in_kernel(Err(NotCounting::Off { why: "measuring.kernel_probes: false".to_owned() }), false),
            (Health::Ok, "switched off (measuring.kernel_probes: false)".to_owned())
        );
    }

    #[test]
    fn a_port_that_another_process_uses_is_reported() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = AgentConfig { node_id: "n1".to_owned(), ..AgentConfig::default() };
        config.telemetry.metrics_listen = Some(taken.local_addr().unwrap().to_string());
        let (health, text) = served(&config).unwrap();
        assert!(health == Health::Degraded && text.contains("in use by something else"), "{text}");
        config.telemetry.metrics_listen = Some(String::new());
        assert_eq!(served(&config), None);
    }
}
