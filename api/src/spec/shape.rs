//! The layout of a launch's ranks: an empty string or 0 means that the field is not set.

use super::binding::named_value;
use crate::v1;
use crate::v1::launch_shape::{Program as WireProgram, RankPlace};
use lattice_model::SpecError;
use lattice_model::layout::{CPUS_PER_TASK_MAX, Program, ShapeRequest};
use lattice_model::{Distribution, EntryLaunch, LaunchShape, NodeId};

/// Largest number of entries in an explicit list; one entry may place several ranks.
const PLACES_MAX: usize = 1_000_000;
/// Whether the other ranks are ended when a rank ends with an error.
const ON_BAD_EXIT: [(&str, bool); 2] = [("kill", true), ("keep", false)];

/// Decodes a launch's layout.
///
/// # Errors
/// An unknown name, an invalid name of a node, or a number that is too large.
pub fn shape_request(message: Option<&v1::LaunchShape>) -> Result<ShapeRequest, SpecError> {
    let Some(v1::LaunchShape { distribution, programs, cpus_per_task, slurm_env, on_bad_exit, places, ranks: _, nodes }) = message else {
        return Ok(ShapeRequest::default());
    };
    let invalid = |field, why: String| SpecError::Invalid { field, why };
    if places.len() > PLACES_MAX {
        return Err(invalid("nodelist", format!("{} places given; at most {PLACES_MAX} are possible", places.len())));
    }
    if !places.is_empty() && !distribution.is_empty() {
        return Err(invalid("nodelist", format!("it places each rank, and so does --distribution={distribution}: give one of them")));
    }
    if *cpus_per_task > CPUS_PER_TASK_MAX {
        return Err(invalid("cpus-per-task", format!("{cpus_per_task} given; at most {CPUS_PER_TASK_MAX} are possible")));
    }
    let distribution = Some(distribution).filter(|text| !text.is_empty()).map(|text| text.parse::<Distribution>()).transpose();
    let place = |p: &RankPlace| Ok((p.node.parse::<NodeId>().map_err(|e| invalid("nodelist", e.to_string()))?, p.ranks));
    Ok(ShapeRequest {
        distribution: distribution.map_err(|unknown| invalid("distribution", unknown.to_string()))?,
        listed: places.iter().map(place).collect::<Result<_, SpecError>>()?,
        programs: programs.iter().map(|p| Program { ranks: p.ranks, argv: p.argv.clone() }).collect(),
        cpus_per_task: *cpus_per_task,
        slurm_env: *slurm_env,
        kill_on_bad_exit: named_value("on-bad-exit", &ON_BAD_EXIT, on_bad_exit)?,
        nodes: *nodes,
    })
}

/// The settings for the launch of an inline command, or the defaults for a script's launches.
pub(super) fn to_model(message: Option<&v1::LaunchShape>) -> Result<EntryLaunch, SpecError> {
    let asked = shape_request(message)?;
    if asked.nodes > 0 {
        let why = "the nodes of an allocation are set in `resources`".to_owned();
        return Err(SpecError::Invalid { field: "nodes", why });
    }
    if !asked.listed.is_empty() {
        let why = "its nodes are not known yet; launches inside the allocation may list them".to_owned();
        return Err(SpecError::Invalid { field: "nodelist", why });
    }
    let (shape, kills) = asked.over(&EntryLaunch::default());
    Ok(EntryLaunch { shape, ranks: message.map_or(0, |m| m.ranks), keeps_on_bad_exit: !kills })
}

pub(super) fn from_model(launch: &EntryLaunch) -> Option<v1::LaunchShape> {
    let LaunchShape { distribution, programs, cpus_per_task, slurm_env } = &launch.shape;
    (launch != &EntryLaunch::default()).then(|| v1::LaunchShape {
        distribution: if *distribution == Distribution::Block { String::new() } else { distribution.to_string() },
        programs: programs.iter().map(|p| WireProgram { ranks: p.ranks, argv: p.argv.clone() }).collect(),
        cpus_per_task: *cpus_per_task,
        slurm_env: *slurm_env,
        on_bad_exit: if launch.keeps_on_bad_exit { "keep".to_owned() } else { String::new() },
        places: Vec::new(),
        ranks: launch.ranks,
        nodes: 0,
    })
}
