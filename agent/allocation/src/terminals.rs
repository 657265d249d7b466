//! Attached terminals of one allocation on this node, and which of them its shim has started.

use lattice_model::RankOutcome;
use lattice_registry::{News, OpenTerminal};
use lattice_runtime::shim::ToShim;
use std::collections::BTreeMap;

/// The terminals by session. One that is no longer wanted is removed when it ends.
#[derive(Default)]
pub(super) struct Terminals {
    open: BTreeMap<u64, Open>,
}

struct Open {
    terminal: OpenTerminal,
    started: bool,
}

impl Terminals {
    pub(super) fn open(&mut self, terminal: OpenTerminal) {
        self.open.insert(terminal.session, Open { terminal, started: false });
    }

    /// The requests for terminals that the shim has not confirmed. A repeated request starts
    /// nothing twice.
    pub(super) fn wanted(&mut self) -> Vec<ToShim> {
        self.open.retain(|_, open| open.started || !open.terminal.news.is_closed());
        let message = |OpenTerminal { session, tty, argv, env, working_dir, .. }: &OpenTerminal| ToShim::Attach {
            session: *session,
            tty: tty.clone(),
            argv: argv.clone(),
            env: env.clone(),
            working_dir: working_dir.clone(),
        };
        self.open.values().filter(|open| !open.started).map(|open| message(&open.terminal)).collect()
    }

    pub(super) fn started(&mut self, session: u64) {
        // Unknown sessions are of an earlier run of this agent, and were hung up when it ended.
        if let Some(open) = self.open.get_mut(&session)
            && !std::mem::replace(&mut open.started, true)
        {
            let _ = open.terminal.news.try_send(News::Started);
        }
    }

    pub(super) fn ended(&mut self, session: u64, outcome: RankOutcome, why: Option<String>) {
        if let Some(open) = self.open.remove(&session) {
            let _ = open.terminal.news.try_send(News::Ended { outcome, why });
        }
    }

    /// The shim is dead: all terminals are lost.
    pub(super) fn lost(&mut self, why: &str) {
        for open in std::mem::take(&mut self.open).into_values() {
            let _ = open.terminal.news.try_send(News::Lost { why: why.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn terminal(session: u64) -> (OpenTerminal, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel(2);
        (OpenTerminal { session, tty: "/dev/pts/7".into(), argv: vec![], env: vec![], working_dir: "/".into(), news }, receiver)
    }

    #[test]
    fn a_terminal_that_the_shim_lacks_is_requested_again_unless_it_is_closed() {
        let mut terminals = Terminals::default();
        let (one, mut news) = terminal(1);
        let (two, gone) = terminal(2);
        let (three, mut third) = terminal(3);
        for terminal in [one, two, three] {
            terminals.open(terminal);
        }
        drop(gone);
        let sessions = |wanted: Vec<ToShim>| -> Vec<u64> {
            wanted.iter().map(|m| if let ToShim::Attach { session, .. } = m { *session } else { panic!("{m:?}") }).collect()
        };
        assert_eq!(sessions(terminals.wanted()), [1, 3]);
        terminals.started(1);
        terminals.started(1);
        terminals.started(99);
        assert_eq!(sessions(terminals.wanted()), [3]);
        terminals.ended(1, RankOutcome::Exited { code: 3 }, None);
        assert_eq!(news.try_recv(), Ok(News::Started));
        assert_eq!(news.try_recv(), Ok(News::Ended { outcome: RankOutcome::Exited { code: 3 }, why: None }));
        assert!(news.try_recv().is_err());
        terminals.lost("its shim is gone");
        assert_eq!(third.try_recv(), Ok(News::Lost { why: "its shim is gone".into() }));
        assert_eq!(sessions(terminals.wanted()), [0; 0]);
    }
}
