//! `lattice top --per-gpu`: each GPU of an allocation.

use super::value::{age_text, value_text};
use lattice_api::v1;
use lattice_cli_session::output::TableSize;
use lattice_cli_session::table::{Fit, Table};

/// The columns with their headings.
const COLUMNS: &[(&str, &str)] = &[
    ("gpu_utilization", "BUSY"),
    ("gpu_memory_used", "MEMORY"),
    ("gpu_memory_ratio", "FULL"),
    ("gpu_power_draw", "POWER"),
    ("gpu_temperature", "TEMPERATURE"),
    ("gpu_sm_clock", "CLOCK"),
    ("gpu_energy", "ENERGY"),
    ("gpu_ecc_uncorrected", "ECC"),
];

/// How the table is made narrower.
const FIT: Fit<'_> = Fit {
    left_out: &["AGE", "SOURCE", "ENERGY", "ECC", "CLOCK", "FULL"],
    shortened: &[("GPU", 10), ("NODE", 8), ("THROTTLED BY", 12)],
    wrapped: &[],
    left_out_last: &[],
};

pub fn table(nodes: &[v1::NodeUsage], size: TableSize) -> String {
    let headings: Vec<&str> =
        ["NODE", "GPU"].into_iter().chain(COLUMNS.iter().map(|(_, heading)| *heading)).chain(["THROTTLED BY", "SOURCE", "AGE"]).collect();
    let mut table = Table::new(&headings);
    for node in nodes {
        for gpu in &node.gpus {
            let find = |name: &str| gpu.measured.iter().find(|one| one.name == name);
            let value = |(name, _): &(&str, &str)| find(name).map(|one| value_text(one.now, &one.unit)).unwrap_or_default();
            let source = gpu.measured.first().map(|one| one.source.clone()).unwrap_or_default();
            let age = if gpu.error.is_empty() { age_text(node.gpus_age_ms) } else { String::new() };
            let mut row = vec![node.node.clone(), gpu.id.clone()];
            row.extend(COLUMNS.iter().map(value));
            row.extend([gpu.throttled.join(","), source, age]);
            table.row(row);
        }
    }
    table.on_screen(&[], &FIT, size)
}

/// Notes on what the table does not show.
pub fn notes(nodes: &[v1::NodeUsage]) -> Vec<String> {
    let mut notes = Vec::new();
    for node in nodes {
        if !node.gpus_error.is_empty() {
            notes.push(format!("{} does not report its GPUs: {}", node.node, node.gpus_error));
        }
        let unreadable = node.gpus.iter().filter(|gpu| !gpu.error.is_empty());
        notes.extend(unreadable.map(|gpu| format!("{} of {} has no numbers: {}", gpu.id, node.node, gpu.error)));
    }
    if notes.is_empty() && nodes.iter().all(|node| node.error.is_empty() && node.gpus.is_empty()) {
        notes.push("the allocation has no GPUs".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gpu_has_a_line_and_one_that_is_silent_says_why() {
        let one = |name: &str, unit: &str, now| v1::Measured {
            name: name.into(),
            unit: unit.into(),
            source: "nvml".into(),
            now,
            ..Default::default()
        };
        let measured = vec![one("gpu_utilization", "ratio", 0.92), one("gpu_power_draw", "W", 640.0), one("gpu_energy", "J", 5.0)];
        let busy = v1::GpuUsage { id: "GPU-1".into(), measured, throttled: vec!["power_cap".into()], ..Default::default() };
        let unreadable = v1::GpuUsage { id: "GPU-2".into(), error: "NVML: lost".into(), ..Default::default() };
        let node = v1::NodeUsage { node: "n1".into(), gpus: vec![busy, unreadable], gpus_age_ms: 300, ..Default::default() };
        let unreachable = v1::NodeUsage { node: "n2".into(), gpus_error: "no answer".into(), ..Default::default() };
        let want = "\
NODE  GPU    BUSY    MEMORY  FULL  POWER  TEMPERATURE  CLOCK  ENERGY  ECC  THROTTLED BY  SOURCE  AGE
n1    GPU-1  92.0 %  —       —     640 W  —            —      5.0 J   —    power_cap     nvml    0.3 s
n1    GPU-2  —       —       —     —      —            —      —       —    —             —       —
";
        assert_eq!(table(&[node.clone(), unreachable.clone()], TableSize::default()), want);
        assert_eq!(notes(&[node, unreachable]), ["GPU-2 of n1 has no numbers: NVML: lost", "n2 does not report its GPUs: no answer"]);
        assert_eq!(notes(&[v1::NodeUsage::default()]), ["the allocation has no GPUs"]);
        let unreachable = v1::NodeUsage { error: "gone".into(), ..Default::default() };
        assert!(notes(&[unreachable, v1::NodeUsage::default()]).is_empty(), "who was not reached may have some");
    }
}
