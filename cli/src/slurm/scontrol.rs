//! `scontrol`.

mod change;
mod reservation;
mod show;
mod update;

use super::command_line::SCONTROL;
use super::surroundings::Surroundings;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::print;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm_args::scontrol::Scontrol;
use lattice_slurm::commands::version_line;
use std::ffi::OsString;

/// Commands that Lattice does not have, each with what to do instead.
const REFUSED: [(&str, &str); 23] = [
    ("abort", "systemctl stops the daemons"),
    ("cancel_reboot", "Lattice does not reboot nodes"),
    ("cluster", "there is one cluster"),
    ("errnumstr", "Lattice has no error numbers: its messages say what to do"),
    ("fsdampeningfactor", "`lattice admin vcluster set-weights` sets what scores consist of"),
    ("listpids", "`lattice top JOB --per-rank` lists the processes of ranks"),
    ("notify", "`lattice attach JOB` reaches a running job"),
    ("pidinfo", "`lattice node status` shows what runs on a node"),
    ("reboot", "Lattice does not reboot nodes; `lattice node drain` takes one out of service"),
    ("reconfigure", "systemctl restarts a daemon with its new configuration; work goes on"),
    ("schedloglevel", "the settings of the daemons have their log levels"),
    ("setdebug", "the settings of the daemons have their log levels"),
    ("setdebugflags", "the settings of the daemons have their log levels"),
    ("shutdown", "systemctl stops the daemons"),
    ("suspend", "`lattice preempt --hold JOB` lets it save itself and give its nodes back until it is resumed"),
    ("takeover", "`lattice quorum transfer-leader` moves the leadership"),
    ("token", "`lattice admin token issue` issues tokens"),
    ("top", "`lattice update --preemption-class N JOB` changes its place in the queue"),
    ("all", "there is no interactive mode: give one command at a time"),
    ("exit", "there is no interactive mode: give one command at a time"),
    ("oneliner", "there is no interactive mode: give -o with the command"),
    ("quit", "there is no interactive mode: give one command at a time"),
    ("verbose", "there is no interactive mode: give one command at a time"),
];

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    control(session, args).await
}

async fn control(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SCONTROL.parse::<Scontrol>(args)? else { return Ok(0) };
    let Some((command, rest)) = args.words.split_first() else {
        return Err(Failure::other("a command is needed, such as `scontrol show job 12`: there is no interactive mode"));
    };
    let surroundings = Surroundings::read()?;
    SCONTROL.check_clusters(&args.common.clusters, &surroundings.compat)?;
    SCONTROL.refuse(args.uid.is_some(), "-u", "Lattice acts for the calling user")?;
    let command = command.to_ascii_lowercase();
    let is = |name: &str, least: usize| command.len() >= least && name.starts_with(&command);
    match () {
        () if is("show", 2) => Box::pin(show::run(session, &args, rest, surroundings)).await,
        () if is("create", 2) => Box::pin(reservation::create(session, rest, &surroundings)).await,
        () if is("delete", 1) => reservation::delete(session, rest).await,
        () if is("update", 1) => Box::pin(update::run(session, rest, &surroundings)).await,
        () if is("hold", 2) || is("uhold", 2) => change::hold(session, rest).await,
        () if is("release", 3) || is("resume", 3) => change::release(session, rest).await,
        () if command == "requeuehold" => change::requeue(session, rest, true).await,
        () if is("requeue", 3) => change::requeue(session, rest, false).await,
        () if is("wait_job", 2) => change::wait(session, rest).await,
        () if is("write", 2) => show::write(session, rest).await,
        () if is("ping", 2) => ping(session).await,
        // No job of Lattice is completing: jobs that are shown as ended have no nodes any more.
        () if is("completing", 2) => Ok(0),
        () if is("version", 4) => {
            print(&version_line(env!("CARGO_PKG_VERSION")))?;
            Ok(0)
        }
        () => match REFUSED.iter().find(|(name, _)| *name == command) {
            Some((name, remedy)) => Err(Failure::other(format!("{name} is not possible")).hint(*remedy)),
            None => Err(Failure::other(format!("invalid keyword: {command}")).hint("`scontrol --help` lists the options")),
        },
    }
}

async fn ping(session: &Session) -> Result<u8, Failure> {
    let client = session.connect().await?;
    match answer(client.admin().quorum_status(v1::QuorumStatusRequest { by_leader: true })).await {
        Ok(status) => {
            let leader = status.members.iter().find(|member| Some(member.id) == status.leader);
            let at = leader.map_or("the quorum", |member| member.service.as_str());
            print(&format!("Slurmctld(primary) at {at} is UP\n"))?;
            Ok(0)
        }
        Err(failure) if failure.exit() == Exit::Unavailable as u8 => {
            print("Slurmctld(primary) at the quorum is DOWN\n")?;
            Ok(1)
        }
        Err(failure) => Err(failure),
    }
}
