//! Tests that each command line in `tests/documented.txt` is accepted, or refused with the option's name and a remedy.
//! A submission is also converted as the agent does it, because the agent may refuse it.

use crate::command::{session, vcluster};
use clap::Parser;
use clap::error::ErrorKind;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, Width};
use lattice_cli_session::request::{self, Program, Surroundings};
use lattice_cli_session::settings::Settings;
use lattice_cli_syntax::args::admin::AdminCommand;
use lattice_cli_syntax::args::role::{RoleAdmin, RoleCommand};
use lattice_cli_syntax::args::submit::Submit;
use lattice_cli_syntax::args::vcluster::AdminVCluster;
use lattice_cli_syntax::args::{Cli, Command};
use lattice_cli_syntax::directives::words::split_words;
use lattice_cli_syntax::flags::SubmitFlags;
use lattice_cli_syntax::mistyped;
use lattice_model::vcluster::{SchedulerError, SchedulerKind};
use std::collections::HashMap;
use std::ffi::OsString;

/// Whether a command line is accepted, as far as that does not depend on the cluster's state.
fn outcome(line: &str) -> Result<(), Failure> {
    let typed: Vec<OsString> = std::iter::once("lattice".to_owned()).chain(split_words(line).unwrap()).map(OsString::from).collect();
    let command = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli.command,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => return Ok(()),
        Err(error) => match mistyped::explain(&error, &typed) {
            Some(error) => return Err(error.into()),
            None => panic!("{line}: only the parser refuses it, without a remedy: {error}"),
        },
    };
    match command {
        Command::Submit(submit) => {
            let Submit { flags, tasks, scaling, .. } = submit.0;
            let mut spec = specification(&flags, Program::Command(vec!["true".to_owned()]))?;
            spec.task_group = tasks.to_message()?;
            request::apply_scaling(&mut spec, &flags, &scaling)?;
            check(spec)
        }
        Command::Launch(launch) if launch.0.alloc.is_some() => {
            assert_eq!(launch.0.flags.first_allocation_option(), None, "{line}");
            Ok(())
        }
        Command::Launch(launch) => check(specification(&launch.0.flags, Program::Command(launch.0.command))?),
        Command::Session(open) if open.0.command.is_none() => {
            session::check_walltime(&open.0.flags)?;
            check(specification(&open.0.flags, Program::Session)?)
        }
        Command::Admin(admin) => match admin.0.command {
            AdminCommand::VCluster(admin) => {
                vcluster::refuse_unbuilt(&admin.command)?;
                scheduler(&admin.command)
            }
            AdminCommand::Role(RoleAdmin { command: RoleCommand::Grant(args) | RoleCommand::Revoke(args) }) => {
                args.tenant().map(drop).map_err(Failure::from)
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn specification(flags: &SubmitFlags, program: Program) -> Result<v1::AllocationSpec, Failure> {
    let settings = Settings {
        endpoints: Vec::new(),
        ca: None,
        certificate: None,
        token: None,
        tenant: "physics".into(),
        vcluster: "default".into(),
        operator: None,
        format: Format::Table,
        width: Width::Terse,
        color: false,
    };
    let around = Surroundings { env: HashMap::new(), dir: "/project".into() };
    request::build_specification(flags, program, &settings, around)
}

/// Checks a specification as the agent does.
fn check(mut spec: v1::AllocationSpec) -> Result<(), Failure> {
    // The agent looks the ids up.
    for (number, dependency) in (1..).zip(&mut spec.depends_on) {
        if !lattice_api::spec::is_singleton(dependency) {
            dependency.r#ref = uuid::Uuid::from_u128(number).to_string();
        }
    }
    lattice_api::spec::to_model(&spec).map(drop).map_err(|error| lattice_api::spec::status(&error).into())
}

/// Checks the scheduler as the agent does when it creates a vCluster.
fn scheduler(command: &AdminVCluster) -> Result<(), Failure> {
    let AdminVCluster::Create(create) = command else { return Ok(()) };
    match create.scheduler.parse::<SchedulerKind>() {
        Ok(_) => Ok(()),
        Err(error @ SchedulerError::NotBuilt(_)) => Err(Failure::new(Exit::Refused, error.to_string())),
        Err(error @ SchedulerError::Unknown(_)) => Err(Failure::usage(error.to_string())),
    }
}

#[test]
fn every_documented_command_line_is_built_or_refused_by_name() {
    let table = include_str!("../tests/documented.txt");
    let rows: Vec<&str> = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    for row in &rows {
        let columns: Vec<&str> = row.split(" | ").map(str::trim).collect();
        match (columns.as_slice(), outcome(columns[0])) {
            ([_, "built"], Ok(())) => {}
            ([line, "refused", name, remedy], Err(failure)) => {
                let (exit, what, text) = (failure.exit(), failure.what(), failure.text());
                assert!(line.contains(name) && what.contains(name), "{line}: {name} is not named: {text}");
                assert!(text.contains(remedy), "{line}: no remedy {remedy:?}: {text}");
                assert!([Exit::Usage as u8, Exit::Refused as u8].contains(&exit), "{line}: exit code {exit}: {text}");
            }
            ([line, "built"], Err(failure)) => panic!("{line} is refused: {}", failure.text()),
            ([line, "refused", ..], Ok(())) => panic!("{line} is accepted"),
            _ => panic!("not a row of this table: {row}"),
        }
    }
    assert!(rows.len() > 150, "the table has lost rows: {}", rows.len());
}
