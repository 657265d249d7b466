//! Checks that no crate outgrows its readers: at most 15,000 lines, without those of its tests and generated ones.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE_LINES_MAX: usize = 15_000;
/// Files of these names are tests' own.
const TESTS: [&str; 6] = ["tests", "scenarios", "properties", "test_builders", "fuzz", "hostile"];

#[test]
fn no_crate_has_more_than_15_000_lines() {
    let output = Command::new(env!("CARGO")).args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut sizes: Vec<(usize, String)> = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let source = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().join("src");
        let lines =
            if source.is_dir() { sources(&source).iter().map(|file| own_lines(&fs::read_to_string(file).unwrap())).sum() } else { 0 };
        sizes.push((lines, package["name"].as_str().unwrap().to_owned()));
    }
    sizes.sort();
    assert!(sizes.last().unwrap().0 > 5_000, "nothing was counted: {sizes:?}");
    let too_large: Vec<_> = sizes.iter().filter(|(lines, _)| *lines > CRATE_LINES_MAX).collect();
    assert!(too_large.is_empty(), "these have more than {CRATE_LINES_MAX} lines; divide them: {too_large:?}");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if name == "generated" || TESTS.iter().any(|test| name.ends_with(test)) {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The lines of a file without the modules and functions that are compiled for tests alone.
fn own_lines(text: &str) -> usize {
    let (mut count, mut ends_at): (usize, Option<String>) = (0, None);
    let mut is_of_tests = false;
    for line in text.lines() {
        if let Some(end) = &ends_at {
            if line == end {
                ends_at = None;
            }
        } else if line.trim() == "#[cfg(test)]" {
            is_of_tests = true;
        } else if is_of_tests && !line.trim().starts_with("#[") {
            is_of_tests = false;
            if line.ends_with('{') {
                ends_at = Some(format!("{}}}", &line[..line.len() - line.trim_start().len()]));
            }
        } else if !is_of_tests {
            count += 1;
        }
    }
    count
}

#[test]
fn lines_for_tests_alone_do_not_count() {
    let text = "use std::fs;\n\nfn shipped() {\n}\n\n#[cfg(test)]\nmod helper;\n#[cfg(test)]\nmod tests {\n    fn f() {\n    }\n}\n";
    assert_eq!(own_lines(text), 5);
}
