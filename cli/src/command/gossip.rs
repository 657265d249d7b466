//! `lattice gossip members`.

use crate::failure::Failure;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer};
use crate::table::Table;
use lattice_api::v1;

pub async fn run(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let members = answer(client.nodes().gossip_members(v1::GossipMembersRequest {})).await?.members;
    match session.format() {
        Format::Table => print(&text(&members)),
        Format::Json => {
            let list = members.iter().map(|m| {
                serde_json::json!({
                    "node": m.node, "address": m.address, "incarnation": m.incarnation, "liveness": m.liveness, "state": m.state,
                })
            });
            print_json(&list.collect::<Vec<_>>())
        }
        Format::Name => print_names(members.iter().map(|m| m.node.as_str())),
    }
}

fn text(members: &[v1::GossipMember]) -> String {
    let mut table = Table::new(&["NODE", "LIVENESS", "STATE", "INCARNATION", "ADDRESS"]);
    for m in members {
        table.row(vec![m.node.clone(), m.liveness.clone(), m.state.clone(), m.incarnation.to_string(), m.address.clone()]);
    }
    table.text(&[])
}
