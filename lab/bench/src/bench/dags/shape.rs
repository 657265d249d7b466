//! The DAGs that are measured, as files of `lattice dag submit`.

use std::fmt::{self, Write};

/// The graph of a DAG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Steps that depend on nothing.
    NoEdges { steps: usize },
    /// Chains beside each other. A step depends on the one before it in its chain.
    Chains { chains: usize, steps: usize },
    /// Layers, one after another, with a barrier at the end of each: the last step of a layer depends on all others of
    /// the layer, and these on the last step of the layer before.
    Layers { layers: usize, steps: usize },
}

impl Shape {
    /// The number of its steps.
    pub fn step_count(self) -> usize {
        match self {
            Self::NoEdges { steps } => steps,
            Self::Chains { chains, steps } => chains * steps,
            Self::Layers { layers, steps } => layers * steps,
        }
    }

    /// The file. Each step is `/bin/true` on one core.
    pub fn file(self) -> String {
        let mut text = format!("name: {self}\nallocations:\n");
        let (groups, steps) = match self {
            Self::NoEdges { steps } => (1, steps),
            Self::Chains { chains, steps } => (chains, steps),
            Self::Layers { layers, steps } => (layers, steps),
        };
        for (group, step) in (0..groups).flat_map(|group| (0..steps).map(move |step| (group, step))) {
            let _ = writeln!(text, "  - name: {}\n    entrypoint: [/bin/true]\n    cores: 1", step_name(group, step));
            let parents = self.parents(group, step);
            if !parents.is_empty() {
                text.push_str("    depends_on:\n");
            }
            for parent in parents {
                let _ = writeln!(text, "      - {parent}: success");
            }
        }
        text
    }

    /// The names of the steps on which a step of a chain or a layer depends.
    fn parents(self, group: usize, step: usize) -> Vec<String> {
        match self {
            Self::NoEdges { .. } => Vec::new(),
            Self::Chains { .. } => step.checked_sub(1).map(|before| step_name(group, before)).into_iter().collect(),
            Self::Layers { steps, .. } if step + 1 == steps => (0..step).map(|other| step_name(group, other)).collect(),
            Self::Layers { steps, .. } => group.checked_sub(1).map(|before| step_name(before, steps - 1)).into_iter().collect(),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEdges { steps } => write!(f, "{steps} steps without edges"),
            Self::Chains { chains, steps } => write!(f, "{chains} chains of {steps}"),
            Self::Layers { layers, steps } => write!(f, "{layers} layers of {steps}"),
        }
    }
}

fn step_name(group: usize, step: usize) -> String {
    format!("step-{group}-{step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the steps, each with what it depends on.
    fn steps(shape: Shape) -> Vec<(String, Vec<String>)> {
        let text = shape.file();
        let mut steps: Vec<(String, Vec<String>)> = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("  - name: ") {
                steps.push((name.to_owned(), Vec::new()));
            }
            if let Some(parent) = line.strip_prefix("      - ").and_then(|edge| edge.strip_suffix(": success")) {
                steps.last_mut().unwrap().1.push(parent.to_owned());
            }
        }
        assert_eq!(steps.len(), shape.step_count(), "{shape:?}");
        assert_eq!((text.matches("[/bin/true]").count(), text.matches("cores: 1\n").count()), (shape.step_count(), shape.step_count()));
        steps
    }

    fn owned(steps: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let text = |text: &&str| (*text).to_owned();
        steps.iter().map(|(name, parents)| (text(name), parents.iter().map(text).collect())).collect()
    }

    #[test]
    fn a_file_is_one_that_dag_submit_reads() {
        let text = Shape::Chains { chains: 1, steps: 2 }.file();
        let want = "\
name: 1 chains of 2
allocations:
  - name: step-0-0
    entrypoint: [/bin/true]
    cores: 1
  - name: step-0-1
    entrypoint: [/bin/true]
    cores: 1
    depends_on:
      - step-0-0: success
";
        assert_eq!(text, want);
    }

    #[test]
    fn each_shape_has_its_edges() {
        assert_eq!(steps(Shape::NoEdges { steps: 2 }), owned(&[("step-0-0", &[]), ("step-0-1", &[])]));
        let chains: [(&str, &[&str]); 6] = [
            ("step-0-0", &[]),
            ("step-0-1", &["step-0-0"]),
            ("step-0-2", &["step-0-1"]),
            ("step-1-0", &[]),
            ("step-1-1", &["step-1-0"]),
            ("step-1-2", &["step-1-1"]),
        ];
        assert_eq!(steps(Shape::Chains { chains: 2, steps: 3 }), owned(&chains));
        let layers: [(&str, &[&str]); 6] = [
            ("step-0-0", &[]),
            ("step-0-1", &[]),
            ("step-0-2", &["step-0-0", "step-0-1"]),
            ("step-1-0", &["step-0-2"]),
            ("step-1-1", &["step-0-2"]),
            ("step-1-2", &["step-1-0", "step-1-1"]),
        ];
        assert_eq!(steps(Shape::Layers { layers: 2, steps: 3 }), owned(&layers));
    }
}
