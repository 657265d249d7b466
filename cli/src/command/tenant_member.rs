//! `lattice admin tenant member`.

use lattice_api::client::Client;
use lattice_api::json::TenantMemberJson;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::numbered_subject;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::member::{AddTenantMember, MemberCommand, MemberOfTenant};

/// How the table fits on a narrow screen.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("SUBJECT", 20)], wrapped: &[], left_out_last: &[] };

pub async fn run(session: &Session, client: &Client, command: MemberCommand) -> Result<(), Failure> {
    match command {
        MemberCommand::Add(AddTenantMember { member, default }) => {
            let added = member_of(answer(client.admin().add_tenant_member(request(&member, default))).await?)?;
            match session.format() {
                Format::Table => print(&added_text(&member.tenant, &added)),
                Format::Data(notation) => notation.print(&TenantMemberJson::added(&added)),
                Format::Name => print_names([added.subject.as_str()]),
            }
        }
        MemberCommand::Remove(member) => {
            let removed = member_of(answer(client.admin().remove_tenant_member(request(&member, false))).await?)?;
            match session.format() {
                Format::Table => print(&format!("{} is not a member of {} any more\n", removed.subject, member.tenant)),
                Format::Data(notation) => notation.print(&serde_json::json!({ "subject": removed.subject, "tenant": member.tenant })),
                Format::Name => print_names([removed.subject.as_str()]),
            }
        }
        MemberCommand::List(args) => {
            let request = v1::ListTenantMembersRequest { tenant: args.tenant.clone() };
            let members = answer(client.admin().list_tenant_members(request)).await?.members;
            match session.format() {
                Format::Table if members.is_empty() => {
                    let tenant = &args.tenant;
                    session.note(&format!(
                        "tenant {tenant} has no members: it takes work from everybody, or from its admins alone if it had members before"
                    ));
                    Ok(())
                }
                Format::Table => print(&table(&members, session.table_size())),
                Format::Data(notation) => notation.print(&members.iter().map(TenantMemberJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(members.iter().map(|member| member.subject.as_str())),
            }
        }
    }
}

fn request(member: &MemberOfTenant, is_default: bool) -> v1::TenantMemberRequest {
    v1::TenantMemberRequest { tenant: member.tenant.clone(), subject: member.subject.to_string(), is_default }
}

fn member_of(answered: v1::TenantMemberResponse) -> Result<v1::TenantMember, Failure> {
    let incomplete = || Failure::other("the agent's answer is not complete").hint("`lattice admin tenant member list` shows the members");
    answered.member.ok_or_else(incomplete)
}

fn added_text(tenant: &str, added: &v1::TenantMember) -> String {
    let is_default = if added.is_default { ", its default tenant" } else { "" };
    format!("{} is a member of {tenant}{is_default}\n", numbered_subject(&added.subject, added.id))
}

fn table(members: &[v1::TenantMember], size: TableSize) -> String {
    let mut table = Table::new(&["SUBJECT", "ID", "DEFAULT"]);
    for member in members {
        let is_default = if member.is_default { "yes" } else { "no" };
        table.row(vec![member.subject.clone(), member.id.to_string(), is_default.to_owned()]);
    }
    table.on_screen(&[], &FIT, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::output::Width;

    fn member(subject: &str, id: u32, is_default: bool) -> v1::TenantMember {
        v1::TenantMember { subject: subject.into(), id, is_default }
    }

    #[test]
    fn members_are_a_table_that_fits_into_80_columns() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let want = "\
SUBJECT        ID    DEFAULT
user:alice     1000  yes
group:physics  50    no
";
        assert_eq!(table(&[member("user:alice", 1000, true), member("group:physics", 50, false)], size), want);
        let text = table(&[member(&format!("group:{}", "x".repeat(256)), u32::MAX, true)], size);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn an_added_member_is_named_with_its_number_and_whether_the_tenant_is_its_default() {
        assert_eq!(added_text("physics", &member("user:root", 0, false)), "user:root (uid 0) is a member of physics\n");
        let want = "group:physics (gid 50) is a member of physics, its default tenant\n";
        assert_eq!(added_text("physics", &member("group:physics", 50, true)), want);
    }
}
