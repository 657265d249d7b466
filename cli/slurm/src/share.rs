//! The rows and fields of sshare.

use crate::listing::{ListField, field};

/// The fields without options.
pub const DEFAULT: &str = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare";
/// The fields of `--long`.
pub const LONG: &str = "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS,GrpTRESMins,TRESRunMins";

/// An account, or a user in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// The account.
    pub account: String,
    /// The user; empty: the account as a whole.
    pub user: String,
    /// Millionths of the cluster; `None`: no share in particular.
    pub target_ppm: Option<u32>,
    /// The part of all shares that it has.
    pub norm_shares: f64,
    /// Node-seconds.
    pub usage_seconds: u64,
    /// The part of all usage that is its own.
    pub norm_usage: f64,
    /// Node-hours that it may use in the budget period.
    pub node_hours_budget: Option<u64>,
}

impl Share {
    /// Between 1, for no use, and 0: it is halved for each whole share that was used.
    fn fair_share(&self) -> f64 {
        if self.norm_shares > 0.0 { (-self.norm_usage / self.norm_shares).exp2() } else { 0.0 }
    }
}

/// Sets the parts of shares and usage of accounts. Accounts without a share have equal parts of what is left.
pub fn normalize(accounts: &mut [Share]) {
    let given: f64 = accounts.iter().filter_map(|one| one.target_ppm).map(|ppm| f64::from(ppm) / 1e6).sum();
    let without = accounts.iter().filter(|one| one.target_ppm.is_none()).count();
    let scale = given.max(1.0);
    let left = if without == 0 { 0.0 } else { (1.0 - given).max(0.0) / without as f64 };
    let used: u64 = accounts.iter().map(|one| one.usage_seconds).sum();
    for one in accounts {
        one.norm_shares = one.target_ppm.map_or(left, |ppm| f64::from(ppm) / 1e6 / scale);
        one.norm_usage = if used == 0 { 0.0 } else { one.usage_seconds as f64 / used as f64 };
    }
}

/// The fields of sshare. Fields that Lattice does not have are empty.
pub const SHARE_FIELDS: &[ListField<Share>] =
    &[
        ListField { name: "Account", width: 20, is_left: true, value: |share, _| share.account.clone() },
        field("Cluster", 10, |_, c| c.compat.cluster().to_owned()),
        field("EffectvUsage", 13, |share, _| format!("{:.6}", share.norm_usage)),
        field("FairShare", 10, |share, _| format!("{:.6}", share.fair_share())),
        field("GrpTRESMins", 30, |share, _| {
            share.node_hours_budget.map(|hours| format!("node={}", hours.saturating_mul(60))).unwrap_or_default()
        }),
        field("GrpTRESRaw", 30, |share, _| format!("node={}", share.usage_seconds / 60)),
        field("ID", 6, |_, _| String::new()),
        field("LevelFS", 10, |share, _| {
            if share.norm_usage > 0.0 { format!("{:.6}", share.norm_shares / share.norm_usage) } else { "inf".to_owned() }
        }),
        field("NormShares", 11, |share, _| format!("{:.6}", share.norm_shares)),
        field("NormUsage", 11, |share, _| format!("{:.6}", share.norm_usage)),
        field("Partition", 12, |_, _| String::new()),
        field("RawShares", 10, |share, _| share.target_ppm.map_or_else(|| "1".to_owned(), |ppm| ppm.to_string())),
        field("RawUsage", 11, |share, _| share.usage_seconds.to_string()),
        field("TRESRunMins", 30, |_, _| String::new()),
        field("User", 10, |share, _| share.user.clone()),
    ];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::listing::{Form, Listing};
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    #[test]
    fn shares_are_normalized_and_halved_by_use() {
        let account =
            |account: &str, target_ppm, usage_seconds| Share { account: account.into(), target_ppm, usage_seconds, ..Default::default() };
        let mut all = [account("phys", Some(500_000), 300), account("bio", None, 100)];
        normalize(&mut all);
        let (compat, clock, nodes) = (Compat::default(), Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let form = Form::Separated { delimiter: "|".to_owned(), ends: false };
        let listing = Listing::new(DEFAULT, SHARE_FIELDS, form).unwrap();
        let lines: Vec<String> = all.iter().map(|share| listing.line(share, &context)).collect();
        assert_eq!(lines, ["phys||500000|0.500000|300|0.750000|0.353553\n", "bio||1|0.500000|100|0.250000|0.707107\n"]);
        Listing::new(LONG, SHARE_FIELDS, Form::Columns).unwrap();
        assert_eq!(Listing::new("Account%256", SHARE_FIELDS, Form::Columns).unwrap().line(&all[0], &context).trim(), "phys");
    }
}
