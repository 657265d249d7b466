//! Load of GPUs, its attribution to work, and their energy. The GPUs are simulated: the lab writes a GPU's load to a
//! file beside its device, in place of a vendor's driver.

use crate::harness::{Group, JOB, NOBODY, World};
use crate::telemetry;
use lattice_lab::gpus::{Fault, fault};
use lattice_lab::lattice::text;
use lattice_lab::{configs, faults, process};
use lattice_model::gpu_load::GpuLoad;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const TOKEN: &str = "00112233445566778899aabbccddeeff";
const GIB: u64 = 1 << 30;

static DEVICES: Group = Group {
    theme: "devices",
    name: "devices",
    nodes: 2,
    quorum: 1,
    tweak: |options| {
        let token = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("devices-token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        options.simulated_gpus = 3;
        options.telemetry_lines = format!("  metrics_token_file: {:?}\n", token.to_string_lossy());
        options.agent_lines = "measuring: {gpu_job_mapping_dir: \"{run}/job-map\"}\nalerts:\n  rules:\n    \
                               - {name: gpu_idle, measure: gpu_utilization_min, below: 0.1, cleared_at: 0.15, for_seconds: 1}\n"
            .to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        DEVICES.test("two_allocations_see_the_load_and_energy_of_their_own_gpus", &[], apart),
        DEVICES.test("energy_continues_after_kill_9_and_includes_the_time_between", &[], killed),
        DEVICES.test("a_driver_that_hangs_stops_no_other_measurement_and_is_reported", &[], hung),
        DEVICES.test("a_lost_gpu_is_no_longer_exported", &[], gone),
        DEVICES.test("diag_shows_the_load_of_the_works_gpus_and_which_are_idle", &[], diagnosed),
    ]
}

/// Sets the load of a GPU of n1.
fn load(w: &World, gpu: &str, utilization: f64, used_gib: f64, joules: f64) {
    let load = GpuLoad {
        utilization: Some(utilization),
        memory_used_bytes: Some((used_gib * GIB as f64) as u64),
        memory_total_bytes: Some(GIB),
        power_watts: Some(utilization * 1000.0),
        energy_joules: Some(joules),
        throttled: Some(vec!["power_cap".to_owned()]),
        ..GpuLoad::default()
    };
    let index = gpu.trim_start_matches("SIM-").parse().unwrap();
    fault(&w.dir.join("n1"), index, &Fault::Load(Box::new(load))).unwrap();
}

fn page(w: &World) -> String {
    let address = w.cluster().node("n1").unwrap().metrics.clone();
    telemetry::get(&address, "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n")).1
}

/// The value of the line that contains all of these texts.
fn series(page: &str, parts: &[&str]) -> Option<f64> {
    let mut lines = page.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    let line = lines.next()?;
    assert!(lines.next().is_none(), "{parts:?} is more than one series");
    line.rsplit(' ').next()?.parse().ok()
}

fn gpu_joules(w: &World, id: &str) -> Option<f64> {
    series(&page(w), &["lattice_allocation_energy_joules_total{", id, "device=\"gpu\""])
}

/// Work with a GPU of n1; returns its id and the GPU.
fn with_gpu(w: &World) -> (String, String) {
    // The work must run on n1; n2 only answers requests.
    w.ok(&["node", "cordon", "n2", "--reason", "n1 is tested"]);
    let id = w.submit(&["--cores", "1", "--gpus", "1", "--", "sleep", "600"]);
    w.running(&id);
    let usage = per_gpu(w, &id);
    let gpus = usage["nodes"][0]["gpus"].as_array().unwrap_or_else(|| panic!("{usage}"));
    assert_eq!(gpus.len(), 1, "{usage}");
    (id, text(&gpus[0], "id"))
}

fn per_gpu(w: &World, id: &str) -> Value {
    w.lattice.json(&["top", id, "--per-gpu"]).unwrap()
}

/// The latest value of a measure of the work's only GPU.
fn gpu_measure(usage: &Value, name: &str) -> Option<f64> {
    let measured = usage["nodes"][0]["gpus"][0]["measured"].as_array()?;
    measured.iter().find(|one| one["name"] == name)?["now"].as_f64()
}

fn node_measure(usage: &Value, name: &str) -> Option<f64> {
    let measured = usage["nodes"][0]["measured"].as_array()?;
    measured.iter().find(|one| one["name"] == name)?["now"].as_f64()
}

