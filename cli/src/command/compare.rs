//! `lattice compare`.

use super::top::value::{age_text, value_text};
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::watching::Compare;
use lattice_model::time::Timestamp;
use std::collections::BTreeMap;

pub async fn run(session: &Session, args: Compare) -> Result<(), Failure> {
    let keys = args.ids.iter().map(|id| session.resolve_key(id)).collect::<Result<Vec<_>, _>>()?;
    let client = session.connect().await?;
    let comparison = answer(client.allocations().compare(v1::CompareRequest { keys, metric: args.metric })).await?;
    match session.format() {
        Format::Table => print(&text(&comparison, session.table_size()))?,
        Format::Data(notation) => notation.print(&json(&comparison))?,
        Format::Name => print_names(comparison.allocations.iter().filter(|one| !one.source.is_empty()).map(|one| one.allocation.as_str()))?,
    }
    for one in comparison.allocations.iter().filter(|one| !one.note.is_empty()) {
        session.note(&format!("{}: {}", short(&one.allocation), one.note));
    }
    if comparison.allocations.iter().all(|one| one.source.is_empty()) {
        return Err(Failure::new(Exit::Unavailable, "none of these allocations has measurements")
            .hint("the lines above say why: for ended work, a store for metrics must be configured"));
    }
    Ok(())
}

/// How the table is made narrower.
const FIT: Fit<'_> = Fit { left_out: &["AGE", "SOURCE"], shortened: &[("STARTED", 20)], wrapped: &[], left_out_last: &[] };

/// A table with one line for each allocation. If the store has the data, also a table with one line for each time step;
/// the steps of each allocation are counted from its own start.
fn text(comparison: &v1::CompareResponse, size: TableSize) -> String {
    let value = |value: Option<f64>| value.map(|value| value_text(value, &comparison.unit)).unwrap_or_default();
    let mut table = Table::new(&["ALLOCATION", "STARTED", "RAN", "MEAN", "MAX", "SOURCE", "AGE"]);
    for one in &comparison.allocations {
        table.row(vec![
            short(&one.allocation).to_owned(),
            Timestamp(one.started_at_ms).to_string(),
            format!("{} s", one.ran_ms / 1000),
            value(one.mean),
            value(one.max),
            one.source.clone(),
            one.age_ms.map(age_text).unwrap_or_default(),
        ]);
    }
    let mut text = format!("{}, of all nodes together\n{}", comparison.metric, table.on_screen(&[], &FIT, size));
    let mut steps: BTreeMap<u64, Vec<Option<f64>>> = BTreeMap::new();
    for (n, one) in comparison.allocations.iter().enumerate() {
        for point in &one.points {
            steps.entry(point.at_ms).or_insert_with(|| vec![None; comparison.allocations.len()])[n] = Some(point.value);
        }
    }
    if !steps.is_empty() {
        // One column for each allocation.
        let width = 14;
        text += &format!("\n{:>10}", "FROM START");
        comparison.allocations.iter().for_each(|one| text += &format!("  {:>width$}", short(&one.allocation)));
        text.push('\n');
        for (at_ms, values) in steps {
            text += &format!("{:>10}", format!("{} s", at_ms / 1000));
            for one in values {
                let cell = one.map_or_else(|| lattice_cli_session::table::NOTHING.to_owned(), |one| value_text(one, &comparison.unit));
                text += &format!("  {cell:>width$}");
            }
            text.push('\n');
        }
    }
    text
}

fn json(comparison: &v1::CompareResponse) -> serde_json::Value {
    let one = |one: &v1::Compared| {
        let point = |point: &v1::compared::Point| serde_json::json!({"at_ms": point.at_ms, "value": point.value});
        serde_json::json!({
            "allocation": one.allocation, "started_at_ms": one.started_at_ms, "ran_ms": one.ran_ms,
            "source": (!one.source.is_empty()).then_some(&one.source), "note": (!one.note.is_empty()).then_some(&one.note),
            "age_ms": one.age_ms, "mean": one.mean, "max": one.max, "points": one.points.iter().map(point).collect::<Vec<_>>(),
        })
    };
    serde_json::json!({
        "metric": comparison.metric, "unit": comparison.unit, "step_ms": comparison.step_ms,
        "allocations": comparison.allocations.iter().map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::v1::compared::Point;

    #[test]
    fn both_are_counted_from_their_own_start() {
        let one = |allocation: &str, points: Vec<Point>| v1::Compared {
            allocation: allocation.into(),
            ran_ms: 60_000,
            source: "store".into(),
            age_ms: Some(1000),
            mean: Some(1.0),
            max: Some(2.0),
            points,
            ..Default::default()
        };
        let point = |at_ms, value| Point { at_ms, value };
        let comparison = v1::CompareResponse {
            metric: "cpu_cores".into(),
            unit: "cores".into(),
            step_ms: 30_000,
            allocations: vec![one("aaaaaaaa-1", vec![point(0, 1.0), point(30_000, 2.0)]), one("bbbbbbbb-2", vec![point(30_000, 1.5)])],
        };
        let want = "\
cpu_cores, of all nodes together
ALLOCATION  STARTED                   RAN   MEAN        MAX         SOURCE  AGE
aaaaaaaa    1970-01-01T00:00:00.000Z  60 s  1.00 cores  2.00 cores  store   1.0 s
bbbbbbbb    1970-01-01T00:00:00.000Z  60 s  1.00 cores  2.00 cores  store   1.0 s

FROM START        aaaaaaaa        bbbbbbbb
       0 s      1.00 cores               —
      30 s      2.00 cores      1.50 cores
";
        assert_eq!(text(&comparison, TableSize::default()), want);
        assert_eq!(json(&comparison)["allocations"][1]["points"][0]["at_ms"], 30_000);
    }
}
