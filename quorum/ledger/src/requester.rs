//! Who may request a command.

use lattice_model::{AllocationId, DagId, Principal};

/// Who may request a command. Every request comes through an agent with the role `api`. The
/// variants borrow the fields with the requester's name: the answering member writes the verified
/// name there.
#[derive(Debug)]
pub enum Requester<'a> {
    /// No request may contain it. Members propose it themselves: for a clock, a session, or a
    /// request such as `lattice_quorum_client::wire::Request::Submit`.
    Member,
    /// A user authenticated by the agent, about this allocation. The ledger refuses users who may not
    /// act on it by the table of `lattice_model::access`.
    User(&'a mut Principal, AllocationId),
    /// As [`Self::User`], about all allocations of this DAG.
    UserOfDag(&'a mut Principal, DagId),
    /// A user authenticated by the agent, about objects that the user owns or will own; the name is
    /// never changed. `None`: the agent is the owner.
    Owner(Option<&'a mut Principal>),
    /// As [`Self::User`]; or an operator, who may do more.
    UserOrOperator {
        /// The requester.
        by: &'a mut Principal,
        /// The allocation.
        allocation: AllocationId,
        /// Whether the requester has proved to be an operator; set by the member. The ledger does not derive it from
        /// roles: the request may come from work, where roles never count.
        as_operator: &'a mut bool,
        /// The API methods for which the operator's proof may be.
        methods: &'static [&'static str],
    },
    /// As [`Self::Owner`]; or an operator, who may do so with everybody's objects.
    OwnerOrOperator {
        /// The requester.
        by: &'a mut Principal,
        /// Whether the requester has proved to be an operator; set by the member.
        as_operator: &'a mut bool,
        /// The API methods for which the operator's proof may be.
        methods: &'static [&'static str],
    },
    /// An operator with a signed token for one of these API methods, or an account whose roles allow one
    /// of them.
    Operator(&'a mut String, &'static [&'static str]),
}
