//! Why a submission cannot depend on an allocation.

use lattice_model::dependency::{DEPENDENCIES_MAX, FOLLOWERS_MAX};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a submission cannot depend on an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum DependencyRefusal {
    /// Also if the submitter may not see it.
    #[error("it does not exist, or it ended so long ago that the quorum has forgotten it")]
    Unknown,
    #[error("it is the allocation itself")]
    Itself,
    #[error("it belongs to another user, and mutex or corresponding would also affect that user's work")]
    NotYours,
    #[error("{DEPENDENCIES_MAX} allocations exclude it by mutex already, and that is the most")]
    TooMany,
    #[error("mutex is not possible with task groups and scaled services, because they hold no nodes themselves")]
    Group,
    #[error("corresponding needs two task groups, and one of the two allocations is none")]
    NotTaskGroups,
    #[error("{FOLLOWERS_MAX} other groups correspond to it already, which is the maximum")]
    TooManyFollowers,
    #[error("the tasks of a group can correspond to those of at most {FOLLOWERS_MAX} other groups")]
    TooManyFollowed,
}

impl DependencyRefusal {
    pub(super) fn remedy(self) -> Option<String> {
        match self {
            Self::Unknown => Some("`lattice status` lists the known allocations; leave out those that have ended successfully".to_owned()),
            Self::NotYours => Some("use success, failure, any or after: these only wait for that work".to_owned()),
            Self::TooMany | Self::TooManyFollowers => Some("submit again when some of them have ended".to_owned()),
            Self::TooManyFollowed => Some("let another group correspond to some of them, and this group to that one".to_owned()),
            Self::NotTaskGroups => Some("use success, which waits until the whole allocation has succeeded".to_owned()),
            Self::Group => Some("use success, failure, any or after".to_owned()),
            Self::Itself => None,
        }
    }
}
