//! `sinfo`.

use crate::failure::Failure;
use crate::session::Session;
use std::ffi::OsString;

pub async fn run(_session: &Session, _args: &[OsString]) -> Result<u8, Failure> {
    Err(Failure::other("sinfo is not written yet"))
}
