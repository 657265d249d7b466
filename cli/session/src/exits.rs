//! The table that shows how a launch's ranks ended (`lattice launch --exit-table`).

use crate::failure::Failure;
use crate::message::write_message;
use crate::output::Format;
use crate::table::Table;
use lattice_api::v1::launch_event::RankExit;
use serde::Serialize;

/// One rank's end, for programs.
#[derive(Debug, Serialize)]
struct ExitJson<'a> {
    rank: u32,
    node: &'a str,
    /// `exited`, `signalled`, `not_started` or `lost`.
    ended: &'a str,
    /// The exit code that a shell would report; `None`: the rank was lost.
    code: Option<u32>,
}

/// The content of the table so far, and where it will be written.
#[derive(Debug)]
pub struct ExitTable {
    /// Path of the file; empty: stderr.
    path: String,
    format: Format,
    exits: Vec<RankExit>,
}

impl ExitTable {
    /// An empty table.
    pub fn new(path: String, format: Format) -> Self {
        Self { path, format, exits: Vec::new() }
    }

    /// Adds a piece. A piece with rank 0 begins the table anew, because after a lost connection it is
    /// sent again from its beginning.
    pub fn add(&mut self, piece: Vec<RankExit>) {
        if piece.first().is_some_and(|exit| exit.rank == 0) {
            self.exits.clear();
        }
        self.exits.extend(piece);
    }

    /// Writes the table.
    pub fn write(&self) -> Result<(), Failure> {
        let text = self.text()?;
        if self.path.is_empty() {
            write_message(text);
            return Ok(());
        }
        std::fs::write(&self.path, text).map_err(|error| Failure::other(format!("cannot write the exit table to {}: {error}", self.path)))
    }

    fn text(&self) -> Result<String, Failure> {
        match self.format {
            Format::Table => {
                let mut table = Table::new(&["RANK", "NODE", "END"]);
                self.exits.iter().for_each(|exit| table.row(vec![exit.rank.to_string(), exit.node.clone(), end(exit)]));
                Ok(table.text(&[]))
            }
            Format::Name => Ok(self.exits.iter().map(|exit| format!("{} {}\n", exit.rank, end(exit))).collect()),
            Format::Data(notation) => notation.text(&self.exits.iter().map(json).collect::<Vec<ExitJson<'_>>>()),
        }
    }
}

fn json(exit: &RankExit) -> ExitJson<'_> {
    let code = match exit.ended.as_str() {
        "signalled" => Some(128 + exit.value),
        "lost" => None,
        _ => Some(exit.value),
    };
    ExitJson { rank: exit.rank, node: &exit.node, ended: &exit.ended, code }
}

/// The end of a rank, for people.
fn end(exit: &RankExit) -> String {
    match exit.ended.as_str() {
        "exited" => format!("code {}", exit.value),
        "signalled" => format!("signal {}", exit.value),
        "not_started" => "not started".to_owned(),
        _ => "lost with its node".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Notation;

    fn table(format: Format) -> String {
        let mut table = ExitTable::new(String::new(), format);
        let exit = |rank, ended: &str, value| RankExit { rank, node: format!("n{}", rank % 2), ended: ended.to_owned(), value };
        table.add(vec![exit(0, "exited", 1)]);
        table.add(vec![exit(0, "exited", 0), exit(1, "signalled", 9)]);
        table.add(vec![exit(2, "not_started", 127), exit(3, "lost", 0)]);
        table.text().unwrap()
    }

    #[test]
    fn each_ranks_end_is_listed_once() {
        let text = table(Format::Table);
        assert_eq!(
            text,
            "RANK  NODE  END\n0     n0    code 0\n1     n1    signal 9\n2     n0    not started\n3     n1    lost with its node\n"
        );
        let json: serde_json::Value = serde_json::from_str(&table(Format::Data(Notation::Json))).unwrap();
        let codes: Vec<_> = json.as_array().unwrap().iter().map(|exit| exit["code"].as_u64()).collect();
        assert_eq!(codes, [Some(0), Some(137), Some(127), None]);
        assert_eq!(json[3], serde_json::json!({"rank": 3, "node": "n1", "ended": "lost", "code": null}));
        assert!(table(Format::Name).starts_with("0 code 0\n"));
    }
}
