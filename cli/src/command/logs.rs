//! `lattice logs`.
//!
//! The log of a script is the script's own output: its `lattice launch` prints the output of its ranks, as `srun` does,
//! so that it can be piped. Showing the ranks' files as well would show every line twice. The log of an inline command
//! is the output of the ranks of its one launch.

use crate::failure::Failure;
use crate::follow::{Screen, exit_code_of_end, follow};
use crate::label::Marks;
use crate::session::{Session, now};
use lattice_api::v1;
use lattice_cli_syntax::args::allocations::Logs;
use lattice_cli_syntax::time::parse_past;

pub async fn run(session: &Session, args: Logs) -> Result<u8, Failure> {
    let stream = if args.stdout {
        "stdout"
    } else if args.stderr {
        "stderr"
    } else {
        ""
    };
    let request = v1::LogsRequest {
        key: session.resolve_key(&args.id)?,
        follow: args.follow,
        stream: stream.to_owned(),
        rank: args.rank,
        node: args.node.unwrap_or_default(),
        received: Vec::new(),
        tail: args.tail,
        since_ms: args.since.as_deref().map(|text| parse_past("--since", text, now())).transpose()?,
        until_ms: args.until.as_deref().map(|text| parse_past("--until", text, now())).transpose()?,
        being_submitted: false,
        attempt: args.attempt,
        previous: args.previous,
        timestamps: args.timestamps,
    };
    let client = session.connect().await?;
    let mut screen = Screen::new(Marks { time: args.timestamps, rank: args.label });
    if args.follow {
        let (end, cancelled) = follow(session, client, &request, screen, None, None).await?;
        return exit_code_of_end(&end, cancelled);
    }
    let mut stream = client.allocations().logs(request).await?.into_inner();
    while let Some(chunk) = stream.message().await? {
        screen.show(session, &chunk)?;
    }
    screen.finish()?;
    Ok(0)
}
