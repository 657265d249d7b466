//! `lattice node admit`.

use super::each::apply_to_each;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, time};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::node::Admit;
use lattice_model::resources::bytes_text;

pub async fn run(session: &Session, args: &Admit) -> Result<u8, Failure> {
    if args.list {
        return list(session).await;
    }
    let client = session.connect().await?;
    let act = async |node: String| {
        if args.withdraw {
            answer(client.nodes().withdraw_admission(v1::WithdrawAdmissionRequest { node })).await?;
        } else {
            answer(client.nodes().admit(v1::AdmitNodeRequest { node, reason: args.reason.clone() })).await?;
        }
        Ok(())
    };
    let success_text = |node: &_| {
        if args.withdraw {
            format!("Node {node} may not register")
        } else {
            format!("Node {node} is admitted; its agent registers by itself within seconds")
        }
    };
    apply_to_each(session, &args.nodes, act, success_text).await.map(|done| done.exit)
}

async fn list(session: &Session) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let now = answer(client.nodes().list_admissions(v1::ListAdmissionsRequest {})).await?;
    match session.format() {
        Format::Table => print(&text(&now, session.table_size()))?,
        Format::Data(notation) => notation.print(&json(&now))?,
        Format::Name => print_names(now.waiting.iter().map(|node| node.node.as_str()))?,
    }
    Ok(0)
}

/// How the table is made narrower.
const FIT: Fit<'_> = Fit {
    left_out: &["ASKED LAST", "GPUS", "MEMORY", "CORES"],
    shortened: &[("SINCE", 17), ("BY", 10), ("NODE", 16)],
    wrapped: &[("FROM", 12), ("REASON", 12)],
    left_out_last: &["SINCE"],
};

fn text(now: &v1::ListAdmissionsResponse, size: TableSize) -> String {
    let mut table = Table::new(&["NODE", "ADMITTED", "FROM", "CORES", "MEMORY", "GPUS", "SINCE", "ASKED LAST", "BY", "REASON"]);
    for node in &now.waiting {
        let through = filled(&node.relay_node).map(|peer| format!(" (carried by {peer})")).unwrap_or_default();
        let moments = [node.since_ms, node.last_attempt_ms].map(|ms| time(ms).unwrap_or_default());
        let [since, asked] = moments;
        let memory = bytes_text(node.memory_bytes);
        let (cores, gpus) = (node.cores.to_string(), node.gpus.to_string());
        let from = node.from.clone() + &through;
        table.row(vec![node.node.clone(), "no".to_owned(), from, cores, memory, gpus, since, asked, String::new(), String::new()]);
    }
    for node in &now.admitted {
        let mut cells = vec![node.node.clone(), "yes".to_owned()];
        cells.resize(6, String::new());
        cells.extend([time(node.at_ms).unwrap_or_default(), String::new(), node.by.clone(), node.reason.clone()]);
        table.row(cells);
    }
    table.on_screen(&["BY", "REASON", "FROM", "CORES", "MEMORY", "GPUS", "ASKED LAST"], &FIT, size)
}

fn json(now: &v1::ListAdmissionsResponse) -> serde_json::Value {
    let waiting = now.waiting.iter().map(|node| {
        serde_json::json!({
            "node": node.node, "from": filled(&node.from), "relay_node": filled(&node.relay_node), "cores": node.cores,
            "memory_bytes": node.memory_bytes, "gpus": node.gpus, "since": time(node.since_ms), "last_attempt": time(node.last_attempt_ms),
        })
    });
    let admitted = now
        .admitted
        .iter()
        .map(|node| serde_json::json!({ "node": node.node, "by": node.by, "at": time(node.at_ms), "reason": node.reason }));
    serde_json::json!({ "waiting": waiting.collect::<Vec<_>>(), "admitted": admitted.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::table::{NARROW, assert_fits};

    #[test]
    fn nodes_that_wait_come_before_those_that_are_admitted() {
        let waiting = v1::WaitingNode {
            node: "n7".into(),
            from: "10.0.0.7".into(),
            relay_node: "n2".into(),
            cores: 64,
            memory_bytes: 512 << 30,
            gpus: 8,
            since_ms: 1_772_704_812_034,
            last_attempt_ms: 1_772_704_813_000,
        };
        let admitted = v1::AdmittedNode { node: "n8".into(), by: "anna@n1".into(), at_ms: 1_772_704_812_034, reason: "rack 4".into() };
        let want = "\
NODE  ADMITTED  FROM                      CORES  MEMORY     GPUS  SINCE                     ASKED LAST                BY       REASON
n7    no        10.0.0.7 (carried by n2)  64     512.0 GiB  8     2026-03-05T10:00:12.034Z  2026-03-05T10:00:13.000Z  —        —
n8    yes       —                         —      —          —     2026-03-05T10:00:12.034Z  —                         anna@n1  rack 4
";
        let mut now = v1::ListAdmissionsResponse { waiting: vec![waiting], admitted: vec![admitted] };
        assert_eq!(text(&now, TableSize::default()), want);
        now.admitted[0].reason = "a rack that came back ".repeat(9);
        now.waiting[0].node = "x1000c0s0b0n3.long.example.com".into();
        assert_fits(&text(&now, NARROW));
    }
}
