//! The events of which a user wants mail.

use crate::v1;
use lattice_model::mail::NoSuchMailEvent;
use lattice_model::{Mail, SpecError};
use std::collections::BTreeSet;

/// The model refuses a message without events.
pub(super) fn to_model(mail: Option<&v1::Mail>) -> Result<Option<Box<Mail>>, SpecError> {
    let Some(v1::Mail { events, user }) = mail else { return Ok(None) };
    let unknown = |error: NoSuchMailEvent| SpecError::Invalid { field: "mail-type", why: error.to_string() };
    let events = events.iter().map(|event| event.parse()).collect::<Result<BTreeSet<_>, _>>().map_err(unknown)?;
    Ok(Some(Box::new(Mail { events, user: user.clone() })))
}

pub(crate) fn from_model(mail: &Mail) -> v1::Mail {
    let Mail { events, user } = mail;
    v1::Mail { events: events.iter().map(ToString::to_string).collect(), user: user.clone() }
}
