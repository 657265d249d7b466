//! The commands that have the options of [`Common`].

use super::sacct::Sacct;
use super::sacctmgr::Sacctmgr;
use super::scontrol::Scontrol;
use super::sinfo::Sinfo;
use super::sprio::Sprio;
use super::squeue::Squeue;
use super::sshare::Sshare;
use super::sstat::Sstat;
use super::{Common, HasCommon};

macro_rules! has_common {
    ($($command:ty),+) => {
        $(impl HasCommon for $command {
            fn common(&self) -> &Common {
                &self.common
            }
        })+
    };
}

has_common!(Sacct, Sacctmgr, Scontrol, Sinfo, Sprio, Squeue, Sshare, Sstat);
