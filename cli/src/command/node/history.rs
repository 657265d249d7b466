//! `lattice node history`: what the audit log has of one node itself, the newest last.

use super::unanswered;
use crate::args::node::History;
use crate::failure::{Exit, Failure};
use crate::output::{Format, print, print_json, print_names};
use crate::session::{self, Session, answer};
use crate::table::Table;
use crate::time::moment;
use lattice_api::audit::record_to_model;
use lattice_api::v1;
use lattice_model::time::Timestamp;
use lattice_model::{AuditAction, AuditRecord, NodeId};
use std::collections::VecDeque;

/// Records that are shown, the newest.
const SHOWN_MAX: usize = 1000;
/// Records of one question.
const PAGE: u32 = 1000;

pub async fn run(session: &Session, args: History) -> Result<(), Failure> {
    let node: NodeId = args.node.parse().map_err(|error: lattice_model::ids::IdError| Failure::usage(error.to_string()))?;
    let since_ms = args.since.map(|text| moment("--since", &text, session::now())).transpose()?;
    let filter = v1::AuditFilter {
        node: node.to_string(),
        types: AuditAction::OF_NODES.iter().map(ToString::to_string).collect(),
        since_ms,
        ..Default::default()
    };
    let client = session.connect().await?;
    let mut records: VecDeque<v1::AuditRecord> = VecDeque::new();
    let (mut after, mut left_out) = (0, 0u64);
    loop {
        let question = v1::QueryAuditRequest { filter: Some(filter.clone()), after, limit: PAGE };
        let page = answer(client.admin().query_audit(question)).await.map_err(|failure| unanswered(&args.node, failure))?;
        if page.upto < after || (page.upto == after && page.upto < page.end) {
            return Err(Failure::other("the agent's answer does not go on: it is of a version that does not fit"));
        }
        after = page.upto;
        for record in page.records {
            records.push_back(record);
            if records.len() > SHOWN_MAX {
                records.pop_front();
                left_out += 1;
            }
        }
        if after >= page.end {
            break;
        }
    }
    if records.is_empty() && since_ms.is_none() {
        return Err(Failure::new(Exit::NotFound, format!("the audit log has nothing of node {node}"))
            .hint("`lattice nodes` lists those that there are"));
    }
    if left_out > 0 {
        session.note(&format!("{left_out} older records are left out: --since, or `lattice audit query --node {node}`"));
    }
    match session.format() {
        Format::Table => print(&table(&records)),
        Format::Json => {
            let whole: Result<Vec<AuditRecord>, _> = records.iter().map(record_to_model).collect();
            print_json(&whole.map_err(|bad| Failure::other(format!("the agent sent a record that is none: {bad}")))?)
        }
        Format::Name => {
            let numbers: Vec<String> = records.iter().map(|r| r.seq.to_string()).collect();
            print_names(numbers.iter().map(String::as_str))
        }
    }
}

fn table(records: &VecDeque<v1::AuditRecord>) -> String {
    let mut table = Table::new(&["TIME", "BY", "WHAT", "DETAIL"]);
    for r in records {
        table.row(vec![Timestamp(r.at_ms).to_string(), r.actor.clone(), r.action.clone(), r.detail.clone()]);
    }
    table.text(&[])
}
