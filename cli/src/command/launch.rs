//! `lattice launch`: runs ranks inside an allocation, or a job of its own.

mod following;
mod job_values;

pub use following::{Ending, ExitAfterSignal, LaunchOutput, follow_launch};

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::exits::ExitTable;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::feeder::{self, Feeder};
use lattice_cli_session::follow::{End, JobInput, OwnJob, Screen, exit_code_of_end, follow, report_why_ended};
use lattice_cli_session::label::Marks;
use lattice_cli_session::linked;
use lattice_cli_session::message::write_message_line;
use lattice_cli_session::rank_files::RankFiles;
use lattice_cli_session::redirection::Redirection;
use lattice_cli_session::request::{self, Program, Surroundings, task_variables};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::typist;
use lattice_cli_syntax::args::launch::Launch;
use lattice_cli_syntax::flags::{Requeue, SubmitFlags};
use lattice_cli_syntax::layout::{self, Programs};
use lattice_cli_syntax::shape::complete_shape;
use lattice_model::Stdin;
use lattice_model::input::STDIN_VARIABLE;
use lattice_model::launch::{PMI_VARIABLE, Pmi};
use lattice_slurm::task_exits;
use std::time::Duration;

/// The allocation of this process, set by its agent.
const ALLOCATION_VARIABLE: &str = "LATTICE_ALLOC_ID";

/// The properties of a launch of `srun` that `lattice launch` does not have: it also reports its job and its failed ranks
/// as Slurm does.
#[derive(Debug, Default)]
pub struct Srun {
    /// Where the output of ranks goes; `None`: to this process's own streams.
    pub redirection: Option<Redirection>,
    /// Inside an allocation: the time after which the launch is ended.
    pub limit: Option<Duration>,
    /// As a job of its own: the time after which it is cancelled if it has no nodes.
    pub give_up_after: Option<Duration>,
}

/// The allocation of this process, if it is in one.
pub fn own_allocation() -> Option<String> {
    std::env::var(ALLOCATION_VARIABLE).ok().filter(|id| !id.is_empty())
}

pub async fn run(session: &Session, args: Launch) -> Result<u8, Failure> {
    Box::pin(run_as(session, args, None)).await
}

/// Runs a launch of `lattice launch`, or one of `srun`.
pub async fn run_as(session: &Session, mut args: Launch, srun: Option<Srun>) -> Result<u8, Failure> {
    // `launch -- cmd`: with trailing arguments clap takes the first separator; a second one would belong to the
    // program.
    if args.command.first().is_some_and(|first| first == "--") {
        args.command.remove(0);
    }
    match args.alloc.clone().or_else(own_allocation) {
        Some(typed) => run_inside(session, &typed, args, srun).await,
        None => Box::pin(run_as_job(session, args, srun)).await,
    }
}

