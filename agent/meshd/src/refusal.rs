//! The answer to a peer that may not open a stream, in the form of the answer that it expects.

use lattice_mesh::branch::Up;
use lattice_mesh::checkpoint::{CheckpointItem, FromSaver};
use lattice_mesh::conformance::FingerprintAnswer;
use lattice_mesh::diagnosis::DiagnosisAnswer;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::gpu_usage::GpusAnswer;
use lattice_mesh::history::HistoryAnswer;
use lattice_mesh::launch::ToHead;
use lattice_mesh::monitor::MonitorItem;
use lattice_mesh::open::{HeadAnswer, LaunchItem, LogItem, Open};
use lattice_mesh::ranks::RanksAnswer;
use lattice_mesh::signal::SignalAnswer;
use lattice_mesh::steps::StepsAnswer;
use lattice_mesh::terminal::FromTerminal;
use lattice_mesh::usage::UsageAnswer;
use lattice_registry::access::Denied;
use quinn::SendStream;

pub async fn refuse(open: &Open, denied: &Denied, send: &mut SendStream) -> Result<(), FrameError> {
    let why = denied.to_string();
    match open {
        Open::Logs(_) => {
            frame::write(send, &LogItem::Notice(why)).await?;
            frame::write(send, &LogItem::End).await
        }
        Open::Launch(_) => frame::write(send, &LaunchItem::Refused { why }).await,
        Open::Abort(_) | Open::Keyboard(_) | Open::Input(_) => frame::write(send, &HeadAnswer::Refused { why }).await,
        Open::Attach(_) => frame::write(send, &FromTerminal::Refused { why }).await,
        Open::Usage(_) => frame::write(send, &UsageAnswer::Refused { why }).await,
        Open::UsageGpus(_) => frame::write(send, &GpusAnswer::Refused { why }).await,
        Open::Monitor(_) => frame::write(send, &MonitorItem::Refused { why }).await,
        Open::Diagnosis(_) => frame::write(send, &DiagnosisAnswer::Refused { why }).await,
        Open::Ranks(_) => frame::write(send, &RanksAnswer::Refused { why }).await,
        Open::Signal(_) => frame::write(send, &SignalAnswer::Refused { why }).await,
        Open::History(_) => frame::write(send, &HistoryAnswer::Refused { why }).await,
        Open::Steps(_) => frame::write(send, &StepsAnswer::Refused { why }).await,
        Open::Fingerprint => frame::write(send, &FingerprintAnswer::Refused { why }).await,
        Open::Checkpoint(_) => frame::write(send, &CheckpointItem::Refused { why }).await,
        Open::CheckpointPart(_) => frame::write(send, &FromSaver::Failed { why }).await,
        Open::Branch(open) => match denied {
            // The allocation may still arrive: the parent retries until the quorum decides about
            // it.
            Denied::NotHere { .. } => frame::write(send, &Up::NotHere { why }).await,
            _ => frame::write(send, &Up::FromPart { part: open.first, message: ToHead::Lost { why } }).await,
        },
        // These answers cannot express a refusal, so the stream ends without an answer.
        Open::Entry(_) | Open::StatusTexts(_) | Open::Fact(_) | Open::Saving | Open::RelaySession => Ok(()),
    }
}
