//! The GPUs of the work on this node: their load and memory, NVLink traffic, memory errors, the
//! reasons for reduced clocks, and their problems.
//!
//! `lattice_machine::gpu_loads` queries the drivers on a thread of its own; this module uses its
//! readings. Traffic is measured between two readings, so if there are links, this module waits a
//! moment for a second reading.

use super::fact::fact;
use crate::context::Context;
use lattice_machine::gpu_loads::{GpuReadings, Looked};
use lattice_mesh::diagnosis::{DiagnosisGpus, GPUS_MAX, WireFact};
use lattice_model::gpu_load::GpuLoad;
use lattice_model::gpu_look::gpu_key;
use lattice_model::resources::bytes_text;
use lattice_model::topology::GpuVendor;
use lattice_model::{AllocationId, Epoch, millis};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for the next reading: a little longer than the interval between two.
const NEXT_READING_WAIT: Duration = Duration::from_millis(1500);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Reasons for reduced clocks that show a problem of cooling or power supply. The others are
/// settings, or the power limit, which every busy GPU reaches.
const HARMFUL: &[&str] = &["hardware_slowdown", "hardware_thermal", "hardware_power_brake", "software_thermal"];
/// A GPU below `IDLE_MAX` is reported as idle if another GPU of the same work reaches `BUSY_MIN`.
const IDLE_MAX: f64 = 0.1;
const BUSY_MIN: f64 = 0.5;

/// A GPU of the work.
#[derive(Clone, Debug)]
pub struct WorkGpu {
    id: String,
    vendor: Option<GpuVendor>,
    /// Its problems, or why it is not offered to work; empty: neither is known.
    problem: String,
}

/// The GPUs that the allocation has on this node.
pub fn of_work(context: &Context, (allocation, epoch): (AllocationId, Epoch)) -> Vec<WorkGpu> {
    let view = context.work.view.borrow();
    let local = view.locals.iter().find(|local| local.share.allocation == allocation && local.share.epoch == epoch);
    let (topology, statuses) = (context.machine.topology(), context.machine.gpus.borrow().clone());
    let its = local.and_then(|local| local.assignment.as_ref()).into_iter().flat_map(|assignment| &assignment.gpus).map(|id| {
        let device = topology.gpu.by_id(id);
        let problem = device.map(|gpu| statuses.why(gpu_key(gpu))).unwrap_or_default();
        WorkGpu { id: id.clone(), vendor: device.map(|gpu| gpu.vendor), problem }
    });
    its.collect()
}

/// Returns the findings, and the reading that the first of them are from. `first`: the newest
/// reading when the diagnosis began. `all`: return all findings, not only those about links.
pub fn read(its: &[WorkGpu], first: Option<&Arc<Looked>>, readings: &GpuReadings, all: bool) -> (Vec<WireFact>, DiagnosisGpus) {
    let links = |looked: &Arc<Looked>| its.iter().filter_map(|of| looked.loads.gpus.get(&of.id)).any(has_links);
    let second = first.filter(|first| links(first)).and_then(|first| next(readings, first.at));
    let now = second.as_ref().or(first);
    let load = |looked: Option<&Arc<Looked>>, of: &WorkGpu| looked.and_then(|looked| looked.loads.gpus.get(&of.id).cloned());
    let source = now.and_then(|looked| its.iter().find_map(|of| looked.loads.sources.get(&of.id).copied())).unwrap_or("gpu");
    let reported: Vec<(&WorkGpu, GpuLoad)> = its.iter().filter_map(|of| Some((of, load(now, of)?))).collect();
    let mut facts = Vec::new();
    if all {
        facts.extend([busy(&reported, source), memory_errors(&reported, source), clocks(&reported, source)].into_iter().flatten());
    }
    let before = second.as_ref().zip(first).map(|(second, first)| {
        let loads = reported.iter().map(|(of, _)| load(Some(first), of)).collect();
        (second.at.saturating_duration_since(first.at), loads)
    });
    facts.extend(nvlink_traffic(&reported, before, source));
    // The facts up to here are from the newest reading; those added below are not.
    let looked = DiagnosisGpus {
        facts: u32::try_from(facts.len()).unwrap_or(u32::MAX),
        age_ms: now.map_or(0, |looked| millis(looked.at.elapsed())),
        busy: reported.iter().filter_map(|(of, load)| Some((of.id.clone(), load.utilization?))).take(GPUS_MAX).collect(),
        source: source.to_owned(),
    };
    if all {
        facts.extend(its.iter().filter(|of| !of.problem.is_empty()).map(|of| fact("gpus", &of.id, "driver", of.problem.clone(), true)));
        // A GPU with a known problem may not be queried at all, so it is not reported a second
        // time.
        let silent = its.iter().filter(|of| of.problem.is_empty() && reported.iter().all(|(other, _)| other.id != of.id));
        let hangs = readings.newest().is_none() && readings.age().is_some();
        facts.extend(silent.map(|of| fact("gpus", &of.id, "none", readings.why_silent(&of.id, of.vendor), hangs)));
    }
    (facts, looked)
}

