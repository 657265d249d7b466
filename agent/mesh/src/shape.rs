//! The wire forms of [`LaunchShape`] and of the request for one.

use super::frame::FrameError;
use super::launch::WireLaunch;
use lattice_model::layout::TASKS_PER_NODE_MAX;
use lattice_model::layout::{Program, ShapeRequest};
use lattice_model::{Distribution, LaunchShape, LaunchSpec};
use rkyv::{Archive, Deserialize, Serialize};

/// The wire form of [`LaunchShape`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireShape {
    pub distribution: WireDistribution,
    /// Number of ranks and arguments of each program.
    pub programs: Vec<(u32, Vec<String>)>,
    pub cpus_per_task: u32,
    pub slurm_env: bool,
}

/// The wire form of [`Distribution`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireDistribution {
    Block,
    Cyclic,
    Plane(u32),
    Explicit(Vec<(u32, u32)>),
}

/// The wire form of [`ShapeRequest`], and what the head reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireLaunchOptions {
    pub distribution: Option<WireDistribution>,
    pub listed: Vec<(String, u32)>,
    pub programs: Vec<(u32, Vec<String>)>,
    pub cpus_per_task: u32,
    pub slurm_env: bool,
    pub kill_on_bad_exit: Option<bool>,
    pub nodes: u32,
    /// Whether the head reports how each rank ended.
    pub exits: bool,
}

impl From<&Distribution> for WireDistribution {
    fn from(distribution: &Distribution) -> Self {
        match distribution {
            Distribution::Block => Self::Block,
            Distribution::Cyclic => Self::Cyclic,
            Distribution::Plane(size) => Self::Plane(*size),
            Distribution::Explicit(listed) => Self::Explicit(listed.clone()),
        }
    }
}

impl From<WireDistribution> for Distribution {
    fn from(wire: WireDistribution) -> Self {
        match wire {
            WireDistribution::Block => Self::Block,
            WireDistribution::Cyclic => Self::Cyclic,
            WireDistribution::Plane(size) => Self::Plane(size),
            WireDistribution::Explicit(listed) => Self::Explicit(listed),
        }
    }
}

fn wire_programs(programs: &[Program]) -> Vec<(u32, Vec<String>)> {
    programs.iter().map(|p| (p.ranks, p.argv.clone())).collect()
}

fn programs(wire: Vec<(u32, Vec<String>)>) -> Vec<Program> {
    wire.into_iter().map(|(ranks, argv)| Program { ranks, argv }).collect()
}

impl From<&LaunchShape> for WireShape {
    fn from(shape: &LaunchShape) -> Self {
        Self {
            distribution: WireDistribution::from(&shape.distribution),
            programs: wire_programs(&shape.programs),
            cpus_per_task: shape.cpus_per_task,
            slurm_env: shape.slurm_env,
        }
    }
}

impl WireShape {
    /// Applies the shape to `launch`.
    pub fn of(self, launch: WireLaunch) -> Result<LaunchSpec, FrameError> {
        let Self { distribution, programs: wire, cpus_per_task, slurm_env } = self;
        let shape = LaunchShape { distribution: distribution.into(), programs: programs(wire), cpus_per_task, slurm_env };
        // The first ranks of the wire are not used: the counts determine which ranks a node has.
        let mut first = 0u32;
        let blocks = launch.nodes.iter().map(|(node, _, count)| {
            let block = (node.clone(), first, *count);
            first = first.saturating_add(*count);
            block
        });
        let launch = LaunchSpec::try_from(WireLaunch { nodes: blocks.collect(), ..launch })?;
        if launch.nodes.iter().any(|n| n.count > TASKS_PER_NODE_MAX) {
            return Err(FrameError::Malformed);
        }
        launch.shaped(shape).map_err(|_| FrameError::Malformed)
    }
}

impl WireLaunchOptions {
    /// `exits`: see [`Self::exits`].
    pub fn new(asked: &ShapeRequest, exits: bool) -> Self {
        Self {
            distribution: asked.distribution.as_ref().map(WireDistribution::from),
            listed: asked.listed.iter().map(|(node, count)| (node.to_string(), *count)).collect(),
            programs: wire_programs(&asked.programs),
            cpus_per_task: asked.cpus_per_task,
            slurm_env: asked.slurm_env,
            kill_on_bad_exit: asked.kill_on_bad_exit,
            nodes: asked.nodes,
            exits,
        }
    }
}

impl TryFrom<WireLaunchOptions> for ShapeRequest {
    type Error = FrameError;

    fn try_from(wire: WireLaunchOptions) -> Result<Self, FrameError> {
        let listed = wire.listed.into_iter().map(|(node, count)| Ok((node.parse().map_err(|_| FrameError::Malformed)?, count)));
        Ok(Self {
            distribution: wire.distribution.map(Distribution::from),
            listed: listed.collect::<Result<_, FrameError>>()?,
            programs: programs(wire.programs),
            cpus_per_task: wire.cpus_per_task,
            slurm_env: wire.slurm_env,
            kill_on_bad_exit: wire.kill_on_bad_exit,
            nodes: wire.nodes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shaped_launch_survives_the_round_trip_and_an_impossible_one_is_refused() {
        let wire = |counts: &[u32]| WireLaunch {
            id: [1; 16],
            number: 1,
            allocation: [2; 16],
            epoch: 1,
            argv: vec!["a".into()],
            env: vec![],
            working_dir: "/".into(),
            nodes: counts.iter().enumerate().map(|(i, count)| (format!("n{i}"), 99, *count)).collect(),
            pty: None,
            binding: super::super::binding::WireBinding::default(),
        };
        let program = Program { ranks: 1, argv: vec!["b".into()] };
        for distribution in [Distribution::Cyclic, Distribution::Plane(2), Distribution::Explicit(vec![(1, 1), (0, 2), (1, 2)])] {
            let shape = LaunchShape { distribution, programs: vec![program.clone()], cpus_per_task: 2, slurm_env: true };
            let launch = WireShape::from(&shape).of(wire(&[2, 3])).unwrap();
            assert_eq!((launch.size(), &launch.shape), (5, &shape));
            assert_eq!(WireShape::from(&shape).of(WireLaunch::from(&launch)).unwrap(), launch);
        }
        let refused =
            |distribution, counts: &[u32]| WireShape::from(&LaunchShape { distribution, ..LaunchShape::default() }).of(wire(counts));
        for listed in [vec![(0, 2)], vec![(0, 2), (1, 2), (2, 1)], vec![(0, 3), (1, 2)], vec![(0, 2), (1, 3), (1, 0)]] {
            assert!(refused(Distribution::Explicit(listed.clone()), &[2, 3]).is_err(), "{listed:?}");
        }
        assert!(refused(Distribution::Plane(0), &[2, 3]).is_err());
        assert!(refused(Distribution::Cyclic, &[1, u32::MAX - 1]).is_err());
    }

    #[test]
    fn a_shape_request_survives_the_round_trip() {
        let asked = ShapeRequest {
            distribution: Some(Distribution::Plane(3)),
            listed: vec![("n1".parse().unwrap(), 2)],
            programs: vec![Program { ranks: 2, argv: vec!["b".into(), "c".into()] }],
            cpus_per_task: 4,
            slurm_env: true,
            kill_on_bad_exit: Some(false),
            nodes: 2,
        };
        assert_eq!(ShapeRequest::try_from(WireLaunchOptions::new(&asked, true)).unwrap(), asked);
        assert!(ShapeRequest::try_from(WireLaunchOptions { listed: vec![(String::new(), 1)], ..WireLaunchOptions::default() }).is_err());
    }
}
