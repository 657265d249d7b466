//! The user's own job: its input, and the signals that end it.

use crate::failure::Failure;
use crate::feeder::Feeder;
use crate::interrupts::Interrupts;
use crate::typist::{EndSignals, Typist};
use lattice_api::client::Client;
use lattice_api::v1::launch_input_request::Start;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;
use tokio::sync::watch;

/// A shell's exit code for a program that Ctrl-C ended.
pub(super) const INTERRUPTED: u8 = 130;

/// The user's own job that is followed. The first Ctrl-C, SIGTERM or SIGHUP cancels it; a second one stops following
/// it. If the job has a terminal, keys go to that terminal while the job runs, and SIGTERM or SIGHUP cancels the job
/// and stops following it at once. The same happens if the reader of our output is gone.
pub struct OwnJob {
    interrupts: Interrupts,
    end_signals: EndSignals,
    pub(super) input: JobInput,
    /// Whether waiting and beginning are reported as Slurm's `srun` does.
    pub(super) reports_as_srun: bool,
    /// After this time without nodes the job is cancelled.
    pub(super) give_up_after: Option<Duration>,
}

/// The user's input for the job while it runs.
pub enum JobInput {
    Nothing,
    Input(Feeder),
    /// `None` until the job first runs.
    Terminal(Option<Typist>),
}

impl OwnJob {
    /// Handles signals from now on.
    pub fn new(input: JobInput) -> Result<Self, Failure> {
        Ok(Self {
            interrupts: Interrupts::listen()?,
            end_signals: EndSignals::listen()?,
            input,
            reports_as_srun: false,
            give_up_after: None,
        })
    }

    /// The same, reported as Slurm's `srun` does, and cancelled after this time without nodes.
    pub fn reported_as_srun(self, give_up_after: Option<Duration>) -> Self {
        Self { reports_as_srun: true, give_up_after, ..self }
    }

    /// Restores the terminal.
    pub(super) fn restore_terminal(&mut self) {
        if let JobInput::Terminal(Some(typist)) = &mut self.input {
            typist.restore_terminal();
        }
    }
}

/// A signal that arrives while the job is followed.
#[derive(Clone, Copy)]
pub(super) enum EndSignal {
    Interrupt,
    /// SIGTERM or SIGHUP; the value is the exit code of a shell for that signal.
    Terminate(u8),
}

/// Passes the user's input to the job while it runs, and waits for a signal. Without an own job it waits for ever.
pub(super) async fn feed_until_signal(
    own: &mut Option<OwnJob>,
    client: &Client,
    start: &Start,
    mut runs: watch::Receiver<bool>,
) -> Result<EndSignal, Failure> {
    let Some(OwnJob { interrupts, end_signals, input, .. }) = own else { return pending().await };
    let giving = async {
        match input {
            JobInput::Nothing => pending().await,
            JobInput::Input(feeder) => match feeder.feed(client, start, &mut runs).await {},
            JobInput::Terminal(typist) => type_while_running(typist, client, start, runs).await.map(|never| match never {}),
        }
    };
    tokio::select! {
        failed = giving => failed,
        () = interrupts.pressed() => Ok(EndSignal::Interrupt),
        code = end_signals.recv() => Ok(EndSignal::Terminate(code)),
    }
}

/// Types at the job's terminal while it runs.
async fn type_while_running(
    typist: &mut Option<Typist>,
    client: &Client,
    start: &Start,
    mut runs: watch::Receiver<bool>,
) -> Result<Infallible, Failure> {
    loop {
        if runs.wait_for(|runs| *runs).await.is_err() {
            return pending().await;
        }
        let typist = match &mut *typist {
            Some(typist) => typist,
            none => none.insert(Typist::begin()?),
        };
        typist.resume()?;
        let mut begun = runs.clone();
        tokio::select! {
            never = typist.send_input(client, start, &mut begun) => match never {},
            _ = runs.wait_for(|runs| !*runs) => typist.restore_terminal(),
        }
    }
}

/// Waits for a signal while no agent can be reached or no log stream is free; it stops the following. Returns the exit
/// code of a shell for the signal.
pub(super) async fn wait_for_any_signal(own: &mut Option<OwnJob>) -> u8 {
    let Some(OwnJob { interrupts, end_signals, .. }) = own else { return pending().await };
    tokio::select! {
        () = interrupts.pressed() => INTERRUPTED,
        code = end_signals.recv() => code,
    }
}

/// Waits for Ctrl-C alone.
pub(super) async fn wait_for_ctrl_c(own: &mut Option<OwnJob>) {
    match own {
        Some(own) => own.interrupts.pressed().await,
        None => pending().await,
    }
}
