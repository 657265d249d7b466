//! The formats of squeue, sinfo and sprio: `-o "%.18i %.9P"` and `-O JobID:18,State:.9`.

use crate::context::Context;
use crate::units::one_line;
use thiserror::Error;

/// The width of a field of `-O` that gives none.
const LONG_WIDTH: usize = 20;

/// A field that a command can show of a row.
pub struct Field<R: 'static> {
    /// Its letter in `-o`; `None`: it has only a name.
    pub letter: Option<char>,
    /// Its name in `-O`; empty: it has only a letter.
    pub name: &'static str,
    /// The heading of its column.
    pub heading: &'static str,
    /// Its text.
    pub value: fn(&R, &Context<'_>) -> String,
}

/// A format cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// There is no such field.
    #[error("Invalid format specification: {0}")]
    Unknown(String),
    /// A width is too large.
    #[error("Invalid field width: {0}")]
    Width(String),
}

/// One column.
struct Column<R: 'static> {
    field: &'static Field<R>,
    /// `None`: as wide as its text.
    width: Option<usize>,
    is_right: bool,
    suffix: String,
}

/// Columns in their order.
pub struct Layout<R: 'static> {
    prefix: String,
    columns: Vec<Column<R>>,
}

impl<R: 'static> Layout<R> {
    /// Reads `%.18i %.9P`: a field is `%[[.]size]type[suffix]`. `%all` means all fields, with `|` between.
    ///
    /// # Errors
    /// It names a field that does not exist.
    pub fn of_letters(format: &str, fields: &'static [Field<R>]) -> Result<Self, FormatError> {
        let (prefix, rest) = format.split_once('%').map_or((format, None), |(prefix, rest)| (prefix, Some(rest)));
        let mut columns = Vec::new();
        // Slurm takes several `%` in a row for one, and programs rely on that: `%%i|%%T`.
        for part in rest.into_iter().flat_map(|rest| rest.split('%')).filter(|part| !part.is_empty()) {
            if let Some(suffix) = part.strip_prefix("all") {
                columns.extend(all(fields, suffix));
                continue;
            }
            let (sized, is_right) = part.strip_prefix('.').map_or((part, false), |sized| (sized, true));
            let digits = sized.find(|c: char| !c.is_ascii_digit()).unwrap_or(sized.len());
            let (size, typed) = sized.split_at(digits);
            let Some(letter) = typed.chars().next() else { return Err(FormatError::Unknown(format!("%{part}"))) };
            let field = fields.iter().find(|field| field.letter == Some(letter));
            let field = field.ok_or_else(|| FormatError::Unknown(format!("%{letter}")))?;
            let suffix = typed.get(letter.len_utf8()..).unwrap_or_default().to_owned();
            columns.push(Column { field, width: width(size)?, is_right, suffix });
        }
        Ok(Self { prefix: prefix.to_owned(), columns })
    }

    /// Reads `JobID:18,State:.9`: a field is `type[:[.][size][suffix]]`; without a size it has 20 characters.
    ///
    /// # Errors
    /// It names a field that does not exist.
    pub fn of_names(format: &str, fields: &'static [Field<R>]) -> Result<Self, FormatError> {
        let mut columns = Vec::new();
        for part in format.split(',').filter(|part| !part.is_empty()) {
            let (name, rest) = part.split_once(':').unwrap_or((part, ""));
            if name.eq_ignore_ascii_case("all") {
                columns.extend(all(fields, ""));
                continue;
            }
            let field = fields.iter().find(|field| !field.name.is_empty() && same_name(field.name, name));
            let field = field.ok_or_else(|| FormatError::Unknown(name.to_owned()))?;
            let (sized, is_right) = rest.strip_prefix('.').map_or((rest, false), |sized| (sized, true));
            let digits = sized.find(|c: char| !c.is_ascii_digit()).unwrap_or(sized.len());
            let (size, suffix) = sized.split_at(digits);
            let width = Some(width(size)?.unwrap_or(LONG_WIDTH));
            columns.push(Column { field, width, is_right, suffix: suffix.to_owned() });
        }
        Ok(Self { prefix: String::new(), columns })
    }

    /// Whether it has the field with this letter.
    pub fn has(&self, letter: char) -> bool {
        self.columns.iter().any(|column| column.field.letter == Some(letter))
    }

    /// Whether it has the field with this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.columns.iter().any(|column| same_name(column.field.name, name))
    }

    /// The fields, in their order.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field<R>> + '_ {
        self.columns.iter().map(|column| column.field)
    }

    /// Makes the columns of this letter as wide as their longest text, which Slurm writes as `%#P`.
    pub fn widen(&mut self, letter: char, rows: &[R], context: &Context<'_>) {
        for column in self.columns.iter_mut().filter(|column| column.field.letter == Some(letter)) {
            let longest = rows.iter().map(|row| (column.field.value)(row, context).chars().count()).max().unwrap_or(0);
            column.width = Some(longest.max(column.field.heading.len()));
        }
    }

    /// The line of headings, without its end.
    pub fn heading(&self) -> String {
        let mut line = String::new();
        self.push(&mut line, |field| field.heading.to_owned());
        line
    }

    /// The line of a row, without its end.
    pub fn line(&self, row: &R, context: &Context<'_>) -> String {
        let mut line = String::new();
        self.push_line(&mut line, row, context);
        line
    }

    /// Adds the line of a row, without its end, to a text of many lines.
    pub fn push_line(&self, text: &mut String, row: &R, context: &Context<'_>) {
        self.push(text, |field| (field.value)(row, context));
    }

    fn push(&self, text: &mut String, of: impl Fn(&'static Field<R>) -> String) {
        text.push_str(&self.prefix);
        for column in &self.columns {
            fitted(text, &one_line(of(column.field)), column.width, column.is_right);
            text.push_str(&column.suffix);
        }
    }
}

