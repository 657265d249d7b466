//! `lattice node remove`.

use super::confirm::confirmed;
use super::each::{each, named};
use crate::failure::Failure;
use crate::session::{Session, answer};
use lattice_api::v1;
use lattice_cli_syntax::args::node::Remove;
use lattice_model::hostlist;

pub async fn run(session: &Session, args: &Remove) -> Result<u8, Failure> {
    let node_list = hostlist::fold(&named(&args.on.nodes)?);
    confirmed(args.yes, &format!("this removes {node_list} from the cluster"))?;
    let client = session.connect().await?;
    let act = async |node: String| {
        answer(client.nodes().remove(v1::RemoveNodeRequest { node, reason: args.reason.clone() })).await?;
        Ok(())
    };
    let success_text = |node: &_| format!("Node {node} is removed; it may not register until `lattice node admit {node}`");
    each(session, &args.on.nodes, act, success_text).await.map(|done| done.exit)
}
