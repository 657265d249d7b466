//! `lattice explain`.

use crate::command::vcluster;
use lattice_api::json::ExplanationJson;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::message::harmless;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{Task, TaskJson, attempts_text, group_text, short, task_text, time};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_session::tasks::{Numbered, fetch_task, find_numbered};
use lattice_cli_syntax::args::allocations::Explain;
use lattice_cli_syntax::tasks::OneTarget;

pub async fn run(session: &Session, args: Explain) -> Result<(), Failure> {
    if let Some(name) = args.queue {
        return vcluster::explain_queue(session, name).await;
    }
    let Some(OneTarget { key, task }) = args.id else {
        return Err(Failure::usage("an allocation is needed").hint("`lattice explain ID`, or `lattice explain --queue`"));
    };
    let key = session.resolve_key(&key)?;
    let client = session.connect().await?;
    let (key, task) = match task {
        None => (key, None),
        Some(index) => match find_numbered(&client, key, index, false).await? {
            Numbered::Replica { key } => (key, None),
            Numbered::Task { key, index } => {
                let task = Box::pin(fetch_task(&client, &key, index, false)).await?;
                (key, Some(task))
            }
        },
    };
    let explained = answer(client.allocations().explain(v1::ExplainRequest { key })).await?;
    let allocation = explained.allocation.clone().unwrap_or_default();
    match session.format() {
        Format::Table => {
            let of_task = task.as_ref().map(|task| format!("{}\n", task_text(task))).unwrap_or_default();
            print(&(of_task + &text(&allocation, &explained, session.table_size())))
        }
        Format::Data(notation) => {
            let task = task.as_ref().map(|task| TaskJson::of(&task.group, task.index, &task.known));
            notation.print(&ExplanationJson::of(&explained, task))
        }
        Format::Name => print_names([task.as_ref().map_or_else(|| allocation.id.clone(), Task::name).as_str()]),
    }
}

/// The explanation of an allocation.
pub(super) fn text(allocation: &v1::Allocation, explained: &v1::ExplainResponse, size: TableSize) -> String {
    let fit = Fit::default();
    // The summary may have a text of the work itself, such as why it called MPI_Abort.
    let summary = harmless(explained.summary.trim_end());
    let mut text = format!("{} {} is {}\n{summary}\n", short(&allocation.id), allocation.name, allocation.state);
    if !allocation.network_note.is_empty() {
        text.push_str(&format!("Its network domain: {}\n", allocation.network_note));
    }
    if !allocation.isolation_note.is_empty() {
        text.push_str(&format!("Cut off: {}\n", allocation.isolation_note));
    }
    for change in &explained.sooner {
        text.push_str(&format!("It could begin now if {change}.\n"));
    }
    text.push_str(&group_text(allocation));
    text.push_str(&attempts_text(allocation, size));
    text.push_str(&score_text(allocation, explained, size));
    if !explained.nodes.is_empty() {
        let mut table = Table::new(&["NODE", "REASON"]);
        for node in &explained.nodes {
            table.row(vec![node.node.clone(), node.reason.clone()]);
        }
        text.push('\n');
        text.push_str(&table.on_screen(&[], &fit, size));
    }
    if let Some(judgement) = &explained.checkpoint {
        text.push_str(&format!("Automatic checkpoints: {}\n", judgement.verdict));
        let mut table = Table::new(&["TERM", "VALUE", "MEANING"]);
        for term in &judgement.terms {
            table.row(vec![term.name.clone(), term.value.clone(), term.meaning.clone()]);
        }
        text.push_str(&table.on_screen(&[], &fit, size));
    }
    if let Some(refused) = &explained.refused_claim {
        let mut table = Table::new(&["NODE", "HELD BY", "WHY"]);
        for conflict in &refused.conflicts {
            table.row(vec![conflict.node.clone(), short(&conflict.holder).to_owned(), conflict.reason.clone()]);
        }
        let at = time(refused.at_ms).unwrap_or_default();
        text.push_str(&format!("\nThe last claim for it was refused at {at}:\n{}", table.on_screen(&[], &fit, size)));
    }
    text
}

/// The score as a table; empty if its queue has no scores.
fn score_text(allocation: &v1::Allocation, explained: &v1::ExplainResponse, size: TableSize) -> String {
    let (Some(score), Some(class)) = (allocation.score, allocation.class_in_queue) else { return String::new() };
    let mut table = Table::new(&["FACTOR", "WEIGHT", "VALUE", "ADDS", "WHAT IT IS"]);
    for term in &explained.score {
        let meaning = if term.known { meaning(&term.factor) } else { "the same for all" };
        let (value, adds) = (format!("{:.3}", term.value), format!("{:.3}", term.weight * term.value));
        table.row(vec![term.factor.clone(), term.weight.to_string(), value, adds, meaning.to_owned()]);
    }
    let factors = table.on_screen(&[], &Fit::default(), size);
    let mut text = format!("\nScore {score:.3} among work of class {class}; the highest is served first:\n{factors}");
    if explained.budget_factor < 1.0 {
        text.push_str(&format!("The sum is multiplied by {:.2}: the budget of its tenant runs out.\n", explained.budget_factor));
    }
    text
}

/// What the value of a factor is, for people.
fn meaning(factor: &str) -> &'static str {
    match factor {
        "priority" => "its class, 0 to 10",
        "wait-time" => "log(1 + hours of waiting)",
        "nice" => "what its nice changes of that",
        "fair-share" => "how far its tenant is below its share",
        "topology" => "few topology groups, well-connected nodes",
        "backlog" => "what waits, as a part of what runs",
        "checkpoint" => "how fast it saves itself",
        _ => "",
    }
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
            score: vec![],
            budget_factor: 1.0,
            sooner: vec![],
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
        assert_eq!(text(&allocation, &explained, TableSize::default()), want);
    }

    #[test]
    fn a_score_is_shown_term_by_term_with_what_would_help() {
        let allocation = v1::Allocation {
            id: "1f0c9a4e-5b7d".into(),
            state: "Pending".into(),
            score: Some(0.1),
            class_in_queue: Some(5),
            ..Default::default()
        };
        let term = |factor: &str, weight, value, known| v1::explain_response::ScoreTerm { factor: factor.into(), weight, value, known };
        let explained = v1::ExplainResponse {
            summary: "wants 4 nodes".into(),
            score: vec![term("priority", 0.15, 5.0, true), term("energy", 0.5, 0.5, false)],
            budget_factor: 0.1,
            sooner: vec!["it asked for 2 nodes".into()],
            ..Default::default()
        };
        let want = "\
1f0c9a4e  is Pending
wants 4 nodes
It could begin now if it asked for 2 nodes.

Score 0.100 among work of class 5; the highest is served first:
FACTOR    WEIGHT  VALUE  ADDS   WHAT IT IS
priority  0.15    5.000  0.750  its class, 0 to 10
energy    0.5     0.500  0.250  the same for all
The sum is multiplied by 0.10: the budget of its tenant runs out.
";
        assert_eq!(text(&allocation, &explained, TableSize::default()), want);
        let fifo = v1::Allocation { score: None, class_in_queue: None, ..allocation };
        assert_eq!(score_text(&fifo, &explained, TableSize::default()), "");
    }
}
