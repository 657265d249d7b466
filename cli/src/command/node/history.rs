//! `lattice node history`: the audit log's records of nodes, the newest last.

use super::each::{expand_lists, name_if_unavailable};
use crate::command::audit::archived;
use lattice_api::audit::record_to_model;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, Width, print, print_names};
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::node::History;
use lattice_cli_syntax::time::parse_past;
use lattice_model::time::Timestamp;
use lattice_model::{AuditAction, AuditRecord, NodeId};
use std::collections::BTreeMap;

/// The most records that are shown; the newest ones.
const SHOWN_MAX: usize = 1000;
/// The most records of one request.
const PAGE_LEN_MAX: u32 = 1000;

/// Shows the records of all nodes in one order. A node without records is named, and the others are shown.
pub async fn run(session: &Session, args: History) -> Result<u8, Failure> {
    let nodes = expand_lists(&args.nodes)?;
    let since_ms = args.since.map(|text| parse_past("--since", &text, session::now())).transpose()?;
    let client = session.connect().await?;
    let (mut newest, mut exit) = (Newest::default(), 0);
    for node in &nodes {
        let any = newest.read(&client, node, since_ms).await.map_err(|failure| name_if_unavailable(node.as_str(), failure))?;
        if !any && since_ms.is_none() {
            let unknown = Failure::new(Exit::NotFound, format!("the audit log has nothing about node {node} that you may see"));
            unknown.hint("`lattice nodes` lists the nodes; operators see all records").report();
            exit = Exit::NotFound as u8;
        }
    }
    let Newest { records, left_out, archived } = newest;
    if let Some(archived) = archived {
        session.note(&archived);
    }
    if exit != 0 && records.is_empty() {
        return Ok(exit);
    }
    if left_out > 0 {
        session.note(&format!("{left_out} older records are left out: use --since, or `lattice audit query --node NODE`"));
    }
    match session.format() {
        Format::Table => print(&table(&records, nodes.len() > 1 || session.width() == Width::Wide, session.table_size()))?,
        Format::Data(notation) => {
            let whole: Result<Vec<AuditRecord>, _> = records.values().map(record_to_model).collect();
            notation.print(&whole.map_err(|bad| Failure::other(format!("the agent sent an invalid record: {bad}")))?)?;
        }
        Format::Name => {
            let numbers: Vec<String> = records.keys().map(u64::to_string).collect();
            print_names(numbers.iter().map(String::as_str))?;
        }
    }
    Ok(exit)
}

/// The newest records of all requested nodes, by number, and the count of older ones.
#[derive(Default)]
struct Newest {
    records: BTreeMap<u64, v1::AuditRecord>,
    left_out: u64,
    /// The note about records that are only in the archive.
    archived: Option<String>,
}

impl Newest {
    /// Adds the records of one node; returns whether there are any.
    async fn read(&mut self, client: &Client, node: &NodeId, since_ms: Option<u64>) -> Result<bool, Failure> {
        let types = AuditAction::OF_NODES.iter().map(ToString::to_string).collect();
        let filter = v1::AuditFilter { node: node.to_string(), types, since_ms, ..Default::default() };
        let (mut after, mut any) = (0, false);
        loop {
            let question = v1::QueryAuditRequest { filter: Some(filter.clone()), after, limit: PAGE_LEN_MAX };
            let page = answer(client.admin().query_audit(question)).await?;
            if page.upto < after || (page.upto == after && page.upto < page.end) {
                return Err(Failure::other("the agent's answer is incomplete: repeat the command"));
            }
            self.archived = self.archived.take().or_else(|| archived(&page, 0));
            after = page.upto;
            any |= !page.records.is_empty();
            for record in page.records {
                self.records.insert(record.seq, record);
                if self.records.len() > SHOWN_MAX {
                    self.records.pop_first();
                    self.left_out += 1;
                }
            }
            if after >= page.end {
                return Ok(any);
            }
        }
    }
}

/// How the table is made narrower.
const FIT: Fit<'_> =
    Fit { left_out: &[], shortened: &[("TIME", 20), ("NODE", 12), ("BY", 12)], wrapped: &[("DETAIL", 16)], left_out_last: &["BY"] };

fn table(records: &BTreeMap<u64, v1::AuditRecord>, several: bool, size: TableSize) -> String {
    let mut table = Table::new(&["TIME", "NODE", "BY", "WHAT", "DETAIL"]);
    for r in records.values() {
        let node = if several { r.node.clone() } else { String::new() };
        table.row(vec![Timestamp(r.at_ms).to_string(), node, r.actor.clone(), r.action.clone(), r.detail.clone()]);
    }
    table.on_screen(&["NODE"], &FIT, size)
}
