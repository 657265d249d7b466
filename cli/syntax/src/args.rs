//! The command line: the options of every command, and the commands. Each command's arguments are in its own file.

pub mod accounting;
pub mod admin;
pub mod allocations;
pub mod attach;
pub mod audit;
pub mod checkpoint;
pub mod compat;
pub mod completion;
pub mod dag;
pub mod gossip;
pub mod history;
pub mod launch;
pub mod lease;
pub mod login;
pub mod man;
pub mod member;
pub mod network;
pub mod node;
pub mod of_tenant;
pub mod output;
pub mod preempt;
pub mod project;
pub mod quorum;
pub mod reservation;
pub mod rest;
pub mod retry;
pub mod role;
pub mod scale;
pub mod service;
pub mod session;
pub mod signal;
pub mod submit;
pub mod telemetry;
pub mod tenant;
pub mod token;
pub mod top;
pub mod trace;
mod ttl;
pub mod update;
pub mod usage;
pub mod vcluster;
pub mod watching;
pub mod whoami;

use crate::UsageError;
use crate::later::Later;
use admin::Admin;
use allocations::{Cancel, Explain, Logs, Status, Wait};
use attach::Attach;
use audit::Audit;
use checkpoint::Checkpoint;
use clap::{Args, ColorChoice, Parser, Subcommand};
use compat::CompatCommands;
use completion::Completion;
use dag::Dag;
use gossip::Gossip;
use history::History;
use launch::Launch;
use lease::Lease;
use login::{Login, Logout};
use man::Man;
use network::{Network, NetworkCommand};
use node::{ListNodes, Node};
use output::Output;
use preempt::{Hold, Preempt, Resume};
use quorum::Quorum;
use rest::Rest;
use retry::Retry;
use scale::Scale;
use service::{Service, ServiceCommand};
use session::InteractiveSession;
use signal::{Requeue, Signal};
use std::path::PathBuf;
use submit::Submit;
use telemetry::Telemetry;
use top::{Metrics, Top};
use update::Update;
use usage::Usage;
use vcluster::VCluster;
use watching::{Compare, Diag, Watch};
use whoami::WhoAmI;

/// Runs work on the machines of a cluster
///
/// What you submit is an allocation. Name it by its job number, by its id, by a unique prefix of its id, or by @last: the
/// one that was submitted last in this terminal session. 'ID[3]', in quotes, is replica 3 of a scaled service, or task 3
/// of a task group. Every command asks the agent of this machine, or the one that --endpoint names.
#[derive(Parser)]
#[command(name = "lattice", version, color = ColorChoice::Never, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 any other failure; 2 wrong usage; 3 not found;
4 refused; 5 no agent or no quorum answers. launch, attach, session, wait,
submit --wait and logs -f exit with the program's own code (128 + signal), with
125 when Lattice failed, and with 126 or 127 as a shell does.

Settings: ~/.config/lattice/config.yaml, or the file that LATTICE_CONFIG or
--config names (endpoint, tenant, vcluster, output, color; on the network also
ca, certificate, token). LATTICE_ENDPOINT, LATTICE_TENANT, LATTICE_VCLUSTER,
LATTICE_CA, LATTICE_CERTIFICATE, LATTICE_TOKEN and NO_COLOR override it.";

#[derive(Args, Default)]
pub struct Global {
    /// The format of the answer (logs and launch always print the program's own output)
    #[arg(short = 'o', long, global = true, value_name = "FORMAT", help_heading = "Everywhere")]
    pub output: Option<Output>,
    /// The agents to ask, in this order, separated by commas: unix:/path/of/agent.sock or https://host:port; the first
    /// that answers is used [default: LATTICE_ENDPOINT, else endpoint of config.yaml, else unix:/run/lattice/agent.sock]
    #[arg(long, global = true, value_name = "ENDPOINT", help_heading = "Everywhere")]
    pub endpoint: Option<String>,
    /// Print nothing on stderr but errors, and warnings about a script's lines
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub quiet: bool,
    /// Also print on stderr which agent answers, and how long each call takes
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = "Everywhere")]
    pub verbose: bool,
    /// Print states without colours; a pipe or a file never has any
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub no_color: bool,
    /// The file of settings [default: LATTICE_CONFIG, else ~/.config/lattice/config.yaml]
    #[arg(long, value_name = "FILE", help_heading = "Before the command")]
    pub config: Option<PathBuf>,
    /// The tenant that this command is about, as if LATTICE_TENANT were set; status and history then list only its work
    #[arg(id = "of_tenant", short = 't', long = "tenant", value_name = "NAME", help_heading = "Before the command")]
    pub tenant: Option<String>,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one command and takes it apart at once")]
