//! PURE: what Slurm's commands print, from the messages of `lattice.v1`: fields, formats, states, JSON.
//!
//! Nothing here asks an agent or reads a file.
