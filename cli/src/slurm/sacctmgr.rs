//! `sacctmgr`: shows accounts, users, associations, QOS and the cluster. Lattice's own commands change them.

use super::command_line::Command;
use super::sacct::form;
use super::surroundings::{Surroundings, own_name, user_names};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::print;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::compat::Compat;
use lattice_cli_syntax::slurm_args::sacctmgr::Sacctmgr;
use lattice_slurm::listing::Listing;
use lattice_slurm::sacctmgr::{Entity, Query, RECORD_FIELDS, Record};
use std::collections::BTreeSet;
use std::ffi::OsString;

const SACCTMGR: Command = Command("sacctmgr");
/// Commands that change something, and what to do instead.
const REFUSED: [(&str, &str); 9] = [
    ("add", CHANGES),
    ("archive", "the accounting store of a site keeps ended work, docs/how-to/operators/accounting.md"),
    ("clear", CHANGES),
    ("create", CHANGES),
    ("delete", CHANGES),
    ("dump", "`lattice quorum backup` writes everything into a file"),
    ("load", CHANGES),
    ("modify", CHANGES),
    ("remove", CHANGES),
];
const CHANGES: &str = "`lattice admin tenant create`, `update` and `delete` change accounts, `lattice admin tenant member add` and \
     `remove` their users; qos_mapping of lattice-compat.yaml names QOS";

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SACCTMGR.parse::<Sacctmgr>(args)? else { return Ok(0) };
    let Some((command, rest)) = args.words.split_first() else {
        return Err(Failure::other("a command is needed, such as `sacctmgr show user`: there is no interactive mode"));
    };
    let command = command.to_ascii_lowercase();
    let is = |name: &str, least: usize| command.len() >= least && name.starts_with(&command);
    if !is("list", 1) && !is("show", 2) {
        return Err(match REFUSED.iter().find(|(name, _)| is(name, 2)) {
            Some((name, remedy)) => Failure::other(format!("{name} is not possible")).hint(*remedy),
            None => Failure::other(format!("invalid keyword: {command}"))
                .hint("only `sacctmgr show` and `list` are supported; `sacctmgr --help` lists the options"),
        });
    }
    let query = Query::parse(rest, args.associations).map_err(|error| Failure::other(error.to_string()))?;
    let surroundings = Surroundings::read()?;
    SACCTMGR.check_clusters(&args.common.clusters, &surroundings.compat)?;
    let fields: &str = if query.format.is_empty() { query.entity.default_fields(query.with_associations) } else { &query.format };
    let listing = Listing::new(fields, RECORD_FIELDS, form(&args.lines, "|")).map_err(|error| {
        let names: Vec<&str> = RECORD_FIELDS.iter().map(|field| field.name).collect();
        Failure::other(error.to_string()).hint(format!("the fields are {}", names.join(", ")))
    })?;
    let is_here = query.clusters.is_empty() || query.clusters.iter().any(|name| name == surroundings.compat.cluster());
    let records = if is_here { Box::pin(records(session, &query, &surroundings.compat)).await? } else { Vec::new() };
    let mut text = if args.lines.noheader { String::new() } else { listing.heading() };
    surroundings.with(|context| records.iter().for_each(|record| text.push_str(&listing.line(record, context))));
    print(&text)?;
    Ok(0)
}

/// The lines.
async fn records(session: &Session, query: &Query, compat: &Compat) -> Result<Vec<Record>, Failure> {
    match query.entity {
        Entity::Cluster => return Ok(vec![Record::default()]),
        Entity::Qos => return Ok(qos(query, compat)),
        Entity::Account | Entity::Association | Entity::User => {}
    }
    let client = session.connect().await?;
    let tenants = answer(client.admin().list_tenants(v1::ListTenantsRequest {})).await?.tenants;
    let of_accounts = tenants.iter().flat_map(|tenant| accounts_of(tenant, compat));
    let of_accounts: Vec<(Record, &str)> =
        of_accounts.filter(|(record, _)| query.accounts.is_empty() || query.accounts.contains(&record.account)).collect();
    let has_users = query.entity != Entity::Account || query.with_associations;
    let users = if has_users { Box::pin(users(&client, query, &tenants, compat)).await? } else { Vec::new() };
    let of_users = users.iter().flat_map(|user| {
        let may_use = of_accounts.iter().filter(move |(_, tenant)| user.tenants.contains(*tenant));
        may_use.map(move |(record, _)| user.with(record))
    });
    if query.entity == Entity::User {
        return Ok(if query.with_associations {
            of_users.collect()
        } else {
            users.iter().map(|user| user.with(&Record::default())).collect()
        });
    }
    // The account as a whole, unless users were asked for.
    let whole = of_accounts.iter().filter(|_| query.users.is_empty()).map(|(record, _)| record.clone());
    let mut all: Vec<Record> = whole.chain(of_users).collect();
    all.sort_by(|a, b| (&a.account, &a.user).cmp(&(&b.account, &b.user)));
    Ok(all)
}

