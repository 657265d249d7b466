//! The screen's tabs and modes, the actions that it requests, and the changes that reach it.

use super::snapshot::{NodeList, OwnUsage, Work};
use lattice_model::time::Timestamp;

/// The four lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Queue,
    Nodes,
    Usage,
    Alerts,
}

impl Tab {
    /// All tabs, in display order.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Nodes, Self::Usage, Self::Alerts];

    /// The name that is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "Queue",
            Self::Nodes => "Nodes",
            Self::Usage => "Usage",
            Self::Alerts => "Alerts",
        }
    }

    /// The tab `by` places further; the first one follows the last.
    pub fn shifted(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// What the keys do at present.
#[derive(Debug, Default)]
pub enum Mode {
    /// Moving in a list.
    #[default]
    Browse,
    /// Typing the filter.
    Filter,
    Help,
    /// Reading a text, from this line on.
    Text {
        title: String,
        text: String,
        top: usize,
    },
    /// Answering y or n.
    Confirm {
        question: String,
        request: Request,
    },
    /// Typing why a node is drained.
    DrainReason {
        node: String,
        reason: String,
    },
}

/// A request to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Explain(String),
    Details(String),
    Cancel(String),
    Drain { node: String, reason: String },
    Undrain(String),
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    Suspend,
    Redraw,
    Ask(Request),
    /// Fetch the work of all users, or only one's own.
    ShowUsers {
        all: bool,
    },
}

/// An event from outside the screen.
#[derive(Debug)]
pub enum Change {
    Tick(Timestamp),
    Size {
        columns: u16,
        rows: u16,
    },
    Nodes(Timestamp, NodeList),
    Work(Timestamp, Box<Work>),
    Usage(Timestamp, Vec<OwnUsage>),
    /// The agent does not answer, and why.
    Lost(String),
    /// The answer to a question, as a text to read.
    Answered {
        request: Request,
        title: String,
        text: String,
    },
    /// A request was carried out, or refused with a reason and a remedy.
    Done {
        request: Request,
        result: Result<String, String>,
    },
}

/// A message about what the user did.
#[derive(Debug)]
pub struct Message {
    pub text: String,
    pub is_failure: bool,
    pub since: Timestamp,
}
