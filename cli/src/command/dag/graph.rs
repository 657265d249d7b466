//! The graph of a DAG as text, and for Graphviz.
//!
//! ```text
//!   preprocess [Completed] → train [Running] → evaluate [Pending]
//!                                            ↘ notify-failure [Pending]
//! ```
//!
//! A step is drawn after the first step that it depends on. After others it is named with an arrow up: ↑. A graph that
//! would be wider than a screen, or very long, is a list by level instead: each step is one level below the lowest step
//! that it depends on.

use lattice_api::v1;
use lattice_cli_session::output::{TableSize, Width};
use lattice_cli_session::table::{entry, one_line};
use std::collections::BTreeMap;

/// How many parents of a step are named on a screen.
pub const NAMED_MAX: usize = 3;
/// The widest line, in characters.
const COLUMNS_MAX: usize = 80;
/// The size that a list fits.
const SIZE: TableSize = TableSize { width: Width::Terse, columns: Some(COLUMNS_MAX) };
/// The most edges of a drawing.
const EDGES_MAX: usize = 500;

/// The graph drawn, or as a list by level if it is too large for that.
pub fn text(dag: &v1::Dag) -> String {
    let graph = Graph::of(dag);
    let drawn = if graph.children.iter().map(Vec::len).sum::<usize>() <= EDGES_MAX { graph.draw() } else { None };
    drawn.unwrap_or_else(|| graph.levels())
}

/// The graph in the language of Graphviz.
pub fn dot(dag: &v1::Dag) -> String {
    let quoted = |text: &str| format!("\"{}\"", one_line(text).replace('\\', "\\\\").replace('"', "\\\""));
    let mut text = format!("digraph {} {{\n  rankdir=LR;\n", quoted(&dag.name));
    for step in &dag.steps {
        let label = format!("{}\n{}", one_line(&step.name), step.state);
        let label = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text += &format!("  {} [label=\"{label}\"];\n", quoted(&step.name));
    }
    for step in &dag.steps {
        for edge in &step.depends_on {
            let from = if edge.step.is_empty() { &edge.allocation } else { &edge.step };
            text += &format!("  {} -> {} [label={}];\n", quoted(from), quoted(&step.name), quoted(&edge.condition));
        }
    }
    text + "}\n"
}

struct Graph<'a> {
    steps: &'a [v1::DagStepStatus],
    /// For each step, the steps that depend on it.
    children: Vec<Vec<usize>>,
    /// For each step, the steps that it depends on.
    parents: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn of(dag: &'a v1::Dag) -> Self {
        let steps = dag.steps.as_slice();
        let numbers: BTreeMap<&str, usize> = steps.iter().enumerate().map(|(number, step)| (step.name.as_str(), number)).collect();
        let (mut children, mut parents) = (vec![Vec::new(); steps.len()], vec![Vec::new(); steps.len()]);
        for (number, step) in steps.iter().enumerate() {
            for edge in &step.depends_on {
                // Each step comes after its parents, so a drawing has an end.
                if let Some(parent) = numbers.get(edge.step.as_str()).copied().filter(|parent| *parent < number) {
                    children[parent].push(number);
                    parents[number].push(parent);
                }
            }
        }
        Self { steps, children, parents }
    }

    fn label(&self, number: usize) -> String {
        format!("{} [{}]", one_line(&self.steps[number].name), self.steps[number].state)
    }

    /// `None`: it would be too wide.
    fn draw(&self) -> Option<String> {
        let (mut line, mut text) = (String::new(), String::new());
        for root in (0..self.steps.len()).filter(|number| self.parents[*number].is_empty()) {
            self.draw_step(root, None, &mut line, &mut text)?;
        }
        Some(text)
    }

    /// Draws a step at the end of the line, and its children after it: the first on the same line, the others on lines of
    /// their own. The width of a line bounds the recursion.
    fn draw_step(&self, number: usize, parent: Option<usize>, line: &mut String, text: &mut String) -> Option<()> {
        if parent.is_some_and(|parent| self.parents[number].first() != Some(&parent)) {
            line.push_str(&format!("{} ↑", one_line(&self.steps[number].name)));
            return finish(line, text);
        }
        line.push_str(&self.label(number));
        if self.children[number].is_empty() {
            return finish(line, text);
        }
        let indent = " ".repeat(line.chars().count());
        for (place, child) in self.children[number].iter().enumerate() {
            line.push_str(&if place == 0 { " → ".to_owned() } else { format!("{indent} ↘ ") });
            if line.chars().count() > COLUMNS_MAX {
                return None;
            }
            self.draw_step(*child, Some(number), line, text)?;
        }
        Some(())
    }

    fn levels(&self) -> String {
        let mut levels: Vec<Vec<usize>> = Vec::new();
        let mut of: Vec<usize> = Vec::with_capacity(self.steps.len());
        for (number, parents) in self.parents.iter().enumerate() {
            let level = parents.iter().filter_map(|parent| of.get(*parent)).max().map_or(0, |lowest| lowest + 1);
            of.push(level);
            if levels.len() <= level {
                levels.push(Vec::new());
            }
            levels[level].push(number);
        }
        let mut text = String::new();
        for (level, numbers) in (1..).zip(&levels) {
            text += &format!("Level {level}\n");
            numbers.iter().for_each(|number| text += &entry("  ", &(self.label(*number) + &self.after(*number)), SIZE));
        }
        text
    }

    /// ` after a, b, c and 2 more`.
    fn after(&self, number: usize) -> String {
        let names: Vec<String> = self.parents[number].iter().take(NAMED_MAX).map(|parent| one_line(&self.steps[*parent].name)).collect();
        let more = match self.parents[number].len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        if names.is_empty() { String::new() } else { format!(" after {}{more}", names.join(", ")) }
    }
}

