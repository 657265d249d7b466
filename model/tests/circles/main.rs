//! Checks that the modules of each crate have no cyclic dependencies. A module in a cycle can
//! neither be read nor moved without all the others in it.
//!
//! The rule: a module uses another one if its code names an item of it, in a `use`, or by a path
//! that begins with `crate`, `super`, `self`, a child or an imported module. Each directory module
//! (`foo.rs` with `foo/`) is checked separately. Its graph has one node for its own file, and one
//! for each child with everything below that child. So from outside, a directory is one node; and a
//! child may use its parent if the parent does not use that child.
//!
//! * A name counts for the file that declares it, not for a file that re-exports it. So `mod
//!   child;` and `pub use child::Name;` make no edge from parent to child; code of the parent that
//!   uses `Name` does.
//! * Method calls are ignored, because a method may be declared anywhere.
//! * Tests (`#[cfg(test)]`) may use any module.

mod graph;
mod modules;
mod source;
mod tokens;

use modules::{Modules, Uses};
use serde_json::Value;
use source::Path;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

#[test]
fn modules_do_not_need_each_other_in_a_circle() {
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = String::new();
    for (root_folder, root_file) in crate_roots(workspace) {
        let read = |file: &str| std::fs::read_to_string(workspace.join(file)).ok();
        let modules = Modules::read(&root_folder, &root_file, &read);
        for (directory, circles) in circles_of(&modules).into_iter().filter(|(_, circles)| !circles.is_empty()) {
            let directory = directory.join("::");
            found.push_str(&format!("\nin {root_folder}/{root_file}, module {directory:?}:\n"));
            found.extend(circles.iter().map(Circle::describe));
        }
    }
    assert!(found.is_empty(), "modules need each other in a circle:\n{found}");
}

/// The folder and the root file of each of our libraries and programs.
fn crate_roots(workspace: &std::path::Path) -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO")).args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let is_shipped = |target: &&Value| {
        let kinds = target["kind"].as_array().unwrap();
        !kinds.iter().any(|kind| ["test", "bench", "example", "custom-build"].iter().any(|unshipped| kind == unshipped))
    };
    let roots = targets.filter(is_shipped).map(|target| {
        let path = std::path::Path::new(target["src_path"].as_str().unwrap());
        let path = path.strip_prefix(workspace).unwrap();
        (path.parent().unwrap().to_str().unwrap().to_owned(), path.file_name().unwrap().to_str().unwrap().to_owned())
    });
    roots.collect()
}

struct Circle {
    nodes: BTreeSet<Path>,
    uses: Uses,
}

impl Circle {
    fn describe(&self) -> String {
        let mut text = format!("  a circle of {}:\n", self.nodes.len());
        for ((from, to), places) in &self.uses {
            let places: Vec<String> = places.iter().map(|(line, named)| format!("{named} (line {line})")).collect();
            text.push_str(&format!("    {} uses {}: {}\n", shown(from), shown(to), places.join(", ")));
        }
        text
    }
}

fn shown(path: &Path) -> String {
    if path.is_empty() { "the crate's root".to_owned() } else { path.join("::") }
}

/// The cycles within each directory module.
fn circles_of(modules: &Modules) -> Vec<(Path, Vec<Circle>)> {
    let uses = modules.uses();
    let directories = modules.directories().into_iter();
    directories
        .map(|directory| {
            let circles = circles_within(&directory, &uses);
            (directory, circles)
        })
        .collect()
}

fn circles_within(directory: &Path, uses: &Uses) -> Vec<Circle> {
    let node = |path: &Path| path.starts_with(directory).then(|| path[..path.len().min(directory.len() + 1)].to_vec());
    let mut edges: BTreeMap<Path, BTreeSet<Path>> = BTreeMap::new();
    for (from, to) in uses.keys() {
        if let (Some(from), Some(to)) = (node(from), node(to))
            && from != to
        {
            edges.entry(from).or_default().insert(to);
        }
    }
    let circles = graph::circles(&edges).into_iter().map(|nodes| {
        let is_within = |path: &Path| node(path).is_some_and(|node| nodes.contains(&node));
        let makes_it =
            |((from, to), _): &(&(Path, Path), &Vec<(usize, String)>)| is_within(from) && is_within(to) && node(from) != node(to);
        let uses = uses.iter().filter(makes_it).map(|(ends, places)| (ends.clone(), places.clone())).collect();
        Circle { nodes, uses }
    });
    circles.collect()
}

