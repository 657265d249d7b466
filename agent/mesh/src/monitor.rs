//! The wire form of monitoring: numbers as they are measured, alerts as they are raised and
//! cleared, and how long a launch's ranks have been idle.

use super::frame::FrameError;
use super::usage::WireUsage;
use rkyv::{Archive, Deserialize, Serialize};

/// Metrics that one request may name.
pub const METRICS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 1000;

/// A request about an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct MonitorOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
    pub what: MonitorWhat,
}

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum MonitorWhat {
    /// Alerts, and numbers every `interval_ms`, until the work ends here. `interval_ms` 0: no
    /// numbers. `metrics`: only these names; empty: all. The answer is a sequence of
    /// [`MonitorItem`]s, first [`MonitorItem::Begun`].
    Follow { interval_ms: u64, metrics: Vec<String> },
    /// How long this node's ranks of a launch have been idle. Answered by one
    /// [`MonitorItem::Idle`].
    Idle { launch: u32 },
}

/// An item of the answer.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum MonitorItem {
    Refused {
        why: String,
    },
    /// Monitoring has begun. All alerts that are raised now follow.
    Begun,
    Metrics(WireUsage),
    Alert(Box<WireAlert>),
    /// Changes of alerts were lost. All alerts that are raised now follow.
    Missed,
    /// Nothing to report; the agent is alive.
    Alive,
    /// `idle_ms` is `None` if there are no such ranks. `moved`: the agent saw the ranks active
    /// before; if not, they may have been idle for longer.
    Idle {
        idle_ms: Option<u64>,
        moved: bool,
    },
}

/// An alert that was raised or cleared.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireAlert {
    pub alert: String,
    pub launch: Option<u32>,
    pub severity: String,
    pub raised: bool,
    /// Time since the alert was raised.
    pub for_ms: u64,
    pub text: String,
}

impl MonitorItem {
    /// Checks the bounds and refuses control characters: names and texts are printed on users'
    /// terminals.
    pub fn checked(self) -> Result<Self, FrameError> {
        let plain = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        match self {
            Self::Metrics(usage) => usage.checked().map(Self::Metrics),
            Self::Alert(alert) if [&alert.alert, &alert.severity, &alert.text].into_iter().all(plain) => Ok(Self::Alert(alert)),
            Self::Alert(_) => Err(FrameError::Malformed),
            Self::Refused { why } => {
                Ok(Self::Refused { why: why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect() })
            }
            other @ (Self::Begun | Self::Missed | Self::Alive | Self::Idle { .. }) => Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[tokio::test]
    async fn an_alert_survives_the_wire_and_an_alert_out_of_bounds_is_refused() {
        let alert = WireAlert {
            alert: "hang".into(),
            launch: Some(1),
            severity: "warning".into(),
            raised: true,
            for_ms: 5,
            text: "launch 1".into(),
        };
        let item = MonitorItem::Alert(Box::new(alert.clone()));
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &item).await.unwrap();
        assert_eq!(frame::read::<MonitorItem, _>(&mut bytes.as_slice()).await.unwrap().checked().unwrap(), item);
        for bad in [WireAlert { text: "a\u{1b}[2J".into(), ..alert.clone() }, WireAlert { alert: "a".repeat(1001), ..alert }] {
            assert!(MonitorItem::Alert(Box::new(bad)).checked().is_err());
        }
    }
}
