//! The log of both daemons on stderr: lines for people, or one JSON object a line for a log collector.
//!
//! `LATTICE_LOG` sets the level (directives of `tracing`), `LATTICE_LOG_FORMAT` the form. These are variables and not
//! settings, because errors in the settings are logged too.

use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use thiserror::Error;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

/// The variable for the level.
const LEVELS: &str = "LATTICE_LOG";
/// The level if the variable is not set.
const LEVELS_DEFAULT: &str = "info,openraft=off";
/// The variable for the form.
const FORMAT: &str = "LATTICE_LOG_FORMAT";

/// A form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// For programs: one object a line.
    Json,
}

/// For the daemons' `--help`.
pub const HELP: &str = "\
Environment:
  LATTICE_LOG         what is logged on stderr, by level and module, such as
                      info,lattice_allocation=debug
                      [default: info,openraft=off]
  LATTICE_LOG_FORMAT  text, or json (one object a line) [default: text]";

/// An invalid value in the environment.
#[derive(Debug, Error, PartialEq)]
pub enum Unknown {
    /// An unknown form.
    #[error("{FORMAT} is {0:?}: it must be `text` or `json`")]
    Form(String),
    /// A level: the text, and what is wrong with it.
    #[error("{LEVELS} is {0:?}: {1}; an example: `info,lattice_allocation=debug`")]
    Levels(String, String),
}

impl Form {
    /// The form that the environment requests; text if it is not set.
    ///
    /// # Errors
    /// The form is unknown, or the level cannot be parsed.
    pub fn wanted() -> Result<Self, Unknown> {
        let wanted = |variable| std::env::var_os(variable).unwrap_or_default().to_string_lossy().into_owned();
        levels(&wanted(LEVELS))?;
        Self::of(&wanted(FORMAT))
    }

    fn of(text: &str) -> Result<Self, Unknown> {
        match text {
            "" | "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(Unknown::Form(other.to_owned())),
        }
    }

    /// Starts the log of a process. `component` is its kind (`agent`, `quorum`), `node_id` its node's id or a member's
    /// name. In JSON form a panic is an object too.
    pub fn begin(self, component: &'static str, node_id: Option<&str>) {
        let wanted = std::env::var(LEVELS).unwrap_or_default();
        let filter = levels(&wanted).unwrap_or_else(|_| EnvFilter::new(LEVELS_DEFAULT));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
        match self {
            Self::Text => log.event_format(Lines(Format::default())).init(),
            Self::Json => {
                log.event_format(Objects { component, node_id: node_id.map(str::to_owned) }).init();
                std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "the process panicked")));
            }
        }
    }

    /// Logs why the process ends, as its last line.
    pub fn log_fatal(self, text: &str, error: &str) {
        match self {
            Self::Text => eprintln!("{text}: {error}"),
            Self::Json => tracing::error!(error, "the process ends"),
        }
    }
}

fn levels(text: &str) -> Result<EnvFilter, Unknown> {
    let wanted = if text.is_empty() { LEVELS_DEFAULT } else { text };
    EnvFilter::try_new(wanted).map_err(|e| Unknown::Levels(text.to_owned(), e.to_string()))
}

/// Events as lines for people. They have texts that users chose, such as paths: none begins a line of its own, which would
/// look like another event, and none reaches the terminal of who reads the log as a control code.
struct Lines(Format);

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        for character in line.strip_suffix('\n').unwrap_or(&line).chars() {
            if character.is_control() {
                write!(writer, "{}", character.escape_default())?;
            } else {
                writer.write_char(character)?;
            }
        }
        writeln!(writer)
    }
}

/// Events as objects.
struct Objects {
    component: &'static str,
    node_id: Option<String>,
}

/// One line: the common fields, and the event's own.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: String,
    level: &'static str,
    component: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<&'a str>,
    message: String,
    /// The module of the program.
    target: &'a str,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl<S, N> FormatEvent<S, N> for Objects
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let about = event.metadata();
        let line = Line {
            timestamp,
            level: about.level().as_str(),
            component: self.component,
            node_id: self.node_id.as_deref(),
            message: fields.message,
            target: about.target(),
            more: fields.more,
        };
        let line = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        for character in line.chars() {
            // A terminal obeys these too; JSON escapes only those below U+0020.
            if character.is_control() {
                write!(writer, "\\u{:04x}", u32::from(character))?;
            } else {
                writer.write_char(character)?;
            }
        }
        writeln!(writer)
    }
}

/// The fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    more: Map<String, Value>,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: Value) {
        // Numbers and texts keep their names. `node_id` is the logging node; an event about another node has `node`.
        let name = match field.name() {
            "allocation" => "allocation_id".to_owned(),
            name @ ("timestamp" | "level" | "component" | "node_id" | "target") => format!("event_{name}"),
            name => name.to_owned(),
        };
        self.more.insert(name, value);
    }

    fn add_text(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.add(field, Value::from(text));
        }
    }
}

impl Visit for EventFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_text(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add_text(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io::Write;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_has_the_required_fields_and_those_of_the_event() {
        let captured = Captured::default();
        let to = captured.clone();
        let form = Objects { component: "agent", node_id: Some("n1".to_owned()) };
        let log = tracing_subscriber::fmt().with_writer(move || to.clone()).event_format(form).finish();
        tracing::subscriber::with_default(log, || {
            let allocation = "1f0c9a4e";
            tracing::warn!(%allocation, pid = 7, ok = false, level = "a\"b\n\u{9b}2J", "it {}", "ends");
        });
        let text = String::from_utf8(captured.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with(r#"{"timestamp":"2"#) && !text.trim_end_matches('\n').contains(char::is_control), "{text}");
        let mut line: Value = serde_json::from_str(&text).unwrap();
        let timestamp = line["timestamp"].take();
        assert!(timestamp.as_str().is_some_and(|t| t.ends_with('Z')), "{timestamp}");
        let want = serde_json::json!({
            "timestamp": null, "level": "WARN", "component": "agent", "node_id": "n1", "message": "it ends",
            "target": "lattice_telemetry::logging::tests", "allocation_id": "1f0c9a4e", "pid": 7, "ok": false, "event_level": "a\"b\n\u{9b}2J",
        });
        assert_eq!(line, want);
    }

    #[test]
    fn a_text_of_a_user_neither_begins_a_line_nor_reaches_the_terminal() {
        let captured = Captured::default();
        let to = captured.clone();
        let log = tracing_subscriber::fmt().with_writer(move || to.clone()).with_ansi(false).event_format(Lines(Format::default()));
        tracing::subscriber::with_default(log.finish(), || {
            let why = "/home/eve/a\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J\u{9b}2J: no space";
            tracing::warn!(%why, "a file of {} could not be written", "eve\r\n");
        });
        let text = String::from_utf8(captured.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end_matches('\n').contains(char::is_control), "{text:?}");
        assert!(text.contains("a file of eve\\r\\n could not be written why=/home/eve/a\\n2026"), "{text}");
    }

    #[test]
    fn an_unknown_form_is_refused() {
        assert_eq!((Form::of(""), Form::of("text"), Form::of("json")), (Ok(Form::Text), Ok(Form::Text), Ok(Form::Json)));
        assert!(Form::of("JSON").unwrap_err().to_string().contains("`text` or `json`"));
    }
}
