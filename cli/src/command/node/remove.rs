//! `lattice node remove`.

use super::confirm::require_confirmation;
use super::each::{apply_to_each, expand_lists};
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::node::Remove;
use lattice_model::hostlist;

pub async fn run(session: &Session, args: &Remove) -> Result<u8, Failure> {
    let node_list = hostlist::fold(&expand_lists(&args.on.nodes)?);
    require_confirmation(args.yes, &format!("this removes {node_list} from the cluster"))?;
    let client = session.connect().await?;
    let act = async |node: String| {
        answer(client.nodes().remove(v1::RemoveNodeRequest { node, reason: args.reason.clone() })).await?;
        Ok(())
    };
    let success_text = |node: &_| format!("Node {node} is removed; it may not register until `lattice node admit {node}`");
    apply_to_each(session, &args.on.nodes, act, success_text).await.map(|done| done.exit)
}
