//! Standard input of a launch, from its user to its head, and acknowledgements back to the user.

use super::Api;
use super::target::Target;
use lattice_api::v1;
use lattice_launch::{InputPort, next_taken};
use lattice_mesh::frame;
use lattice_mesh::input::{WireInputAck, WireInputChunk};
use lattice_mesh::open::{AbortOpen, HeadAnswer, Open};
use lattice_meshd as meshd;
use lattice_model::input::{PIECE_BYTES_MAX, Taken};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// How many acknowledgements are queued for a slow caller.
const ITEMS_QUEUE_LEN: usize = 16;

type Answers = mpsc::Sender<Result<v1::LaunchInputResponse, Status>>;

/// The connection to a launch's standard input.
enum InputConnection {
    Here(InputPort),
    There { send: quinn::SendStream, recv: quinn::RecvStream },
}

/// Carries standard input to a launch's head, and acknowledgements back, until the caller's stream
/// ends or the head is gone.
pub(super) async fn feed(
    api: &Api,
    requests: Streaming<v1::LaunchInputRequest>,
    target: &Target,
    open: AbortOpen,
) -> Result<mpsc::Receiver<Result<v1::LaunchInputResponse, Status>>, Status> {
    let head = &target.head;
    let unavailable = |e: &dyn std::fmt::Display| Status::unavailable(format!("the launch's head {head}: {e}"));
    let connection = if *head == api.context.setup.me {
        InputConnection::Here(meshd::input_of(&api.context, &open).map_err(|error| Status::failed_precondition(error.to_string()))?)
    } else {
        let address = api.mesh_address(head).await.ok_or_else(|| unavailable(&"its address is not known"))?;
        let (mut send, mut recv) = api.context.work.mesh.open(head, &address).await.map_err(|e| unavailable(&e))?;
        frame::write(&mut send, &Open::Input(open)).await.map_err(|e| unavailable(&e))?;
        match frame::read::<HeadAnswer, _>(&mut recv).await.map_err(|e| unavailable(&e))? {
            HeadAnswer::Done => InputConnection::There { send, recv },
            HeadAnswer::Refused { why } => return Err(Status::failed_precondition(why)),
        }
    };
    let (out, stream) = mpsc::channel(ITEMS_QUEUE_LEN);
    api.context.work.tasks.spawn(async move {
        let ended = match connection {
            InputConnection::Here(port) => feed_locally(requests, port, &out).await,
            InputConnection::There { send, recv } => feed_remotely(requests, send, recv, &out).await,
        };
        if let Err(status) = ended {
            let _ = out.send(Err(status)).await;
        }
    });
    Ok(stream)
}

async fn feed_locally(
    mut requests: Streaming<v1::LaunchInputRequest>,
    InputPort { pieces, mut taken }: InputPort,
    out: &Answers,
) -> Result<(), Status> {
    let comes = async {
        while let Some(piece) = next_piece(&mut requests).await? {
            let _ = pieces.send(piece).await;
        }
        Ok::<_, Status>(())
    };
    let goes = async {
        while let Some(now) = next_taken(&mut taken).await {
            if send_taken(out, now).await.is_none() {
                break;
            }
        }
        Ok(())
    };
    tokio::select! { ended = comes => ended, ended = goes => ended }
}

async fn feed_remotely(
    mut requests: Streaming<v1::LaunchInputRequest>,
    mut send: quinn::SendStream,
    mut recv: quinn::RecvStream,
    out: &Answers,
) -> Result<(), Status> {
    let comes = async {
        while let Some(piece) = next_piece(&mut requests).await? {
            frame::write(&mut send, &piece).await.map_err(|e| Status::unavailable(format!("the launch's head: {e}")))?;
        }
        Ok::<_, Status>(())
    };
    let goes = async {
        while let Ok(now) = frame::read::<WireInputAck, _>(&mut recv).await {
            if send_taken(out, now.into()).await.is_none() {
                break;
            }
        }
        Ok(())
    };
    tokio::select! { ended = comes => ended, ended = goes => ended }
}

/// `None`: the caller sends no more.
async fn next_piece(requests: &mut Streaming<v1::LaunchInputRequest>) -> Result<Option<WireInputChunk>, Status> {
    let Some(request) = requests.message().await? else { return Ok(None) };
    let Some(v1::launch_input_request::What::Piece(v1::InputChunk { offset, data, last })) = request.what else {
        return Err(Status::invalid_argument("after `start`, only pieces of standard input may follow"));
    };
    if data.len() > PIECE_BYTES_MAX {
        return Err(Status::invalid_argument(format!("a piece of {} bytes; at most {PIECE_BYTES_MAX} are accepted", data.len())));
    }
    Ok(Some(WireInputChunk { offset, bytes: data, last }))
}

/// `None`: the caller has gone.
async fn send_taken(out: &Answers, taken: Taken) -> Option<()> {
    let taken = match taken {
        Taken::UpTo(bytes) => v1::InputAck { bytes, closed: false },
        Taken::Closed => v1::InputAck { bytes: 0, closed: true },
    };
    out.send(Ok(v1::LaunchInputResponse { taken: Some(taken) })).await.ok()
}
