//! Allocations and nodes as columns, one file for each view. Their JSON is that of the API's crate.

mod allocation_details;
mod allocation_list;
mod amounts;
mod attempts;
pub mod counts;
mod ended_work;
mod folding;
mod network;
mod nodes;
mod program;
mod scaling;
mod state;
mod state_counts;
mod steps;
mod tasks;
mod values;
mod walltime;

pub use allocation_details::allocation_block;
pub use allocation_list::{ALLOCATION_EXTRA, ALLOCATION_HEADING, allocation_row, allocations_table, lines_table};
pub use attempts::attempts_text;
pub use ended_work::{ended_kept, ended_work};
pub use folding::fold;
pub use lattice_api::json::{AllocationJson, NodeJson, TaskJson, TasksJson};
pub use nodes::{NODE_EXTRA, NODE_HEADING, domains_text, node_row, nodes_table, reasons_text, with_exit};
pub use program::command_line;
pub use scaling::{is_scaled, living_replicas_first, replicas_table, rows_of_spec, service_text};
pub use state::{Part, live_first, part, reason};
pub use state_counts::{count_by_state, counts_table};
pub use steps::steps_table;
pub use tasks::{Task, group_rows, group_text, lanes_table, range_name, task_block, task_text, tasks_table};
pub use values::{disclosed, filled, folded, job, lease_token, numbered_subject, queue, short, time, work_name};
pub use walltime::left;
