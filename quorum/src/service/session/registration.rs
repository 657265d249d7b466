//! The registration at the beginning of a session.

use super::link::Ended;
use crate::core::Core;
use lattice_ledger::Registration;
use lattice_model::conformance::Components;
use lattice_pki::identity::Caller;
use lattice_pki::refused::Cause;
use lattice_quorum_client::wire::{HeldKeys, NodeHealth, Up};
use std::net::IpAddr;
use tonic::Status;

/// The components if they are valid for the log.
pub(super) fn checked(node: &str, components: Components) -> Option<Components> {
    match lattice_model::conformance::check(&components) {
        Ok(()) => Some(components),
        Err(why) => {
            tracing::warn!(node, %why, "the node's conformance report was refused");
            None
        }
    }
}

/// Splits a registration into the command, the agent's gossip keys and the node's health, each
/// checked and limited in size.
pub(super) fn read_registration(
    core: &Core,
    (caller, from): (&Caller, Option<IpAddr>),
    up: Up,
) -> Result<(Registration, HeldKeys, NodeHealth), Ended> {
    let Up::Register {
        node,
        boot,
        size,
        addresses,
        schedulable,
        incarnation,
        new_life,
        replaces,
        unenforced_limits,
        features,
        topology_group,
        locality,
        found,
        keys,
        relay_node,
        has_wipe_hook,
        health,
        conformance,
    } = up
    else {
        return Err(Ended::Refused(Status::invalid_argument("a session begins with a registration")));
    };
    if node.as_str() != caller.name {
        let why = format!("the certificate is {}'s, the registration {node}'s", caller.name);
        core.identity.credentials.refused().count(Cause::Name, &why);
        return Err(Ended::Refused(Status::permission_denied(why)));
    }
    let health = health.bounded();
    let registration = Registration {
        node,
        boot,
        size,
        addresses,
        schedulable,
        incarnation,
        new_life,
        replaces,
        unenforced_limits,
        features,
        topology_group,
        locality,
        found,
        relay_node,
        has_wipe_hook,
        unwell: health.unwell().map(str::to_owned),
        conformance: conformance.and_then(|components| checked(&caller.name, components)),
        automatic: false,
        from: from.map(|from| from.to_string()),
    };
    Ok((registration, keys.bounded(), health))
}
