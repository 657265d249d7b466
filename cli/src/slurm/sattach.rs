//! `sattach`: shows the output of a step while it runs.

use super::arguments;
use clap::{ArgAction, Parser};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::follow::Screen;
use lattice_cli_session::label::Marks;
use lattice_cli_session::output::print;
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::Global;
use lattice_slurm::job_id::{JobId, launch_of_step};
use std::ffi::OsString;

#[derive(Debug, Parser)]
#[command(name = "sattach", about = "Show the output of a step of a running job", disable_version_flag = true)]
struct Options {
    /// Only the standard error of this task
    #[arg(long, value_name = "TASK")]
    error_filter: Option<u32>,
    /// Refused: a step's input belongs to the srun that began it
    #[arg(long, value_name = "TASK", hide = true)]
    input_filter: Option<u32>,
    /// Begin each line with its task
    #[arg(short, long)]
    label: bool,
    /// Show the step's nodes, and do not attach
    #[arg(long)]
    layout: bool,
    /// Only the standard output of this task
    #[arg(long, value_name = "TASK")]
    output_filter: Option<u32>,
    /// Refused: `lattice attach` opens a terminal in a job
    #[arg(long, hide = true)]
    pty: bool,
    /// Print errors alone
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Accepted
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count, hide = true)]
    _verbose: u8,
    /// The step, such as 12.0; 12.batch is the script
    #[arg(value_name = "JOB.STEP")]
    step: String,
}

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(options) = arguments::parse::<Options>("sattach", args)? else { return Ok(0) };
    let quieter = if options.quiet { Some(Session::new(&Global { quiet: true, ..Global::default() })?) } else { None };
    let session = quieter.as_ref().unwrap_or(session);
    if options.pty || options.input_filter.is_some() {
        return Err(Failure::usage("a step's input belongs to the srun that began it")
            .hint(format!("`lattice attach {}` opens a terminal in the job", options.step.split('.').next().unwrap_or_default())));
    }
    let id = options.step.parse::<JobId>().map_err(|error| Failure::usage(error.to_string()))?;
    let no_step = || Failure::usage(format!("Invalid job step specification: {}", options.step)).hint("name a step, such as 12.0");
    let launch = id.step.and_then(launch_of_step).ok_or_else(no_step)?;
    let key = id.key_with_task().ok_or_else(no_step)?;
    let key = session.resolve_key(&key)?;
    let client = session.connect().await?;
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key: key.clone(), stale: false })).await?;
    if !allocation.task_group.is_empty() {
        return Err(Failure::usage(format!("job {} is a job array", id.key))
            .hint(format!("`lattice logs --follow '{}[INDEX]'` follows one of its tasks", id.key)));
    }
    if options.layout {
        return print(&layout(&options.step, &allocation)).map(|()| 0);
    }
    // A filter for one stream alone leaves the other one whole, as in Slurm; one request has one filter.
    let rank = match (options.output_filter, options.error_filter) {
        (Some(output), Some(error)) if output != error => {
            return Err(Failure::usage("--output-filter and --error-filter must name the same task"));
        }
        (output, error) => output.or(error),
    };
    let request = v1::LogsRequest { key, follow: true, rank, launch: Some(launch), ..Default::default() };
    follow(session, client, &request, options.label).await?;
    Ok(0)
}

fn layout(step: &str, allocation: &v1::Allocation) -> String {
    let mut text = format!("Job step layout:\n\t{step} is on {} nodes of job {}\n", allocation.nodes.len(), allocation.number);
    text.extend(allocation.nodes.iter().enumerate().map(|(at, node)| format!("\tNode {at} ({node})\n")));
    text
}

/// Shows the output until the step has ended, also over broken connections.
async fn follow(session: &Session, mut client: Client, request: &v1::LogsRequest, label: bool) -> Result<(), Failure> {
    let (mut screen, retries) = (Screen::new(Marks { rank: label, ..Marks::default() }), Retries::default());
    loop {
        let once = async {
            let mut stream = client.allocations().logs(screen.continued_request(request)).await?.into_inner();
            while let Some(chunk) = stream.message().await? {
                retries.record_progress();
                screen.show(session, &chunk)?;
            }
            Ok::<(), Failure>(())
        };
        match once.await {
            Ok(()) => return screen.finish(),
            Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
        let given = Options::try_parse_from(["sattach", "-l", "--output-filter", "5", "65386.15"]).unwrap();
        assert_eq!((given.label, given.output_filter, given.step.as_str()), (true, Some(5), "65386.15"));
    }

    #[test]
    fn the_layout_has_the_nodes() {
        let allocation = v1::Allocation { number: 12, nodes: vec!["n1".into(), "n2".into()], ..Default::default() };
        assert_eq!(layout("12.0", &allocation), "Job step layout:\n\t12.0 is on 2 nodes of job 12\n\tNode 0 (n1)\n\tNode 1 (n2)\n");
    }
}
