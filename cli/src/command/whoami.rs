//! `lattice whoami`.

use lattice_api::json::{PermissionJson, WhoAmIJson};
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, Width, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, time};
use lattice_cli_session::table::{Table, block, wrapped};
use lattice_cli_syntax::args::whoami::WhoAmI;
use lattice_model::access::{Reach, Role};

/// The characters before the values: the longest label, `Default tenant`, with its colon and two spaces.
const LABEL_COLUMNS: usize = 17;
/// The least characters of a line of values.
const VALUE_COLUMNS_MIN: usize = 24;

pub async fn run(session: &Session, args: &WhoAmI) -> Result<(), Failure> {
    let client = session.connect().await?;
    let me = answer(client.admin().who_am_i(v1::WhoAmIRequest {})).await?;
    match session.format() {
        Format::Table if args.can => print(&permissions_table(&me.may)),
        Format::Table => print(&text(&me, session.table_size())),
        Format::Data(notation) if args.can => notation.print(&me.may.iter().map(PermissionJson::from).collect::<Vec<_>>()),
        Format::Data(notation) => notation.print(&WhoAmIJson::from(&me)),
        Format::Name if args.can => {
            print_names(me.may.iter().filter(|may| may.reach != Reach::Nothing.name()).map(|may| may.method.as_str()))
        }
        Format::Name => print_names([me.account.as_str()]),
    }
}

fn text(me: &v1::WhoAmIResponse, size: TableSize) -> String {
    let columns = match size.width {
        Width::Terse => size.columns,
        Width::Wide => None,
    };
    let most = columns.map_or(usize::MAX, |columns| columns.saturating_sub(LABEL_COLUMNS).max(VALUE_COLUMNS_MIN));
    let or_none = |text: &str| filled(text).unwrap_or("none").to_owned();
    let mut pairs = vec![("Account", format!("{} (uid {})", me.account, me.uid))];
    pairs.extend(labelled("Roles", roles(me).iter().flat_map(|role| wrapped(role, most))));
    pairs.extend(labelled("Tenants", wrapped(&or_none(&me.member_of.join(", ")), most)));
    pairs.push(("Default tenant", default_tenant(me)));
    pairs.push(("Allocation", me.within.clone()));
    let authentication = me.authentication.as_ref().map(authentication).unwrap_or_default();
    pairs.extend(labelled("Known by", authentication.iter().flat_map(|line| wrapped(line, most))));
    block(&pairs)
}

/// How callers proved who they are, what that allows, and until when. An agent of an older version does not report this.
fn authentication(by: &v1::Authentication) -> Vec<String> {
    let mut lines = vec![match by.kind.as_str() {
        "socket" => "the kernel: a process on the agent's machine".to_owned(),
        "oidc" => format!("a login at {} as {}", by.issuer, by.subject),
        "token" => format!("token {}", by.token),
        "certificate" => format!("the certificate {}", by.subject),
        other => other.to_owned(),
    }];
    if by.kind != "socket" {
        let until = time(by.expires_at_ms).map_or_else(String::new, |until| format!(", until {until}"));
        lines.push(format!("scopes {}{until}", by.scopes));
    }
    lines
}

fn default_tenant(me: &v1::WhoAmIResponse) -> String {
    let none = if me.member_of.is_empty() { "none" } else { "none: give --tenant" };
    filled(&me.default_tenant).unwrap_or(none).to_owned()
}

/// Lines, the first with a label.
fn labelled(label: &str, lines: impl IntoIterator<Item = String>) -> impl Iterator<Item = (&str, String)> {
    lines.into_iter().enumerate().map(move |(at, line)| (if at == 0 { label } else { "" }, line))
}

/// Each role that was granted, the one of tenants with their names; everybody is a user.
fn roles(me: &v1::WhoAmIResponse) -> Vec<String> {
    let of_tenant = Role::TenantAdmin.name();
    let mut roles: Vec<String> = me.roles.iter().filter(|role| *role != of_tenant).cloned().collect();
    if !me.admin_of.is_empty() {
        roles.push(format!("{of_tenant} of {}", me.admin_of.join(", ")));
    }
    if roles.is_empty() {
        roles.push("user".to_owned());
    }
    roles
}

