//! Why a submission cannot depend on an allocation.

use lattice_model::dependency::{DEPENDENCIES_MAX, FOLLOWERS_MAX};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a submission cannot depend on an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum DependencyRefusal {
    /// Also where the submitter may not know of it.
    #[error("there is none, or it ended so long ago that it is not known any more")]
    Unknown,
    #[error("it is the allocation itself")]
    Itself,
    #[error("it is another user's, and mutex and corresponding change what both of them do")]
    NotYours,
    #[error("{DEPENDENCIES_MAX} others exclude it already, and no more are possible")]
    TooMany,
    #[error("mutex is between allocations that get nodes themselves: task groups have lanes for that, and scaled services replicas")]
    Group,
    #[error("corresponding is between two task groups, and one of the two is none")]
    NotTaskGroups,
    #[error("{FOLLOWERS_MAX} other groups correspond to it already, which is the maximum")]
    TooManyFollowers,
    #[error("the tasks of a group correspond to those of {FOLLOWERS_MAX} others at most")]
    TooManyFollowed,
}

impl DependencyRefusal {
    pub(super) fn remedy(self) -> Option<String> {
        match self {
            Self::Unknown => Some("`lattice status` lists what is known; leave out what has ended well".to_owned()),
            Self::NotYours => Some("another user's work can be waited for with the other conditions".to_owned()),
            Self::TooMany | Self::TooManyFollowers => Some("submit again when some of them have ended".to_owned()),
            Self::TooManyFollowed => Some("have one group correspond to some of them, and this one to that group".to_owned()),
            Self::NotTaskGroups => Some("use success, which waits until all of it has succeeded".to_owned()),
            Self::Group => Some("task groups and scaled services wait, and are waited for, with success, failure, any or after".to_owned()),
            Self::Itself => None,
        }
    }
}
