//! Terminal sessions over the mesh: the caller's agent is not the agent of the allocation's node.

use super::{Asker, AttachError, Ends, OUTPUT_QUEUE_LEN, attach};
use crate::context::Shared;
use lattice_mesh::UnreachedNode;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::{Open, vouched};
use lattice_mesh::terminal::{AttachOpen, FromTerminal, ToTerminal};
use lattice_model::NodeId;
use lattice_pki::identity::Caller;
use quinn::{RecvStream, SendStream};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Opens a session at the agent of `node`. The first message from that agent shows whether the
/// terminal was opened.
pub async fn dial(context: &Shared, node: &NodeId, address: &str, open: AttachOpen) -> Result<Ends, UnreachedNode> {
    let (mut send, recv) = context.work.mesh.open(node, address).await?;
    frame::write(&mut send, &Open::Attach(open)).await?;
    let (keyboard, mut typed) = mpsc::channel(OUTPUT_QUEUE_LEN);
    let (to_screen, screen) = mpsc::channel(OUTPUT_QUEUE_LEN);
    context.work.tasks.spawn(async move {
        while let Some(message) = typed.recv().await {
            if frame::write(&mut send, &message).await.is_err() {
                return;
            }
        }
    });
    context.work.tasks.spawn(read::<FromTerminal>(recv, to_screen));
    Ok(Ends { keyboard, screen })
}

/// Serves another agent, which requests a terminal on behalf of a user.
pub async fn serve(context: &Shared, peer: &Caller, open: &AttachOpen, mut send: SendStream, recv: RecvStream) -> Result<(), FrameError> {
    let user = vouched(open.uid, &open.user);
    let most = context.setup.attach_max_concurrent;
    // Agents vouch as root for users who act by a role: these share their agent's slots, and take
    // none of root's here.
    let place =
        if user.is_root() { context.attached.take_by_way_of(&peer.name, user.uid, most) } else { context.attached.take(user.uid, most) };
    let opened = if place.is_none() {
        Err(too_many(context, &user.name))
    } else {
        attach(context, open, Asker { user, peer: Some(peer.clone()) }).await
    };
    let mut ends = match opened {
        Ok(ends) => ends,
        Err(error) => return frame::write(&mut send, &FromTerminal::Refused { why: error.to_string() }).await,
    };
    // Reading a frame is not cancel-safe, so a separate task does it. When the stream ends, that
    // task ends, and then the session.
    let _reader = AbortOnDropHandle::new(tokio::spawn(read::<ToTerminal>(recv, ends.keyboard)));
    loop {
        let item = tokio::select! {
            _ = send.stopped() => return Ok(()),
            item = ends.screen.recv() => item,
        };
        let Some(item) = item else { return Ok(()) };
        frame::write(&mut send, &item).await?;
    }
}

/// The error for a user who has too many terminals.
pub fn too_many(context: &Shared, user: &str) -> AttachError {
    AttachError::TooMany { user: user.to_owned(), most: context.setup.attach_max_concurrent, node: context.setup.me.clone() }
}

async fn read<T>(mut recv: RecvStream, to: mpsc::Sender<T>)
where
    T: rkyv::Archive,
    T::Archived: for<'a> rkyv::bytecheck::CheckBytes<rkyv::api::high::HighValidator<'a, rkyv::rancor::Error>>
        + rkyv::Deserialize<T, rkyv::api::high::HighDeserializer<rkyv::rancor::Error>>,
{
    loop {
        let message = tokio::select! {
            () = to.closed() => return,
            message = frame::read::<T, _>(&mut recv) => message,
        };
        let Ok(message) = message else { return };
        if to.send(message).await.is_err() {
            return;
        }
    }
}
