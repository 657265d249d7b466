//! The content of a submission: the program, the environment, and the specification with both.

mod program;
mod specification;
mod surroundings;

pub use program::{Program, STDIN, is_piped, nothing_to_run, read_script, read_text};
pub use specification::{apply_scaling, build_specification};
pub use surroundings::{Surroundings, task_variables};
