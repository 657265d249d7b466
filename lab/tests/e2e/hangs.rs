//! Which launches count as hanging: some sleep while their GPU or the network is busy. The GPUs are simulated.

use crate::harness::{Group, Need, World, counts_in_kernel};
use crate::monitoring::{HANG, Watching, is_alert};
use lattice_lab::gpus::{Fault, fault};
use lattice_lab::lattice::text;
use lattice_model::gpu_load::GpuLoad;
use libtest_mimic::Trial;
use std::fs;

static HANGS: Group = Group {
    theme: "hangs",
    name: "hangs",
    nodes: 1,
    quorum: 1,
    tweak: |options| {
        // Work with one of two GPUs gets half of the memory, so that another one fits.
        options.simulated_gpus = 2;
        options.agent_lines = "alerts:\n  hang_seconds: 10\n".to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        HANGS.test("a_launch_that_sleeps_hangs_where_its_gpu_is_idle_and_not_where_that_is_busy", &[], gpu),
        HANGS.test("a_launch_that_sleeps_between_messages_does_not_hang", &[Need::Python, Need::KernelProbes], network),
    ]
}

/// Sets the load of the GPUs.
fn busy(w: &World, utilization: f64) {
    let load = GpuLoad { utilization: Some(utilization), ..GpuLoad::default() };
    for index in 0..2 {
        fault(&w.dir.join("n1"), index, &Fault::Load(Box::new(load.clone()))).unwrap();
    }
}

fn sleeping(w: &World, more: &[&str]) -> String {
    let id = w.submit(&[&["--cores", "1"], more, &["--", "sleep", "600"]].concat());
    w.running(&id);
    id
}

/// The text of the alert.
fn hang(watch: &Watching) -> String {
    watch.wait_within(HANG, "the hang", |event| is_alert(event, "hang", true));
    let alert = watch.events().into_iter().rfind(|event| is_alert(event, "hang", true)).unwrap();
    text(&alert, "text")
}

fn gpu(w: &World) {
    busy(w, 0.8);
    let has = sleeping(w, &["--gpus", "1"]);
    let watch = Watching::begin(w, "has-gpu", &[&has, "--alerts-only"]);
    // The alert comes for a launch without a GPU that began later.
    let none = sleeping(w, &[]);
    let alert_text = hang(&Watching::begin(w, "no-gpu", &[&none, "--alerts-only"]));
    assert!(alert_text.contains("looked at: cpu") && !alert_text.contains("gpu"), "{alert_text}");
    let of_hang = |raised| watch.events().iter().any(|event| is_alert(event, "hang", raised));
    assert!(!of_hang(true), "{:?}", watch.events());
    busy(w, 0.0);
    let alert_text = hang(&watch);
    let (looked_at, not) = alert_text.split_once("looked at: ").map(|(_, of)| of.split_once(';').unwrap_or((of, ""))).unwrap();
    assert!(looked_at.contains("cpu") && looked_at.contains("gpu"), "{alert_text}");
    let side = if counts_in_kernel() { looked_at } else { not };
    assert!(side.contains("network"), "{alert_text}");
    busy(w, 0.8);
    watch.wait_within(HANG, "that it moves", |event| is_alert(event, "hang", false) && text(event, "text").contains("moves again"));
    for id in [&has, &none] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}

fn network(w: &World) {
    let path = w.dir.join("messages.py");
    let program = "import socket, time\n\
                   s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.connect(s.getsockname())\n\
                   while True:\n    s.send(b'x' * 8000); s.recv(9000); time.sleep(1)\n";
    fs::write(&path, program).unwrap();
    let sends = w.submit(&["--cores", "1", "--", "python3", &path.to_string_lossy()]);
    w.running(&sends);
    let watch = Watching::begin(w, "sends", &[&sends, "--alerts-only"]);
    let none = sleeping(w, &[]);
    let alert_text = hang(&Watching::begin(w, "silent", &[&none, "--alerts-only"]));
    assert!(alert_text.contains("network") && !alert_text.contains("not measured"), "{alert_text}");
    assert!(!watch.events().iter().any(|event| is_alert(event, "hang", true)), "{:?}", watch.events());
    for id in [&sends, &none] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}
