//! Arguments that are passed on unchanged.

use clap::{ArgAction, Args};
use std::ffi::OsString;

#[derive(Args)]
pub struct Rest {
    /// Passed on unchanged
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 0.., action = ArgAction::Append)]
    pub args: Vec<OsString>,
}