/// The QOS that the site has named.
fn qos(query: &Query, compat: &Compat) -> Vec<Record> {
    let all = compat.qos_mapping.iter().map(|(name, class)| Record { name: name.clone(), class: Some(*class), ..Record::default() });
    all.filter(|record| query.names.is_empty() || query.names.contains(&record.name)).collect()
}

/// The accounts that map to a tenant, each with the tenant's name; without a mapping it has its own name.
fn accounts_of<'a>(tenant: &'a v1::Tenant, compat: &Compat) -> Vec<(Record, &'a str)> {
    let mapped = compat.account_mapping.iter().filter(|(_, of)| **of == tenant.name).map(|(account, _)| account.clone());
    let mut names: Vec<String> = mapped.collect();
    if names.is_empty() {
        names.push(tenant.name.clone());
    }
    let record = |account| Record {
        account,
        share_ppm: tenant.fair_share_target_ppm,
        nodes_max: tenant.max_nodes,
        allocations_max: tenant.max_concurrent_allocations,
        ..Record::default()
    };
    names.into_iter().map(|name| (record(name), tenant.name.as_str())).collect()
}

/// A user, and the tenants for which they may submit.
struct Member {
    name: String,
    tenants: BTreeSet<String>,
    default_account: String,
    is_operator: bool,
}

impl Member {
    /// The record with the user's own values.
    fn with(&self, record: &Record) -> Record {
        Record { user: self.name.clone(), default_account: self.default_account.clone(), is_operator: self.is_operator, ..record.clone() }
    }
}

/// The users that are asked for; without a name, the calling one. Of other users only what names them is known: groups
/// are those of each machine.
async fn users(client: &Client, query: &Query, tenants: &[v1::Tenant], compat: &Compat) -> Result<Vec<Member>, Failure> {
    let own = own_name()?;
    let mut wanted = user_names(query.users.clone())?;
    if wanted.is_empty() {
        wanted.push(own.clone());
    }
    let mut members: Vec<Member> = wanted
        .into_iter()
        .map(|name| Member { name, tenants: BTreeSet::new(), default_account: String::new(), is_operator: false })
        .collect();
    for tenant in tenants {
        let request = v1::ListTenantMembersRequest { tenant: tenant.name.clone() };
        let listed = match answer(client.admin().list_tenant_members(request)).await {
            Ok(listed) => listed.members,
            // The other members may be hidden.
            Err(failure) if failure.exit() == Exit::Refused as u8 => continue,
            Err(failure) => return Err(failure),
        };
        for member in &mut members {
            let subject = format!("user:{}", member.name);
            let entry = listed.iter().find(|entry| entry.subject == subject);
            // A tenant without members is for everybody.
            if listed.is_empty() || entry.is_some() {
                member.tenants.insert(tenant.name.clone());
            }
            if entry.is_some_and(|entry| entry.is_default) {
                member.default_account = compat.account_of(&tenant.name).to_owned();
            }
        }
    }
    if let Some(me) = members.iter_mut().find(|member| member.name == own) {
        let known = answer(client.admin().who_am_i(v1::WhoAmIRequest {})).await?;
        me.is_operator = known.roles.iter().any(|role| role == "operator");
        me.tenants.extend(known.member_of.into_iter().chain(known.admin_of));
        if !known.default_tenant.is_empty() {
            me.default_account = compat.account_of(&known.default_tenant).to_owned();
        }
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_shown_under_each_of_its_accounts() {
        let compat = Compat::parse("account_mapping: {phys: physics, phys2: physics}\nqos_mapping: {high: 7}\n").unwrap();
        let names = |tenant: &str| {
            let tenant = v1::Tenant { name: tenant.into(), ..Default::default() };
            accounts_of(&tenant, &compat).into_iter().map(|(record, _)| record.account).collect::<Vec<_>>()
        };
        assert_eq!((names("physics"), names("bio")), (vec!["phys".to_owned(), "phys2".to_owned()], vec!["bio".to_owned()]));
        let query = Query::parse(&["qos".to_owned()], false).unwrap();
        assert_eq!(qos(&query, &compat).iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["high"]);
    }
}
