//! `lattice launch`: runs ranks inside an allocation, or a job of its own.

use crate::exits::ExitTable;
use crate::failure::{BROKEN_PIPE, Exit, Failure};
use crate::feeder::{self, Feeder};
use crate::follow::{End, JobInput, OwnJob, Screen, exit_code_of_end, follow, program_code, report_why_ended};
use crate::interrupts::Interrupts;
use crate::label::Marks;
use crate::linked;
use crate::message::{write_message, write_message_line};
use crate::rank_files::RankFiles;
use crate::request::{self, Program, Surroundings, task_variables};
use crate::retries::Retries;
use crate::session::{Session, answer};
use crate::shown::short;
use crate::typist::{self, EndSignals, Typist};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_event::What;
use lattice_api::v1::launch_input_request::Start;
use lattice_cli_syntax::args::launch::Launch;
use lattice_cli_syntax::flags::{Requeue, SubmitFlags};
use lattice_cli_syntax::layout::{self, Programs};
use lattice_cli_syntax::shape::complete_shape;
use lattice_model::Stdin;
use lattice_model::input::STDIN_VARIABLE;
use lattice_model::launch::{PMI_VARIABLE, Pmi};
use std::convert::Infallible;
use tokio::sync::watch;

/// A shell's exit code for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// The allocation of this process, set by its agent.
const ALLOCATION_VARIABLE: &str = "LATTICE_ALLOC_ID";

pub async fn run(session: &Session, mut args: Launch) -> Result<u8, Failure> {
    // `launch -- cmd`: with trailing arguments clap takes the first separator; a second one would belong to the
    // program.
    if args.command.first().is_some_and(|first| first == "--") {
        args.command.remove(0);
    }
    let inside = args.alloc.clone().or_else(|| std::env::var(ALLOCATION_VARIABLE).ok().filter(|id| !id.is_empty()));
    match inside {
        Some(typed) => run_inside(session, &typed, args).await,
        None => Box::pin(run_as_job(session, args)).await,
    }
}

