//! The lists of sacct, sstat and sshare: `--format=JobID%20,State`, and the forms for programs.

use crate::context::Context;
use crate::format::fitted;
use crate::units::one_line;
use thiserror::Error;

/// A field that such a command can show of a row.
pub struct ListField<R: 'static> {
    /// Its name, which is also its heading.
    pub name: &'static str,
    /// Its width if none is given.
    pub width: usize,
    /// Whether its text is on the left.
    pub is_left: bool,
    /// Its text.
    pub value: fn(&R, &Context<'_>) -> String,
}

/// A field whose text is on the right.
pub const fn field<R: 'static>(name: &'static str, width: usize, value: fn(&R, &Context<'_>) -> String) -> ListField<R> {
    ListField { name, width, is_left: false, value }
}

/// The form of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// In columns. A text that is too long for its column ends in `+`.
    Columns,
    /// Separated by this text. `ends`: also at the end of a line.
    Separated {
        /// Between two fields.
        delimiter: String,
        /// Whether it is at the end of a line, too.
        ends: bool,
    },
}

/// The field does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Invalid field requested: {0:?}")]
pub struct InvalidField(pub String);

/// The largest width that may be given.
const WIDTH_MAX: usize = 65_536;

struct Column<R: 'static> {
    field: &'static ListField<R>,
    width: usize,
    is_left: bool,
}

/// Columns in their order.
pub struct Listing<R: 'static> {
    columns: Vec<Column<R>>,
    form: Form,
}

impl<R: 'static> Listing<R> {
    /// Reads `JobID%20,State,nodelist%-30`. A name may be shortened: it means the first field that begins with it. `ALL` means
    /// all fields.
    ///
    /// # Errors
    /// It names a field that does not exist.
    pub fn new(format: &str, fields: &'static [ListField<R>], form: Form) -> Result<Self, InvalidField> {
        let mut columns = Vec::new();
        for part in format.split([',', ' ']).filter(|part| !part.is_empty()) {
            let (name, size) = part.split_once('%').map_or((part, None), |(name, size)| (name, Some(size)));
            let invalid = || InvalidField(part.chars().take(40).collect());
            if name.eq_ignore_ascii_case("all") {
                columns.extend(fields.iter().map(|field| Column { field, width: field.width, is_left: field.is_left }));
                continue;
            }
            let begins = |field: &&ListField<R>| field.name.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name));
            let exact = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
            let field = exact.or_else(|| fields.iter().find(begins)).filter(|_| !name.is_empty()).ok_or_else(invalid)?;
            let (width, is_left) = match size {
                None => (field.width, field.is_left),
                Some(size) => {
                    let (digits, is_left) = size.strip_prefix('-').map_or((size, false), |digits| (digits, true));
                    let width = digits.parse::<usize>().ok().filter(|width| (1..=WIDTH_MAX).contains(width)).ok_or_else(invalid)?;
                    (width, is_left)
                }
            };
            columns.push(Column { field, width, is_left });
        }
        Ok(Self { columns, form })
    }

    /// Whether it has the field of this name.
    pub fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.field.name.eq_ignore_ascii_case(name))
    }

    /// The lines of headings, with their ends.
    pub fn heading(&self) -> String {
        let names = self.text(|field| field.name.to_owned());
        match self.form {
            Form::Separated { .. } => names + "\n",
            Form::Columns => {
                let dashes: String = self.columns.iter().map(|column| "-".repeat(column.width) + " ").collect();
                format!("{names}\n{dashes}\n")
            }
        }
    }

    /// The line of a row, with its end.
    pub fn line(&self, row: &R, context: &Context<'_>) -> String {
        self.text(|field| (field.value)(row, context)) + "\n"
    }

    fn text(&self, of: impl Fn(&'static ListField<R>) -> String) -> String {
        let mut line = String::new();
        let last = self.columns.len().saturating_sub(1);
        for (at, column) in self.columns.iter().enumerate() {
            let text = one_line(of(column.field));
            match &self.form {
                Form::Separated { delimiter, ends } => {
                    line.push_str(&text);
                    if at < last || *ends {
                        line.push_str(delimiter);
                    }
                }
                Form::Columns => {
                    let text =
                        if text.chars().count() > column.width { text.chars().take(column.width - 1).chain(['+']).collect() } else { text };
                    fitted(&mut line, &text, Some(column.width), !column.is_left);
                    line.push(' ');
                }
            }
        }
        line
    }
}

/// The names of all fields, four in a line.
pub fn help_format<R: 'static>(fields: &[ListField<R>]) -> String {
    let lines = fields.chunks(4).map(|line| {
        let names: String = line.iter().map(|field| format!("{:<20}", field.name)).collect();
        names.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    const FIELDS: &[ListField<(u32, &str)>] = &[
        ListField { name: "JobID", width: 12, is_left: true, value: |row, _| row.0.to_string() },
        field("JobIDRaw", 12, |row, _| row.0.to_string()),
        field("State", 10, |row, _| row.1.to_owned()),
    ];

    fn lines(format: &str, form: Form) -> String {
        let (compat, clock, nodes) = (Compat::default(), Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let listing = Listing::new(format, FIELDS, form).unwrap();
        listing.heading() + &listing.line(&(7, "CANCELLED by 1000"), &context)
    }

    #[test]
    fn columns_have_dashes_and_cut_texts_end_in_a_plus() {
        let want = "JobID             State \n------------ ---------- \n7            CANCELLED+ \n";
        assert_eq!(lines("jobid,state", Form::Columns), want);
        assert_eq!(lines("stat%20", Form::Columns).lines().last(), Some("   CANCELLED by 1000 "));
        assert_eq!(lines("State%-20", Form::Columns).lines().last(), Some("CANCELLED by 1000    "));
    }

    #[test]
    fn programs_get_separated_fields() {
        let form = |ends| Form::Separated { delimiter: "|".to_owned(), ends };
        assert_eq!(lines("JobIdRaw,State%5", form(false)), "JobIDRaw|State\n7|CANCELLED by 1000\n");
        assert_eq!(lines("jobid", form(true)), "JobID|\n7|\n");
    }

    #[test]
    fn a_wrong_field_is_refused() {
        for wrong in ["color", "State%x", "%5"] {
            let refused = Listing::new(wrong, FIELDS, Form::Columns).err();
            assert_eq!(refused, Some(InvalidField(wrong.to_owned())), "{wrong}");
        }
        assert_eq!(help_format(FIELDS), "JobID               JobIDRaw            State\n");
    }
}