async fn run_as_job(session: &Session, args: Launch, srun: Option<Srun>) -> Result<u8, Failure> {
    if args.exit_table.is_some() {
        return Err(Failure::usage("--exit-table is for a launch inside an allocation, and this launch is a job of its own")
            .hint("use --alloc ID, or put the launch into a script"));
    }
    check_output(&args)?;
    let pty = if args.pty { Some(typist::terminal_size()?) } else { None };
    let Programs { first, further, ranks } = layout::split_programs(args.command, args.flags.ranks)?;
    let flags = SubmitFlags { ranks, ..args.flags };
    let around = Surroundings::read(flags.export)?;
    let dir = around.dir.clone();
    // A program that may be in an image cannot be examined.
    let pmi = (!further.is_empty() && flags.uenv.is_none()).then(|| wireup(&first, &further, &around));
    let mut spec = request::build_specification(&flags, Program::Command(first), &session.settings, around)?;
    if let Some(pmi) = pmi {
        spec.env.extend(flags.variables(Some(pmi)).filter(|(name, _)| name == PMI_VARIABLE));
    }
    let stdin = match args.stdin {
        Some(Stdin::Rank(_) | Stdin::All) if may_be_requeued(&spec) => {
            return Err(Failure::usage("--stdin cannot be used with --requeue: a later attempt could not read standard input again")
                .hint("use --requeue=never, or --stdin=none"));
        }
        None if may_be_requeued(&spec) => Stdin::None,
        asked => feeder::choose_readers(asked, args.pty),
    };
    spec.env.extend(input_variable(stdin));
    // By default it is not requeued: the user sees it fail, and decides.
    let requeue = spec.requeue.clone().or_else(|| Some(v1::Requeue { policy: Requeue::Never.name().to_owned(), max: 0 }));
    let launch = v1::LaunchShape { programs: further, ..spec.launch.clone().unwrap_or_default() };
    let launch = Some(launch).filter(|shape| *shape != v1::LaunchShape::default());
    let spec = v1::AllocationSpec { pty, requeue, launch, ..spec };
    let client = session.connect().await?;
    // Before anything is submitted, so that an early Ctrl-C leaves no job behind.
    let own = OwnJob::new(match stdin {
        Stdin::None if pty.is_some() => JobInput::Terminal(None),
        Stdin::None => JobInput::Nothing,
        Stdin::Rank(_) | Stdin::All => JobInput::Input(Feeder::default()),
    })?;
    let own = match &srun {
        Some(srun) => own.reported_as_srun(srun.give_up_after),
        None => own,
    };
    let has_one_rank = ranks.unwrap_or(1) == 1 && further_nodes(&spec) == 0 && spec.tasks_per_node <= 1;
    let name = spec.name.clone();
    let (id, wait_for_nodes) = (uuid::Uuid::new_v4().to_string(), flags.wait_for_nodes);
    let submission = v1::SubmitRequest { id, spec: Some(spec), wait_for_nodes, dry_run: false };
    let request = v1::LogsRequest { key: submission.id.clone(), follow: true, ..Default::default() };
    let screen = if args.per_rank {
        Screen::per_rank(RankFiles::new(&dir, short(&submission.id)))
    } else {
        Screen::new(Marks { rank: args.label, ..Marks::default() })
    };
    let is_srun = srun.is_some();
    let redirection = srun.and_then(|srun| srun.redirection).map(|mut redirection| {
        redirection.job_mut().name = name;
        redirection
    });
    let screen = screen.redirected(redirection);
    let (end, cancelled) = follow(session, client, &request, screen, Some(own), Some(submission)).await?;
    if let End::Ended(allocation) = &end {
        report_why_ended(&allocation.abort_reason);
    }
    let code = exit_code_of_end(&end, cancelled)?;
    if is_srun && code != 0 && cancelled.is_none() {
        let of = if has_one_rank { "task 0: " } else { "" };
        write_message_line(format_args!("error: {of}{}", task_exits::end_of_code(code.into())));
    }
    Ok(code)
}

/// How many nodes a job asks for beyond the first.
fn further_nodes(spec: &v1::AllocationSpec) -> u32 {
    spec.resources.as_ref().map_or(0, |resources| resources.nodes.saturating_sub(1))
}

/// Whether it may be requeued.
fn may_be_requeued(spec: &v1::AllocationSpec) -> bool {
    spec.requeue.as_ref().is_some_and(|requeue| requeue.policy != Requeue::Never.name())
}

/// The variable by which a launch names the ranks that read standard input.
fn input_variable(stdin: Stdin) -> Option<(String, String)> {
    (stdin != Stdin::None).then(|| (STDIN_VARIABLE.to_owned(), stdin.to_string()))
}

/// Refuses options that conflict with one file for each rank.
fn check_output(args: &Launch) -> Result<(), Failure> {
    let with = if args.label { "--label" } else { "--pty" };
    if args.per_rank && (args.label || args.pty) {
        return Err(Failure::usage(format!("-o per-rank cannot be used with {with}: it writes the output to files, not to the screen")));
    }
    Ok(())
}

