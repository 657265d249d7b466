//! `lattice node confirm-dead`.

use super::each::{apply_to_each, expand_lists};
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::node::ConfirmDead;
use lattice_model::hostlist;

pub async fn run(session: &Session, args: &ConfirmDead) -> Result<u8, Failure> {
    if !args.yes {
        let node_list = hostlist::fold(&expand_lists(&args.on.nodes)?);
        return Err(Failure::usage(format!("nothing was done: if work still runs on {node_list}, it would run twice"))
            .hint("make sure that no work runs there, then give --yes; `lattice explain ID` shows what the work waits for"));
    }
    let client = session.connect().await?;
    let act = async |node: String| {
        answer(client.nodes().confirm_dead(v1::ConfirmDeadRequest { node, reason: args.reason.clone() })).await?;
        Ok(())
    };
    let success_text = |node: &_| {
        format!("Node {node} is Down: its work is ended, or waits to begin elsewhere; if the node comes back, it first ends what is left")
    };
    apply_to_each(session, &args.on.nodes, act, success_text).await.map(|done| done.exit)
}