/// The modules in cycles for a crate with these files, the crate's root first.
fn circles_in(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
    let read = |file: &str| files.iter().find(|(name, _)| *name == file).map(|(_, text)| text.to_string());
    let circles = circles_of(&Modules::read("src", "lib.rs", &read)).into_iter();
    let named = circles.flat_map(|(directory, circles)| {
        let directory = directory.join("::");
        circles.into_iter().map(move |circle| (directory.clone(), circle.nodes.iter().map(shown).collect()))
    });
    named.collect()
}

#[test]
fn a_circle_is_found_whatever_way_its_modules_name_each_other() {
    let lib = ("src/lib.rs", "mod a;\nmod b;\nmod c;\nmod outside;");
    let ways =
        ["use crate::a::A;", "use super::{b::B, a::A as Other};", "fn f() { crate::a::f(&['\"', '\\'']) }", "use super::*; fn f(it: A) {}"];
    for way in ways {
        let files = [lib, ("src/a.rs", "use crate::b;\npub struct A(b::B);"), ("src/b.rs", "pub use crate::c::C;"), ("src/c.rs", way)];
        // `super::*` also imports what the root imports.
        let lib = if way.contains('*') { ("src/lib.rs", "mod a;\nmod b;\nmod c;\nuse a::A;") } else { lib };
        let outside = ("src/outside.rs", "use crate::{a::A, c::C};");
        let mut files = [&[lib][..], &files[1..], &[outside][..]].concat();
        assert!(circles_in(&files).is_empty(), "a re-export uses nothing: {way}");
        files[2].1 = "pub struct B(crate::c::C);";
        let expected = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(circles_in(&files), [(String::new(), expected)], "{way}");
    }
}

#[test]
fn comments_strings_and_tests_use_nothing() {
    let unshipped = [
        "// crate::a::f()",
        "/* /* */ crate::a::f() */",
        "const F: &str = \"crate::a::f()\";",
        "const F: &str = r#\"\" crate::a::f()\"#;",
        "#[cfg(test)]\nuse crate::a::{f, g};",
        "#[cfg(test)]\nmod tests { use crate::a::f; }",
        "struct B { #[cfg(test)] a: crate::a::A, }",
        "pub(in crate::a) struct B;",
    ];
    for text in unshipped {
        let files = [("src/lib.rs", "mod a;\nmod b;"), ("src/a.rs", "use crate::b::B;"), ("src/b.rs", text)];
        assert!(circles_in(&files).is_empty(), "{text}");
    }
}

#[test]
fn a_directory_is_one_node_from_outside_and_its_files_are_nodes_within() {
    let lib = ("src/lib.rs", "mod a;\nmod b;");
    let parent = ("src/a.rs", "mod x;\nmod y;\npub use x::X;\npub struct A;");
    let child = ("src/a/x.rs", "pub struct X(super::A);");
    assert!(circles_in(&[lib, parent, child]).is_empty(), "a child uses its parent");
    let files = [lib, parent, child, ("src/a/y.rs", "use crate::b::B;"), ("src/b.rs", "use crate::a::X;")];
    assert_eq!(circles_in(&files), [(String::new(), vec!["a".to_owned(), "b".to_owned()])]);
    let parent = ("src/a.rs", "mod x;\nuse x::X;\npub struct A;\nfn f(x: X) {}");
    assert_eq!(circles_in(&[lib, parent, child]), [("a".to_owned(), vec!["a".to_owned(), "a::x".to_owned()])]);
}
