//! `sshare`.

use super::command_line::Command;
use super::sacct::{form, wrong_field};
use super::surroundings::{Surroundings, own_name, user_names};
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::print;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm_args::sshare::Sshare;
use lattice_slurm::listing::{Listing, help_format};
use lattice_slurm::share::{DEFAULT, LONG, SHARE_FIELDS, Share, normalize};
use lattice_slurm::units::listed;
use std::ffi::OsString;

const SSHARE: Command = Command("sshare");

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    show(session, args).await
}

async fn show(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SSHARE.parse::<Sshare>(args)? else { return Ok(0) };
    if args.helpformat {
        print(&help_format(SHARE_FIELDS))?;
        return Ok(0);
    }
    let surroundings = Surroundings::read()?;
    SSHARE.check_clusters(&args.common.clusters, &surroundings.compat)?;
    let default = if args.long { LONG } else { DEFAULT };
    let fields = if args.format.is_empty() { default.to_owned() } else { args.format.join(",") };
    let listing = Listing::new(&fields, SHARE_FIELDS, form(&args.lines, "|")).map_err(wrong_field)?;
    let shares = shares(session, &args, &surroundings).await?;
    let mut text = if args.lines.noheader || args.headless { String::new() } else { listing.heading() };
    surroundings.with(|context| shares.iter().for_each(|share| text.push_str(&listing.line(share, context))));
    print(&text)?;
    Ok(0)
}

/// The accounts, and the users of each account who may use it.
async fn shares(session: &Session, args: &Sshare, surroundings: &Surroundings) -> Result<Vec<Share>, Failure> {
    let compat = &surroundings.compat;
    let client = session.connect().await?;
    let tenants = answer(client.admin().list_tenants(v1::ListTenantsRequest {})).await?.tenants;
    let mut accounts = Vec::new();
    for tenant in tenants {
        let request = v1::GetTenantUsageRequest { tenant: tenant.name.clone(), ..Default::default() };
        let usage_seconds = match answer(client.admin().get_tenant_usage(request)).await {
            Ok(usage) => usage.node_ms / 1000,
            // Others' use may be hidden.
            Err(failure) if failure.exit() == Exit::Refused as u8 => 0,
            Err(failure) => return Err(failure),
        };
        accounts.push(Share {
            account: tenant.name,
            target_ppm: tenant.fair_share_target_ppm,
            usage_seconds,
            node_hours_budget: tenant.node_hours_budget,
            ..Default::default()
        });
    }
    normalize(&mut accounts);
    let wanted: Vec<String> = listed(&args.accounts).iter().map(|name| compat.tenant_of(name).to_owned()).collect();
    let mut users = user_names(listed(&args.users))?;
    if users.is_empty() {
        users.push(own_name()?);
    }
    let whoami = answer(client.admin().who_am_i(v1::WhoAmIRequest {})).await?;
    let is_usable = |name: &String| {
        let is_own = whoami.member_of.contains(name) || whoami.admin_of.contains(name) || whoami.default_tenant == *name;
        whoami.member_of.is_empty() && whoami.default_tenant.is_empty() || is_own
    };
    let mut rows = Vec::new();
    for user in &users {
        let request = v1::GetUserUsageRequest { user: user.clone(), days: 0 };
        let usage = answer(client.admin().get_user_usage(request)).await?;
        for account in accounts.iter().filter(|one| (wanted.is_empty() && is_usable(&one.account)) || wanted.contains(&one.account)) {
            // Lattice counts a user's use in all accounts together.
            rows.push(Share { user: user.clone(), usage_seconds: usage.node_ms / 1000, ..account.clone() });
        }
    }
    let of_accounts = accounts.into_iter().filter(|one| !args.users_only && (wanted.is_empty() || wanted.contains(&one.account)));
    let mut all: Vec<Share> = of_accounts.chain(rows).collect();
    all.sort_by(|a, b| (&a.account, &a.user).cmp(&(&b.account, &b.user)));
    for share in &mut all {
        share.account = compat.account_of(&share.account).to_owned();
    }
    Ok(all)
}
