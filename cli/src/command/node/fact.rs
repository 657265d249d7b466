//! The facts that a node publishes about itself, as an agent received them.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::answer;
use lattice_cli_session::shown::{filled, short, with_exit};
use lattice_cli_session::table::block;
use lattice_model::resources::bytes_text;

pub async fn fetch(client: &Client, node: &str) -> Result<v1::NodeFactResponse, Failure> {
    answer(client.nodes().fact(v1::NodeFactRequest { node: node.to_owned() })).await
}

/// A node that gossip knows and the quorum has no record of.
pub fn unregistered_node(name: &str, response: &v1::NodeFactResponse) -> v1::Node {
    v1::Node {
        id: name.to_owned(),
        state: "Unknown".to_owned(),
        reason: "the quorum has no record of it: it has not registered since the quorum was started or recovered".to_owned(),
        schedulable: true,
        gossip: response.gossip.as_ref().map(|member| member.liveness.clone()).unwrap_or_default(),
        ..Default::default()
    }
}

/// `own`: it is the answering agent's node, whose other facts the caller shows.
pub fn text(response: &v1::NodeFactResponse, own: bool) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    let mut line = |name, value| lines.push((name, value));
    line("Not reached", response.error.clone());
    if let Some(fact) = &response.fact {
        let from = if response.error.is_empty() { "it reports" } else { "it last reported" };
        let reason = if fact.reason.is_empty() { String::new() } else { format!(": {}", fact.reason) };
        line("Itself", format!("{from} {}{reason}", fact.state));
        fact.holds.iter().for_each(|hold| line("Hold", with_exit(hold)));
        if !own {
            line("Gives", format!("{} cores, {}", fact.cores, bytes_text(fact.memory_bytes)));
        }
        for gpus in &fact.gpus {
            line("GPUs", format!("{} healthy, {} for work: {}", gpus.healthy, gpus.allocatable, gpus.model));
        }
        line("Features", fact.features.join(","));
        line("Group", fact.topology_group.clone());
        line("Fingerprint", fact.fingerprint.clone());
        line("Images", format!("{} cached", fact.images_count));
    } else if let Some(gossip) = &response.gossip {
        let state = filled(&gossip.state).unwrap_or("nothing yet");
        let held = if gossip.held { ", held" } else { "" };
        line("Gossip", format!("{}; it last published {state}{held}", gossip.liveness));
    }
    if let Some(pulse) = &response.pulse {
        let running: Vec<&str> = pulse.running.iter().map(|id| short(id)).collect();
        let more = (pulse.running_count as usize).saturating_sub(running.len());
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        line("Runs", if running.is_empty() { "nothing".to_owned() } else { format!("{}{more}", running.join(",")) });
        let of = |name: &str, value: Option<f64>| value.map(|value| format!("{name} {value:.1} %"));
        let pressure = [of("cpu", pulse.pressure_cpu), of("memory", pulse.pressure_memory), of("disk", pulse.pressure_io)];
        line("Pressure", pressure.into_iter().flatten().collect::<Vec<_>>().join(", "));
        line("Power", pulse.power_watts.map(|watts| format!("{watts:.0} W")).unwrap_or_default());
    }
    let text = block(&lines);
    if text.is_empty() { text } else { format!("\n{text}") }
}

pub fn json(response: &v1::NodeFactResponse) -> serde_json::Value {
    let fact = response.fact.as_ref().map(|fact| {
        serde_json::json!({
            "state": fact.state, "reason": filled(&fact.reason), "holds": fact.holds, "schedulable": fact.schedulable, "cores": fact.cores,
            "memory_bytes": fact.memory_bytes,
            "gpus": fact.gpus.iter().map(|g| serde_json::json!({"model": g.model, "healthy": g.healthy, "allocatable": g.allocatable})).collect::<Vec<_>>(),
            "topology_group": filled(&fact.topology_group), "features": fact.features, "fingerprint": filled(&fact.fingerprint),
            "images": fact.images, "images_count": fact.images_count,
        })
    });
    let pulse = response.pulse.as_ref().map(|pulse| {
        serde_json::json!({
            "running": pulse.running, "running_count": pulse.running_count,
            "pressure": {"cpu": pulse.pressure_cpu, "memory": pulse.pressure_memory, "io": pulse.pressure_io},
            "power_watts": pulse.power_watts,
        })
    });
    let gossip = response.gossip.as_ref().map(|m| serde_json::json!({"liveness": m.liveness, "state": filled(&m.state), "held": m.held}));
    serde_json::json!({"reported": fact, "now": pulse, "error": filled(&response.error), "gossip": gossip})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_reached_is_shown_as_such_without_current_values() {
        let fact = v1::NodeFact {
            state: "Degraded".into(),
            reason: "not well: disk: full".into(),
            cores: 4,
            memory_bytes: 1 << 30,
            ..Default::default()
        };
        let gossip = v1::GossipMember { liveness: "suspect".into(), state: "Ready".into(), held: true, ..Default::default() };
        let reached = v1::NodeFactResponse {
            fact: Some(fact.clone()),
            pulse: Some(v1::NodePulse { pressure_cpu: Some(1.25), ..Default::default() }),
            gossip: Some(gossip.clone()),
            error: String::new(),
        };
        let want = "
Itself:    it reports Degraded: not well: disk: full
Gives:     4 cores, 1.0 GiB
Images:    0 cached
Runs:      nothing
Pressure:  cpu 1.2 %
";
        assert_eq!(text(&reached, false), want);
        let kept = v1::NodeFactResponse { pulse: None, error: "it does not answer in time".into(), ..reached };
        let shown = text(&kept, true);
        assert!(shown.contains("it last reported Degraded") && shown.contains("does not answer") && !shown.contains("Runs"), "{shown}");
        let gossip_only = v1::NodeFactResponse { fact: None, ..kept };
        assert!(text(&gossip_only, false).ends_with("Gossip:       suspect; it last published Ready, held\n"));
        assert_eq!(json(&gossip_only)["reported"], serde_json::Value::Null);
        assert_eq!(unregistered_node("n9", &gossip_only).state, "Unknown");
    }
}
