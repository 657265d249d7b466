//! `lattice-quorum`: one member, its backups, and the built-in certificate authority.

mod terminal_line;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use lattice_model::duration::{self, BareNumber};
use lattice_pki::ca;
use lattice_pki::identity::{Role, member_name};
use lattice_quorum::backup::recover::{Prepared, Present};
use lattice_quorum::backup::store::BackupStore;
use lattice_quorum::backup::{self, plan, recover};
use lattice_quorum::config::QuorumConfig;
use lattice_quorum::member::{Listeners, Member, MemberError};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use lattice_telemetry::logging::{self, Form};
use sd_notify::NotifyState;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use terminal_line::TerminalLine;
use tokio::signal::unix::{SignalKind, signal};

/// With it a member commits a third more per second than with the C library's allocator (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of a member that was removed from its cluster.
const EXIT_REMOVED: u8 = 3;
/// How long making a backup may take.
const BACKUP_MAX: Duration = Duration::from_secs(600);

/// A member of Lattice's quorum, which decides which allocation owns which part of a node, and keeps the audit log.
#[derive(Parser)]
#[command(name = "lattice-quorum", version, args_conflicts_with_subcommands = true, arg_required_else_help = true, after_help = logging::HELP)]
struct Cli {
    #[command(flatten)]
    serve: Option<Serve>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Args)]
struct Serve {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Create the cluster of all configured members: once, on one of them, with an empty data_dir.
    #[arg(long)]
    bootstrap: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Make an authority, and issue and renew certificates.
    #[command(subcommand)]
    Ca(Ca),
    /// Make a backup of the configured member, which keeps serving.
    Backup(Of),
    /// Check a backup: its checksums and manifest, every part of it, and the whole chain of its audit log.
    Verify(Which),
    /// Recover from a backup after the loss of the whole quorum: create the data_dir of a member. First prints what
    /// will be lost.
    Recover(Recover),
    /// Go back to a backup on purpose, with every member stopped: this one's data_dir is moved aside and kept. First
    /// prints what will be lost.
    Restore(Restore),
}

#[derive(Args)]
struct Of {
    /// The member's configuration file (YAML).
    #[arg(long, value_name = "FILE", default_value = "/etc/lattice/quorum.yaml")]
    config: PathBuf,
}

#[derive(Args)]
struct Which {
    #[command(flatten)]
    of: Of,
    /// Where the backups are: file:///DIR, s3://BUCKET/PREFIX, … [default: from the configuration].
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// The name of the backup [default: the newest].
    #[arg(long, value_name = "NAME")]
    backup: Option<String>,
}

