//! Problems of this node since its agent started. `lattice node status` shows them.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The latest line of each subject. All clones share one table.
#[derive(Clone, Debug, Default)]
pub struct NodeProblems(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl NodeProblems {
    /// Sets the problem of a subject; it replaces the subject's earlier one.
    pub fn set(&self, subject: &'static str, text: String) {
        self.0.lock().insert(subject, text);
    }

    /// Clears the problem of a subject.
    pub fn clear(&self, subject: &'static str) {
        self.0.lock().remove(subject);
    }

    /// All problems, one line each, for people.
    pub fn lines(&self) -> Vec<String> {
        let problems = self.0.lock();
        problems.iter().map(|(subject, text)| format!("{subject}: {text}")).collect()
    }
}
