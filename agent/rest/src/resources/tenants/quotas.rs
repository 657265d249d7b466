//! The quotas of a tenant, as PUT brings them.

use crate::problem::Problem;
use lattice_api::v1;
use lattice_api::v1::{hours_change, quota_change};
use lattice_model::tenant::WHOLE_CLUSTER_PPM;
use serde::Deserialize;
use utoipa::ToSchema;

/// The quotas of a tenant. One that is left out stays as it is; null means no limit.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantQuotas {
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<u32>)]
    max_nodes: Option<Option<u32>>,
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<u32>)]
    max_concurrent_allocations: Option<Option<u32>>,
    /// A part of the cluster: 0 to 1, with at most six decimals.
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<f64>)]
    fair_share_target: Option<Option<f64>>,
    /// A multiple of the share: 1 or more, with at most two decimals.
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<f64>)]
    burst_allowance: Option<Option<f64>>,
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<u64>)]
    gpu_hours_budget: Option<Option<u64>>,
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<u64>)]
    node_hours_budget: Option<Option<u64>>,
    /// The highest preemption class of its work: 0 to 10.
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<u32>)]
    class_max: Option<Option<u32>>,
}

impl TenantQuotas {
    /// The request for the tenant of this name.
    pub(super) fn request(self, name: String) -> Result<v1::TenantRequest, Problem> {
        let share = |field: &'static str, value: Option<Option<f64>>, unit: u32| {
            let whole = |value: Option<f64>| value.map(|value| in_units(field, value, unit)).transpose();
            value.map(whole).transpose()
        };
        Ok(v1::TenantRequest {
            name,
            max_nodes: quota(self.max_nodes),
            max_concurrent_allocations: quota(self.max_concurrent_allocations),
            fair_share_target_ppm: quota(share("fair_share_target", self.fair_share_target, WHOLE_CLUSTER_PPM)?),
            burst_allowance_percent: quota(share("burst_allowance", self.burst_allowance, 100)?),
            gpu_hours_budget: hours(self.gpu_hours_budget),
            node_hours_budget: hours(self.node_hours_budget),
            class_max: quota(self.class_max),
            expected_version: None,
        })
    }
}

fn quota(limit: Option<Option<u32>>) -> Option<v1::QuotaChange> {
    let to = limit?.map_or(quota_change::To::Unlimited(true), quota_change::To::AtMost);
    Some(v1::QuotaChange { to: Some(to) })
}

fn hours(limit: Option<Option<u64>>) -> Option<v1::HoursChange> {
    let to = limit?.map_or(hours_change::To::Unlimited(true), hours_change::To::AtMost);
    Some(v1::HoursChange { to: Some(to) })
}

/// A decimal number as a whole number of units; `unit`: how many are 1.
fn in_units(field: &str, value: f64, unit: u32) -> Result<u32, Problem> {
    let units = value * f64::from(unit);
    let is_whole = (units - units.round()).abs() < 1e-6;
    if !(0.0..=f64::from(u32::MAX)).contains(&units) || !is_whole {
        return Err(Problem::invalid(format!("{field}: {value} is not a number from 0 on of whole {}", 1.0 / f64::from(unit))));
    }
    Ok(units.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: serde_json::Value) -> v1::TenantRequest {
        serde_json::from_value::<TenantQuotas>(value).unwrap().request("physics".to_owned()).unwrap()
    }

    #[test]
    fn null_lifts_a_limit_and_what_is_left_out_stays() {
        let request = read(serde_json::json!({ "max_nodes": 250, "class_max": null, "node_hours_budget": 500_000 }));
        let wanted = v1::TenantRequest {
            name: "physics".into(),
            max_nodes: Some(v1::QuotaChange { to: Some(quota_change::To::AtMost(250)) }),
            class_max: Some(v1::QuotaChange { to: Some(quota_change::To::Unlimited(true)) }),
            node_hours_budget: Some(v1::HoursChange { to: Some(hours_change::To::AtMost(500_000)) }),
            ..Default::default()
        };
        assert_eq!(request, wanted);
        assert!(serde_json::from_value::<TenantQuotas>(serde_json::json!({ "max_node": 1 })).is_err());
    }

    #[test]
    fn shares_are_decimal_numbers() {
        let request = read(serde_json::json!({ "fair_share_target": 0.15, "burst_allowance": 1.5 }));
        let at_most = |number| Some(v1::QuotaChange { to: Some(quota_change::To::AtMost(number)) });
        assert_eq!((request.fair_share_target_ppm, request.burst_allowance_percent), (at_most(150_000), at_most(150)));
        for wrong in [-0.1, 0.000_000_1, f64::NAN] {
            assert!(in_units("fair_share_target", wrong, WHOLE_CLUSTER_PPM).is_err(), "{wrong}");
        }
    }
}
