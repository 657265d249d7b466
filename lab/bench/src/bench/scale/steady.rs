//! The figures and curves of the constant load.

use super::crowd::{HEARTBEAT_MS, Plan};
use super::drawing::{Drawing, curve};
use super::reached::{at_most, one};
use super::size::{Measured, WORKING_MAX};
use crate::bench::figures::{Figure, Samples};
use anyhow::{Context, Result};

const MEMBERS_CORES: f64 = 1.0;
const RECEIVED_KB_S: f64 = 2.0;
const AGENT_KB: f64 = 300.0;
const READY_S: f64 = 60.0;

/// How the load is made and counted.
pub fn notes(plan: &Plan) -> Vec<String> {
    vec![
        format!(
            "{} changes a second are wanted at each size: allocations of one core on at most {WORKING_MAX} nodes, submitted, claimed, \
             prepared, ended and released; all other agents are at rest. Measured for {} s, heartbeats every {} s",
            plan.changes,
            plan.lasts.as_secs(),
            HEARTBEAT_MS / 1000
        ),
        "received: messages as encoded, without gRPC, HTTP/2 and TLS; as TCP counts it: everything on the connections to members, and for \
         real agents only that (no gossip)"
            .to_owned(),
    ]
}

/// What was unusual at one size.
pub fn troubles(of: &Measured) -> Vec<String> {
    let Measured { agents, load, lost: [sessions, watches, leases], .. } = of;
    let mut troubles = Vec::new();
    if let Some(why) = &load.why {
        troubles.push(format!("{agents} agents: {} submissions or claims failed, the last: {why}", load.failed));
    }
    if load.skipped > 0 {
        troubles.push(format!("{agents} agents: {} allocations were not begun, because too many commits were in flight", load.skipped));
    }
    if sessions + watches + leases > 0 {
        troubles.push(format!(
            "{agents} agents: {sessions} sessions and {watches} watches were lost and opened again, {leases} requests for a lease had no answer"
        ));
    }
    troubles
}

/// The figures of one size.
pub fn figures(of: &Measured) -> Result<Vec<Figure>> {
    let agents = of.agents;
    let named = |what: &str| format!("{agents} agents: {what}");
    let some = |values: &[f64]| Samples::of(values.to_vec(), 0);
    let at_rest: Vec<f64> = of.followers_kb_s.iter().chain(&of.others_kb_s).copied().collect();
    let received = vec![
        ("those of role api", some(&of.followers_kb_s)),
        ("those of role node", some(&of.others_kb_s)),
        ("all simulated ones, as TCP counts it", of.tcp_kb_s.map(one).transpose()?),
        ("real agents, as TCP counts it", some(&of.real_tcp_kb_s)),
    ];
    let quantile = |part| one(of.load.quantile(part));
    Ok(vec![
        Figure::new(
            &named("processors of all members together"),
            "cores",
            one(of.members_cores)?,
            vec![("all simulated agents together", Some(one(of.agents_cores)?))],
            at_most(MEMBERS_CORES, "for 10,000 agents too"),
        ),
        Figure::new(&named("the largest memory of each member"), "MB", some(&of.member_mb).context("no member")?, vec![], None),
        Figure::new(
            &named("received by an agent at rest"),
            "KB/s",
            some(&at_rest).context("no agent is at rest")?,
            received,
            at_most(RECEIVED_KB_S, "nothing changes for it"),
        ),
        Figure::new(&named("a real agent at rest, of one core"), "%", some(&of.real_percent).context("no real agent")?, vec![], None),
        Figure::new(&named("a submission or claim, median"), "ms", quantile(0.5)?, vec![], None),
        Figure::new(&named("a submission or claim, 99 % of them"), "ms", quantile(0.99)?, vec![], None),
        Figure::new(&named("changes committed"), "/s", one(of.changes_per_s)?, vec![], None),
        Figure::new(
            &named("from their start until all are Ready"),
            "s",
            one(of.ready_s)?,
            vec![("until all have the first list of their watch", Some(one(of.listed_s)?))],
            at_most(READY_S, "10,000 agents too"),
        ),
        Figure::new(
            &named("memory of one simulated agent"),
            "KB",
            one(of.agent_kb)?,
            vec![],
            at_most(AGENT_KB, "members have the machine"),
        ),
    ])
}

/// The curves over the sizes.
pub fn drawings(measured: &[Measured]) -> Vec<Drawing> {
    let median = |values: &[f64]| Samples::of(values.to_vec(), 0).map(|samples| samples.median);
    let largest = |values: &[f64]| Samples::of(values.to_vec(), 0).map(|samples| samples.max);
    let of = |name: &str, value: &dyn Fn(&Measured) -> Option<f64>| curve(name, measured, |m| m.agents, value);
    vec![
        Drawing {
            name: "processors",
            title: "Processors of all members together",
            unit: "cores",
            curves: vec![of("three members", &|m| Some(m.members_cores))],
        },
        Drawing {
            name: "memory",
            title: "The largest memory of a member",
            unit: "MB",
            curves: vec![of("the largest of three", &|m| largest(&m.member_mb))],
        },
        Drawing {
            name: "received",
            title: "Received by an agent at rest (encoded messages)",
            unit: "KB/s",
            curves: vec![of("role api", &|m| median(&m.followers_kb_s)), of("role node", &|m| median(&m.others_kb_s))],
        },
        Drawing {
            name: "commits",
            title: "A submission or claim",
            unit: "ms",
            curves: vec![of("median", &|m| Some(m.load.quantile(0.5))), of("99 %", &|m| Some(m.load.quantile(0.99)))],
        },
        Drawing {
            name: "ready",
            title: "From the agents' start",
            unit: "s",
            curves: vec![of("until all are Ready", &|m| Some(m.ready_s)), of("until all have their first list", &|m| Some(m.listed_s))],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::load::Load;
    use super::*;
    use crate::bench::Verdict;

    fn measured(agents: usize) -> Measured {
        let load = Load { latencies_ms: vec![1.0, 2.0, 30.0], ..Default::default() };
        Measured {
            agents,
            members_cores: 0.5,
            member_mb: vec![40.0, 50.0, 45.0],
            followers_kb_s: vec![7.0; 3],
            others_kb_s: vec![0.2; 2],
            real_percent: vec![0.1, 0.2],
            ready_s: 1.5,
            listed_s: 2.0,
            load,
            ..Measured::default()
        }
    }

    #[test]
    fn received_is_judged_over_all_agents_at_rest() {
        let figures = figures(&measured(100)).unwrap();
        let received = figures.iter().find(|f| f.unit == "KB/s").unwrap();
        assert_eq!((received.samples.median, received.peers.len(), received.verdict), (7.0, 2, Verdict::Missed));
    }

    #[test]
    fn each_quantity_is_drawn_over_the_sizes() {
        let folder = std::env::temp_dir().join(format!("lattice-scale-svg-{}", std::process::id()));
        super::super::drawing::write(&folder, drawings(&[measured(100), measured(1000)])).unwrap();
        for name in ["processors", "memory", "received", "commits", "ready"] {
            let svg = std::fs::read_to_string(folder.join(format!("scale-{name}.svg"))).unwrap();
            assert!(svg.matches("<circle").count() >= 2 && svg.contains(">1000</text>"), "{name}: {svg}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