#[derive(Args)]
struct Recover {
    #[command(flatten)]
    which: Which,
    /// Diagnose this member and its quorum, and print which command repairs it; change nothing.
    #[arg(long, conflicts_with = "yes")]
    plan: bool,
    /// Do it, and accept the loss that is printed [default: only print it].
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct Restore {
    #[command(flatten)]
    which: Which,
    /// Do it, and accept the loss that is printed [default: only print it].
    #[arg(long)]
    yes: bool,
}

#[derive(Subcommand)]
enum Ca {
    /// Make an authority: the files ca.crt and ca.key.
    Init {
        /// The directory to write them into.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Issue a certificate: the files NAME.crt and NAME.key.
    Issue {
        /// The directory of the authority.
        #[arg(long)]
        dir: PathBuf,
        /// The name in the certificate: member-<id>, or the node's id.
        #[arg(long)]
        name: String,
        /// The role in the certificate: quorum, node or api.
        #[arg(long)]
        role: Role,
        /// The directory to write them into.
        #[arg(long)]
        out: PathBuf,
        /// A further host name or address that the certificate is for; may be given more than once.
        #[arg(long, value_name = "NAME_OR_IP")]
        host: Vec<String>,
        /// How long it is valid; a bare number is seconds.
        #[arg(long, value_name = "DURATION", default_value = "730d", value_parser = lifetime)]
        lifetime: Duration,
    },
    /// Issue an operator's credential: one file for a person's `~/.config/lattice/operator.pem`. Whoever has it is a system admin and may do everything.
    Operator {
        /// The directory of the authority.
        #[arg(long)]
        dir: PathBuf,
        /// The name of the person in the audit log.
        #[arg(long)]
        name: String,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// How long it is valid; a bare number is seconds.
        #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = lifetime)]
        lifetime: Duration,
    },
    /// Issue the certificate of a service account: one file with which a program calls the API on the network.
    Service {
        /// The directory of the authority.
        #[arg(long)]
        dir: PathBuf,
        /// The account as which the program acts; not root.
        #[arg(long)]
        account: String,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// How long it is valid; a bare number is seconds.
        #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = lifetime)]
        lifetime: Duration,
    },
    /// Replace a certificate and its key by new ones with the same name, role and hosts. Running programs use them
    /// without a restart.
    Renew {
        /// The directory of the authority.
        #[arg(long)]
        dir: PathBuf,
        /// The certificate to replace.
        #[arg(long)]
        cert: PathBuf,
        /// Its key.
        #[arg(long)]
        key: PathBuf,
        /// How long it is valid; a bare number is seconds.
        #[arg(long, value_name = "DURATION", default_value = "730d", value_parser = lifetime)]
        lifetime: Duration,
    },
}

fn lifetime(text: &str) -> Result<Duration> {
    let lifetime = duration::parse(text, BareNumber::Seconds)?;
    if (ca::LIFETIME_MIN..=ca::LIFETIME_MAX).contains(&lifetime) {
        return Ok(lifetime);
    }
    bail!("{} to {} seconds are possible", ca::LIFETIME_MIN.as_secs(), ca::LIFETIME_MAX.as_secs())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A command prints for the person who gave it, so always text.
    let form = match (&cli.command, Form::wanted()) {
        (None, Ok(form)) => form,
        (Some(_), _) => Form::Text,
        (None, Err(error)) => {
            eprintln!("lattice-quorum: {error}");
            return ExitCode::FAILURE;
        }
    };
    let config = cli.serve.as_ref().filter(|_| cli.command.is_none()).map(|serve| read(&serve.config));
    let name = config.iter().flatten().next().map(|config| member_name(config.id));
    form.begin("quorum", name.as_deref());
    let result = match (cli.command, cli.serve.zip(config)) {
        (Some(Command::Ca(command)), _) => authority(command),
        (Some(Command::Backup(of)), _) => make_backup(&of),
        (Some(Command::Verify(which)), _) => verify(&which),
        (Some(Command::Recover(how)), _) if how.plan => print_plan(&how.which),
        (Some(Command::Recover(how)), _) => recover_or_restore(&how.which, Present::Lost, how.yes),
        (Some(Command::Restore(how)), _) => recover_or_restore(&how.which, Present::MovedAside, how.yes),
        (None, Some((serve, config))) => config.and_then(|config| run(config, serve.bootstrap)),
        (None, None) => Ok(()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with its causes; a backtrace helps nobody who reads this.
            form.log_fatal("lattice-quorum", &error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "));
            match error.downcast_ref::<MemberError>() {
                // Its own code, because starting it again would not help.
                Some(MemberError::Removed { .. }) => ExitCode::from(EXIT_REMOVED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn authority(command: Ca) -> Result<()> {
    let issued = match command {
        Ca::Init { dir } => ca::init(&dir)?,
        Ca::Operator { dir, name, out, lifetime } => {
            ca::issue_operator(&dir, &name, &out, lifetime)?;
            println!("{}", out.display());
            return Ok(());
        }
        Ca::Service { dir, account, out, lifetime } => {
            ca::issue_service(&dir, &account, &out, lifetime)?;
            println!("{}", out.display());
            return Ok(());
        }
        Ca::Issue { dir, name, role, out, host, lifetime } => ca::issue(&dir, &name, role, &host, &out, lifetime)?,
        Ca::Renew { dir, cert, key, lifetime } => {
            let files = ca::Issued { cert, key };
            ca::reissue(&dir, &files, lifetime)?;
            files
        }
    };
    println!("{}\n{}", issued.cert.display(), issued.key.display());
    Ok(())
}

fn read(path: &Path) -> Result<QuorumConfig> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("{file} cannot be read"))?;
    let config: QuorumConfig = lattice_model::config::parse(&file, &text)?;
    config.validate().with_context(|| file.clone())?;
    Ok(config)
}

/// Leaves one processor to the log's writer thread and the kernel. On two processors, one worker commits a third more
/// than two that wake each other.
fn runtime() -> Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).clamp(1, 8));
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().context("the runtime cannot be started")
}

fn run(config: QuorumConfig, bootstrap: bool) -> Result<()> {
    runtime()?.block_on(member(config, bootstrap))
}

fn make_backup(of: &Of) -> Result<()> {
    let config = read(&of.config)?;
    let address = config.this_member().map(|m| m.service.clone()).context("this member is not among the members")?;
    runtime()?.block_on(async {
        let client = QuorumClient::new(vec![address], backup::credentials(&config)?)?;
        let line = TerminalLine::new();
        match line.during("the member makes the backup", client.call_once(&Request::Backup, BACKUP_MAX)).await? {
            Answer::Backup { name, url, revision, audit_records } => {
                println!("{name}");
                eprintln!("in {url}: revision {revision}, {audit_records} audit records");
                Ok(())
            }
            other => bail!("the member answered something else: {other:?}"),
        }
    })
}

impl Which {
    fn store(&self, config: &QuorumConfig) -> Result<BackupStore> {
        Ok(match &self.from {
            Some(url) => BackupStore::open(url, config)?,
            None => backup::store(config)?,
        })
    }
}

fn verify(which: &Which) -> Result<()> {
    let config = read(&which.of.config)?;
    let line = TerminalLine::new();
    let store = which.store(&config)?.reporting(line.reporter());
    let verified = line.during("reading the backup", recover::verify(&config, &store, which.backup.as_deref()));
    print!("{}", runtime()?.block_on(verified)?);
    Ok(())
}

fn print_plan(which: &Which) -> Result<()> {
    let config = read(&which.of.config)?;
    // The diagnosis is printed even if no place for backups is configured.
    let named = which.from.is_some() || !config.backup.is_empty();
    let store = if named { Some(which.store(&config)?) } else { None };
    print!("{}", runtime()?.block_on(plan::plan(&config, &which.of.config, store.as_ref()))?);
    Ok(())
}

fn recover_or_restore(which: &Which, present: Present, yes: bool) -> Result<()> {
    let config = read(&which.of.config)?;
    let line = TerminalLine::new();
    let store = which.store(&config)?.reporting(line.reporter());
    let prepared = line.during("reading the backup", recover::prepare(&config, &store, which.backup.as_deref(), present));
    let prepared: Prepared = runtime()?.block_on(prepared)?;
    print!("{}", prepared.what_is_lost(&config));
    if !yes {
        bail!("nothing was changed: to accept this loss, run the command again with --yes");
    }
    let kept = prepared.put_in_place(&config)?;
    println!("\n{} is made.", config.data_dir.display());
    if let Some(kept) = kept {
        println!("The previous data_dir is kept in {}.", kept.display());
    }
    println!("Now start this member, then the others, each with an empty data_dir: they get everything from this one.");
    println!("The others refuse a member that still has its old files: move its data_dir away first.");
    println!("New work is placed once every node has reported what it runs, or is Down.");
    Ok(())
}

async fn member(config: QuorumConfig, bootstrap: bool) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (service, raft) = config.listens();
    let listeners = Listeners::bind(&config).await?;
    let member = Member::start(config, bootstrap, listeners).await?;
    notify_service_manager(&[NotifyState::Ready, NotifyState::Status("serving; there is no leader yet")]);
    let mut ready = false;
    let ended = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            () = member.ready(), if !ready => {
                tracing::info!(service, raft, "ready");
                notify_service_manager(&[NotifyState::Status("serving; there is a leader")]);
                ready = true;
            }
            error = member.failed() => break Err(error.into()),
        }
    };
    tracing::info!("stopping");
    notify_service_manager(&[NotifyState::Stopping]);
    member.stop().await;
    ended
}

/// Notifies the service manager, if there is one (sd_notify(3)). A member that waits for a majority counts as ready:
/// starting it again would not help.
fn notify_service_manager(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be notified");
    }
}
