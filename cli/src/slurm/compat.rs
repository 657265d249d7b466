//! The site's names of Slurm, for the commands here.

pub use crate::compat::read;
