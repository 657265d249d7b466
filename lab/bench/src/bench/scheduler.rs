//! `bench scheduler`: what one plan costs, in this process, from a view of a large cluster.

use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use crate::chart::{Chart, Curve, Scale};
use crate::ready_node::ready_node;
use anyhow::{Context, Result, ensure};
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Conformance, Entrypoint, Node, Principal, Resources, Share, SharePhase,
    Timestamp,
};
use lattice_scheduler::{Gossiped, Outlook, State, View, plan};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

const NODES: u32 = 10_000;
/// The nodes of one topology group.
const NODES_OF_GROUP: u32 = 256;
const IMAGES: u32 = 2;
/// The number of the first waiting allocation.
const FIRST_WAITING: u64 = 1_000_000;
const NOW: Timestamp = Timestamp(1_700_000_000_000);
const SIZE: Resources = Resources { cores: 64, memory_bytes: 256 << 30, gpus: 4 };
/// The numbers of nodes and of waiting allocations in the drawing of the growth.
const GROWTH_NODES: [u32; 3] = [1000, 3000, 10_000];
const GROWTH_PENDING: [u64; 7] = [100, 300, 1000, 3000, 10_000, 30_000, 100_000];
const GROWTH_REQUESTS: u64 = 200;
/// The changes before a plan that is not from nothing, 100 records: this many allocations end, as many are
/// submitted, and this many nodes have a newer record.
const ENDED: u64 = 40;
const NODES_CHANGED: u32 = 20;
/// Limits of a plan in milliseconds, and of the memory that it needs in megabytes.
const FEW_MS: f64 = 100.0;
const CHANGED_MS: f64 = 5.0;
const MANY_MS: f64 = 500.0;
const MANY_MB: f64 = 200.0;

/// Builds the views, and measures.
pub fn run(options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    interrupt::watch();
    let before = machine::cpu_pressure();
    let few_ms = |why: &str| Some(Target::AtMost { value: FEW_MS, why: why.to_owned() });
    let cycle = "a round begins with each change of the cluster";
    let mut figures = vec![
        measure("1,000 pending, no two alike, all nodes idle", &view(NODES, 1000, 1000, 0), options, few_ms(cycle))?,
        measure("1,000 pending, no two alike, all nodes busy but 100", &view(NODES, 1000, 1000, NODES - 100), options, few_ms(cycle))?,
    ];
    let many = view(NODES, 100_000, 200, NODES - 100);
    let target = Target::AtMost { value: CHANGED_MS, why: "most rounds follow a few changes".to_owned() };
    figures.push(measure_changed(options, target)?);
    let target = Target::AtMost { value: MANY_MS, why: "a queue that is full does not stop the cluster".to_owned() };
    figures.push(measure("100,000 pending in 200 classes, all nodes busy but 100", &many, options, Some(target))?);
    machine::return_freed_memory();
    let memory_before = memory()?;
    let state = State::from(many.clone());
    let held = plan(&state, NOW);
    let grown = Samples::of(vec![memory()?.saturating_sub(memory_before) as f64 / 1e6], 0).context("nothing was measured")?;
    drop(held);
    drop(state);
    let target = Target::AtMost { value: MANY_MB, why: "an agent of a login node has other work".to_owned() };
    figures.push(Figure::new("memory of that plan, with what is kept for the next one", "MB", grown, vec![], Some(target)));
    let reasons = timed(options, || drop(Outlook::of(&many, NOW)))?;
    figures.push(Figure::new("the same, with a reason for each that waits", "ms", reasons, vec![], None));
    if let Some(folder) = &options.svg {
        draw_growth(folder, options)?;
    }
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut notes = vec![format!(
        "{NODES} nodes of {SIZE}, {NODES_OF_GROUP} in a topology group, with {IMAGES} images; whole nodes and shares, 1 to 128 nodes, \
         walltimes of 10 minutes to 24 hours"
    )];
    if cfg!(debug_assertions) {
        notes.push("this is a debug binary: run the bench with --release before believing a miss".to_owned());
    }
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "scheduler", machine, profile: profile.to_owned(), cpu_pressure, figures, notes })
}

/// Draws how the time of a plan grows with the waiting allocations, for several numbers of nodes, all busy but a
/// hundredth.
fn draw_growth(folder: &Path, options: &Options) -> Result<()> {
    let mut curves = Vec::new();
    for nodes in GROWTH_NODES {
        let mut points = Vec::new();
        for pending in GROWTH_PENDING {
            let view = view(nodes, pending, GROWTH_REQUESTS.min(pending), nodes - nodes / 100);
            points.push((pending as f64, timed(options, || from_nothing(&view))?.median));
        }
        curves.push(Curve { name: format!("{nodes} nodes"), points });
    }
    let title = format!("Time of a plan, {GROWTH_REQUESTS} different requests");
    let chart = Chart { title, size_name: "allocations that wait", scale: Scale::Ratios, unit: "ms", curves };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join("scheduler-growth.svg");
    std::fs::write(&file, chart.svg()?).with_context(|| format!("cannot write {}", file.display()))
}

fn measure(name: &str, view: &View, options: &Options, target: Option<Target>) -> Result<Figure> {
    ensure!(plan(&State::from(view.clone()), NOW).claims(|_| Some(1)).len() > 10, "{name}: the plan begins too little");
    Ok(Figure::new(name, "ms", timed(options, || from_nothing(view))?, vec![], target))
}

/// A plan by a scheduler that has made none yet.
fn from_nothing(view: &View) {
    drop(plan(&State::from(view.clone()), NOW));
}