/// A table with an empty line between the methods of two services.
fn permissions_table(may: &[v1::Permission]) -> String {
    let mut table = Table::new(&["METHOD", "CHANGES", "REACH"]);
    for permission in may {
        let changes = if permission.changes { "yes" } else { "no" };
        table.row(vec![permission.method.clone(), changes.to_owned(), permission.reach.clone()]);
    }
    let lines = table.text(&[]);
    let mut lines = lines.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    let mut before = None;
    for (line, permission) in lines.zip(may) {
        let service = permission.method.split('/').next();
        if before.is_some_and(|before| before != service) {
            text.push('\n');
        }
        before = Some(service);
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access;

    const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";

    fn alice() -> v1::WhoAmIResponse {
        v1::WhoAmIResponse { account: "alice".into(), uid: 1000, ..v1::WhoAmIResponse::default() }
    }

    fn admin() -> v1::WhoAmIResponse {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        v1::WhoAmIResponse {
            roles: names(&["tenant-admin", "operator"]),
            admin_of: names(&["chemistry", "physics"]),
            member_of: names(&["astronomy", "chemistry", "physics"]),
            default_tenant: "physics".into(),
            within: ID.into(),
            ..alice()
        }
    }

    fn size(columns: usize) -> TableSize {
        TableSize { width: Width::Terse, columns: Some(columns) }
    }

    #[test]
    fn an_account_is_shown_with_its_roles_and_tenants() {
        let want = format!(
            "\
Account:         alice (uid 1000)
Roles:           operator
                 tenant-admin of chemistry, physics
Tenants:         astronomy, chemistry, physics
Default tenant:  physics
Allocation:      {ID}
"
        );
        assert_eq!(text(&admin(), size(80)), want);
        let want = "Account:         alice (uid 1000)\nRoles:           user\nTenants:         none\nDefault tenant:  none\n";
        assert_eq!(text(&alice(), size(80)), want, "without roles, tenants and allocation");
        let undecided = v1::WhoAmIResponse { default_tenant: String::new(), ..admin() };
        assert!(text(&undecided, size(80)).contains("Default tenant:  none: give --tenant\n"), "with tenants");
        let json = |me: &v1::WhoAmIResponse| serde_json::json!(WhoAmIJson::from(me));
        assert_eq!((&json(&admin())["allocation"], &json(&alice())["allocation"]), (&serde_json::json!(ID), &serde_json::Value::Null));
    }

    #[test]
    fn the_proof_of_who_one_is_is_shown_with_its_end() {
        let by = |by| text(&v1::WhoAmIResponse { authentication: Some(by), ..alice() }, size(80));
        let socket = v1::Authentication { kind: "socket".into(), ..v1::Authentication::default() };
        assert!(by(socket.clone()).ends_with("\nKnown by:        the kernel: a process on the agent's machine\n"), "{}", by(socket));
        let login = v1::Authentication {
            kind: "oidc".into(),
            issuer: "https://idp.example.org".into(),
            subject: "7f\u{1b}[31m".into(),
            scopes: "read,work,admin".into(),
            expires_at_ms: 1_767_225_600_000,
            ..v1::Authentication::default()
        };
        let want = "
Known by:        a login at https://idp.example.org as 7f [31m
                 scopes read,work,admin, until 2026-01-01T00:00:00.000Z
";
        assert!(by(login.clone()).ends_with(want), "{}", by(login));
        let token =
            v1::Authentication { kind: "token".into(), token: "00000000000000ab".into(), scopes: "read".into(), ..Default::default() };
        assert!(
            by(token.clone()).ends_with("\nKnown by:        token 00000000000000ab\n                 scopes read\n"),
            "{}",
            by(token.clone())
        );
        let me = v1::WhoAmIResponse { authentication: Some(token), ..alice() };
        let json = serde_json::to_value(WhoAmIJson::from(&me)).unwrap();
        assert_eq!(json["authentication"]["token"], "00000000000000ab");
        assert_eq!(json["authentication"]["expires_at"], serde_json::Value::Null);
    }

    #[test]
    fn many_tenants_continue_on_further_lines_of_a_screen() {
        let tenants: Vec<String> = (0..40).map(|number| format!("tenant-{number}")).collect();
        let me = v1::WhoAmIResponse { admin_of: tenants.clone(), member_of: tenants, ..alice() };
        let shown = text(&me, size(80));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(shown.contains("\n                 tenant-") && shown.contains("tenant-39\nTenants:  "), "{shown}");
        let wide = TableSize { width: Width::Wide, columns: Some(80) };
        assert_eq!(text(&me, wide).lines().count(), 4, "-o wide breaks no line");
    }

    #[test]
    fn permissions_are_grouped_by_service_and_fit_into_80_columns() {
        let may = |method: &str, reach: &str, changes| v1::Permission { method: method.into(), reach: reach.into(), changes };
        let some = [
            may("AdminService/WhoAmI", "all", false),
            may("AllocationService/Cancel", "tenant", true),
            may("AllocationService/Get", "all", false),
            may("NodeService/Admit", "no", true),
        ];
        let want = "\
METHOD                    CHANGES  REACH
AdminService/WhoAmI       no       all

AllocationService/Cancel  yes      tenant
AllocationService/Get     no       all

NodeService/Admit         yes      no
";
        assert_eq!(permissions_table(&some), want);
        let every: Vec<v1::Permission> = access::methods().map(|rule| may(rule.method, rule.operator.name(), rule.changes)).collect();
        let text = permissions_table(&every);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), every.len() + 1, "each method has a line");
        assert_eq!(permissions_table(&[]), "METHOD  CHANGES  REACH\n");
    }
}