/// Waits up to [`NEXT_READING_WAIT`] for a reading later than `then`.
fn next(readings: &GpuReadings, then: Instant) -> Option<Arc<Looked>> {
    let until = Instant::now() + NEXT_READING_WAIT;
    loop {
        if let Some(newer) = readings.newest().filter(|looked| looked.at > then) {
            return Some(newer);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn many(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// The smallest and the largest value.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().reduce(f64::max)?))
}

fn busy(reported: &[(&WorkGpu, GpuLoad)], source: &str) -> Option<WireFact> {
    let each = |of: fn(&GpuLoad) -> Option<f64>| reported.iter().filter_map(|(_, load)| of(load)).collect::<Vec<f64>>();
    let mut parts = Vec::new();
    let utilization = each(|load| load.utilization);
    if let Some((least, most)) = range(&utilization) {
        let mean = utilization.iter().sum::<f64>() / utilization.len() as f64;
        let between = format!(", {} to {}", percent(least), percent(most));
        parts.push(format!("busy {}{}", percent(mean), if utilization.len() > 1 { between } else { String::new() }));
    }
    if let Some((_, fullest)) = range(&each(GpuLoad::memory_ratio)) {
        let (used, total) = (each(|load| load.memory_used_bytes.map(|n| n as f64)), each(|load| load.memory_total_bytes.map(|n| n as f64)));
        let bytes = |all: &[f64]| bytes_text(all.iter().sum::<f64>() as u64);
        parts.push(format!("memory {} of {} used, the fullest {}", bytes(&used), bytes(&total), percent(fullest)));
    }
    let watts = each(|load| load.power_watts);
    if !watts.is_empty() {
        parts.push(format!("{:.0} W", watts.iter().sum::<f64>()));
    }
    if let Some((_, hottest)) = range(&each(|load| load.temperature_celsius)) {
        parts.push(format!("{hottest:.0} °C at most"));
    }
    (!parts.is_empty()).then(|| fact("gpus", &many(reported.len()), source, parts.join("; "), false))
}

/// Lists the GPUs whose counter is above zero, with the counts.
fn counted(reported: &[(&WorkGpu, GpuLoad)], of: Counter) -> Option<String> {
    let all: Vec<(&str, u64)> = reported.iter().filter_map(|(its, load)| Some((its.id.as_str(), of(load)?))).collect();
    let some: Vec<String> = all.iter().filter(|(_, count)| *count > 0).map(|(id, count)| format!("{count} of {id}")).collect();
    (!all.is_empty()).then(|| if some.is_empty() { "none".to_owned() } else { some.join(", ") })
}

fn memory_errors(reported: &[(&WorkGpu, GpuLoad)], source: &str) -> Option<WireFact> {
    let (lost, mended) = (counted(reported, |load| load.ecc_uncorrected), counted(reported, |load| load.ecc_corrected));
    let wrong = reported.iter().any(|(_, load)| load.ecc_uncorrected.is_some_and(|count| count > 0));
    let parts = [("not corrected", lost), ("corrected", mended)].into_iter().filter_map(|(what, of)| Some(format!("{what}: {}", of?)));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| fact("gpus", "ECC errors", source, parts.join("; "), wrong))
}

fn clocks(reported: &[(&WorkGpu, GpuLoad)], source: &str) -> Option<WireFact> {
    let all: Vec<(&str, &Vec<String>)> =
        reported.iter().filter_map(|(its, load)| Some((its.id.as_str(), load.throttled.as_ref()?))).collect();
    let held = all.iter().filter(|(_, reasons)| !reasons.is_empty()).map(|(id, reasons)| format!("{id} by {}", reasons.join(", ")));
    let held: Vec<String> = held.collect();
    let wrong = all.iter().flat_map(|(_, reasons)| reasons.iter()).any(|reason| HARMFUL.contains(&reason.as_str()));
    let text = if held.is_empty() { "nothing holds them down".to_owned() } else { format!("held down: {}", held.join("; ")) };
    (!all.is_empty()).then(|| fact("gpus", "clocks", source, text, wrong))
}

/// Reads one counter of a GPU.
type Counter = fn(&GpuLoad) -> Option<u64>;

fn has_links(load: &GpuLoad) -> bool {
    load.nvlink_sent_bytes.is_some() || load.nvlink_received_bytes.is_some()
}

/// The increase of a counter; `None`: the counter restarted, or one of the two values is missing.
fn grown(of: Counter, load: &GpuLoad, before: Option<&GpuLoad>) -> Option<u64> {
    of(load)?.checked_sub(of(before?)?)
}

/// NVLink traffic: per second between two readings, or the total since the drivers were loaded.
fn nvlink_traffic(reported: &[(&WorkGpu, GpuLoad)], before: Option<(Duration, Vec<Option<GpuLoad>>)>, source: &str) -> Option<WireFact> {
    let (sent, received): (Counter, Counter) = (|load| load.nvlink_sent_bytes, |load| load.nvlink_received_bytes);
    let with: Vec<usize> = (0..reported.len()).filter(|at| has_links(&reported[*at].1)).collect();
    if with.is_empty() {
        return None;
    }
    let rate = |of| {
        let (over, before) = before.as_ref()?;
        let grown: Vec<u64> = with.iter().filter_map(|at| grown(of, &reported[*at].1, before.get(*at)?.as_ref())).collect();
        let seconds = over.as_secs_f64();
        (!grown.is_empty() && seconds > 0.0).then(|| format!("{}/s", bytes_text((grown.iter().sum::<u64>() as f64 / seconds) as u64)))
    };
    let whole = |of: Counter| bytes_text(with.iter().filter_map(|at| of(&reported[*at].1)).fold(0, u64::saturating_add));
    let text = match (rate(sent), rate(received)) {
        (None, None) => format!("{} sent, {} received since their drivers were loaded", whole(sent), whole(received)),
        (sent, received) => {
            let parts = [("sent", sent), ("received", received)].into_iter().filter_map(|(what, rate)| Some(format!("{} {what}", rate?)));
            format!("{}, by {}", parts.collect::<Vec<_>>().join(", "), many(with.len()))
        }
    };
    Some(fact("gpus", "NVLink", source, text, false))
}

/// Compares all GPUs of the work. Returns the index of each node with idle GPUs, and a text that
/// names these and the busiest GPU; nothing if no GPU is busy.
pub fn uneven(nodes: &[(&str, &DiagnosisGpus)]) -> Vec<(usize, String)> {
    let all = || nodes.iter().flat_map(|(node, of)| of.busy.iter().map(move |(id, busy)| (*node, id, *busy)));
    let Some((node, id, most)) = all().max_by(|a, b| a.2.total_cmp(&b.2)).filter(|(_, _, most)| *most >= BUSY_MIN) else {
        return Vec::new();
    };
    let idle = |of: &DiagnosisGpus| {
        let idle = of.busy.iter().filter(|(_, busy)| *busy < IDLE_MAX).map(|(id, busy)| format!("{id} ({})", percent(*busy)));
        idle.collect::<Vec<_>>()
    };
    let found = nodes.iter().enumerate().filter_map(|(at, (_, of))| {
        let idle = idle(of);
        let verb = if idle.len() == 1 { "does" } else { "do" };
        let text = || format!("{} {verb} nothing while others are busy: {id} of {node} {}", idle.join(", "), percent(most));
        (!idle.is_empty()).then(|| (at, text()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::gpu_load::GpuLoads;
    use std::collections::BTreeMap;

    fn its(id: &str, problem: &str) -> WorkGpu {
        WorkGpu { id: id.to_owned(), vendor: Some(GpuVendor::Nvidia), problem: problem.to_owned() }
    }

    fn looked(each: &[(&str, GpuLoad)]) -> Arc<Looked> {
        let mut loads = GpuLoads::default();
        for (id, load) in each {
            loads.gpus.insert((*id).to_owned(), load.clone());
            loads.sources.insert((*id).to_owned(), "nvml");
        }
        Arc::new(Looked::new(Instant::now(), Instant::now(), loads, BTreeMap::new(), BTreeMap::new()))
    }

    fn texts(facts: &[WireFact]) -> Vec<(&str, &str, bool)> {
        facts.iter().map(|fact| (fact.subject.as_str(), fact.text.as_str(), fact.problem)).collect()
    }

    #[test]
    fn gpus_are_reported_together_and_faulty_ones_by_name() {
        let one = GpuLoad {
            utilization: Some(0.9),
            memory_used_bytes: Some(1 << 29),
            memory_total_bytes: Some(1 << 30),
            power_watts: Some(300.0),
            temperature_celsius: Some(60.0),
            throttled: Some(Vec::new()),
            ecc_uncorrected: Some(0),
            ecc_corrected: Some(0),
            ..GpuLoad::default()
        };
        let other = GpuLoad {
            utilization: Some(0.0),
            throttled: Some(vec!["hardware_thermal".to_owned()]),
            ecc_uncorrected: Some(2),
            temperature_celsius: Some(91.0),
            ..one.clone()
        };
        let first = looked(&[("A", one.clone()), ("B", other)]);
        let all = [its("A", ""), its("B", "91 °C: watch it"), its("C", "")];
        let (facts, gpus) = read(&all, Some(&first), &GpuReadings::default(), true);
        let want = [
            ("2 GPUs", "busy 45.0 %, 0.0 % to 90.0 %; memory 1.0 GiB of 2.0 GiB used, the fullest 50.0 %; 600 W; 91 °C at most", false),
            ("ECC errors", "not corrected: 2 of B; corrected: none", true),
            ("clocks", "held down: B by hardware_thermal", true),
            ("B", "91 °C: watch it", true),
            ("C", "it was not measured yet, or its driver does not report it", false),
        ];
        assert_eq!(texts(&facts), want);
        assert_eq!((gpus.facts, gpus.busy.len(), gpus.source.as_str()), (3, 2, "nvml"));
        // A GPU without problems is not marked, and without links there is no finding about them.
        let (facts, _) = read(&all[..1], Some(&first), &GpuReadings::default(), true);
        assert_eq!(
            texts(&facts)[1..],
            [("ECC errors", "not corrected: none; corrected: none", false), ("clocks", "nothing holds them down", false)]
        );
        assert!(read(&all, Some(&first), &GpuReadings::default(), false).0.is_empty());
    }

    #[test]
    fn link_traffic_is_reported_per_second_between_two_looks() {
        let load = |sent| GpuLoad { nvlink_sent_bytes: Some(sent), nvlink_received_bytes: Some(4096), ..GpuLoad::default() };
        let (a, b) = (its("A", ""), its("B", ""));
        let reported = [(&a, load(8192)), (&b, load(0))];
        let before = |each: [u64; 2]| Some((Duration::from_secs(2), each.map(|sent| Some(load(sent))).to_vec()));
        // The counter of B has restarted.
        let text = |before| nvlink_traffic(&reported, before, "nvml").unwrap().text;
        assert_eq!(text(before([4096, 50])), "2 KiB/s sent, 0 KiB/s received, by 2 GPUs");
        assert_eq!(text(None), "8 KiB sent, 8 KiB received since their drivers were loaded");
    }

    #[test]
    fn idle_gpus_beside_busy_ones_of_the_same_work_are_reported_across_nodes() {
        let gpus = |each: &[(&str, f64)]| DiagnosisGpus {
            busy: each.iter().map(|(id, busy)| ((*id).to_owned(), *busy)).collect(),
            ..DiagnosisGpus::default()
        };
        let (one, other) = (gpus(&[("A", 0.05), ("B", 0.6)]), gpus(&[("C", 0.9), ("D", 0.3)]));
        let found = uneven(&[("n1", &one), ("n2", &other)]);
        assert_eq!(found, [(0, "A (5.0 %) does nothing while others are busy: C of n2 90.0 %".to_owned())]);
        // All idle or all busy counts as even.
        for even in [gpus(&[("A", 0.0), ("B", 0.4)]), gpus(&[("A", 0.7), ("B", 0.9)]), gpus(&[])] {
            assert_eq!(uneven(&[("n1", &even)]), []);
        }
    }
}