/// All fields with letters, with `|` between them.
fn all<R: 'static>(fields: &'static [Field<R>], suffix: &str) -> Vec<Column<R>> {
    let lettered: Vec<&'static Field<R>> = fields.iter().filter(|field| field.letter.is_some()).collect();
    let last = lettered.len().saturating_sub(1);
    let column = |(at, field): (usize, &'static Field<R>)| {
        let suffix = if at == last { suffix.to_owned() } else { "|".to_owned() };
        Column { field, width: None, is_right: false, suffix }
    };
    lettered.into_iter().enumerate().map(column).collect()
}

/// Whether two names are the same, regardless of case, `-` and `_`.
fn same_name(a: &str, b: &str) -> bool {
    let letters = |text: &str| text.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect::<String>();
    letters(a) == letters(b)
}

fn width(digits: &str) -> Result<Option<usize>, FormatError> {
    if digits.is_empty() {
        return Ok(None);
    }
    // 0 means "as wide as needed", too.
    let width = digits.parse().ok().filter(|width: &usize| *width <= 65_536);
    let width = width.ok_or_else(|| FormatError::Width(digits.chars().take(40).collect()))?;
    Ok(Some(width).filter(|width| *width > 0))
}

/// Adds a text that is cut or padded to this width.
pub(crate) fn fitted(line: &mut String, text: &str, width: Option<usize>, is_right: bool) {
    let Some(width) = width else { return line.push_str(text) };
    let length = text.chars().count();
    let padding = width.saturating_sub(length);
    if is_right {
        line.extend(std::iter::repeat_n(' ', padding));
    }
    if length <= width {
        line.push_str(text);
    } else {
        line.extend(text.chars().take(width));
    }
    if !is_right {
        line.extend(std::iter::repeat_n(' ', padding));
    }
}

/// A field of a list of fields to sort by: `-p,i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The letter of the field.
    pub letter: char,
    /// Whether the greatest comes first.
    pub is_descending: bool,
}