pub enum Command {
    /// Put a script or a command into the queue
    Submit(Later<Submit>),
    /// List your allocations, or show one
    Status(Later<Status>),
    /// Show why an allocation waits, runs or has ended
    Explain(Later<Explain>),
    /// Wait until allocations have ended, and exit with their exit code
    Wait(Later<Wait>),
    /// End allocations
    Cancel(Later<Cancel>),
    /// Have allocations save their state and give up their nodes
    Preempt(Later<Preempt>),
    /// Hold waiting allocations: they get no nodes until they are resumed
    Hold(Later<Hold>),
    /// Let held allocations get nodes again
    #[command(visible_alias = "release")]
    Resume(Later<Resume>),
    /// Change the walltime, the preemption class, the name or the tags of allocations, or how a service scales
    Update(Later<Update>),
    /// End the current attempt of allocations, and put them back into the queue
    Requeue(Later<Requeue>),
    /// Run the failed tasks of a task group again, or some of its tasks, as a new task group
    Retry(Later<Retry>),
    /// Set the number of replicas of a scaled service
    Scale(Later<Scale>),
    /// Send a signal to the ranks of running allocations, on all of their nodes
    Signal(Later<Signal>),
    /// Show the output of an allocation
    Logs(Later<Logs>),
    /// Submit, show and cancel DAGs: allocations that depend on each other, as one file
    Dag(Later<Dag>),
    /// Show what an allocation uses: processors, memory, network, disks, GPUs; without one, the cluster on one screen
    Top(Later<Top>),
    /// Follow what a running allocation uses, and its alerts, until it ends
    Watch(Later<Watch>),
    /// What an allocation uses; with --stream, until it ends (top, watch)
    #[command(hide = true)]
    Metrics(Later<Metrics>),
    /// Record every single measurement of an allocation, or the files that it opens
    Telemetry(Later<Telemetry>),
    /// Show the node-hours and GPU-hours that you, a tenant, a project or a user has used, and what is left of a budget
    Usage(Later<Usage>),
    /// Show ended work of any age, or what it used
    History(Later<History>),
    /// Diagnose a running allocation: its processes and what they wait for, GPUs, network, storage
    #[command(visible_alias = "diagnostics")]
    Diag(Later<Diag>),
    /// Compare one metric of two or more allocations, each from its own start
    Compare(Later<Compare>),
    /// Open a terminal in a running allocation
    Attach(Later<Attach>),
    /// Get nodes, and a terminal on the first of them, until its shell ends
    Session(Later<InteractiveSession>),
    /// Run a program and wait for it: on the nodes of an allocation, or as a job of its own
    Launch(Later<Launch>),
    /// List the nodes, or show one
    Nodes(Later<ListNodes>),
    /// Show nodes, take them out of service and back into it
    Node(Later<Node>),
    /// Manage the members of the quorum, certificates and backups
    Quorum(Later<Quorum>),
    /// Ask allocations to save their state, and manage what they saved
    Checkpoint(Later<Checkpoint>),
    /// Show the queues (vClusters): their tenants, their nodes, what waits in them, and the plan of one
    #[command(name = "vcluster")]
    VCluster(Later<VCluster>),
    /// Manage leases for your own programs: one holder at a time, with a fencing token
    Lease(Later<Lease>),
    /// Show network domains: the names by which work of a tenant shares a VNI
    Network(Later<Network>),
    /// Show the services that running work offers, and their addresses
    Service(Later<Service>),
    /// Show how the cluster knows you: your account, roles and tenants, and what you may do
    #[command(name = "whoami")]
    WhoAmI(Later<WhoAmI>),
    /// Log in at a cluster on the network, as the user whom your identity provider knows
    Login(Later<Login>),
    /// End a login
    Logout(Later<Logout>),
    /// Search, verify and export the audit log
    Audit(Later<Audit>),
    /// Show the gossip between the agents, and replace its keys
    Gossip(Later<Gossip>),
    /// Run a whole cluster on this machine in one process, to try things out
    #[command(disable_help_flag = true)]
    Dev(Rest),
    /// Check this machine, and say what is missing and how to fix it
    #[command(disable_help_flag = true)]
    Doctor(Rest),
    /// Manage roles, tokens, tenants and quotas, vClusters, VNIs, and limits of the whole cluster
    Admin(Later<Admin>),
    /// Print a script by which a shell completes commands, options, ids and names
    #[command(alias = "completions")]
    Completion(Later<Completion>),
    /// Install this program under the names of Slurm's commands: sbatch, srun, squeue, ...
    Compat(Later<CompatCommands>),
    /// Print the manual page, or write the pages of all commands
    Man(Later<Man>),
}

