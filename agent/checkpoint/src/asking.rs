//! Asks an allocation's head for a checkpoint, from any agent of role `api`, for a user or for the
//! broker.
//!
//! A process gets the signal only after two looks, a moment apart, saw it catch the signal in the
//! same program, and a third one directly before. Two things happen only after the work has got the
//! request, if they can wait: what the previous checkpoint left is removed, if the disk has space
//! for both checkpoints; and the file `request` is written, if the page already has token and
//! deadline. The signal is not sent before the head's state is on the disk: if the head were killed
//! in between, it would ask for the round anew, and nodes that already save themselves in it would
//! have no answer for that.

use super::handles::Shared;

use lattice_mesh::UnreachedNode;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_mesh::frame;
use lattice_mesh::open::Open;
use lattice_model::NodeId;
use tokio::sync::mpsc;

/// Items queued for the caller.
const ITEMS_QUEUE_LEN: usize = 4;

/// Asks the head for a checkpoint. Its progress arrives at the receiver, which closes without an
/// end if the head is lost. `address`: the head's mesh address. The error says why the head cannot
/// be asked now.
pub async fn ask(
    context: &Shared,
    head: &NodeId,
    address: Option<String>,
    open: &CheckpointOpen,
) -> Result<mpsc::Receiver<CheckpointItem>, UnreachedNode> {
    if *head == context.me {
        return match crate::begin(context, open).await {
            Ok(items) => Ok(items),
            Err(error) => {
                let (send, items) = mpsc::channel(1);
                let _ = send.try_send(CheckpointItem::Refused { why: error.to_string() });
                Ok(items)
            }
        };
    }
    let address = address.ok_or(UnreachedNode::NoAddress)?;
    let (mut send, mut recv) = context.mesh.open(head, &address).await?;
    frame::write(&mut send, &Open::Checkpoint(Box::new(open.clone()))).await?;
    let (items, receiver) = mpsc::channel(ITEMS_QUEUE_LEN);
    context.tasks.spawn(async move {
        let _send = send;
        loop {
            let item = tokio::select! {
                () = items.closed() => return,
                item = frame::read::<CheckpointItem, _>(&mut recv) => item,
            };
            let Ok(item) = item else { return };
            if items.send(item).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
