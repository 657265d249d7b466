//! The parts of the replicated state: tables with their indexes and counts, the memory that each record takes, and the
//! reasons for which requests are refused.
//!
//! Each other module is one table or one index. No module knows the commands: `lattice-ledger` decides what changes.

pub mod access_tokens;
pub mod allocation_index;
pub mod audit_chain;
pub mod budget_marks;
pub mod correspondence;
pub mod dags;
pub mod dependents;
pub mod domains;
pub mod ended_place;
pub mod ended_work;
pub mod entries;
pub mod holdings;
pub mod identity;
pub mod job_numbers;
pub mod keyring;
pub mod names;
pub mod node_index;
pub mod projects;
pub mod record_bytes;
pub mod refusal;
pub mod removals;
pub mod revocations;
pub mod role_bindings;
pub mod scaled_services;
pub mod scaling_change;
pub mod scripts;
pub mod shortage;
pub mod signed_head;
pub mod submission_rates;
pub mod task_groups;
pub mod task_states;
pub mod tenant_members;
pub mod tenant_usage;
pub mod usage_records;
pub mod user_limits;
pub mod user_usage;
pub mod vni_use;