impl Command {
    /// Applies `--tenant` that stands before the command; the command's own `--tenant` wins.
    ///
    /// # Errors
    /// The command is not about a tenant.
    pub fn set_tenant(&mut self, name: &str) -> Result<(), UsageError> {
        let own = match self {
            // They take it from the settings.
            Self::Submit(_) | Self::Launch(_) | Self::Session(_) => return Ok(()),
            Self::Status(Later(Status { id: None, filter, .. })) => &mut filter.tenant,
            Self::History(Later(history)) => &mut history.filter.tenant,
            Self::Usage(Later(usage)) => &mut usage.tenant,
            Self::Network(Later(Network { command: NetworkCommand::List(of) })) => &mut of.tenant,
            Self::Network(Later(Network { command: NetworkCommand::Status(named) })) => &mut named.of.tenant,
            Self::Service(Later(Service { command: ServiceCommand::List(of) })) => &mut of.tenant,
            Self::Service(Later(Service { command: ServiceCommand::Lookup(named) })) => &mut named.of.tenant,
            _ => {
                return Err(UsageError::new("--tenant before the command: this command is not about one tenant")
                    .with_hint("it is for submit, launch, session, a list by status, history, usage, network and service"));
            }
        };
        own.get_or_insert_with(|| name.to_owned());
        Ok(())
    }

