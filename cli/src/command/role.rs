//! `lattice admin role`.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, numbered_subject};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::role::{ListRoles, RoleCommand, RoleOfSubject};

/// How the table fits on a narrow screen.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("TENANT", 16), ("SUBJECT", 20)], wrapped: &[], left_out_last: &[] };

pub async fn run(session: &Session, command: RoleCommand) -> Result<(), Failure> {
    match command {
        RoleCommand::Grant(args) => {
            let request = request(&args)?;
            let client = session.connect().await?;
            let granted = binding(answer(client.admin().grant_role(request)).await?)?;
            match session.format() {
                Format::Table => print(&granted_text(&granted)),
                Format::Data(notation) => notation.print(&json(&granted)),
                Format::Name => print_names([granted.subject.as_str()]),
            }
        }
        RoleCommand::Revoke(args) => {
            let request = request(&args)?;
            let client = session.connect().await?;
            let revoked = binding(answer(client.admin().revoke_role(request)).await?)?;
            match session.format() {
                Format::Table => print(&revoked_text(&revoked)),
                Format::Data(notation) => notation.print(&serde_json::json!({
                    "role": revoked.role, "subject": revoked.subject, "tenant": filled(&revoked.tenant),
                })),
                Format::Name => print_names([revoked.subject.as_str()]),
            }
        }
        RoleCommand::List(args) => list(session, &args).await,
    }
}

fn request(args: &RoleOfSubject) -> Result<v1::RoleRequest, Failure> {
    let tenant = args.tenant()?.unwrap_or_default().to_owned();
    Ok(v1::RoleRequest { role: args.role.name().to_owned(), subject: args.subject.to_string(), tenant })
}

fn binding(answered: v1::RoleResponse) -> Result<v1::RoleBinding, Failure> {
    answered.binding.ok_or_else(|| Failure::other("the agent's answer is not complete").hint("`lattice admin role list` shows the roles"))
}

async fn list(session: &Session, args: &ListRoles) -> Result<(), Failure> {
    let client = session.connect().await?;
    let all = answer(client.admin().list_roles(v1::ListRolesRequest {})).await?.bindings;
    let bindings = selected(all, args);
    match session.format() {
        Format::Table if bindings.is_empty() => {
            let any = args.tenant.is_none() && args.subject.is_none();
            session.note(if any { "no role is granted that you may see" } else { "none of the granted roles that you may see matches" });
            Ok(())
        }
        Format::Table => print(&table(&bindings, session.table_size())),
        Format::Data(notation) => notation.print(&bindings.iter().map(json).collect::<Vec<_>>()),
        Format::Name => print_names(bindings.iter().map(|binding| binding.subject.as_str())),
    }
}

/// The bindings of the tenant and of the subject, if these are given.
fn selected(mut bindings: Vec<v1::RoleBinding>, args: &ListRoles) -> Vec<v1::RoleBinding> {
    let subject = args.subject.as_ref().map(ToString::to_string);
    bindings.retain(|binding| {
        let is_of_tenant = args.tenant.as_ref().is_none_or(|tenant| *tenant == binding.tenant);
        is_of_tenant && subject.as_ref().is_none_or(|subject| *subject == binding.subject)
    });
    bindings
}

fn granted_text(granted: &v1::RoleBinding) -> String {
    format!("{} is {}\n", numbered_subject(&granted.subject, granted.id), role_text(granted))
}

fn revoked_text(revoked: &v1::RoleBinding) -> String {
    format!("{} is not {} any more\n", revoked.subject, role_text(revoked))
}

/// A role, such as `tenant-admin of physics`.
fn role_text(binding: &v1::RoleBinding) -> String {
    match filled(&binding.tenant) {
        Some(tenant) => format!("{} of {tenant}", binding.role),
        None => binding.role.clone(),
    }
}

fn table(bindings: &[v1::RoleBinding], size: TableSize) -> String {
    let mut table = Table::new(&["ROLE", "SUBJECT", "ID", "TENANT"]);
    for binding in bindings {
        table.row(vec![binding.role.clone(), binding.subject.clone(), binding.id.to_string(), binding.tenant.clone()]);
    }
    table.on_screen(&[], &FIT, size)
}

fn json(binding: &v1::RoleBinding) -> serde_json::Value {
    serde_json::json!({ "role": binding.role, "subject": binding.subject, "id": binding.id, "tenant": filled(&binding.tenant) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::output::Width;

    fn bound(role: &str, subject: &str, id: u32, tenant: &str) -> v1::RoleBinding {
        v1::RoleBinding { role: role.into(), subject: subject.into(), id, tenant: tenant.into() }
    }

    fn some_bindings() -> Vec<v1::RoleBinding> {
        vec![bound("tenant-admin", "user:alice", 1000, "physics"), bound("operator", "group:hpc-ops", 50, "")]
    }

    #[test]
    fn roles_are_a_table_that_fits_into_80_columns() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let want = "\
ROLE          SUBJECT        ID    TENANT
tenant-admin  user:alice     1000  physics
operator      group:hpc-ops  50    —
";
        assert_eq!(table(&some_bindings(), size), want);
        let long = [bound("tenant-admin", &format!("user:{}", "x".repeat(256)), u32::MAX, &"y".repeat(128))];
        let text = table(&long, size);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(table(&long, TableSize { width: Width::Wide, columns: Some(80) }).contains(&"x".repeat(256)), "-o wide shows whole names");
    }

    #[test]
    fn a_list_has_only_the_named_tenant_and_subject() {
        let shown = |tenant: Option<&str>, subject: Option<&str>| {
            let args = ListRoles { tenant: tenant.map(str::to_owned), subject: subject.map(|text| text.parse().unwrap()) };
            selected(some_bindings(), &args).into_iter().map(|binding| binding.subject).collect::<Vec<_>>()
        };
        assert_eq!(shown(None, None), ["user:alice", "group:hpc-ops"]);
        assert_eq!(shown(Some("physics"), None), ["user:alice"]);
        assert_eq!(shown(None, Some("alice")), ["user:alice"]);
        assert_eq!(shown(None, Some("group:hpc-ops")), ["group:hpc-ops"]);
        assert!(shown(None, Some("hpc-ops")).is_empty() && shown(Some("phys"), None).is_empty());
    }

    #[test]
    fn a_grant_names_the_number_that_the_agent_found() {
        let bindings = some_bindings();
        let (alice, ops) = (&bindings[0], &bindings[1]);
        assert_eq!(granted_text(alice), "user:alice (uid 1000) is tenant-admin of physics\n");
        assert_eq!(granted_text(ops), "group:hpc-ops (gid 50) is operator\n");
        assert_eq!(revoked_text(&bound("operator", "group:hpc-ops", 0, "")), "group:hpc-ops is not operator any more\n");
        let want = serde_json::json!({ "role": "operator", "subject": "group:hpc-ops", "id": 50, "tenant": null });
        assert_eq!(json(ops), want);
    }
}
