//! Members as seen by agents and operators: in this process, and as separate processes that are
//! killed.

mod agents;
mod auditing;
mod certificates;
mod keys;
mod lab;
mod lists;
mod members;
mod narrow_watches;
mod permissions;
mod point_reads;
mod processes;
mod pruning;
mod roles;
mod watches;
