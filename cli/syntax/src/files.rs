//! Options of a submission about files of the user: where its output is also written, and its standard input.

use clap::{Args, ValueEnum};
use lattice_api::v1;
use thiserror::Error;

/// The formats that `-o` takes.
const FORMATS: [&str; 5] = ["table", "wide", "json", "yaml", "name"];

/// See the module. They are not in `SubmitFlags`, because the output of a launch or a session is on the terminal.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct FileFlags {
    /// Also write the output to this file of yours as it is written; a relative path begins at the working directory. %j
    /// is the job number, %A that of the task group, %a the index, %x the name, %u the user, %N the node, %n its number,
    /// %t the rank, %s the launch, %% a percent sign; %4t has four digits at least. (`-o FORMAT` is the format of the
    /// answer) [default: only `lattice logs` has it]
    #[arg(id = "output_file", long = "output", value_name = "FILE", overrides_with = "output_file", value_parser = parse_output)]
    output: Option<String>,
    /// Also write the standard error to this file [default: the file of --output]
    #[arg(id = "error_file", long = "error", value_name = "FILE", overrides_with = "error_file")]
    error: Option<String>,
    /// The standard input of the script, or of each rank of a command [default: none]
    #[arg(id = "input_file", long = "input", value_name = "FILE", overrides_with = "input_file")]
    input: Option<String>,
    /// What an attempt does with files that are there [default: truncate]
    #[arg(long, alias = "open_mode", value_name = "HOW", ignore_case = true, overrides_with = "open_mode")]
    open_mode: Option<OpenMode>,
}

/// `--open-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    /// It adds to them
    Append,
    /// It empties them first
    Truncate,
}

/// The name of a file is that of a format.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0} is a format, and --output names a file here: write `-o {0}` for the format, or `./{0}` for the file")]
struct IsFormat(String);

fn parse_output(text: &str) -> Result<String, IsFormat> {
    if FORMATS.contains(&text) { Err(IsFormat(text.to_owned())) } else { Ok(text.to_owned()) }
}

impl FileFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            output: self.output.or(under.output),
            error: self.error.or(under.error),
            input: self.input.or(under.input),
            open_mode: self.open_mode.or(under.open_mode),
        }
    }

    /// The files in the specification, which the server checks; `None`: there are none.
    pub fn to_message(&self) -> Option<v1::OutputFiles> {
        let files = v1::OutputFiles {
            stdout: self.output.clone().unwrap_or_default(),
            stderr: self.error.clone().unwrap_or_default(),
            stdin: self.input.clone().unwrap_or_default(),
            append: self.open_mode == Some(OpenMode::Append),
        };
        (files != v1::OutputFiles::default()).then_some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::output::Output;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        files: FileFlags,
    }

    fn files(line: &str) -> FileFlags {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().files
    }

    #[test]
    fn files_are_named_one_by_one_and_the_last_wins() {
        assert_eq!(files("").to_message(), None);
        assert_eq!(files("--open-mode=truncate").to_message(), None);
        let both =
            files("--output=a --output=b --open-mode=APPEND").merge_over(files("--output=c --error=e --input=i --open_mode=truncate"));
        let want = v1::OutputFiles { stdout: "b".into(), stderr: "e".into(), stdin: "i".into(), append: true };
        assert_eq!(both.to_message(), Some(want));
    }

    /// The format and the file of a submission.
    fn submitted(line: &str) -> Result<(Option<Output>, Option<String>), String> {
        let cli = Cli::try_parse_from(std::iter::once("lattice").chain(line.split_whitespace())).map_err(|error| error.to_string())?;
        let Command::Submit(submit) = cli.command else { panic!("it is no submission") };
        Ok((cli.global.output, submit.0.tasks.files.output))
    }

    #[test]
    fn output_is_a_file_behind_submit_and_a_format_before_it() {
        let json = Some(Output::Json);
        let file = Some("out".to_owned());
        assert_eq!(submitted("submit --output out job.sh"), Ok((None, file.clone())));
        assert_eq!(submitted("submit --output=out -o json job.sh"), Ok((json, file.clone())));
        assert_eq!(submitted("submit -ojson job.sh"), Ok((json, None)));
        assert_eq!(submitted("--output json submit --output out job.sh"), Ok((json, file.clone())));
        assert_eq!(submitted("-o json submit --output out job.sh"), Ok((json, file)));
        let other = Cli::try_parse_from(["lattice", "status", "--output", "json"]).unwrap();
        assert_eq!(other.global.output, json, "other commands have the format under both names");
        for format in FORMATS {
            let refused = submitted(&format!("submit --output {format} job.sh")).unwrap_err();
            let hint = format!("write `-o {format}` for the format, or `./{format}` for the file");
            assert!(refused.contains(&hint), "{refused}");
        }
    }
}
