//! Members as agents and operators meet them: in this process, and as processes that are killed.

mod agents;
mod auditing;
mod certificates;
mod keys;
mod lab;
mod lists;
mod members;
mod permissions;
mod processes;
mod watches;
