//! The commands, one file each.

mod accounting;
mod attach;
mod audit;
mod cancel;
mod checkpoint;
mod compare;
mod compat;
pub mod completion;
mod dag;
mod diag;
mod dry_run;
mod explain;
mod gossip;
mod gossip_keys;
mod history;
pub mod launch;
pub mod lease;
mod limits;
mod login;
mod logout;
mod logs;
mod man;
mod members;
pub mod mpi_launcher;
mod network;
mod node;
pub mod nodes;
mod preempt;
mod project;
mod quorum;
mod reservation;
mod retry;
mod revocations;
mod role;
mod scale;
mod service;
pub mod session;
mod signal;
mod status;
pub mod submit;
mod telemetry;
mod tenant;
mod tenant_member;
mod token;
mod top;
mod trace;
mod update;
mod usage;
pub mod vcluster;
pub mod wait;
mod watch;
mod whoami;

use crate::handover::{self, AGENT, QUORUM};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::Command;
use lattice_cli_syntax::args::admin::{Admin, AdminCommand};
use lattice_cli_syntax::args::gossip::GossipCommand;
use lattice_cli_syntax::args::network::AdminNetworkCommand;
use lattice_cli_syntax::args::node::NodeCommand;
use lattice_cli_syntax::args::quorum::{Ca, CaCommand, QuorumCommand};
use lattice_cli_syntax::args::top::Top;
use lattice_cli_syntax::args::trace::TraceCommand;
use lattice_cli_syntax::args::watching::Watch;
use lattice_cli_syntax::later::Later;

