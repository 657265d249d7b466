//! `lattice admin limits`.

use lattice_api::v1;
use lattice_api::v1::quota_change::To;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::ended_kept;
use lattice_cli_session::table::block;
use lattice_cli_syntax::args::admin::SetLimits;
use lattice_cli_syntax::args::tenant::Quota;
use lattice_model::millis;
use lattice_model::resources::bytes_text;

pub async fn run(session: &Session, args: SetLimits) -> Result<(), Failure> {
    let client = session.connect().await?;
    let sensitive_pool_size =
        if args.no_sensitive_pool_size { Some(Quota::Unlimited) } else { args.sensitive_pool_size.map(Quota::AtMost) };
    let asked = v1::SetLimitsRequest {
        sensitive_pool_size: change(sensitive_pool_size),
        user_pending: change(args.user_pending),
        user_running: change(args.user_running),
        user_submissions_per_second: change(args.user_submissions_per_second),
        user_script_bytes: change(args.user_script_bytes),
        user_history: change(args.user_history),
        tenant_pending: change(args.tenant_pending),
        budget_period_days: args.budget_period_days,
        share_policy: args.share_policy.map(|policy| policy.to_model().name().to_owned()),
        ended_kept_ms: args.ended_kept.map(millis),
        ended_memory_bytes: args.ended_memory,
        dag_size: args.dag_size,
        root_acts_for: args.root_acts_for.map(|whom| whom.to_model().name().to_owned()).unwrap_or_default(),
    };
    let limits = if asked == v1::SetLimitsRequest::default() {
        answer(client.admin().get_limits(v1::GetLimitsRequest {})).await?
    } else {
        answer(client.admin().set_limits(asked)).await?
    };
    match session.format() {
        Format::Table => print(&text(&limits)),
        Format::Data(notation) => notation.print(&json(&limits)),
        Format::Name => print_names([number(limits.sensitive_pool_size).as_str()]),
    }
}

fn text(limits: &v1::Limits) -> String {
    let ended = limits.ended.unwrap_or_default();
    block(&[
        ("Sensitive pool size", number(limits.sensitive_pool_size)),
        ("Nodes claimed for sensitive use", limits.sensitive_nodes.to_string()),
        ("Pending, of a user", number(limits.user_pending)),
        ("Running, of a user", number(limits.user_running)),
        ("Submissions a second, of a user", number(limits.user_submissions_per_second)),
        ("Bytes of scripts, of a user", number(limits.user_script_bytes)),
        ("Ended work shown, of a user", number(limits.user_history)),
        ("Pending, of a tenant", number(limits.tenant_pending)),
        ("Budget period, in days", limits.budget_period_days.to_string()),
        ("Share policy", limits.share_policy.clone()),
        ("Ended work is kept for", ended_kept(&ended)),
        ("Memory of ended work", bytes_text(ended.memory_bytes)),
        ("Steps of a DAG", limits.dag_size.to_string()),
        ("Root acts for", limits.root_acts_for.clone()),
    ])
}

fn json(limits: &v1::Limits) -> serde_json::Value {
    let ended = limits.ended.unwrap_or_default();
    serde_json::json!({
        "sensitive_pool_size": limits.sensitive_pool_size,
        "sensitive_nodes": limits.sensitive_nodes,
        "user_pending": limits.user_pending,
        "user_running": limits.user_running,
        "user_submissions_per_second": limits.user_submissions_per_second,
        "user_script_bytes": limits.user_script_bytes,
        "user_history": limits.user_history,
        "tenant_pending": limits.tenant_pending,
        "budget_period_days": limits.budget_period_days,
        "share_policy": limits.share_policy,
        "ended_kept_seconds": ended.kept_ms / 1000,
        "ended_memory_bytes": ended.memory_bytes,
        "dag_size": limits.dag_size,
        "root_acts_for": limits.root_acts_for,
    })
}

fn number(limit: Option<u32>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}

fn change(to: Option<Quota>) -> Option<v1::QuotaChange> {
    let to = match to? {
        Quota::Unlimited => To::Unlimited(true),
        Quota::AtMost(limit) => To::AtMost(limit),
    };
    Some(v1::QuotaChange { to: Some(to) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_for_whom_root_acts() {
        let limits = v1::Limits { user_pending: Some(100), root_acts_for: "itself".into(), ..v1::Limits::default() };
        let text = text(&limits);
        assert!(text.contains("Pending, of a user:               100\n"), "{text}");
        assert!(text.ends_with("Root acts for:                    itself\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json = json(&limits);
        assert_eq!((&json["root_acts_for"], &json["user_pending"]), (&serde_json::json!("itself"), &serde_json::json!(100)));
        assert!(json["tenant_pending"].is_null());
    }
}
