//! `lattice admin reservation …`.

use crate::flags::parse_walltime;
use crate::start_times::StartTime;
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Args)]
pub struct ReservationAdmin {
    #[command(subcommand)]
    pub command: ReservationCommand,
}

#[derive(Subcommand)]
pub enum ReservationCommand {
    /// Set nodes aside for a time, for the work of some tenants and users, or for maintenance
    Create(CreateReservation),
    /// Change a reservation; what has its nodes keeps them
    Update(UpdateReservation),
    /// Delete a reservation; its nodes are everybody's again, and what waits for it gets none
    Delete(ReservationName),
    /// List the reservations, and for whom each is
    List,
    /// Show one reservation
    Show(ReservationName),
}

#[derive(Args)]
pub struct ReservationName {
    /// The reservation
    #[arg(value_name = "NAME")]
    pub name: String,
}

// No doc comment: it would become the description of the commands.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedFor {
    /// The work of this tenant may use it; may be given more than once, and with commas
    #[arg(long = "tenant", value_name = "NAME", value_delimiter = ',')]
    pub tenants: Vec<String>,
    /// The work of this account may use it; may be given more than once, and with commas
    #[arg(long = "user", value_name = "NAME", value_delimiter = ',')]
    pub users: Vec<String>,
    /// Nobody's work begins on its nodes
    #[arg(long, conflicts_with_all = ["tenants", "users"])]
    pub maintenance: bool,
}

#[derive(Args)]
pub struct CreateReservation {
    /// The name that work gives with --reservation
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The nodes: n1,n2 or n[1-2]
    #[arg(long, value_name = "HOSTLIST")]
    pub nodes: String,
    /// When it begins: now, 16:00, tomorrow, 2026-03-05T16:00 (all in your time zone), with a zone as in
    /// 2026-03-05T16:00:00Z, or from now on: 2h
    #[arg(long, value_name = "TIME")]
    pub start: StartTime,
    /// When it ends; written as for --start
    #[arg(long, value_name = "TIME", required_unless_present = "duration", conflicts_with = "duration")]
    pub end: Option<StartTime>,
    /// How long it lasts: 90 (minutes), 24h, 1h30m, HH:MM:SS, D-HH:MM
    #[arg(long, value_name = "TIME", value_parser = parse_walltime)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub subjects: ReservedFor,
    /// A text for people
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
}

#[derive(Args)]
pub struct UpdateReservation {
    /// The reservation
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The nodes, in place of those that it has: n1,n2 or n[1-2]
    #[arg(long, value_name = "HOSTLIST")]
    pub nodes: Option<String>,
    /// When it begins: now, 16:00, tomorrow, 2026-03-05T16:00 (all in your time zone), with a zone as in
    /// 2026-03-05T16:00:00Z, or from now on: 2h
    #[arg(long, value_name = "TIME")]
    pub start: Option<StartTime>,
    /// When it ends; written as for --start
    #[arg(long, value_name = "TIME", conflicts_with = "duration")]
    pub end: Option<StartTime>,
    /// How long it lasts from its start on: 90 (minutes), 24h, 1h30m, HH:MM:SS, D-HH:MM
    #[arg(long, value_name = "TIME", value_parser = parse_walltime)]
    pub duration: Option<Duration>,
    // Those that are given replace all that it had.
    #[command(flatten)]
    pub subjects: ReservedFor,
    /// A text for people
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
}