/// The plan after some changes, by a scheduler that has planned before. As in an agent, the time includes the
/// changes of the watch's tables, the copy of the view, and the release of what is not used any more.
fn measure_changed(options: &Options, target: Target) -> Result<Figure> {
    let (mut state, mut times, mut last) = (State::default(), Vec::new(), View::default());
    for _ in 0..options.rounds() {
        interrupt::check()?;
        // The watch's tables. Nothing else shares them, as after a change was applied.
        let mut cluster = view(NODES, 1000, 1000, NODES - 100);
        let gossiped = Gossiped { alive: std::mem::take(&mut cluster.alive), ..Gossiped::default() };
        state.apply(cluster.with_gossip(gossiped.clone()));
        drop(plan(&state, NOW));
        let (nodes, submitted) = changes(&cluster);
        let begun = Instant::now();
        for number in 0..ENDED {
            cluster.allocations.remove(&id(number));
        }
        cluster.allocations.extend(submitted.into_iter().map(|allocation| (allocation.id, allocation)));
        cluster.nodes.extend(nodes.into_iter().map(|node| (node.id.clone(), node)));
        state.apply(cluster.with_gossip(gossiped.clone()));
        drop(plan(&state, NOW));
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        last = cluster.with_gossip(gossiped);
    }
    let claims = |state: &State| plan(state, NOW).claims(|_| Some(1));
    ensure!(claims(&state) == claims(&State::from(last)), "the plan after changes is not that from nothing");
    let samples = Samples::of(times, 0).context("nothing was measured")?;
    Ok(Figure::new("the same, after 100 changes", "ms", samples, vec![], Some(target)))
}

/// Newer records of some nodes, and work that is submitted.
fn changes(cluster: &View) -> (Vec<Node>, Vec<Allocation>) {
    let newer = |number: u32| {
        let node = node(number);
        Node { report_seq: node.report_seq + 1, ..node }
    };
    let submitted = |number: u64| {
        let like = cluster.allocations.get(&id(FIRST_WAITING + number))?;
        let at = Timestamp(2 + 1000 + number);
        Some(Allocation::submitted(id(FIRST_WAITING + 1000 + number), (*like.spec).clone(), like.owner.clone(), at))
    };
    ((0..NODES_CHANGED).map(newer).collect(), (0..ENDED).filter_map(submitted).collect())
}

fn timed(options: &Options, work: impl Fn()) -> Result<Samples> {
    let mut times = Vec::new();
    for _ in 0..options.rounds() {
        interrupt::check()?;
        let begun = Instant::now();
        work();
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Samples::of(times, 0).context("nothing was measured")
}

fn memory() -> Result<u64> {
    let own = i32::try_from(std::process::id())?;
    machine::anonymous_memory_of(own).context("the memory of this process")
}

/// A cluster of this many nodes, of which `busy` run work, with `pending` allocations of `requests` different requests.
fn view(nodes: u32, pending: u64, requests: u64, busy: u32) -> View {
    let nodes: Vec<Node> = (0..nodes).map(node).collect();
    let owner = Principal { name: "u".into(), uid: 1000, gid: 1000, groups: vec![] };
    let mut view = View { alive: nodes.iter().map(|node| node.id.clone()).collect(), fresh: true, ..View::default() };
    for (number, node) in (0..busy).zip(&nodes) {
        let spec = AllocationSpec { walltime: Some(Duration::from_secs(3600 * (1 + u64::from(number) % 24))), ..spec() };
        let mut running = Allocation::submitted(id(u64::from(number)), spec, owner.clone(), Timestamp(1));
        (running.state, running.started_at) = (AllocationState::Running, Some(Timestamp(NOW.0 - u64::from(number) * 100)));
        running.shares = [Share { node: node.id.clone(), resources: SIZE, phase: SharePhase::Prepared }].into();
        view.allocations.insert(running.id, running);
    }
    for number in 0..pending {
        let wanted = number % requests;
        let mut spec = AllocationSpec { walltime: Some(Duration::from_secs(600 * (1 + wanted * 37 % 144))), ..spec() };
        spec.nodes = [1, 2, 4, 1, 16, 1, 128, 8][(wanted % 8) as usize];
        spec.tasks_per_node = 1 + (wanted / 8 % 64) as u32;
        spec.constraints.memory_bytes = wanted;
        if wanted % 8 % 2 == 1 {
            spec.share = Some(Resources { cores: 1 + (wanted % 32) as u32, memory_bytes: 0, gpus: (wanted % 3) as u32 });
        }
        let waiting = Allocation::submitted(id(FIRST_WAITING + number), spec, owner.clone(), Timestamp(2 + number));
        view.allocations.insert(waiting.id, waiting);
    }
    view.nodes = nodes.into_iter().map(|node| (node.id.clone(), node)).collect();
    view
}

/// Nodes are in topology groups, and have one of two images.
fn node(number: u32) -> Node {
    let components = [("image".to_owned(), (number % IMAGES).to_string())].into();
    Node {
        topology_group: Some(format!("group{}", number / NODES_OF_GROUP)),
        conformance: Some(Conformance::first(components)),
        ..ready_node(number, SIZE)
    }
}

fn spec() -> AllocationSpec {
    AllocationSpec::new("bench", Entrypoint::Command { argv: vec!["true".into()] }, Path::new("/"))
}

fn id(number: u64) -> AllocationId {
    AllocationId(Uuid::from_u128(u128::from(number)))
}
