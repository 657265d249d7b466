//! `lattice watch`.

use super::top::value::{age_text, value_text};
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::measurements::MetricsEventJson;
use lattice_api::v1;
use lattice_api::v1::metrics_event::What;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_session::table::Rows;
use lattice_cli_syntax::args::watching::Watch;
use lattice_model::time::Timestamp;
use lattice_model::{AllocationState, millis};

/// The note after a reconnect.
const RECONNECTED_NOTE: &str = "connected again; alerts may have changed meanwhile: all that are raised now follow";
const HEADING: &[&str] = &["TIME", "NODE", "WHAT", "VALUE", "SOURCE", "AGE"];

pub async fn run(session: &Session, args: Watch) -> Result<(), Failure> {
    let key = session.resolve_key(&args.id)?;
    let interval_ms = millis(args.interval);
    let request = v1::StreamMetricsRequest { key, interval_ms, alerts_only: args.alerts_only, metrics: args.metrics };
    let mut watching = Watching { session, request, rows: Rows::new(HEADING), retries: Retries::default() };
    let mut client = session.connect().await?;
    loop {
        match watching.once(&client).await {
            Ok(state) => {
                session.note(&format!("the allocation is {state}"));
                return Ok(());
            }
            Err(failure) if watching.retries.should_retry(&failure) => {
                client = watching.retries.reconnect(session, failure).await?;
                let what = Some(What::Notice(RECONNECTED_NOTE.to_owned()));
                watching.show(&v1::MetricsEvent { at_ms: now().0, node: String::new(), what })?;
            }
            // A refusal may mean that it ended while we were disconnected.
            Err(failure) if watching.retries.has_progressed() && failure.exit() == Exit::Refused as u8 => {
                let key = watching.request.key.clone();
                let found = answer(client.allocations().get(v1::GetAllocationRequest { key, stale: false })).await?;
                if !state_from_name(&found.state).is_ok_and(AllocationState::is_terminal) {
                    return Err(failure);
                }
                session.note(&format!("the allocation is {}", found.state));
                let what = Some(What::Ended(found.state));
                return watching.show(&v1::MetricsEvent { at_ms: now().0, node: String::new(), what });
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// State that is kept over connections.
struct Watching<'a> {
    session: &'a Session,
    request: v1::StreamMetricsRequest,
    rows: Rows,
    retries: Retries,
}

impl Watching<'_> {
    /// Watches on one connection, to the allocation's end; returns its last state.
    async fn once(&mut self, client: &Client) -> Result<String, Failure> {
        let mut stream = client.allocations().stream_metrics(self.request.clone()).await?.into_inner();
        while let Some(event) = stream.message().await? {
            self.retries.record_progress();
            self.show(&event)?;
            if let Some(What::Ended(state)) = event.what {
                return Ok(state);
            }
        }
        Err(Failure::new(Exit::Unavailable, "the agent stopped sending numbers").hint("`lattice node status` shows whether it runs"))
    }

    fn show(&mut self, event: &v1::MetricsEvent) -> Result<(), Failure> {
        match self.session.format() {
            Format::Table => {
                let rows = rows(event);
                if rows.is_empty() { Ok(()) } else { print(&self.rows.text(&rows)) }
            }
            Format::Data(notation) => match MetricsEventJson::of(event) {
                Some(line) => notation.print_each(&[line]),
                None => Ok(()),
            },
            // The subject of the event.
            Format::Name => match &event.what {
                Some(What::Alert(alert)) => print_names([alert.alert.as_str()]),
                _ => Ok(()),
            },
        }
    }
}

fn rows(event: &v1::MetricsEvent) -> Vec<Vec<String>> {
    let time = Timestamp(event.at_ms).to_string();
    let row = |what: &str, value: String, source: &str, age: String| {
        vec![time.clone(), event.node.clone(), what.to_owned(), value, source.to_owned(), age]
    };
    match &event.what {
        Some(What::Metrics(usage)) => {
            let one = |one: &v1::Measured| row(&one.name, value_text(one.now, &one.unit), &one.source, age_text(usage.age_ms));
            usage.measured.iter().map(one).collect()
        }
        Some(What::Alert(alert)) => {
            let label = if alert.raised { "ALERT" } else { "cleared" };
            let value = format!("{} ({}): {}", alert.alert, alert.severity, alert.text);
            vec![row(label, value, "agent", age_text(alert.for_ms))]
        }
        Some(What::Unreachable(why)) => vec![row("unreachable", why.clone(), "", String::new())],
        Some(What::Notice(text)) => vec![row("note", text.clone(), "", String::new())],
        Some(What::Ended(state)) => vec![row("end", state.clone(), "", String::new())],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: What) -> v1::MetricsEvent {
        v1::MetricsEvent { at_ms: 0, node: "n1".into(), what: Some(what) }
    }

    fn json(event: &v1::MetricsEvent) -> serde_json::Value {
        serde_json::to_value(MetricsEventJson::of(event).unwrap()).unwrap()
    }

    #[test]
    fn a_line_says_who_what_how_much_by_what_and_how_old() {
        let one = v1::Measured { name: "cpu_cores".into(), unit: "cores".into(), source: "cgroup2".into(), now: 1.5, ..Default::default() };
        let usage = v1::NodeUsage { node: "n1".into(), age_ms: 700, measured: vec![one.clone(), one], ..Default::default() };
        let numbers = event(What::Metrics(usage));
        let lines = rows(&numbers);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0][1..], ["n1", "cpu_cores", "1.50 cores", "cgroup2", "0.7 s"]);
        let alert = v1::MetricAlert {
            alert: "hang".into(),
            severity: "warning".into(),
            raised: true,
            for_ms: 2000,
            text: "launch 1".into(),
            launch: Some(1),
        };
        let alert = event(What::Alert(alert));
        assert_eq!(rows(&alert)[0][1..], ["n1", "ALERT", "hang (warning): launch 1", "agent", "2.0 s"]);
        let line = json(&alert);
        assert_eq!((&line["event"], &line["node"], &line["raised"]), (&"alert".into(), &"n1".into(), &true.into()));
        assert_eq!(json(&numbers)["measured"][1]["now"], 1.5);
        let end = v1::MetricsEvent { node: String::new(), ..event(What::Ended("Completed".into())) };
        assert!(json(&end)["node"].is_null());
        assert!(rows(&v1::MetricsEvent::default()).is_empty());
    }
}
