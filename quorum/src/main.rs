//! `lattice-quorum`: one member, and the built-in certificate authority.

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use lattice_model::duration::{self, BareNumber};
use lattice_quorum::ca;
use lattice_quorum::config::QuorumConfig;
use lattice_quorum::identity::Role;
use lattice_quorum::member::{Listeners, Member, MemberError};
use sd_notify::NotifyState;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The exit code of a member that was removed from its cluster.
const REMOVED: u8 = 3;

/// A member of Lattice's quorum: who owns what of a node, and the audit log.
#[derive(Parser)]
#[command(name = "lattice-quorum", version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    serve: Option<Serve>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Args)]
struct Serve {
    /// The configuration (YAML).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Make the cluster of all configured members. Once, on one of them, while its data_dir is empty.
    #[arg(long)]
    bootstrap: bool,
}

#[derive(Subcommand)]
enum Command {
    /// The built-in certificate authority.
    #[command(subcommand)]
    Ca(Ca),
}

#[derive(Subcommand)]
enum Ca {
    /// Make an authority: ca.crt and ca.key.
    Init {
        /// Where to write it.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Issue a certificate: NAME.crt and NAME.key.
    Issue {
        /// Where the authority lies.
        #[arg(long)]
        dir: PathBuf,
        /// member-<id>, or the node's id.
        #[arg(long)]
        name: String,
        /// quorum, node or api.
        #[arg(long)]
        role: Role,
        /// Where to write it.
        #[arg(long)]
        out: PathBuf,
        /// A host name or address by which it is known as well.
        #[arg(long, value_name = "NAME_OR_IP")]
        host: Vec<String>,
        /// How long it is valid.
        #[arg(long, value_name = "DURATION", default_value = "730d", value_parser = lifetime)]
        lifetime: Duration,
    },
    /// Put a new certificate and key in the place of present ones: same name, role and hosts. Who uses them takes them while
    /// it runs.
    Renew {
        /// Where the authority lies.
        #[arg(long)]
        dir: PathBuf,
        /// The present certificate.
        #[arg(long)]
        cert: PathBuf,
        /// Its key.
        #[arg(long)]
        key: PathBuf,
        /// How long it is valid.
        #[arg(long, value_name = "DURATION", default_value = "730d", value_parser = lifetime)]
        lifetime: Duration,
    },
}

fn lifetime(text: &str) -> std::result::Result<Duration, String> {
    let lifetime = duration::parse(text, BareNumber::Seconds).map_err(|e| e.to_string())?;
    if (ca::LIFETIME_MIN..=ca::LIFETIME_MAX).contains(&lifetime) {
        return Ok(lifetime);
    }
    Err(format!("{} to {} seconds are possible", ca::LIFETIME_MIN.as_secs(), ca::LIFETIME_MAX.as_secs()))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("LATTICE_LOG").unwrap_or_else(|_| EnvFilter::new("info,openraft=off"));
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).with_env_filter(filter).init();
    let result = match (cli.serve, cli.command) {
        (_, Some(Command::Ca(command))) => authority(command),
        (Some(serve), None) => run(&serve),
        (None, None) => Ok(()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with its causes; a backtrace helps nobody who reads this.
            eprintln!("lattice-quorum: {}", error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "));
            match error.downcast_ref::<MemberError>() {
                // To start it again would not help.
                Some(MemberError::Removed { .. }) => ExitCode::from(REMOVED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn authority(command: Ca) -> Result<()> {
    let issued = match command {
        Ca::Init { dir } => ca::init(&dir)?,
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

fn run(serve: &Serve) -> Result<()> {
    let file = serve.config.display().to_string();
    let text = std::fs::read_to_string(&serve.config).with_context(|| format!("{file} cannot be read"))?;
    let config: QuorumConfig = lattice_model::config::parse(&file, &text)?;
    config.validate().with_context(|| file.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")?;
    runtime.block_on(member(config, serve.bootstrap))
}

async fn member(config: QuorumConfig, bootstrap: bool) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (service, raft) = (config.service_listen, config.raft_listen);
    let listeners = Listeners::bind(&config).await?;
    let member = Member::start(config, bootstrap, listeners).await?;
    tell(&[NotifyState::Ready, NotifyState::Status("serving; there is no leader yet")]);
    let mut ready = false;
    let ended = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            () = member.ready(), if !ready => {
                tracing::info!(%service, %raft, "ready");
                tell(&[NotifyState::Status("serving; there is a leader")]);
                ready = true;
            }
            error = member.failed() => break Err(error.into()),
        }
    };
    tracing::info!("stopping");
    tell(&[NotifyState::Stopping]);
    member.stop().await;
    ended
}

/// For the service manager, where there is one (sd_notify(3)). A member that waits for a majority is ready all the same:
/// to start it again would not help.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager does not hear");
    }
}