fn end(w: &World, ids: &[&str]) {
    for id in ids {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}

fn apart(w: &World) {
    for gpu in ["SIM-0", "SIM-1", "SIM-2"] {
        load(w, gpu, 0.5, 0.25, 1000.0);
    }
    let ((one, its), (other, others)) = (with_gpu(w), with_gpu(w));
    assert_ne!(its, others);
    w.wait("both to be measured", || gpu_joules(w, &one).is_some() && gpu_joules(w, &other).is_some());
    load(w, &its, 0.75, 0.5, 1500.0);
    load(w, &others, 0.03125, 0.96875, 1020.0);
    w.wait("the energy of both", || (gpu_joules(w, &one), gpu_joules(w, &other)) == (Some(500.0), Some(20.0)));
    // Through n1 itself, and through another agent.
    let (usage, of_other) = (per_gpu(w, &one), w.at("n2").json(&["top", &other, "--per-gpu"]).unwrap());
    for (usage, busy, used, watts) in [(&usage, 0.75, 0.5, 750.0), (&of_other, 0.03125, 0.96875, 31.25)] {
        assert_eq!(gpu_measure(usage, "gpu_utilization"), Some(busy), "{usage}");
        assert_eq!(gpu_measure(usage, "gpu_memory_used"), Some(used * GIB as f64), "{usage}");
        assert_eq!(gpu_measure(usage, "gpu_power_draw"), Some(watts), "{usage}");
        // The same combined, for one GPU, with the energy since the work began.
        assert_eq!(node_measure(usage, "gpu_utilization"), Some(busy), "{usage}");
        assert_eq!(node_measure(usage, "gpu_memory_ratio"), Some(used), "{usage}");
    }
    assert_eq!((node_measure(&usage, "gpu_energy"), node_measure(&of_other, "gpu_energy")), (Some(500.0), Some(20.0)));
    assert_eq!(usage["nodes"][0]["gpus"][0]["throttled"][0], "power_cap");
    assert!(!usage.to_string().contains(&others) && !of_other.to_string().contains(&its), "{usage}\n{of_other}");
    let table = w.ok(&["top", &one, "--per-gpu"]);
    assert!(
        table.starts_with("NODE  GPU") && table.contains("75.0 %") && table.contains("750 W") && table.contains("simulated"),
        "{table}"
    );
    let wide = w.ok(&["top", &one, "--wide"]);
    assert!(wide.starts_with("NODE") && wide.contains("GPU_UTILIZATION") && wide.lines().count() == 2, "{wide}");
    let refused = w.run_as(NOBODY, &["top", &one, "--per-gpu"]);
    assert_eq!((refused.code(), refused.out().as_str()), (4, ""), "{}", refused.err());
    // The page has every GPU and its allocation.
    let now = page(w);
    assert_eq!(series(&now, &["lattice_gpu_utilization_ratio{", &its]), Some(0.75));
    assert_eq!(now.matches("lattice_gpu_power_watts{").count(), 3, "{now}");
    assert_eq!(series(&now, &["lattice_gpu_info{", &its, "vendor=\"simulated\"", "source=\"simulated\""]), Some(1.0));
    assert_eq!(series(&now, &["lattice_gpu_throttled{", &its, "reason=\"power_cap\""]), Some(1.0));
    assert_eq!(series(&now, &["lattice_allocation_gpu_info{", &one, &its]), Some(1.0));
    assert_eq!(series(&now, &["lattice_allocation_gpu_info{", &one, &others]), None);
    // The idle GPU raises an alert; the built-in rules for GPUs have their measures now.
    w.wait("the idle GPU", || series(&page(w), &["lattice_alert_active{", &other, "alert=\"gpu_idle\""]) == Some(1.0));
    let now = page(w);
    assert_eq!(series(&now, &["lattice_alert_active{", &one, "alert=\"gpu_idle\""]).unwrap_or(0.0), 0.0);
    for alert in ["gpu_idle", "gpu_memory"] {
        assert_eq!(series(&now, &["lattice_alert_rule_measured{", &format!("alert=\"{alert}\"")]), Some(1.0));
    }
    // Nearly full memory for ten seconds.
    let full = ["lattice_alert_active{", &other, "alert=\"gpu_memory\"", "severity=\"critical\""];
    w.wait("the full GPU", || series(&page(w), &full) == Some(1.0));
    assert_eq!(series(&page(w), &["lattice_alert_active{", &one, "alert=\"gpu_memory\""]).unwrap_or(0.0), 0.0);
    // The files that dcgm-exporter reads.
    let file = |gpu: &str| w.cluster().run_dir.join("n1/job-map").join(gpu.trim_start_matches("SIM-"));
    assert_eq!(fs::read_to_string(file(&its)).unwrap().trim(), text(&w.status(&one), "id"));
    let cluster = w.cluster();
    let config = cluster.dir.join("n1/agent.yaml");
    let agent = cluster.binaries.join("lattice-agent");
    let doctor = process::run(Command::new(&agent).arg("doctor").arg("--config").arg(&config), JOB).unwrap().out();
    let line = |subject: &str| {
        doctor.lines().find(|line| line.contains(&format!("  {subject}  "))).unwrap_or_else(|| panic!("{doctor}")).to_owned()
    };
    assert!(line("GPU measures").contains("by simulated: ") && line("GPU measures").contains("utilization"), "{doctor}");
    assert!(line("energy").contains("RAPL") || line("energy").contains("unsupported"), "{doctor}");
    // An agent outside of a lab refuses simulated GPUs.
    let as_elsewhere = w.dir.join("as-elsewhere.yaml");
    let strict = configs::merged(&fs::read_to_string(&config).unwrap(), "work: {allow_root: false}").unwrap();
    fs::write(&as_elsewhere, strict).unwrap();
    let refused = process::run(Command::new(&agent).arg("--config").arg(&as_elsewhere), JOB).unwrap();
    assert!(refused.code() != 0 && refused.err().contains("simulated_gpus: simulated GPUs are for labs"), "{}", refused.err());
    end(w, &[&one, &other]);
    w.wait("the files to go", || !file(&its).exists() && !file(&others).exists());
}

fn diagnosed(w: &World) {
    // Another test may have cordoned it.
    w.run(&["node", "uncordon", "n2"]);
    let of_all = |node: &str, load: &GpuLoad| {
        for index in 0..3 {
            fault(&w.dir.join(node), index, &Fault::Load(Box::new(load.clone()))).unwrap();
        }
    };
    let busy = GpuLoad {
        utilization: Some(0.9),
        memory_used_bytes: Some(GIB / 2),
        memory_total_bytes: Some(GIB),
        ecc_uncorrected: Some(0),
        throttled: Some(Vec::new()),
        nvlink_sent_bytes: Some(1 << 20),
        nvlink_received_bytes: Some(1 << 20),
        ..GpuLoad::default()
    };
    of_all("n1", &busy);
    let throttled = Some(vec!["hardware_thermal".to_owned()]);
    of_all("n2", &GpuLoad { utilization: Some(0.0), ecc_uncorrected: Some(2), throttled, ..busy });
    let id = w.submit(&["-N", "2", "--cores", "1", "--gpus", "1", "--", "sleep", "600"]);
    w.running(&id);
    let mut diagnosis = Value::Null;
    let find = |diagnosis: &Value, node: &str, about: &str| {
        let mut nodes = diagnosis["nodes"].as_array().into_iter().flatten().filter(|of| of["node"] == node);
        let findings = nodes.next()?["findings"].as_array()?;
        findings.iter().find(|f| f["part"] == "gpus" && f["subject"] == about).map(|f| (text(f, "text"), f["problem"] == true))
    };
    w.wait("the GPUs of both", || {
        diagnosis = w.lattice.json(&["diag", &id]).unwrap();
        // The newest reading may be from before anything ran.
        let is = |node: &str, what: &str| find(&diagnosis, node, "ECC errors").is_some_and(|(text, _)| text.contains(what));
        is("n1", "not corrected: none") && is("n2", "not corrected: 2 of")
    });
    let (well, ill) = (|about: &str| find(&diagnosis, "n1", about).unwrap(), |about: &str| find(&diagnosis, "n2", about).unwrap());
    assert_eq!(well("1 GPU"), ("busy 90.0 %; memory 512 MiB of 1.0 GiB used, the fullest 50.0 %".to_owned(), false), "{diagnosis:#}");
    assert_eq!(well("ECC errors"), ("not corrected: none".to_owned(), false));
    assert_eq!(well("clocks"), ("nothing holds them down".to_owned(), false));
    assert!(well("NVLink").0.contains("/s sent") && !well("NVLink").1, "{diagnosis:#}");
    let (errors, wrong) = ill("ECC errors");
    assert!(wrong && errors.starts_with("not corrected: 2 of SIM-"), "{errors}");
    let (clocks, wrong) = ill("clocks");
    assert!(wrong && clocks.ends_with(" by hardware_thermal"), "{clocks}");
    // An idle GPU while that of the other node is busy.
    let (balance, wrong) = ill("balance");
    assert!(wrong && balance.contains("does nothing while others are busy") && balance.contains("of n1 90.0 %"), "{balance}");
    assert_eq!(find(&diagnosis, "n1", "balance"), None);
    // Links also belong to the network's report, the other values of GPUs do not.
    let network = w.ok(&["diag", &id, "--network"]);
    assert!(network.contains("NVLink") && !network.contains("ECC"), "{network}");
    end(w, &[&id]);
}

fn killed(w: &World) {
    for gpu in ["SIM-0", "SIM-1", "SIM-2"] {
        load(w, gpu, 0.5, 0.25, 100.0);
    }
    let (id, gpu) = with_gpu(w);
    w.wait("the first reading", || gpu_joules(w, &id) == Some(0.0));
    load(w, &gpu, 0.5, 0.25, 350.0);
    w.wait("the energy since then", || gpu_joules(w, &id) == Some(250.0));
    faults::kill_node(&w.dir, "n1").unwrap();
    load(w, &gpu, 0.5, 0.25, 900.0);
    faults::start_node(&w.dir, "n1").unwrap();
    w.wait("the energy during the restart", || {
        let now = gpu_joules(w, &id);
        assert!(now.is_none_or(|now| now >= 250.0), "it fell to {now:?}");
        now == Some(800.0)
    });
    // The driver was reloaded.
    load(w, &gpu, 0.5, 0.25, 10.0);
    w.wait("the energy to increase again", || {
        let now = gpu_joules(w, &id);
        assert!(now.is_none_or(|now| now >= 800.0), "it fell to {now:?}");
        now == Some(810.0)
    });
    end(w, &[&id]);
}

fn hung(w: &World) {
    for gpu in ["SIM-0", "SIM-1", "SIM-2"] {
        load(w, gpu, 0.5, 0.25, 100.0);
    }
    let (id, gpu) = with_gpu(w);
    w.wait("its GPU", || gpu_measure(&per_gpu(w, &id), "gpu_utilization") == Some(0.5));
    let index: u32 = gpu.trim_start_matches("SIM-").parse().unwrap();
    fault(&w.dir.join("n1"), index, &Fault::Hang).unwrap();
    w.wait("the GPU's error", || {
        let usage = per_gpu(w, &id);
        assert!(node_measure(&usage, "cpu_cores").is_some() && usage["nodes"][0]["age_ms"].as_u64().unwrap() < 5000, "{usage}");
        text(&usage["nodes"][0]["gpus"][0], "error").contains("has not answered")
    });
    let usage = per_gpu(w, &id);
    assert_eq!((gpu_measure(&usage, "gpu_utilization"), node_measure(&usage, "gpu_utilization")), (None, None), "{usage}");
    let now = page(w);
    assert!(series(&now, &["lattice_gpu_reading_age_seconds{"]).is_some_and(|age| age > 5.0), "{now}");
    assert!(!now.contains("lattice_gpu_utilization_ratio{"), "{now}");
    let done = w.run(&["top", &id, "--per-gpu"]);
    assert!(done.code() == 0 && done.err().contains("has no numbers"), "{}", done.err());
    // It answers again.
    let path = lattice_runtime::topology::load_file(&w.dir.join("n1").join(gpu.replace("SIM-", "gpu")));
    let mut writer = fs::OpenOptions::new().write(true).open(path).unwrap();
    // Before the next reading.
    load(w, &gpu, 0.25, 0.25, 200.0);
    writer.write_all(b"{}").unwrap();
    drop(writer);
    w.wait("it to answer", || gpu_measure(&per_gpu(w, &id), "gpu_utilization") == Some(0.25));
    end(w, &[&id]);
}

fn gone(w: &World) {
    for gpu in ["SIM-0", "SIM-1", "SIM-2"] {
        load(w, gpu, 0.5, 0.25, 100.0);
    }
    let (id, gpu) = with_gpu(w);
    let other = ["SIM-0", "SIM-1", "SIM-2"].into_iter().find(|other| *other != gpu).unwrap();
    let has = |gpu: &str| series(&page(w), &["lattice_gpu_utilization_ratio{", gpu]).is_some();
    w.wait("both", || has(&gpu) && has(other));
    let index: u32 = other.trim_start_matches("SIM-").parse().unwrap();
    fault(&w.dir.join("n1"), index, &Fault::Remove).unwrap();
    let began = Instant::now();
    w.wait("the other one to be gone", || !has(other));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(has(&gpu));
    fault(&w.dir.join("n1"), index, &Fault::Add).unwrap();
    w.wait("it to be back", || has(other));
    end(w, &[&id]);
}
