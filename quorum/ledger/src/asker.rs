//! Who may ask for a command.

use lattice_model::{AllocationId, Principal};

/// Who may ask for a command. Every request comes through an agent of role `api`. The variants borrow the fields with
/// the asker's name: the member that answers writes the name there that it has verified.
#[derive(Debug)]
pub enum Asker<'a> {
    /// No request may carry it. Members propose it: by a clock, for a session, or for a request such as
    /// `wire::Request::Submit`.
    Member,
    /// A user whom the agent authenticated, about this allocation. The ledger refuses all but its owner and root.
    User(&'a mut Principal, AllocationId),
    /// A user whom the agent authenticated, about what they own or come to own; their name is never changed.
    /// `None`: the agent owns it.
    Owner(Option<&'a mut Principal>),
    /// A user as above; or an operator, who may do more.
    UserOrOperator {
        /// Who asks.
        by: &'a mut Principal,
        /// About which allocation.
        allocation: AllocationId,
        /// Whether it is an operator: a member writes it.
        as_operator: &'a mut bool,
        /// Methods of the API that the operator's token may be signed for.
        methods: &'static [&'static str],
    },
    /// An operator, by a token that they signed for one of these methods of the API.
    Operator(&'a mut String, &'static [&'static str]),
}
