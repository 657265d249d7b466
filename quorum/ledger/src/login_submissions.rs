//! Submissions of users whose login names tenants: the site maps groups of the identity provider to tenants.
//!
//! Such a membership is valid for one command and is not stored, because the next login may name other tenants.

use super::action::Action;
use super::{ApplyContext, Ledger, Outcome};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::LOGIN_TENANTS_MAX;
use std::collections::BTreeSet;

impl Action {
    /// The same submission by a user whose login names these tenants.
    pub fn by_login(self, tenants: BTreeSet<String>) -> Self {
        if tenants.is_empty() { self } else { Self::SubmitByLogin { tenants, submission: Box::new(self) } }
    }

    /// The submission itself, without the tenants of the login.
    pub fn submission(&self) -> &Self {
        match self {
            Self::SubmitByLogin { submission, .. } => submission,
            other => other,
        }
    }
}

impl Ledger {
    pub(super) fn submit_by_login(
        &mut self,
        context: &mut ApplyContext,
        tenants: &BTreeSet<String>,
        submission: &Action,
    ) -> Result<Outcome, Refusal> {
        if !matches!(submission, Action::Submit { .. } | Action::SubmitDag { .. }) {
            return Err(Refusal::Malformed { why: format!("{} is no submission", submission.name()) });
        }
        if tenants.len() > LOGIN_TENANTS_MAX {
            return Err(Refusal::TooMany { what: "tenants of one login".to_owned(), most: LOGIN_TENANTS_MAX as u64 });
        }
        context.login_tenants.clone_from(tenants);
        submission.apply(self, context)
    }
}
