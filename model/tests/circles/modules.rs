//! The modules of one crate, and which module names which items of another.

use crate::source::{GLOB, Path, Source};
use std::collections::BTreeMap;

/// The names that a module uses from another one, with line numbers.
pub type Uses = BTreeMap<(Path, Path), Vec<(usize, String)>>;

/// Longest chain of imports that is followed.
const IMPORTS_FOLLOWED_MAX: usize = 12;

/// The target of a path: a module, or an item in one.
enum Target {
    Module(Path),
    Item(Path),
}

pub struct Modules(BTreeMap<Path, Source>);

impl Modules {
    /// Reads the crate whose root is the file `root_file` in the folder `root_folder`. `read`
    /// returns the text of a file.
    pub fn read(root_folder: &str, root_file: &str, read: &dyn Fn(&str) -> Option<String>) -> Modules {
        let mut modules = BTreeMap::new();
        let mut unread = vec![(Path::new(), format!("{root_folder}/{root_file}"))];
        while let Some((path, file)) = unread.pop() {
            // A missing file has a `#[path]` attribute: treat it as an empty module.
            let module = read(&file).map(|text| Source::parse(&text)).unwrap_or_default();
            for child in &module.children {
                let path = child_path(&path, child);
                let file = format!("{root_folder}/{}.rs", path.join("/"));
                unread.push((path, file));
            }
            modules.insert(path, module);
        }
        Modules(modules)
    }

    /// The modules that have child modules, the crate's root first.
    pub fn directories(&self) -> Vec<Path> {
        self.0.iter().filter(|(_, module)| !module.children.is_empty()).map(|(path, _)| path.clone()).collect()
    }

    pub fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (path, module) in &self.0 {
            let mut add = |to: &Path, line: usize, named: String| {
                if to != path {
                    uses.entry((path.clone(), to.clone())).or_default().push((line, named));
                }
            };
            for import in &module.imports {
                let Some(target) = self.resolve(path, &import.path, 0) else { continue };
                let named = import.path.join("::");
                match target {
                    Target::Module(from) if import.name == GLOB => {
                        for name in module.words.iter().filter(|name| self.takes_by_glob(module, &from, name)) {
                            if let Some(Target::Module(to) | Target::Item(to)) = self.find(&from, std::slice::from_ref(name), false, 0) {
                                add(&to, import.line, format!("{named}::{name}"));
                            }
                        }
                    }
                    Target::Item(to) if !import.is_public || module.words.contains(&import.name) => add(&to, import.line, named),
                    // Items of an imported module are named by paths, and code that uses a
                    // re-export names the item.
                    Target::Module(_) | Target::Item(_) => {}
                }
            }
            for (names, line) in &module.paths {
                if let Some(Target::Module(to) | Target::Item(to)) = self.resolve(path, names, 0) {
                    add(&to, *line, names.join("::"));
                }
            }
        }
        uses
    }

    fn takes_by_glob(&self, module: &Source, from: &Path, name: &str) -> bool {
        let source = &self.0[from];
        let has = source.items.contains(name) || source.children.contains(name) || source.imports.iter().any(|i| i.name == name);
        has && !module.items.contains(name) && !module.children.contains(name)
    }

    /// The target of a path in the code of `here`; `None`: it belongs to another crate.
    fn resolve(&self, here: &Path, names: &[String], followed: usize) -> Option<Target> {
        if followed > IMPORTS_FOLLOWED_MAX {
            return None;
        }
        let mut at = here.clone();
        let mut rest = names;
        match names.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &names[1..];
            }
            "self" => rest = &names[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            _ => return self.find(here, names, false, followed),
        }
        if rest.is_empty() { Some(Target::Module(at)) } else { self.find(&at, rest, true, followed) }
    }

    /// The target of `names` in the module `at`. If `must_be_there`, a name without a visible
    /// declaration is assumed to come from a macro.
    fn find(&self, at: &Path, names: &[String], must_be_there: bool, followed: usize) -> Option<Target> {
        let module = &self.0[at];
        let (name, rest) = names.split_first()?;
        if module.children.contains(name) {
            let child = child_path(at, name);
            return if rest.is_empty() { Some(Target::Module(child)) } else { self.find(&child, rest, true, followed) };
        }
        if module.items.contains(name) {
            return Some(Target::Item(at.clone()));
        }
        if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
            return match self.resolve(at, &import.path, followed + 1)? {
                Target::Module(from) if !rest.is_empty() => self.find(&from, rest, true, followed + 1),
                target => Some(target),
            };
        }
        for import in module.imports.iter().filter(|import| import.name == GLOB) {
            if let Some(Target::Module(from)) = self.resolve(at, &import.path, followed + 1)
                && from != *at
                && let Some(found) = self.find(&from, names, false, followed + 1)
            {
                return Some(found);
            }
        }
        must_be_there.then(|| Target::Item(at.clone()))
    }
}

fn child_path(parent: &Path, name: &str) -> Path {
    parent.iter().cloned().chain([name.to_owned()]).collect()
}