/// Ends a line. `None`: it is too wide.
fn finish(line: &mut String, text: &mut String) -> Option<()> {
    if line.chars().count() > COLUMNS_MAX {
        return None;
    }
    text.push_str(line);
    text.push('\n');
    line.clear();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dag(steps: &[(&str, &str, &[&str])]) -> v1::Dag {
        let edge = |step: &&str| v1::DagEdge { step: (*step).to_owned(), condition: "success".into(), ..Default::default() };
        let step = |(name, state, on): &(&str, &str, &[&str])| v1::DagStepStatus {
            name: (*name).to_owned(),
            state: (*state).to_owned(),
            depends_on: on.iter().map(edge).collect(),
            ..Default::default()
        };
        v1::Dag { name: "flow".into(), steps: steps.iter().map(step).collect(), ..Default::default() }
    }

    #[test]
    fn the_documented_graph_is_drawn() {
        let of = dag(&[
            ("preprocess", "Completed", &[]),
            ("train", "Running", &["preprocess"]),
            ("evaluate", "Pending", &["train"]),
            ("notify-failure", "Pending", &["train"]),
        ]);
        let want = "\
preprocess [Completed] → train [Running] → evaluate [Pending]
                                         ↘ notify-failure [Pending]
";
        assert_eq!(text(&of), want);
    }

    #[test]
    fn a_step_behind_several_others_is_drawn_once() {
        let of = dag(&[("a", "X", &[]), ("b", "X", &["a"]), ("c", "X", &["a"]), ("d", "X", &["b", "c"]), ("e", "X", &[])]);
        assert_eq!(text(&of), "a [X] → b [X] → d [X]\n      ↘ c [X] → d ↑\ne [X]\n");
    }

    #[test]
    fn a_graph_that_is_too_wide_is_a_list_by_level() {
        let long = "x".repeat(40);
        let of = dag(&[
            (&long, "Completed", &[]),
            ("b", "Running", &[&long]),
            ("c", "Running", &[&long]),
            ("d", "Running", &[&long]),
            ("e", "Running", &[&long]),
            ("another-long-name-of-a-step", "Pending", &[&long, "b", "c", "d", "e"]),
        ]);
        let want = format!(
            "Level 1\n  {long} [Completed]\nLevel 2\n  b [Running] after {long}\n  c [Running] after {long}\n  d [Running] after {long}\n  \
             e [Running] after {long}\nLevel 3\n  another-long-name-of-a-step [Pending] after\n    {long}, b, c and 2 more\n"
        );
        assert_eq!(text(&of), want);
    }

    #[test]
    fn no_line_is_wider_than_a_screen_whatever_the_names_are() {
        let names = [1, 2, 3].map(|number| number.to_string().repeat(128));
        let of = dag(&[
            (&names[0], "Cancelled", &[]),
            (&names[1], "Cancelled", &[&names[0]]),
            (&names[2], "Cancelled", &[&names[0], &names[1]]),
        ]);
        let listed = text(&of);
        assert!(listed.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{listed}");
        let first = format!("Level 1\n  {}\n    {} [Cancelled]\n", "1".repeat(76), "1".repeat(52));
        assert!(listed.starts_with(&first), "{listed}");
    }

    #[test]
    fn graphviz_gets_quoted_names_and_conditions() {
        let of = dag(&[("a \"1\"", "Completed", &[]), ("b", "Running", &["a \"1\""])]);
        let want = "\
digraph \"flow\" {
  rankdir=LR;
  \"a \\\"1\\\"\" [label=\"a \\\"1\\\"\\nCompleted\"];
  \"b\" [label=\"b\\nRunning\"];
  \"a \\\"1\\\"\" -> \"b\" [label=\"success\"];
}
";
        assert_eq!(dot(&of), want);
    }
}