    /// Whether the command exits with the code of the user's program if it succeeds.
    pub fn exits_with_program_code(&self) -> bool {
        match self {
            Self::Launch(_) | Self::Attach(_) | Self::Wait(_) => true,
            Self::Submit(submit) => submit.0.wait,
            Self::Session(session) => session.0.command.is_none(),
            Self::Logs(logs) => logs.0.follow,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_tenant_before_the_command_is_for_commands_about_tenants() {
        let tenant = |line: &str| {
            let mut cli = Cli::try_parse_from(std::iter::once("lattice").chain(line.split(' '))).unwrap();
            let name = cli.global.tenant.clone().unwrap();
            cli.command.set_tenant(&name).map(|()| match cli.command {
                Command::Status(Later(status)) => status.filter.tenant,
                Command::Usage(Later(usage)) => usage.tenant,
                _ => None,
            })
        };
        assert_eq!(tenant("-t physics status"), Ok(Some("physics".to_owned())));
        assert_eq!(tenant("--tenant=physics usage --tenant chemistry"), Ok(Some("chemistry".to_owned())));
        assert_eq!(tenant("-t physics submit -t 2h x.sh"), Ok(None));
        assert!(tenant("-t physics nodes").unwrap_err().to_string().contains("not about one tenant"));
    }

    /// The lines of the notes below the options are broken by hand.
    #[test]
    fn notes_fit_into_eighty_columns() {
        fn check(command: &clap::Command) {
            let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in notes.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        let mut all = Cli::command();
        all.build();
        check(&all);
    }

    #[test]
    fn documented_command_lines_are_parsed() {
        for line in [
            "submit script.sh",
            "submit script.sh --nodes=4",
            "submit script.sh -- --epochs 3",
            "submit --nodes=64 --walltime=72h --uenv=/prgenv-gnu.sqfs -- torchrun train.py",
            "submit --task-group=0-99%20 script.sh",
            "submit --array 1,5,9 --max-failures=3 script.sh",
            "submit --reactive --min-nodes=1 --max-nodes=8 --scale-metric=gpu_utilization --scale-target=0.8 serve.sh",
            "submit --reactive --min-nodes 1 --max-nodes 2 --drain-signal=USR1 --drain-grace=1m serve.sh",
            "scale 1f0c 4",
            "scale @last 4 -o json",
            "status 1f0c --replicas",
            "top 1f0c[3]",
            "submit --depends-on=12345:success script.sh",
            "submit --depends-on 12345,@last:any script.sh",
            "submit --depends-on 12345:after+10m script.sh",
            "launch --depends-on=12345 hostname",
            "submit -N 2 --requeue script.sh",
            "submit --requeue=always -o name -- true",
            "status",
            "status 12345 -o json",
            "status --state=running,pending --all",
            "status -u ada --name x --vcluster q --tenant t --node n1",
            "submit --wait script.sh",
            "submit --hold script.sh",
            "hold 12345 @last",
            "preempt 12345 --deadline=1s",
            "preempt 12345 --deadline=24h",
            "checkpoint create 12345 --deadline=90",
            "release 12345",
            "requeue 12345 @last --reason=fan",
            "dag submit workflow.yaml",
            "dag submit - --dry-run",
            "dag list --all --state=running,failed --limit 5",
            "dag status 1f0c --graph",
            "dag show 1f0c -o dot",
            "dag cancel 1f0c 2f0c",
            "update 12345 @last --walltime=90",
            "update 12345 -t +1h",
            "update 12345 -t -30m --preemption-class=4 --name=night-run",
            "update 12345 --min-nodes=2 --max-nodes 6 --scale-target=0.7",
            "signal 12345",
            "signal 12345 -s term --to=script",
            "submit --dry-run -N 2 script.sh",
            "usage",
            "usage --tenant physics",
            "usage --tenant physics --project higgs --days 7",
            "-t physics submit -t 2h script.sh",
            "--tenant=physics status",
            "--config=lattice.yaml status",
            "-v status",
            "status 12345 --verbose",
            "status --count --all",
            "status --sort -elapsed,name --since 2h",
            "status --each",
            "man",
            "man --dir /tmp/man1",
            "usage -u ada --days=30",
            "history --since=2026-03-01 --until=2026-03-02 -o json",
            "history --all --tenant physics --state failed,cancelled --name night-* --tag run=4",
            "history --user ada --since 30d --sum --limit 5000",
            "admin accounting status",
            "admin accounting export --format json --since 2026-02-01 --file f.json",
            "admin accounting move --force",
            "completion zsh",
            "compat install --dir /usr/local/bin --force",
            "compat uninstall --dir=/usr/local/bin",
            "login",
            "login --server https://cluster.example.com:50051 --flow device",
            "logout --server cluster.example.com",
            "submit -",
            "wait 12345 @last --timeout=30m",
            "cancel 1 2 3",
            "cancel --state=pending --all-mine",
            "cancel 1f0c[10-20,30] @last[7] 12345",
            "status 1f0c[7]",
            "status 1f0c --tasks",
            "status --lanes 1f0c",
            "status @last --tasks --stale -o json",
            "explain 1f0c[50]",
            "logs 1f0c[7] -f",
            "logs 1f0c --task 7 --stderr",
            "retry 1f0c",
            "retry @last --failed",
            "retry 1f0c --tasks=10-20,30 -o name",
            "launch --alloc=12345 hostname",
            "launch --alloc=12345 -n 4 ./my_program --its=own -n 7",
            "launch -n4 -- true",
            "launch -N1 -n4 -wn1 hostname -f -N9",
            "launch --alloc=12345 --pty bash",
            "launch --pty --walltime=1h bash",
            "logs 12345 --follow",
            "logs 12345 --stderr --node=x1000c0s0b0n3",
            "session --walltime=4h",
            "session --nodes=2 --constraint=gpu_type:GH200 --walltime=8h",
            "session --vcluster=interactive --walltime=2h",
            "session list --all",
            "session delete a1b2c3d4",
            "attach 12345",
            "attach 12345 --node=x1000c0s0b0n3",
            "attach a1b2c3d4 -- htop -d 5",
            "attach 12345 --command=nvidia-smi",
            "logs 12345 --tail=100",
            "logs 12345 --since=2026-03-01T10:00:00Z --until=2026-03-01T11:00:00Z",
            "metrics a1b2c3d4",
            "metrics a1b2c3d4 --stream",
            "nodes x1000c0s0b0n0",
            "nodes x1000c0s0b0n0 -o wide",
            "status -o yaml",
            "node list",
            "node status",
            "quorum status",
            "quorum recover --plan --config q.yaml",
            "quorum backup --help",
            "node cordon n1 n2 --reason=fan",
            "node cordon n[1-64] --reason=fan --for=2h",
            "node cordon n1 --maintenance --reason=firmware --until=18:00",
            "node uncordon n1 --maintenance",
            "node drain n1 --reason=disk --deadline=4h --wait",
            "node drain n1 --reason=disk --urgent --yes",
            "node undrain n[1-3],n7",
            "node quarantine n1 --reason=ecc",
            "node release n1",
            "node unquarantine n1",
            "node disable n1 --reason=smoke --yes",
            "node drain n1 --urgent",
            "node disable n1",
            "admin drain nid001234 --reason=maintenance",
            "admin undrain nid001234",
            "admin node wipe n1 --force",
            "node enable n1",
            "node fail n[1-2] --reason psu --off --yes",
            "node unwipe n1",
            "node repaired n1",
            "node boot n1",
            "node history n1 --since=2h",
            "node history n[1-3] n7",
            "node confirm-dead n[1-3],n7 --yes --reason=rack",
            "node list --state=degraded",
            "node list n[1-4] --state=draining,drained --hold=drain",
            "lease grant a --ttl=10s -o name",
            "lease revoke --problem",
            "admin raft status",
            "admin tenant create --name=physics --max-nodes=100",
            "admin tenant create physics",
            "admin tenant update physics --max-nodes 250 --max-concurrent-allocations 50",
            "admin tenant set-quota --name=physics --max-nodes=none",
            "admin tenant show hospital-a --quotas",
            "admin tenant list",
            "admin vcluster create --name=hpc-batch --scheduler=hpc-backfill --tenant=physics --nodes=x1000c0s0b0n[0-199]",
            "admin vcluster create --name=sensitive --scheduler-type=sensitive-reservation --description=x",
            "admin vcluster set-weights --name=hpc-batch --priority=0.20",
            "admin vcluster set-config --name=hpc-batch --cycle-interval=15s",
            "admin vcluster show hpc-batch",
            "admin trace capture --days 7",
            "admin trace capture --days=1 --file=-",
            "admin trace capture --days 7 --store",
            "vcluster list",
            "vcluster queue hpc-batch",
            "vcluster hpc-batch",
            "vcluster show hpc-batch",
            "nodes --vcluster=hpc-batch",
            "submit --service --expose=8080 serve.sh",
            "submit --network-domain=ml-workspace --expose api:8080/http train.sh",
            "network list",
            "network status ml-workspace --tenant physics",
            "service lookup api -o name",
            "admin network pool --start=1000 --end=8191 --grace=15m",
            "admin network set-grace --domain=ml --grace=15m",
            "admin limits --sensitive-pool-size=4",
            "admin limits --user-running=4",
            "admin limits --ended-kept=30d --ended-memory=1G",
            "admin limits --user-pending=100 --user-submissions-per-second=none --user-script-bytes=1000000 --user-history=500",
            "admin limits --root-acts-for=itself",
            "admin limits --root-acts-for everybody",
            "admin role grant tenant-admin user:alice --tenant=physics",
            "admin role grant operator alice -o json",
            "admin role revoke system-admin group:hpc-ops",
            "admin role list",
            "admin role list --tenant physics --subject alice -o name",
            "admin token issue ci --account builder --scopes read,work --days 90",
            "admin token issue ci --account builder --scopes=admin --days=1 -o json",
            "admin token list --account=builder -o name",
            "admin token revoke 7f0c9a4e5b7d4c39",
            "admin tenant member add physics alice --default",
            "admin tenant member add physics group:phys",
            "admin tenant member remove physics user:alice",
            "admin tenant member list physics -o wide",
            "whoami",
            "whoami --can -o json",
            "audit query --user=dr-x --since=2026-03-01 --until=2026-03-15",
            "audit query --alloc=12345",
            "audit query --token=7f0c9a4e5b7d4c39 --since=1d",
            "audit query --node=x1000c0s0b0n0 --since=2026-03-01 --output=json",
            "audit export --user=dr-x --since=2026-01-01 --until=2026-06-30 --file report.json",
            "audit verify",
            "gossip members",
            "gossip members --suspected",
            "gossip members --counters",
            "gossip watch",
            "gossip watch -o json",
            "gossip keys",
            "gossip keys -o json",
            "gossip keys rotate --no-wait",
            "doctor --config f --help",
            "dev",
        ] {
            if let Err(error) = Cli::try_parse_from(std::iter::once("lattice").chain(line.split(' '))) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn wrong_command_lines_are_refused_with_a_suggestion() {
        for (line, meant) in [
            ("submit --noodes=4 x", "--nodes"),
            ("statsu", "status"),
            ("status --state=runing", "Running"),
            ("submit --nodes=0 x", "at least 1"),
            ("submit --walltime=soon x", "24h"),
            ("submit --env=A x", "NAME=VALUE"),
            ("signal 1 --signal=FOO", "USR1"),
            ("signal 1 --to=all", "launches"),
            ("update 1", "--walltime"),
            ("update 1 -t 0", "more than 0"),
            ("update 1 -t +soon", "24h"),
            ("update 1 --preemption-class=11", "0..=10"),
            ("update 1 --scale-target=much", "is no number"),
            ("preempt 1 --deadline=0", "1s to 24h"),
            ("preempt 1 --deadline=86401", "1s to 24h"),
            ("checkpoint create 1 --deadline=0s", "1s to 24h"),
            ("checkpoint create 1 --deadline=25h", "1s to 24h"),
            ("submit --dry-run --wait x", "cannot be used"),
            ("cancel", "required"),
            ("cancel 1 --all-mine", "cannot be used"),
            ("cancel 1[9-0]", "ends before it begins"),
            ("cancel 1[7", "in quotes"),
            ("status 1[7-8]", "write one index"),
            ("status --tasks", "required"),
            ("status --lanes", "required"),
            ("status 1 --tasks --lanes", "cannot be used"),
            ("status 1 --tasks --watch", "cannot be used"),
            ("explain 1[7,8]", "write one index"),
            ("logs 1[0-9]", "write one index"),
            ("logs 1 --task 7 --rank 0", "cannot be used"),
            ("status 1 --tasks --replicas", "cannot be used"),
            ("status --replicas", "required"),
            ("status --sort colour", "elapsed"),
            ("status --count --sort name", "cannot be used"),
            ("status 1f0c --since 2h", "cannot be used"),
            ("status --count --watch", "cannot be used"),
            ("-v -q status", "cannot be used"),
            ("scale 1f0c", "required"),
            ("scale 1f0c many", "invalid digit"),
            ("history --state=running", "work has not ended"),
            ("history --all --user ada", "cannot be used"),
            ("history --limit=0", "1..=1000000"),
            ("admin accounting export --format=xml", "csv, json and parquet"),
            ("retry", "required"),
            ("retry 1[7]", "--tasks=10-20,30"),
            ("retry 1 --failed --tasks=1", "cannot be used"),
            ("retry 1 --tasks=x", "is no index"),
            ("submit --array=9-0 x", "'--array <LIST[%N]>': \"9-0\" ends before it begins"),
            ("submit --task-group=0-1000000 x", "more than 1000000 tasks"),
            ("launch", "required"),
            ("attach 1 --command=a -- b", "cannot be used"),
            ("admin role grant user alice", "everybody has the role user"),
            ("admin role grant claiming-user alice", "not built yet"),
            ("admin role grant admin alice", "tenant-admin, operator or system-admin"),
            ("admin role grant operator", "required"),
            ("admin role revoke operator grp:x", "write user:NAME or group:NAME"),
            ("admin role list --subject=user:", "write user:NAME or group:NAME"),
            ("admin token issue ci --scopes=read --days=1", "--account"),
            ("admin token issue ci --account=a --days=1", "--scopes"),
            ("admin token issue ci --account=a --scopes=read", "--days"),
            ("admin token issue ci --account=a --scopes=all --days=1", "write read, work or admin"),
            ("admin token issue ci --account=a --scopes=read --days=367", "1..=366"),
            ("admin token revoke ci", "16 hexadecimal digits"),
            ("audit query --token=7f0c", "16 hexadecimal digits"),
            ("admin tenant member add physics", "required"),
            ("admin tenant member add physics a:b", "write user:NAME or group:NAME"),
            ("admin tenant member remove physics alice --default", "unexpected argument"),
            ("admin limits --root-acts-for=nobody", "everybody, itself"),
            ("node cordon n1", "--reason"),
            ("node list --state=redy", "Ready"),
            ("node list --hold=x", "maintenance"),
            ("node cordon n1 --reason=x --for=1h --until=18:00", "cannot be used"),
        ] {
            match Cli::try_parse_from(std::iter::once("lattice").chain(line.split(' '))) {
                Ok(_) => panic!("{line} was accepted"),
                Err(error) => {
                    assert_eq!(error.exit_code(), 2, "{line}");
                    assert!(error.to_string().contains(meant), "{line}: {error}");
                }
            }
        }
    }
}
