//! `lattice admin project`.

use lattice_api::json::ProjectJson;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::project::{MemberOfProject, ProjectCommand, ProjectMemberCommand, ProjectName};

/// How the table fits on a narrow screen.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("PROJECT", 20), ("MEMBERS", 20)], wrapped: &[], left_out_last: &[] };

pub async fn run(session: &Session, command: ProjectCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        ProjectCommand::Create(args) => {
            answer(client.admin().create_project(request(&args.project))).await?;
            done(session, &args.project, &format!("{} is a project, and takes work of all who submit for the tenant\n", args.project))
        }
        ProjectCommand::Delete(args) => {
            answer(client.admin().delete_project(request(&args.project))).await?;
            done(session, &args.project, &format!("{} is deleted\n", args.project))
        }
        ProjectCommand::List(args) => {
            let listed = answer(client.admin().list_projects(v1::ListProjectsRequest { tenant: args.tenant.clone() })).await?;
            match session.format() {
                Format::Table if listed.projects.is_empty() => {
                    session.note(&format!("tenant {} has no projects: its work may name any", args.tenant));
                    Ok(())
                }
                Format::Table => print(&table(&listed.projects, session.table_size())),
                Format::Data(notation) => notation.print(&listed.projects.iter().map(ProjectJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(listed.projects.iter().map(|project| project.name.as_str())),
            }
        }
        ProjectCommand::Member(args) => match args.command {
            ProjectMemberCommand::Add(member) => {
                let added = answer(client.admin().add_project_member(member_request(&member))).await?;
                done(session, &member.project, &format!("{} is a member of {}\n", added.subject, member.project))
            }
            ProjectMemberCommand::Remove(member) => {
                let removed = answer(client.admin().remove_project_member(member_request(&member))).await?;
                done(session, &member.project, &format!("{} is not a member of {} any more\n", removed.subject, member.project))
            }
        },
    }
}

fn done(session: &Session, project: &ProjectName, text: &str) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(text),
        Format::Data(notation) => notation.print(&serde_json::json!({ "tenant": project.tenant, "project": project.name })),
        Format::Name => print_names([project.to_string().as_str()]),
    }
}

fn request(project: &ProjectName) -> v1::ProjectRequest {
    v1::ProjectRequest { tenant: project.tenant.clone(), project: project.name.clone() }
}

fn member_request(MemberOfProject { project, subject }: &MemberOfProject) -> v1::ProjectMemberRequest {
    v1::ProjectMemberRequest { tenant: project.tenant.clone(), project: project.name.clone(), subject: subject.to_string() }
}

fn table(projects: &[v1::Project], size: TableSize) -> String {
    let mut table = Table::new(&["PROJECT", "TAKES WORK OF", "MEMBERS"]);
    for project in projects {
        let of = if project.closed { "its members" } else { "the tenant" };
        let members = if project.members.is_empty() { "-".to_owned() } else { project.members.join(",") };
        table.row(vec![project.name.clone(), of.to_owned(), members]);
    }
    table.on_screen(&[], &FIT, size)
}
