//! Limits of each user and tenant.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Limits of each user and tenant. `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLimits {
    /// Allocations of a user that wait or are suspended.
    pub user_pending: Option<u32>,
    /// Allocations of a user that hold nodes at a time: Staging or Running, from the claim to the
    /// end or requeue. Later cleanup on the nodes does not count.
    pub user_running: Option<u32>,
    /// Submissions of a user per second on average; a burst of a hundred times as many is allowed.
    pub user_submissions_per_second: Option<u32>,
    /// Total size of a user's scripts in bytes; equal texts count once.
    pub user_script_bytes: Option<u32>,
    /// Ended allocations of a user that are still shown.
    pub user_history: Option<u32>,
    /// Allocations of a tenant that wait or are suspended.
    pub tenant_pending: Option<u32>,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            user_pending: Some(10_000),
            user_running: None,
            user_submissions_per_second: Some(100),
            user_script_bytes: Some(64 * 1024 * 1024),
            user_history: None,
            tenant_pending: Some(100_000),
        }
    }
}

impl UserLimits {
    pub fn of(&self, what: UserLimit) -> Option<u32> {
        match what {
            UserLimit::Pending => self.user_pending,
            UserLimit::Running => self.user_running,
            UserLimit::SubmissionsPerSecond => self.user_submissions_per_second,
            UserLimit::ScriptBytes => self.user_script_bytes,
            UserLimit::History => self.user_history,
            UserLimit::TenantPending => self.tenant_pending,
        }
    }

    pub fn of_mut(&mut self, what: UserLimit) -> &mut Option<u32> {
        match what {
            UserLimit::Pending => &mut self.user_pending,
            UserLimit::Running => &mut self.user_running,
            UserLimit::SubmissionsPerSecond => &mut self.user_submissions_per_second,
            UserLimit::ScriptBytes => &mut self.user_script_bytes,
            UserLimit::History => &mut self.user_history,
            UserLimit::TenantPending => &mut self.tenant_pending,
        }
    }
}

/// The kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserLimit {
    /// [`UserLimits::user_pending`].
    Pending,
    /// [`UserLimits::user_running`].
    Running,
    /// [`UserLimits::user_submissions_per_second`].
    SubmissionsPerSecond,
    /// [`UserLimits::user_script_bytes`].
    ScriptBytes,
    /// [`UserLimits::user_history`].
    History,
    /// [`UserLimits::tenant_pending`].
    TenantPending,
}

impl UserLimit {
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::SubmissionsPerSecond, Self::ScriptBytes, Self::History, Self::TenantPending];
}

impl fmt::Display for UserLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "user_pending",
            Self::Running => "user_running",
            Self::SubmissionsPerSecond => "user_submissions_per_second",
            Self::ScriptBytes => "user_script_bytes",
            Self::History => "user_history",
            Self::TenantPending => "tenant_pending",
        })
    }
}
