//! `lattice scale`.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, short};
use lattice_cli_syntax::args::scale::Scale;
use lattice_model::count::counted;

pub async fn run(session: &Session, args: Scale) -> Result<(), Failure> {
    let Scale { id, replicas } = args;
    let request = v1::ScaleRequest { key: session.resolve_key(&id)?, replicas };
    let scaled = answer(session.connect().await?.allocations().scale(request)).await?;
    match session.format() {
        Format::Table => print(&text(&scaled, replicas)),
        Format::Name => print(&format!("{}\n", scaled.id)),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "id": scaled.id,
            "wanted": replicas,
            "wanted_before": scaled.before,
            "metric": filled(&scaled.metric),
        })),
    }
}

fn text(scaled: &v1::ScaleResponse, replicas: u32) -> String {
    let wanted = format!("Service {}: {} wanted", short(&scaled.id), counted(replicas, "replica"));
    if scaled.before == replicas {
        return format!("{wanted}, as before\n");
    }
    let then = filled(&scaled.metric).map(|_| "After its cooldown it follows its metric again.\n").unwrap_or_default();
    format!("{wanted} ({} before)\n{then}", scaled.before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_now_and_was_before_is_printed() {
        let of = |before, metric: &str| v1::ScaleResponse { id: "1f0c9a4e-5b7d".into(), before, metric: metric.into() };
        assert_eq!(text(&of(3, ""), 4), "Service 1f0c9a4e: 4 replicas wanted (3 before)\n");
        assert_eq!(text(&of(1, "up"), 1), "Service 1f0c9a4e: 1 replica wanted, as before\n");
        let by_metric = "Service 1f0c9a4e: 2 replicas wanted (3 before)\nAfter its cooldown it follows its metric again.\n";
        assert_eq!(text(&of(3, "cpu_utilization"), 2), by_metric);
    }
}
