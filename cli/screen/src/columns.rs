//! Rows of cells as lines of a fixed width. Unlike [`lattice_cli_session::table::Table`], each row is exactly one line, and the caller
//! colours it.

use lattice_cli_session::table::{one_line, shortened};

/// A column of a list.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// On a narrow screen columns are left out, the lowest rank first; 0: never.
    pub rank: u8,
    /// It is shortened to no fewer characters than this; 0: never shortened.
    pub least: usize,
}

/// How a row is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Waits,
    Bad,
}

/// A row of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its unique name: the id of an allocation, or the name of a node. Empty: it cannot be selected for an action.
    pub key: String,
    pub cells: Vec<String>,
    pub tone: Tone,
}

/// A list.
#[derive(Debug)]
pub struct List {
    pub columns: &'static [Column],
    pub rows: Vec<Row>,
}

/// The characters between two columns.
const GAP: usize = 2;

impl List {
    /// The heading, and the line of each row. A column with a rank whose cells are all empty is left out.
    pub fn lines(&self, width: usize) -> (String, Vec<String>) {
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.cells.iter().map(|cell| one_line(cell)).collect()).collect();
        let is_filled = |at: usize| rows.iter().any(|row| !row[at].is_empty());
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(|&at| self.columns[at].rank == 0 || is_filled(at)).collect();
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|at| rows.iter().map(|row| row[at].chars().count()).chain([self.columns[at].name.len()]).max().unwrap_or(0))
            .collect();
        while total(&shown, &self.least_widths(&widths)) > width
            && let Some(first) = shown.iter().copied().filter(|&at| self.columns[at].rank > 0).min_by_key(|&at| self.columns[at].rank)
        {
            shown.retain(|&at| at != first);
        }
        // The last columns have the longest texts, and are shortened first.
        for &at in shown.iter().rev().filter(|&&at| self.columns[at].least > 0) {
            let over = total(&shown, &widths).saturating_sub(width);
            widths[at] = widths[at].saturating_sub(over).max(self.columns[at].least.min(widths[at]));
        }
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells: Vec<String> =
                shown.iter().map(|&at| format!("{:width$}", shortened(&cell(at), widths[at]), width = widths[at])).collect();
            cells.join("  ").trim_end().to_owned()
        };
        let heading = line(&|at| self.columns[at].name.to_owned());
        (heading, rows.iter().map(|row| line(&|at| row[at].clone())).collect())
    }

    fn least_widths(&self, widths: &[usize]) -> Vec<usize> {
        let least = |(width, column): (&usize, &Column)| if column.least == 0 { *width } else { column.least.min(*width) };
        widths.iter().zip(self.columns).map(least).collect()
    }
}

fn total(shown: &[usize], widths: &[usize]) -> usize {
    shown.iter().map(|&at| widths[at]).sum::<usize>() + GAP * shown.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_left_out_and_then_shortened() {
        const COLUMNS: &[Column] = &[
            Column { name: "ID", rank: 0, least: 0 },
            Column { name: "OWNER", rank: 1, least: 0 },
            Column { name: "QUEUE", rank: 2, least: 0 },
            Column { name: "REASON", rank: 0, least: 6 },
        ];
        let row = |cells: [&str; 4]| Row { key: String::new(), cells: cells.map(str::to_owned).to_vec(), tone: Tone::Plain };
        let list = List { columns: COLUMNS, rows: vec![row(["1", "ada", "", "waits for\n2 nodes"]), row(["22", "bob", "", ""])] };
        let at = |width| {
            let (heading, lines) = list.lines(width);
            [heading, lines.join("\n")].join("\n")
        };
        assert_eq!(at(80), "ID  OWNER  REASON\n1   ada    waits for 2 nodes\n22  bob");
        assert_eq!(at(20), "ID  OWNER  REASON\n1   ada    waits fo…\n22  bob");
        assert_eq!(at(16), "ID  REASON\n1   waits for 2…\n22");
        assert_eq!(at(3), "ID  REASON\n1   waits…\n22", "no less than that");
    }
}
