//! What is the matter with this node since its agent was started: said in `lattice node status` beside what it lacks.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One line a subject, the latest. Cloneable; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Troubles {
    /// Says what is the matter, and until when.
    pub fn say(&self, subject: &'static str, text: String) {
        self.0.lock().insert(subject, text);
    }

    /// It is well again.
    pub fn over(&self, subject: &'static str) {
        self.0.lock().remove(subject);
    }

    /// All of them, as lines for people.
    pub fn lines(&self) -> Vec<String> {
        let troubles = self.0.lock();
        troubles.iter().map(|(subject, text)| format!("{subject}: {text}")).collect()
    }
}