async fn run_as_job(session: &Session, args: Launch) -> Result<u8, Failure> {
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
    let (id, wait_for_nodes) = (uuid::Uuid::new_v4().to_string(), flags.wait_for_nodes);
    let submission = v1::SubmitRequest { id, spec: Some(spec), wait_for_nodes, dry_run: false };
    let request = v1::LogsRequest { key: submission.id.clone(), follow: true, ..Default::default() };
    let screen = if args.per_rank {
        Screen::per_rank(RankFiles::new(&dir, short(&submission.id)))
    } else {
        Screen::new(Marks { rank: args.label, ..Marks::default() })
    };
    let (end, cancelled) = follow(session, client, &request, screen, Some(own), Some(submission)).await?;
    if let End::Ended(allocation) = &end {
        report_why_ended(&allocation.abort_reason);
    }
    exit_code_of_end(&end, cancelled)
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

async fn run_inside(session: &Session, typed: &str, args: Launch) -> Result<u8, Failure> {
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
        exits: args.exit_table.is_some(),
    };
    let table = args.exit_table.map(|path| ExitTable::new(path, session.format()));
    let feeder = (stdin != Stdin::None).then(Feeder::default);
    let exit_after_signal = if args.pty { ExitAfterSignal::AtOnce } else { ExitAfterSignal::AtLaunchEnd };
    follow_launch(session, client, &request, LaunchOutput { screen, table }, feeder, exit_after_signal, retries).await
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

/// Where a launch's output goes.
pub struct LaunchOutput {
    pub screen: Screen,
    pub table: Option<ExitTable>,
}

/// When this process exits after a signal. The signal also ends the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAfterSignal {
    /// As soon as the agent has accepted the end: the terminal's owner is gone, or waits for us.
    AtOnce,
    /// When the launch has ended.
    AtLaunchEnd,
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

/// Follows a launch to its end. After a broken connection the request is repeated, which its id makes safe. The first
/// Ctrl-C, or other signal to end, ends the launch; `exit_after_signal` says when this process then exits. A second
/// signal makes it exit at once. If the reader of our output is gone, the launch is ended, and this process exits at
/// once.
pub async fn follow_launch(
    session: &Session,
    mut client: Client,
    request: &v1::LaunchRequest,
    mut shown: LaunchOutput,
    feeder: Option<Feeder>,
    exit_after_signal: ExitAfterSignal,
    retries: Retries,
) -> Result<u8, Failure> {
    let (mut interrupts, mut end_signals) = (Interrupts::listen()?, EndSignals::listen()?);
    // The exit code of a shell for the signal that ends the launch, and whether we exit at once.
    let mut ended_by: Option<(u8, bool)> = None;
    // From here on the terminal is raw, and Ctrl-C is an ordinary key.
    let mut input_source = match feeder {
        Some(feeder) => InputSource::Feeder(feeder),
        None if request.pty.is_some() => InputSource::Typist(Typist::begin()?),
        None => InputSource::Nobody,
    };
    loop {
        let once = {
            let (begins, mut begun) = watch::channel(false);
            let once = launch_once(session, &client, request, &mut shown, &retries, begins);
            tokio::pin!(once);
            let (mut has_begun, known) = (begun.clone(), begun.clone());
            let ending = async {
                // A launch that has not begun cannot be ended.
                let _ = has_begun.wait_for(|begun| *begun).await;
                abort_launch(&client, request).await
            };
            tokio::pin!(ending);
            let mut is_end_accepted = false;
            let feeding = input_source.feed(&client, request, &mut begun);
            tokio::pin!(feeding);
            loop {
                let (code, at_once) = tokio::select! {
                    done = &mut once => break done,
                    never = &mut feeding => match never {},
                    accepted = &mut ending, if ended_by.is_some() && !is_end_accepted => {
                        match accepted {
                            Err(failure) if retries.should_retry(&failure) => break Err(failure),
                            other => other?,
                        };
                        is_end_accepted = true;
                        match ended_by {
                            Some((code, true)) => return Ok(code),
                            Some((_, false)) | None => continue,
                        }
                    }
                    () = interrupts.pressed() => (INTERRUPTED, false),
                    code = end_signals.recv() => (code, exit_after_signal == ExitAfterSignal::AtOnce),
                };
                if ended_by.is_some() {
                    if !is_end_accepted {
                        let may = if *known.borrow() { "continue" } else { "still begin" };
                        write_message_line(format_args!(
                            "it is not known whether the launch was ended: it may {may}; `lattice cancel` ends its allocation"
                        ));
                    }
                    return Ok(code);
                }
                if !at_once {
                    let again = if code == INTERRUPTED { "; Ctrl-C again stops waiting for that" } else { "" };
                    write_message_line(format_args!("ending the launch{again}"));
                }
                ended_by = Some((code, at_once));
            }
        };
        match once {
            Err(failure) if retries.should_retry(&failure) => {
                client = tokio::select! {
                    connected = retries.reconnect(session, failure) => connected?,
                    code = end_signals.recv() => {
                        write_message_line("no agent answers: the launch continues; `lattice cancel` ends its allocation");
                        return Ok(code);
                    }
                };
            }
            // A launch that has output has begun, so it can be ended.
            Err(Failure::ReaderGone) => {
                if ended_by.is_none() {
                    write_message_line("the reader of the output is gone: ending the launch");
                }
                let refused = [Exit::Refused as u8, Exit::NotFound as u8];
                // A refused request means that the launch has ended meanwhile.
                if let Some(failure) = abort_launch(&client, request).await.err().filter(|failure| !refused.contains(&failure.exit())) {
                    write_message(failure.text());
                    write_message_line("the launch may continue; `lattice cancel` ends its allocation");
                }
                return Ok(ended_by.map_or(BROKEN_PIPE, |(signalled, _)| signalled));
            }
            done => {
                match shown.screen.finish() {
                    // The exit code is known: a lost last line must not replace it.
                    Ok(()) | Err(Failure::ReaderGone) => {}
                    Err(failure) => return Err(failure),
                }
                return done.map(|code| ended_by.map_or(code, |(signalled, _)| signalled));
            }
        }
    }
}

/// Ends a launch that has begun.
async fn abort_launch(client: &Client, request: &v1::LaunchRequest) -> Result<v1::AbortLaunchResponse, Failure> {
    let abort = v1::AbortLaunchRequest { id: request.id.clone(), allocation: request.allocation.clone() };
    answer(client.allocations().abort_launch(abort)).await
}

/// The source of a launch's input.
enum InputSource {
    Typist(Typist),
    Feeder(Feeder),
    Nobody,
}

impl InputSource {
    async fn feed(&mut self, client: &Client, request: &v1::LaunchRequest, begun: &mut watch::Receiver<bool>) -> Infallible {
        let start = Start { id: request.id.clone(), allocation: request.allocation.clone(), standard: false };
        match self {
            Self::Typist(typist) => typist.send_input(client, &start, begun).await,
            Self::Feeder(feeder) => feeder.feed(client, &start, begun).await,
            Self::Nobody => std::future::pending().await,
        }
    }
}

async fn launch_once(
    session: &Session,
    client: &Client,
    request: &v1::LaunchRequest,
    shown: &mut LaunchOutput,
    retries: &Retries,
    begins: watch::Sender<bool>,
) -> Result<u8, Failure> {
    let request = v1::LaunchRequest { received: shown.screen.positions(), ..request.clone() };
    let id = request.id.clone();
    let mut events = client.allocations().launch(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        retries.record_progress();
        match event.what {
            Some(What::Output(chunk)) => shown.screen.show(session, &chunk)?,
            Some(What::Exits(piece)) => shown.table.iter_mut().for_each(|table| table.add(piece.exits.clone())),
            Some(What::Ended(ended)) => {
                report_why_ended(&ended.aborted);
                shown.table.as_ref().map_or(Ok(()), ExitTable::write)?;
                return Ok(program_code(ended.code));
            }
            Some(What::Started(_)) => drop(begins.send_replace(true)),
            None => {}
        }
    }
    Err(Failure::new(Exit::Unavailable, format!("the agent stopped following launch {} before it ended", short(&id))))
}