async fn run_inside(session: &Session, typed: &str, args: Launch, srun: Option<Srun>) -> Result<u8, Failure> {
    if let Some(flag) = args.flags.first_allocation_option() {
        return Err(Failure::usage(format!("{flag} is not an option of a launch inside an allocation: it belongs to the allocation"))
            .hint("give it to `lattice submit`, or in the script's #LATTICE lines"));
    }
    check_output(&args)?;
    if args.flags.nodelist.is_some() && (args.flags.nodes.is_some() || args.flags.layout.distribution.is_some()) {
        return Err(Failure::usage("--nodelist places each rank of a launch inside an allocation: it cannot be used with -N or -m"));
    }
    let Programs { first, further, ranks: asked } = layout::split_programs(args.command, args.flags.ranks)?;
    let places = args.flags.nodelist.as_deref().map(layout::parse_rank_places).transpose()?.unwrap_or_default();
    let around = Surroundings::read(args.flags.export)?;
    let working_dir = args.flags.working_dir(&around.dir);
    let pmi = if args.flags.pmi.is_none() && is_chosen_by_allocation() { None } else { Some(wireup(&first, &further, &around)) };
    let mut env = around.env;
    if args.alloc.is_none() {
        env.extend(task_variables());
    }
    env.extend(args.flags.variables(pmi));
    let stdin = feeder::choose_readers(args.stdin, args.pty);
    env.extend(input_variable(stdin));
    // Outside of an allocation, a missing agent is reported at once.
    let retries = if args.alloc.is_some() { Retries::default() } else { Retries::within_allocation() };
    let mut client = retries.connect(session).await?;
    let allocation = session.resolve_key(typed)?;
    let (ranks, tasks_per_node) = loop {
        match launch_size(&client, &allocation, &args.flags, asked).await {
            Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(session, failure).await?,
            known => break known?,
        }
    };
    let nodes = args.flags.nodes.map_or(0, |n| n.least);
    let shape = v1::LaunchShape { programs: further, places, nodes, ..args.flags.layout.to_message() };
    let screen = if args.per_rank {
        Screen::per_rank(RankFiles::new(&around.dir, short(&allocation)))
    } else {
        Screen::new(Marks { rank: args.label, ..Marks::default() })
    };
    let (tasks, limit) = (srun.as_ref().map(|_| Vec::new()), srun.as_ref().and_then(|srun| srun.limit));
    let redirection = match srun.and_then(|srun| srun.redirection) {
        Some(redirection) => Some(job_values::complete(redirection, &client, &allocation).await?),
        None => None,
    };
    let screen = screen.redirected(redirection);
    let request = v1::LaunchRequest {
        id: uuid::Uuid::new_v4().to_string(),
        allocation,
        argv: first,
        ranks,
        tasks_per_node,
        working_dir: working_dir.to_str().ok_or_else(|| Failure::usage("the working directory's name is not UTF-8"))?.to_owned(),
        env,
        received: Vec::new(),
        pty: if args.pty { Some(typist::terminal_size()?) } else { None },
        binding: args.flags.binding.to_message(),
        shape: Some(shape).filter(|shape| *shape != v1::LaunchShape::default()),
        exits: args.exit_table.is_some() || tasks.is_some(),
    };
    let table = args.exit_table.map(|path| ExitTable::new(path, session.format()));
    let feeder = (stdin != Stdin::None).then(Feeder::default);
    let exit_after_signal = if args.pty { ExitAfterSignal::AtOnce } else { ExitAfterSignal::AtLaunchEnd };
    let shown = LaunchOutput { screen, table, tasks };
    follow_launch(session, client, &request, shown, feeder, Ending { exit_after_signal, limit }, retries).await
}

/// Whether this process's allocation was submitted with a choice of wire-up.
fn is_chosen_by_allocation() -> bool {
    std::env::var(PMI_VARIABLE).ok().and_then(|value| value.parse::<Pmi>().ok()).is_some_and(Pmi::is_explicit)
}

/// The wire-up for these programs if no option chooses it.
fn wireup(first: &[String], further: &[v1::launch_shape::Program], around: &Surroundings) -> Pmi {
    let programs = first.first().into_iter().chain(further.iter().filter_map(|program| program.argv.first()));
    linked::combine(programs.map(|program| linked::wireup(program, &around.dir, &around.env)))
}

/// The total number of ranks and the number on each node; 0 means the allocation's own number.
async fn launch_size(client: &Client, allocation: &str, flags: &SubmitFlags, ranks: Option<u32>) -> Result<(u32, u32), Failure> {
    let Some(nodes) = flags.nodes else { return Ok((ranks.unwrap_or(0), flags.tasks_per_node.unwrap_or(0))) };
    if nodes.most.is_some() {
        return Err(Failure::usage("-N: a launch inside an allocation takes one number of nodes, not a range").hint("such as -N 2"));
    }
    let tasks_per_node = match (ranks, flags.tasks_per_node) {
        (None, None) => {
            let request = v1::GetAllocationRequest { key: allocation.to_owned(), stale: false };
            Some(answer(client.allocations().get(request)).await?.tasks_per_node)
        }
        (_, given) => given,
    };
    let fits = complete_shape(ranks, Some(nodes.least), tasks_per_node, flags.layout.plane())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let too_many = || Failure::usage("-N and --tasks-per-node: the number of ranks is too large");
    let evenly = fits.nodes.checked_mul(fits.tasks_per_node).ok_or_else(too_many)? == fits.ranks;
    // If they do not divide evenly, the agent distributes them as evenly as possible.
    Ok((fits.ranks, if evenly { fits.tasks_per_node } else { flags.tasks_per_node.unwrap_or(0) }))
}
