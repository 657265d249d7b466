//! What a caller's authentication adds to a command: the tenants that a login names (an identity provider's groups, which
//! the site maps to tenants), and the token of the cluster, which the audit records of the command name.
//!
//! Such a membership is valid for one command and is not stored, because the next login may name other tenants.

use super::action::Action;
use super::{ApplyContext, Ledger, Outcome};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::LOGIN_TENANTS_MAX;
use lattice_model::access_token::TokenId;
use std::collections::BTreeSet;

impl Action {
    /// The same submission by a user whose login names these tenants.
    pub fn by_login(self, tenants: BTreeSet<String>) -> Self {
        if tenants.is_empty() { self } else { Self::SubmitByLogin { tenants, submission: Box::new(self) } }
    }

    /// The same command, requested with this token; `None`: with none of the cluster.
    pub fn by_token(self, token: Option<TokenId>) -> Self {
        match token {
            Some(token) => Self::ByToken { token, action: Box::new(self) },
            None => self,
        }
    }

    /// The command without what a login or a token adds to it.
    pub fn submission(&self) -> &Self {
        match self {
            Self::SubmitByLogin { submission, .. } => submission,
            Self::ByToken { action, .. } => action.submission(),
            other => other,
        }
    }
}

impl Ledger {
    pub(super) fn apply_by_token(&mut self, context: &mut ApplyContext, token: TokenId, action: &Action) -> Result<Outcome, Refusal> {
        context.token = Some(token);
        let result = action.apply(self, context);
        // What follows from it for other work is nobody's request.
        context.token = None;
        result
    }

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