/// Runs one command and returns its exit code.
pub async fn run(session: &Session, command: Command) -> Result<u8, Failure> {
    let success = |()| 0;
    match command {
        Command::Submit(Later(args)) => Box::pin(submit::run(session, args)).await,
        Command::Status(Later(args)) => status::run(session, args).await.map(success),
        Command::Explain(Later(args)) => explain::run(session, args).await.map(success),
        Command::Wait(Later(args)) => wait::run(session, args).await,
        Command::Cancel(Later(args)) => cancel::run(session, args).await,
        Command::Preempt(Later(args)) => preempt::preempt(session, args).await,
        Command::Hold(Later(args)) => preempt::hold(session, args).await,
        Command::Resume(Later(args)) => preempt::resume(session, args).await,
        Command::Update(Later(args)) => update::run(session, args).await,
        Command::Requeue(Later(args)) => signal::requeue(session, args).await,
        Command::Retry(Later(args)) => retry::run(session, args).await.map(success),
        Command::Scale(Later(args)) => scale::run(session, args).await.map(success),
        Command::Signal(Later(args)) => signal::signal(session, args).await,
        Command::Logs(Later(args)) => logs::run(session, args).await,
        Command::Top(Later(args)) => Box::pin(top::run(session, args)).await,
        Command::Watch(Later(args)) => watch::run(session, args).await.map(success),
        Command::Metrics(Later(args)) if args.stream => watch::run(session, Watch::of(args.id)).await.map(success),
        Command::Metrics(Later(args)) => Box::pin(top::run(session, Top::of(args.id))).await,
        Command::Completion(Later(args)) => completion::run(&args).map(success),
        Command::Compat(Later(args)) => compat::run(args.command).map(success),
        Command::Man(Later(args)) => man::run(&args).map(success),
        Command::Compare(Later(args)) => compare::run(session, args).await.map(success),
        Command::Dag(Later(args)) => Box::pin(dag::run(session, args.command)).await,
        Command::History(Later(args)) => history::run(session, args).await.map(success),
        Command::Usage(Later(args)) => usage::run(session, args).await.map(success),
        Command::Telemetry(Later(args)) => telemetry::run(session, args).await.map(success),
        Command::Diag(Later(args)) => diag::run(session, args).await.map(success),
        Command::Attach(Later(args)) => Box::pin(attach::run(session, args)).await,
        Command::Session(Later(args)) => Box::pin(session::run(session, args)).await,
        Command::Launch(Later(args)) => Box::pin(launch::run(session, args)).await,
        Command::Nodes(Later(args)) => nodes::run(session, args).await.map(success),
        Command::Node(Later(args)) | Command::Admin(Later(Admin { command: AdminCommand::Node(args) })) => {
            Box::pin(node::run(session, args.command)).await
        }
        Command::Admin(Later(Admin { command: AdminCommand::Drain(args) })) => Box::pin(node::run(session, NodeCommand::Drain(args))).await,
        Command::Admin(Later(Admin { command: AdminCommand::Undrain(args) })) => {
            Box::pin(node::run(session, NodeCommand::Undrain(args))).await
        }
        Command::Admin(Later(Admin { command: AdminCommand::Accounting(args) })) => {
            Box::pin(accounting::run(session, args.command)).await.map(success)
        }
        Command::Admin(Later(Admin { command: AdminCommand::Role(args) })) => role::run(session, args.command).await.map(success),
        Command::Admin(Later(Admin { command: AdminCommand::Token(args) })) => token::run(session, args.command).await.map(success),
        Command::Admin(Later(Admin { command: AdminCommand::Project(args) })) => project::run(session, args.command).await.map(success),
        Command::Admin(Later(Admin { command: AdminCommand::Tenant(args) })) => tenant::run(session, args.command).await.map(success),
        Command::Admin(Later(Admin { command: AdminCommand::VCluster(args) })) => {
            vcluster::administer(session, args.command).await.map(success)
        }
        Command::Admin(Later(Admin { command: AdminCommand::Reservation(args) })) => {
            Box::pin(reservation::run(session, args.command)).await.map(success)
        }
        Command::VCluster(Later(args)) => vcluster::run(session, args).await.map(success),
        Command::Admin(Later(Admin { command: AdminCommand::Network(args) })) => match args.command {
            AdminNetworkCommand::Pool(args) => network::pool(session, args).await.map(success),
            AdminNetworkCommand::SetGrace(args) => network::set_grace(session, args).await.map(success),
        },
        Command::Admin(Later(Admin { command: AdminCommand::Limits(args) })) => limits::run(session, args).await.map(success),
        Command::Admin(Later(Admin { command: AdminCommand::Trace(args) })) => match args.command {
            TraceCommand::Capture(args) => Box::pin(trace::capture(session, args)).await.map(success),
        },
        Command::Network(Later(args)) => network::run(session, args.command).await.map(success),
        Command::Service(Later(args)) => service::run(session, args.command).await.map(success),
        Command::Quorum(Later(args)) | Command::Admin(Later(Admin { command: AdminCommand::Raft(args) })) => match args.command {
            QuorumCommand::Status => quorum::status(session).await.map(success),
            QuorumCommand::Members => quorum::members(session).await.map(success),
            QuorumCommand::Add(args) => members::add(session, args).await.map(success),
            QuorumCommand::Remove(args) => members::remove(session, args).await.map(success),
            QuorumCommand::Replace(args) => members::replace(session, args).await.map(success),
            QuorumCommand::TransferLeader(args) => members::transfer(session, args).await.map(success),
            QuorumCommand::Ca(Ca { command: CaCommand::Revoke(args) }) => revocations::revoke(session, args).await.map(success),
            QuorumCommand::Ca(Ca { command: CaCommand::Revoked }) => revocations::list(session).await.map(success),
            QuorumCommand::Ca(Ca { command: CaCommand::WithItsKey(args) }) => Err(handover::exec(QUORUM, "ca", &args)),
            QuorumCommand::Backup(rest) => Err(handover::exec(QUORUM, "backup", &rest.args)),
            QuorumCommand::Verify(rest) => Err(handover::exec(QUORUM, "verify", &rest.args)),
            QuorumCommand::Recover(rest) => Err(handover::exec(QUORUM, "recover", &rest.args)),
            QuorumCommand::Restore(rest) => Err(handover::exec(QUORUM, "restore", &rest.args)),
        },
        Command::Checkpoint(Later(args)) => Box::pin(checkpoint::run(session, args.command)).await.map(success),
        Command::Lease(Later(args)) => lease::run(session, args.command).await.map(success),
        Command::WhoAmI(Later(args)) => whoami::run(session, &args).await.map(success),
        Command::Login(Later(args)) => Box::pin(login::run(session, args)).await.map(success),
        Command::Logout(Later(args)) => Box::pin(logout::run(session, args)).await.map(success),
        Command::Audit(Later(args)) => Box::pin(audit::run(session, args)).await.map(success),
        Command::Gossip(Later(args)) => match args.command {
            GossipCommand::Members(args) => gossip::members(session, &args).await.map(success),
            GossipCommand::Watch => gossip::watch(session).await.map(success),
            GossipCommand::Keys(args) => gossip_keys::run(session, args.command).await.map(success),
        },
        Command::Dev(rest) => Err(handover::exec(AGENT, "dev", &rest.args)),
        Command::Doctor(rest) => Err(handover::exec(AGENT, "doctor", &rest.args)),
    }
}
