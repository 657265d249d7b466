//! An allocation's head is asked for a checkpoint, from whichever agent: for a user, or by the broker.
//!
//! A process gets the signal when it was seen to catch it twice, a moment apart, as the same
//! program, and once more directly before. What need not happen before the work gets the request
//! happens behind it: removing what the checkpoint before left, and writing the file `request`
//! where the page has token and deadline. The signal is not sent while the head's state is being
//! written: a head that was killed then would ask for the round anew, and nodes that save
//! themselves in it already have no answer for that.

use super::handles::Shared;

use lattice_mesh::UnreachedNode;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_mesh::frame;
use lattice_mesh::open::Open;
use lattice_model::NodeId;
use tokio::sync::mpsc;

/// Words that wait for who asked.
const ITEMS: usize = 4;

/// Asks the head; how it goes comes out of the receiver, which closes without a last word where the head goes away. `address`: where
/// the head's mesh is. The error says why the head cannot be asked now.
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
    let (items, receiver) = mpsc::channel(ITEMS);
    tokio::spawn(async move {
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
