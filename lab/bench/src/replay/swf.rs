//! The Standard Workload Format, version 2.2, of the Parallel Workloads Archive
//! (<https://www.cs.huji.ac.il/labs/parallel/workload/swf.html>): comments begin with `;`, and each other line is a job of
//! 18 numbers, -1 for what is not known. Fields count from 1, as there.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, Read};

const FIELDS: usize = 18;
/// Bytes of a line at most.
const LINE_LEN_MAX: u64 = 64 << 10;
/// Jobs of a file at most.
const JOBS_MAX: usize = 10_000_000;
/// Seconds of a time at most: 300 years.
const TIME_S_MAX: f64 = 1e10;

/// A job of a trace, as its line has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Field 1.
    pub number: i64,
    /// Field 2.
    pub submitted_s: u64,
    /// Field 4.
    pub run_s: Option<u64>,
    /// The processors that it asked for (field 8) or, if these are not known, that it got (field 5).
    pub processors: Option<u64>,
    /// Field 9: the walltime that its user gave.
    pub estimate_s: Option<u64>,
    /// Status (field 11) 2 to 4: the line is about a part of a job that was suspended; another line is about the whole.
    pub is_part: bool,
}

/// A file.
#[derive(Clone, Debug)]
pub struct Trace {
    /// `MaxProcs` of the header or, without it, `MaxNodes`.
    pub processors: Option<u32>,
    /// In the order of the file.
    pub records: Vec<Record>,
}

/// Reads a file; an error names it and the line.
pub fn read(mut from: impl BufRead, name: &str) -> Result<Trace> {
    let (mut processors, mut nodes, mut records) = (None, None, Vec::new());
    let mut bytes = Vec::new();
    for number in 1_u64.. {
        bytes.clear();
        let at = || format!("{name}, line {number}");
        from.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut bytes).with_context(at)?;
        if bytes.is_empty() {
            break;
        }
        ensure!((bytes.len() as u64) < LINE_LEN_MAX, "{}: longer than {LINE_LEN_MAX} bytes", at());
        // Comments may have names in any encoding.
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim();
        if let Some(comment) = line.strip_prefix(';') {
            processors = processors.or(header(comment, "MaxProcs").with_context(at)?);
            nodes = nodes.or(header(comment, "MaxNodes").with_context(at)?);
        } else if !line.is_empty() {
            ensure!(records.len() < JOBS_MAX, "{}: more than {JOBS_MAX} jobs", at());
            records.push(record(line).with_context(at)?);
        }
    }
    Ok(Trace { processors: processors.or(nodes), records })
}

/// The number of this header, if the comment is that header.
fn header(comment: &str, name: &str) -> Result<Option<u32>> {
    let Some((key, value)) = comment.split_once(':').filter(|(key, _)| key.trim() == name) else { return Ok(None) };
    // Some files have an explanation after the number.
    let number = value.split_whitespace().next().unwrap_or_default();
    if number == "-1" {
        return Ok(None);
    }
    let number = number.parse().with_context(|| format!("{} is `{number}`, which is no number of processors", key.trim()))?;
    ensure!(number > 0, "{name} is 0");
    Ok(Some(number))
}

fn record(line: &str) -> Result<Record> {
    let mut fields = [0.0; FIELDS];
    let mut count = 0;
    for text in line.split_whitespace() {
        let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite()).with_context(|| format!("`{text}` is not a number"))?;
        if let Some(field) = fields.get_mut(count) {
            *field = value;
        }
        count += 1;
    }
    ensure!(count == FIELDS, "{count} fields; a job has {FIELDS}");
    let field = |number: usize| fields[number - 1];
    let seconds = |number: usize| match field(number) {
        time if time > TIME_S_MAX => bail!("field {number}: {time:e} seconds are more than 300 years"),
        time => Ok((time >= 0.0).then(|| time.round() as u64)),
    };
    let positive = |number: usize| Some(field(number)).filter(|value| *value >= 1.0).map(|value| value as u64);
    Ok(Record {
        number: field(1) as i64,
        submitted_s: seconds(2)?.context("field 2: the time of submission is not known")?,
        run_s: seconds(4)?,
        processors: positive(8).or(positive(5)),
        estimate_s: seconds(9)?.filter(|estimate_s| *estimate_s > 0),
        is_part: (2.0..=4.0).contains(&field(11)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOB: &str = "7 10 5 100.4 4 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1 -1";

    fn error(text: &str) -> String {
        format!("{:#}", read(text.as_bytes(), "a.swf").unwrap_err())
    }

    #[test]
    fn a_line_is_a_job_and_the_header_has_the_processors() {
        let text = format!("; Version: 2.2\n;MaxNodes: 64 (of 2)\n; MaxProcs: 128\n; Note: J\u{fc}lich: 5\n\n{JOB}\n {JOB}");
        let trace = read(text.as_bytes(), "a.swf").unwrap();
        let job = Record { number: 7, submitted_s: 10, run_s: Some(100), processors: Some(8), estimate_s: Some(3600), is_part: false };
        assert_eq!((trace.processors, trace.records), (Some(128), vec![job.clone(), job]));
        assert_eq!(read(&b"; MaxNodes: 64\n"[..], "a").unwrap().processors, Some(64));
        assert_eq!(read(&b";\xff: 64\n"[..], "a").unwrap().processors, None);
    }

    #[test]
    fn what_is_not_known_is_left_open() {
        let trace = read(&b"; MaxProcs: -1\n1 0 -1 -1 4 -1 -1 -1 -1 -1 2 -1 -1 -1 -1 -1 -1 -1"[..], "a").unwrap();
        let want = Record { number: 1, submitted_s: 0, run_s: None, processors: Some(4), estimate_s: None, is_part: true };
        assert_eq!((trace.processors, trace.records), (None, vec![want]));
    }

    #[test]
    fn a_malformed_or_cut_line_is_an_error_with_its_number() {
        assert_eq!(error(&format!("; x\n{JOB}\n{}", &JOB[..30])), "a.swf, line 3: 10 fields; a job has 18");
        assert_eq!(error(&format!("{JOB} 1\n")), "a.swf, line 1: 19 fields; a job has 18");
        assert_eq!(error(&JOB.replace("3600", "1h")), "a.swf, line 1: `1h` is not a number");
        assert_eq!(error(&JOB.replace("3600", "NaN")), "a.swf, line 1: `NaN` is not a number");
        assert_eq!(error(&JOB.replace("7 10", "7 -1")), "a.swf, line 1: field 2: the time of submission is not known");
        assert_eq!(error(&JOB.replace("100.4", "1e300")), "a.swf, line 1: field 4: 1e300 seconds are more than 300 years");
        assert!(error("; MaxProcs: many\n").starts_with("a.swf, line 1: MaxProcs is `many`"));
        assert_eq!(error("; MaxProcs: 0\n"), "a.swf, line 1: MaxProcs is 0");
        assert_eq!(error(&"1".repeat(70_000)), "a.swf, line 1: longer than 65536 bytes");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes[..], "a.swf");
        }

        #[test]
        fn no_numbers_panic(fields in proptest::collection::vec(any::<f64>(), 18)) {
            let line: Vec<String> = fields.iter().map(f64::to_string).collect();
            let _ = read(line.join(" ").as_bytes(), "a.swf");
        }
    }
}
