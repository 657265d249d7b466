//! `lattice admin tenant …`.

use super::member::TenantMembers;
use clap::{Args, Subcommand};
use lattice_model::preemption::CLASS_MAX;
use lattice_model::tenant::{BURST_PERCENT_MAX, BURST_PERCENT_MIN, WHOLE_CLUSTER_PPM};
use std::str::FromStr;
use thiserror::Error;

#[derive(Args)]
pub struct Tenant {
    #[command(subcommand)]
    pub command: TenantCommand,
}

#[derive(Subcommand)]
pub enum TenantCommand {
    /// Create a tenant; without quotas and budgets it has no limits
    Create(SetTenant),
    /// Change the quotas, share and budgets of a tenant; work that runs continues, even above a lower quota
    #[command(alias = "set-quota")]
    Update(SetTenant),
    /// List the tenants, their quotas, and how much of them is in use (-o wide: shares and budgets too)
    List,
    /// Show one tenant
    Show(ShowTenant),
    /// Delete a tenant that has no work; work under its name then has no quotas
    Delete(TenantName),
    /// Manage whose work belongs to a tenant
    Member(TenantMembers),
}

#[derive(Args)]
pub struct TenantName {
    /// The tenant
    #[arg(value_name = "NAME", required_unless_present = "named")]
    name: Option<String>,
    #[arg(long = "name", value_name = "NAME", hide = true, conflicts_with = "name")]
    named: Option<String>,
}

impl TenantName {
    pub fn get(self) -> String {
        self.name.or(self.named).unwrap_or_default()
    }
}

#[derive(Args)]
pub struct ShowTenant {
    #[command(flatten)]
    pub name: TenantName,
    #[arg(long, hide = true)]
    quotas: bool,
}

#[derive(Args)]
pub struct SetTenant {
    #[command(flatten)]
    pub name: TenantName,
    /// How many nodes all of its allocations may have at once; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub max_nodes: Option<Quota>,
    /// How many of its allocations may have nodes at once; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub max_concurrent_allocations: Option<Quota>,
    /// The part of the cluster that is meant for it, 0 to 1 (0.15 is 15 %): below it, its work is served earlier, above
    /// it later; `none`: no part in particular
    #[arg(long, value_name = "PART|none", value_parser = fair_share)]
    pub fair_share_target: Option<Quota>,
    /// How many times its share it may have used before its work is preempted first (1.5 is 150 %); `none`: once
    #[arg(long, value_name = "FACTOR|none", value_parser = burst_allowance)]
    pub burst_allowance: Option<Quota>,
    /// GPU-hours for its work in the budget period (`lattice admin limits`); from 80 % used on, its work is served later
    /// and later; `none`: no budget
    #[arg(long, value_name = "N|none")]
    pub gpu_hours_budget: Option<Quota<u64>>,
    /// Node-hours for its work in the budget period; `none`: no budget
    #[arg(long, value_name = "N|none")]
    pub node_hours_budget: Option<Quota<u64>>,
    /// The highest preemption class of its work, 0 to 10: a submission above it is refused; `none`: any
    #[arg(long, value_name = "CLASS|none", value_parser = class)]
    pub class_max: Option<Quota>,
}

/// A quota as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota<T = u32> {
    Unlimited,
    AtMost(T),
}

/// The text is not a quota.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write a number, or none")]
pub struct QuotaError;

impl<T: FromStr> FromStr for Quota<T> {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        match text {
            "none" => Ok(Self::Unlimited),
            number => number.parse().map(Self::AtMost).map_err(|_| QuotaError),
        }
    }
}

/// The text is not a part of the cluster, an allowance or a class.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SoftLimitError {
    #[error("write a part of the cluster from 0 to 1 with at most 6 decimals, as in 0.15, or none")]
    FairShare,
    #[error("write a factor from 1 to 1000 with at most 2 decimals, as in 1.5, or none")]
    BurstAllowance,
    #[error("write a class from 0 to {CLASS_MAX}, or none")]
    Class,
}

/// Parses a share, in millionths.
fn fair_share(text: &str) -> Result<Quota, SoftLimitError> {
    let part = |text| decimal(text, 6).filter(|ppm| *ppm <= WHOLE_CLUSTER_PPM).ok_or(SoftLimitError::FairShare);
    if text == "none" { Ok(Quota::Unlimited) } else { part(text).map(Quota::AtMost) }
}

/// Parses an allowance, in percent.
fn burst_allowance(text: &str) -> Result<Quota, SoftLimitError> {
    let is_allowance = |percent: &u32| (BURST_PERCENT_MIN..=BURST_PERCENT_MAX).contains(percent);
    let percent = |text| decimal(text, 2).filter(is_allowance).ok_or(SoftLimitError::BurstAllowance);
    if text == "none" { Ok(Quota::Unlimited) } else { percent(text).map(Quota::AtMost) }
}

fn class(text: &str) -> Result<Quota, SoftLimitError> {
    match text.parse() {
        Ok(Quota::AtMost(class)) if class > u32::from(CLASS_MAX) => Err(SoftLimitError::Class),
        Ok(class) => Ok(class),
        Err(QuotaError) => Err(SoftLimitError::Class),
    }
}

/// A number with at most this many decimals, times ten to their power. Without a conversion from a
/// float: 0.15 is 150,000 millionths exactly.
fn decimal(text: &str, decimals: usize) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > decimals {
        return None;
    }
    format!("{whole}{part:0<decimals$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_exactly_and_nothing_else_is_a_share() {
        let read = |text| fair_share(text).ok();
        for (text, ppm) in [("0.15", 150_000), ("0", 0), ("1", 1_000_000), ("1.000000", 1_000_000), ("0.000001", 1), ("00.5", 500_000)] {
            assert_eq!(read(text), Some(Quota::AtMost(ppm)), "{text}");
        }
        assert_eq!(read("none"), Some(Quota::Unlimited));
        for text in
            ["", ".", "-0.1", "+0.1", "1.1", "1.000001", "2", "0.0000001", "15%", "nan", "inf", "1e-1", ".5", "0.", "0.1.2", "99999999999"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_allowance_is_the_share_or_more() {
        let read = |text| burst_allowance(text).ok();
        for (text, percent) in [("1.5", 150), ("1", 100), ("2", 200), ("1.05", 105), ("1000", 100_000)] {
            assert_eq!(read(text), Some(Quota::AtMost(percent)), "{text}");
        }
        for text in ["0.99", "0", "-1", "1000.01", "1.005", "", "x"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn budgets_are_whole_hours_and_classes_0_to_10() {
        let hours = |text: &str| text.parse::<Quota<u64>>().ok();
        assert_eq!((hours("100000"), hours("none")), (Some(Quota::AtMost(100_000)), Some(Quota::Unlimited)));
        assert_eq!([hours("-1"), hours("1.5"), hours("x"), hours(""), hours("18446744073709551616")], [None; 5]);
        let read = |text| class(text).ok();
        assert_eq!([read("0"), read("10"), read("none")], [Some(Quota::AtMost(0)), Some(Quota::AtMost(10)), Some(Quota::Unlimited)]);
        assert_eq!([read("11"), read("-1"), read("x")], [None; 3]);
    }
}
