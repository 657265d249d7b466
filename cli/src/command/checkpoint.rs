//! `lattice checkpoint`.

use lattice_api::client::Client;
use lattice_api::json::CheckpointJson;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::progress::Progress;
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{short, time};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::checkpoint::{
    CheckpointCommand, CheckpointCreate, CheckpointDefer, CheckpointDone, CheckpointFail, CheckpointOne, CheckpointProgress,
};
use lattice_model::count::counted;
use lattice_model::millis;
use lattice_model::resources::bytes_text;
use std::time::Duration;
use uuid::Uuid;

/// The time to read a checkpoint depends on its size.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// What the user waits for while a checkpoint is verified.
const READING: &str = "reading the files of the checkpoint";

pub async fn run(session: &Session, command: CheckpointCommand) -> Result<(), Failure> {
    match command {
        CheckpointCommand::Create(args) => create(session, args).await,
        CheckpointCommand::List(args) => {
            let allocation = session.resolve_key(&args.id)?;
            let client = session.connect().await?;
            let all = answer(client.allocations().list_checkpoints(v1::ListCheckpointsRequest { allocation })).await?.checkpoints;
            match session.format() {
                Format::Table => print(&table(&all, session.table_size())),
                Format::Data(notation) => notation.print(&all.iter().map(CheckpointJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(all.iter().map(|c| c.id.as_str())),
            }
        }
        CheckpointCommand::Show(args) => {
            let key = checkpoint_key(session, args)?;
            let client = session.connect().await?;
            let one = answer(client.allocations().get_checkpoint(key)).await?;
            match session.format() {
                Format::Table => print(&text(&one, session.table_size())),
                Format::Data(notation) => notation.print(&CheckpointJson::from(&one)),
                Format::Name => print_names([one.id.as_str()]),
            }
        }
        CheckpointCommand::Verify(args) => verify(session, args).await,
        CheckpointCommand::Rm(args) => {
            let allocation = session.resolve_key(&args.id)?;
            let client = session.connect().await?;
            for checkpoint in args.checkpoints {
                let key = v1::CheckpointKey { allocation: allocation.clone(), checkpoint };
                let removed = answer(client.allocations().remove_checkpoint(key)).await?;
                match session.format() {
                    Format::Table => print(&format!("Removed checkpoint {}\n", short(&removed.id)))?,
                    Format::Data(notation) => notation.print(&serde_json::json!({ "id": removed.id }))?,
                    Format::Name => print_names([removed.id.as_str()])?,
                }
            }
            Ok(())
        }
        CheckpointCommand::Await => await_request(session).await,
        CheckpointCommand::Progress(CheckpointProgress { token, percent, left }) => {
            let left_ms = left.map(millis);
            let message = v1::SaveProgress { token, percent: Some(percent), left_ms };
            send(session, async |client| answer(client.application().progress(tokio_stream::iter([message.clone()]))).await).await
        }
        CheckpointCommand::Defer(CheckpointDefer { token, time }) => {
            let message = v1::SaveDeferral { token, for_ms: millis(time) };
            send(session, async |client| answer(client.application().defer(message.clone())).await).await
        }
        CheckpointCommand::Fail(CheckpointFail { token, why }) => {
            let message = v1::SaveFailure { token, why };
            send(session, async |client| answer(client.application().fail(message.clone())).await).await
        }
        CheckpointCommand::Done(CheckpointDone { token, step, time, files, bytes, listed }) => {
            let list = listed.into_iter().map(|(bytes, path)| v1::SavedFile { path, bytes: Some(bytes), blake3: String::new() }).collect();
            let message = v1::SaveDone { token, step, files, bytes, list, time_seconds: time };
            send(session, async |client| answer(client.application().done(message.clone())).await).await
        }
    }
}

/// Whether the agent may only be restarting: work that saves itself meanwhile must not get an error.
fn may_be_restarting(failure: &Failure) -> bool {
    failure.is_lost_connection() || failure.exit() == Exit::Unavailable as u8
}

/// A connection to the agent, which may be unavailable for a moment.
async fn connect_with_retries(session: &Session, retries: &Retries) -> Result<Client, Failure> {
    match session.connect().await {
        Err(failure) if may_be_restarting(&failure) => retries.reconnect(session, failure).await,
        connected => connected,
    }
}

/// Sends a message to the agent, and repeats it if the connection broke before the acknowledgement.
async fn send(session: &Session, call: impl AsyncFn(&Client) -> Result<v1::SaveAck, Failure>) -> Result<(), Failure> {
    let retries = Retries::default();
    let mut client = connect_with_retries(session, &retries).await?;
    loop {
        match call(&client).await {
            Ok(v1::SaveAck {}) => return Ok(()),
            Err(failure) if may_be_restarting(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}

/// Waits for a request, over restarts of the agent, and prints it.
async fn await_request(session: &Session) -> Result<(), Failure> {
    let retries = Retries::default();
    let mut client = connect_with_retries(session, &retries).await?;
    let request = loop {
        let waited = async {
            let mut requests = answer(client.application().register(v1::RegisterRequest {})).await?;
            retries.record_progress();
            requests.message().await?.ok_or_else(|| Failure::from(tonic::Status::unavailable("the agent closed the connection")))
        };
        match waited.await {
            Ok(request) => break request,
            Err(failure) if may_be_restarting(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    };
    match session.format() {
        Format::Table => print(&format!("{} {}\n", request.token, request.directory)),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "token": request.token, "directory": request.directory, "deadline_ms": request.deadline_ms
        })),
        Format::Name => print_names([request.token.as_str()]),
    }
}

fn checkpoint_key(session: &Session, args: CheckpointOne) -> Result<v1::CheckpointKey, Failure> {
    Ok(v1::CheckpointKey { allocation: session.resolve_key(&args.id)?, checkpoint: args.checkpoint.unwrap_or_default() })
}

/// Follows a checkpoint to its end. After a lost connection it repeats the request with the same id, so it is one
/// checkpoint.
async fn create(session: &Session, args: CheckpointCreate) -> Result<(), Failure> {
    let deadline_ms = args.deadline.map_or(0, millis);
    let allocation = args.id.as_deref().map(|id| session.resolve_key(id)).transpose()?.unwrap_or_default();
    let request = v1::CheckpointRequest { id: Uuid::new_v4().to_string(), allocation, deadline_ms };
    let retries = Retries::default();
    let mut last = String::new();
    let mut client = session.connect().await?;
    let end = loop {
        match follow(session, &client, &request, &mut last, &retries).await {
            Ok(end) => break end,
            Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    };
    if !end.complete {
        let what = format!("checkpoint {} {}: {}", short(&end.id), end.state, end.detail);
        return Err(Failure::new(Exit::Other, what).hint("the allocation continues, and the previous checkpoint stays"));
    }
    match session.format() {
        Format::Table => {
            let step = end.step.map_or_else(String::new, |step| format!(", step {step}"));
            print(&format!("Checkpoint {} is complete: {}{step}\n", short(&end.id), bytes_text(end.bytes)))
        }
        Format::Data(notation) => {
            notation.print(&serde_json::json!({ "id": end.id, "state": end.state, "step": end.step, "bytes": end.bytes }))
        }
        Format::Name => print_names([end.id.as_str()]),
    }
}

async fn follow(
    session: &Session,
    client: &Client,
    request: &v1::CheckpointRequest,
    last: &mut String,
    retries: &Retries,
) -> Result<v1::CheckpointEvent, Failure> {
    let progress = Progress::new(session);
    let mut events = answer(client.allocations().checkpoint(request.clone())).await?;
    while let Some(event) = progress.during(wait_text(last), events.message()).await? {
        retries.record_progress();
        if event.done {
            return Ok(event);
        }
        let now = format!("checkpoint {}: {}, {}", short(&event.id), event.state, event.detail);
        if now != *last {
            session.note(&now);
            *last = now;
        }
    }
    Err(Failure::from(tonic::Status::unavailable("the agent closed the connection")))
}

/// What the user waits for: the last report, if there was one.
fn wait_text(last: &str) -> &str {
    if last.is_empty() { "waiting for the checkpoint to begin" } else { last }
}

async fn verify(session: &Session, args: CheckpointOne) -> Result<(), Failure> {
    let key = checkpoint_key(session, args)?;
    let client = session.connect().await?;
    let read = tokio::time::timeout(VERIFY_TIMEOUT, follow_verification(session, &client, key)).await;
    let verified = read.map_err(|_| Failure::new(Exit::Unavailable, "the checkpoint could not be read within a day"))??;
    match session.format() {
        Format::Table if verified.damaged_files.is_empty() => print(&format!("Checkpoint {} is intact\n", short(&verified.id)))?,
        Format::Table => print(&verified.damaged_files.iter().map(|wrong| format!("{wrong}\n")).collect::<String>())?,
        Format::Data(notation) => notation.print(&serde_json::json!({ "id": verified.id, "damaged_files": verified.damaged_files }))?,
        Format::Name => print_names([verified.id.as_str()])?,
    }
    if verified.damaged_files.is_empty() {
        return Ok(());
    }
    let what =
        format!("checkpoint {} is damaged: {} of its files are not as they were saved", short(&verified.id), verified.damaged_files.len());
    Err(Failure::new(Exit::Refused, what).hint("make another with `lattice checkpoint create` while the allocation runs"))
}

/// Waits for the result, and shows how much of the checkpoint was read.
async fn follow_verification(session: &Session, client: &Client, key: v1::CheckpointKey) -> Result<v1::VerifyCheckpointProgress, Failure> {
    let progress = Progress::new(session);
    let mut reports = progress.during(READING, answer(client.allocations().verify_checkpoint(key))).await?;
    let mut text = READING.to_owned();
    while let Some(report) = progress.during(&text, reports.message()).await? {
        if report.done {
            return Ok(report);
        }
        text = read_text(&report);
        progress.show(&text);
    }
    Err(Failure::from(tonic::Status::unavailable("the agent closed the connection")))
}

/// Which part of the checkpoint's bytes was read, or why nothing is.
fn read_text(report: &v1::VerifyCheckpointProgress) -> String {
    if report.waiting {
        return "waiting until other checkpoints are verified".to_owned();
    }
    let percent = u128::from(report.bytes_read.min(report.bytes)) * 100 / u128::from(report.bytes.max(1));
    format!("{READING}: {percent} % of {}", bytes_text(report.bytes))
}

/// How the list is made narrower.
const FIT: Fit<'_> =
    Fit { left_out: &["EPOCH", "FILES"], shortened: &[("KEPT UNTIL", 17), ("MADE", 17)], wrapped: &[("LAST", 8)], left_out_last: &[] };

fn table(all: &[v1::CheckpointInfo], size: TableSize) -> String {
    let mut table = Table::new(&["CHECKPOINT", "MADE", "EPOCH", "STEP", "FILES", "SIZE", "LAST", "KEPT UNTIL"]);
    for c in all {
        table.row(vec![
            short(&c.id).to_owned(),
            time(c.created_at_ms).unwrap_or_default(),
            c.epoch.to_string(),
            c.step.map_or_else(String::new, |step| step.to_string()),
            c.files.to_string(),
            bytes_text(c.bytes),
            match (c.last, c.damaged.is_empty()) {
                (true, true) => "yes",
                (true, false) => "yes, damaged",
                (false, true) => "",
                (false, false) => "damaged",
            }
            .to_owned(),
            c.expires_at_ms.and_then(time).unwrap_or_default(),
        ]);
    }
    table.on_screen(&["STEP", "KEPT UNTIL"], &FIT, size)
}

fn text(one: &v1::CheckpointInfo, size: TableSize) -> String {
    let last = if one.last { ": the last, from which the allocation begins when it runs again" } else { "" };
    let step = one.step.map_or_else(String::new, |step| format!("Step:     {step}\n"));
    let simulated = one.time_seconds.map_or_else(String::new, |seconds| format!("Time:     {seconds} s, simulated\n"));
    let parent = if one.parent.is_empty() { String::new() } else { format!("Parent:   {}\n", one.parent) };
    let mut text = format!(
        "Checkpoint {}{last}\nMade:     {}, under epoch {}\n{step}{simulated}{parent}Size:     {} in {}\n",
        one.id,
        time(one.created_at_ms).unwrap_or_default(),
        one.epoch,
        bytes_text(one.bytes),
        counted(one.files, "file")
    );
    let mut files = Table::new(&["NODE", "FILE", "BYTES", "BLAKE3"]);
    for node in &one.nodes {
        for file in &node.list {
            files.row(vec![node.node.clone(), file.path.clone(), file.bytes.to_string(), file.blake3.chars().take(16).collect()]);
        }
    }
    text.push('\n');
    text.push_str(&files.on_screen(&[], &Fit::default(), size));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::table::{NARROW, assert_fits};

    #[test]
    fn a_verification_shows_the_part_of_the_bytes_that_was_read() {
        let report = |bytes_read, bytes| v1::VerifyCheckpointProgress { bytes_read, bytes, ..Default::default() };
        assert_eq!(read_text(&report(0, 4 << 30)), "reading the files of the checkpoint: 0 % of 4.0 GiB");
        assert_eq!(read_text(&report(3 << 30, 4 << 30)), "reading the files of the checkpoint: 75 % of 4.0 GiB");
        assert!(read_text(&report(0, 0)).contains(": 0 % of "));
        let waiting = v1::VerifyCheckpointProgress { waiting: true, ..report(0, 4 << 30) };
        assert_eq!(read_text(&waiting), "waiting until other checkpoints are verified");
    }

    #[test]
    fn the_list_has_all_columns_and_fits_on_a_narrow_screen() {
        let one = v1::CheckpointInfo {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            created_at_ms: 1_772_704_812_000,
            epoch: 4,
            step: Some(123_456),
            files: 1024,
            bytes: 3 << 40,
            last: true,
            damaged: "a file is missing".into(),
            expires_at_ms: Some(1_772_704_812_000),
            ..Default::default()
        };
        let want = "\
CHECKPOINT  MADE                      EPOCH  STEP    FILES  SIZE        LAST          KEPT UNTIL
1f0c9a4e    2026-03-05T10:00:12.000Z  4      123456  1024   3072.0 GiB  yes, damaged  2026-03-05T10:00:12.000Z
";
        assert_eq!(table(std::slice::from_ref(&one), TableSize::default()), want);
        assert_fits(&table(&[one], NARROW));
    }
}
