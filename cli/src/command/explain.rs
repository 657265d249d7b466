//! `lattice explain`.

use crate::failure::Failure;
use crate::output::{Format, print, print_names};
use crate::session::{Session, answer};
use crate::shown::{AllocationJson, attempts_text, filled, short, time};
use crate::table::Table;
use lattice_api::v1;
use lattice_cli_syntax::args::allocations::Explain;

pub async fn run(session: &Session, args: Explain) -> Result<(), Failure> {
    let key = session.resolve_key(&args.id)?;
    let client = session.connect().await?;
    let explained = answer(client.allocations().explain(v1::ExplainRequest { key })).await?;
    let allocation = explained.allocation.clone().unwrap_or_default();
    match session.format() {
        Format::Table => print(&text(&allocation, &explained)),
        Format::Data(notation) => {
            let nodes = explained.nodes.iter().map(|n| serde_json::json!({ "node": n.node, "reason": n.reason }));
            notation.print(&serde_json::json!({
                "allocation": AllocationJson::from(&allocation),
                "summary": explained.summary,
                "nodes": nodes.collect::<Vec<_>>(),
                "refused_claim": explained.refused_claim.as_ref().map(refused_json),
                "checkpoint": explained.checkpoint.as_ref().map(judgement_json),
            }))
        }
        Format::Name => print_names([allocation.id.as_str()]),
    }
}

fn text(allocation: &v1::Allocation, explained: &v1::ExplainResponse) -> String {
    let mut text = format!("{} {} is {}\n{}\n", short(&allocation.id), allocation.name, allocation.state, explained.summary.trim_end());
    if !allocation.network_note.is_empty() {
        text.push_str(&format!("Its network domain: {}\n", allocation.network_note));
    }
    if !allocation.isolation_note.is_empty() {
        text.push_str(&format!("Cut off: {}\n", allocation.isolation_note));
    }
    text.push_str(&attempts_text(allocation));
    if !explained.nodes.is_empty() {
        let mut table = Table::new(&["NODE", "REASON"]);
        for node in &explained.nodes {
            table.row(vec![node.node.clone(), node.reason.clone()]);
        }
        text.push('\n');
        text.push_str(&table.text(&[]));
    }
    if let Some(judgement) = &explained.checkpoint {
        text.push_str(&format!("Automatic checkpoints: {}\n", judgement.verdict));
        let mut table = Table::new(&["TERM", "VALUE", "MEANING"]);
        for term in &judgement.terms {
            table.row(vec![term.name.clone(), term.value.clone(), term.meaning.clone()]);
        }
        text.push_str(&table.text(&[]));
    }
    if let Some(refused) = &explained.refused_claim {
        let mut table = Table::new(&["NODE", "HELD BY", "WHY"]);
        for conflict in &refused.conflicts {
            table.row(vec![conflict.node.clone(), short(&conflict.holder).to_owned(), conflict.reason.clone()]);
        }
        let at = time(refused.at_ms).unwrap_or_default();
        text.push_str(&format!("\nThe last claim for it was refused at {at}:\n{}", table.text(&[])));
    }
    text
}

fn judgement_json(judgement: &v1::CheckpointJudgement) -> serde_json::Value {
    let term = |t: &v1::checkpoint_judgement::Term| serde_json::json!({ "name": t.name, "value": t.value, "meaning": t.meaning });
    serde_json::json!({ "verdict": judgement.verdict, "terms": judgement.terms.iter().map(term).collect::<Vec<_>>() })
}

fn refused_json(refused: &v1::RefusedClaim) -> serde_json::Value {
    let conflicts =
        refused.conflicts.iter().map(|c| serde_json::json!({ "node": c.node, "holder": filled(&c.holder), "reason": c.reason }));
    serde_json::json!({ "at": time(refused.at_ms), "conflicts": conflicts.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_says_what_it_lacks() {
        let allocation = v1::Allocation { id: "1f0c9a4e-5b7d".into(), name: "sim".into(), state: "Pending".into(), ..Default::default() };
        let reason = |node: &str, reason: &str| v1::explain_response::NodeReason { node: node.into(), reason: reason.into() };
        let conflict = |node: &str, holder: &str, why: &str| v1::refused_claim::Conflict {
            node: node.into(),
            holder: holder.into(),
            reason: why.into(),
        };
        let explained = v1::ExplainResponse {
            allocation: None,
            summary: "4 nodes are wanted, the cluster has 2".into(),
            nodes: vec![reason("n1", "is Down"), reason("n10", "held by 2f0c9a4e")],
            refused_claim: Some(v1::RefusedClaim {
                at_ms: 1_772_704_812_034,
                conflicts: vec![conflict("n2", "2f0c9a4e-5b7d", "has it"), conflict("n3", "", "is not registered")],
            }),
            checkpoint: None,
        };
        let want = "\
1f0c9a4e sim is Pending
4 nodes are wanted, the cluster has 2

NODE  REASON
n1    is Down
n10   held by 2f0c9a4e

The last claim for it was refused at 2026-03-05T10:00:12.034Z:
NODE  HELD BY   WHY
n2    2f0c9a4e  has it
n3    —         is not registered
";
        assert_eq!(text(&allocation, &explained), want);
    }
}