/// Reads `P,t,-p`. A `#` before a letter, which means the order of the configuration, is left out.
///
/// # Errors
/// A part is no letter of `letters`.
pub fn sort_keys(text: &str, letters: impl Fn(char) -> bool) -> Result<Vec<SortKey>, FormatError> {
    let mut keys = Vec::new();
    let (mut is_descending, mut letter) = (false, None);
    for c in text.chars().chain([',']) {
        match c {
            '-' => is_descending = true,
            '+' | '#' | ' ' => {}
            ',' => {
                if let Some(letter) = letter.take() {
                    keys.push(SortKey { letter, is_descending });
                }
                is_descending = false;
            }
            c if letter.is_none() && letters(c) => letter = Some(c),
            c => return Err(FormatError::Unknown(c.to_string())),
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    const FIELDS: &[Field<(u32, &str)>] = &[
        Field { letter: Some('i'), name: "JobID", heading: "JOBID", value: |row, _| row.0.to_string() },
        Field { letter: Some('j'), name: "Name", heading: "NAME", value: |row, _| row.1.to_owned() },
        Field { letter: None, name: "tres-alloc", heading: "TRES_ALLOC", value: |_, _| "cpu=1".to_owned() },
    ];

    fn lines(layout: Result<Layout<(u32, &'static str)>, FormatError>) -> [String; 2] {
        let (compat, clock, nodes) = (Compat::default(), Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let layout = layout.unwrap();
        [layout.heading(), layout.line(&(12, "a-long-name"), &context)]
    }

    #[test]
    fn letters_have_sizes_sides_and_suffixes() {
        let of = |format: &str| lines(Layout::of_letters(format, FIELDS));
        assert_eq!(of("%.6i %.4j|"), [" JOBID NAME|", "    12 a-lo|"]);
    }

    #[test]
    fn letters_without_a_size_are_as_wide_as_their_text() {
        let of = |format: &str| lines(Layout::of_letters(format, FIELDS));
        assert_eq!(of("%i|%j"), ["JOBID|NAME", "12|a-long-name"]);
        assert_eq!(of("%%i|%%j"), ["JOBID|NAME", "12|a-long-name"]);
        assert_eq!(of("%all"), ["JOBID|NAME", "12|a-long-name"]);
        assert_eq!(of("<%6i> %0j"), ["<JOBID > NAME", "<12    > a-long-name"]);
    }

    #[test]
    fn names_are_of_any_case_and_20_wide() {
        let of = |format: &str| lines(Layout::of_names(format, FIELDS));
        assert_eq!(of("jobid,NAME:.6x,TresAlloc:3"), ["JOBID                 NAMExTRE", "12                  a-longxcpu"]);
    }

    #[test]
    fn lines_are_added_to_a_text() {
        let (compat, clock, nodes) = (Compat::default(), Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let layout = Layout::of_letters("<%.4i %4j>", FIELDS).unwrap();
        let mut text = String::from("before\n");
        for row in [(12, "a\tb"), (7, "a-long-name")] {
            layout.push_line(&mut text, &row, &context);
            text.push('\n');
        }
        assert_eq!(text, "before\n<  12 a b >\n<   7 a-lo>\n");
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let unknown = |text: &str| Some(FormatError::Unknown(text.to_owned()));
        assert_eq!(Layout::of_letters("%i %Ä", FIELDS).err(), unknown("%Ä"));
        assert_eq!(Layout::of_letters("%i %6", FIELDS).err(), unknown("%6"));
        assert_eq!(Layout::of_names("JobID,Color", FIELDS).err(), unknown("Color"));
        assert_eq!(Layout::of_letters("%99999999999i", FIELDS).err(), Some(FormatError::Width("99999999999".to_owned())));
    }

    #[test]
    fn each_sort_key_has_a_direction() {
        let keys = sort_keys("P,t,-p", |c| "Ptp".contains(c)).unwrap();
        assert_eq!(keys.iter().map(|key| (key.letter, key.is_descending)).collect::<Vec<_>>(), [('P', false), ('t', false), ('p', true)]);
        assert_eq!(sort_keys("#P,+t", |_| true).unwrap().len(), 2);
        assert!(sort_keys("x", |c| c == 'P').is_err());
    }
}
