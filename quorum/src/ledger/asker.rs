//! Who may ask for a command.

use lattice_model::{AllocationId, Principal};

/// Who may ask for a command, always through an agent of role `api`. It has the places where their name stands: a member
/// writes there whom it knows.
#[derive(Debug)]
pub enum Asker<'a> {
    /// Nobody: members propose it, by their clocks, for a session, or for a request of another form.
    Member,
    /// A user whom the agent authenticated, about this allocation. Applying it tells its owner, and root, from others.
    User(&'a mut Principal, AllocationId),
    /// A user whom the agent authenticated, of what is theirs from now on or already. `None`: it is the agent's.
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
