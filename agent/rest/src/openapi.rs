//! The description of REST: OpenAPI 3.1, made from the handlers. `docs/reference/openapi.json` is the same.

use super::problem::Problem;
use super::{resources, streams};
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{OpenApi, ToSchema};

/// The name of the only scheme of authentication.
const BEARER: &str = "bearer";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lattice",
        version = "v1",
        description = "The calls of lattice.v1 over HTTP. Bodies are those of `lattice -o json`; errors are problems (RFC 9457)."
    ),
    components(schemas(Problem))
)]
struct Description;

/// All of it.
pub(crate) fn description() -> utoipa::openapi::OpenApi {
    let mut all = Description::openapi();
    for part in resources::openapi().into_iter().chain([streams::openapi()]) {
        all.merge(part);
    }
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    all.components.get_or_insert_default().add_security_scheme(BEARER, bearer);
    all.security = Some(vec![SecurityRequirement::new(BEARER, Vec::<String>::new())]);
    for item in all.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            add_problem(operation);
            operation.operation_id = operation.operation_id.as_deref().map(camel_case);
        }
    }
    all
}

/// Every request may be answered with a problem.
fn add_problem(operation: &mut Operation) {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build();
    let problem = ResponseBuilder::new().description("What is wrong, and what to do").content("application/problem+json", content);
    operation.responses.responses.insert("default".to_owned(), RefOr::T(problem.build()));
}

/// The name of a function as programs in other languages have it: `list_nodes` is `listNodes`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

    /// The arguments of a call, from the text after its opening bracket.
    fn arguments(text: &str) -> &str {
        let mut depth = 1;
        let end = text.find(|c: char| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        });
        &text[..end.unwrap()]
    }

    /// Adds `get /api/v1/…` for each route in the sources in this folder.
    fn add_routes(folder: &Path, routes: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_routes(&path, routes);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            for route in source.split(".route(").skip(1).map(arguments) {
                // The path of the description is a constant: it is not in the description.
                let Some((path, handlers)) = route.strip_prefix('"').and_then(|route| route.split_once("\", ")) else { continue };
                let words: BTreeSet<&str> = handlers.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
                routes.extend(METHODS.into_iter().filter(|method| words.contains(method)).map(|method| format!("{method} {path}")));
            }
        }
    }

    #[test]
    fn the_routes_are_those_of_the_description() {
        let mut routes = BTreeSet::new();
        add_routes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut routes);
        let described: BTreeSet<String> = description()
            .paths
            .paths
            .iter()
            .flat_map(|(path, item)| {
                let operations = [&item.get, &item.put, &item.post, &item.delete, &item.patch];
                let there = METHODS.into_iter().zip(operations).filter(|(_, operation)| operation.is_some());
                there.map(|(method, _)| format!("{method} {path}")).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(routes, described);
    }

    #[test]
    fn the_committed_description_is_that_of_the_handlers() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
        let text = description().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("LATTICE_WRITE_REFERENCE").is_some() {
            std::fs::write(&path, text).unwrap();
            return;
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is out of date: run the tests with LATTICE_WRITE_REFERENCE=1", path.display());
    }

    #[test]
    fn every_operation_has_its_own_name_and_a_problem() {
        let all = description();
        let mut names = BTreeSet::new();
        for (path, item) in &all.paths.paths {
            assert!(path.starts_with("/api/v1/"), "{path}");
            for operation in [&item.get, &item.put, &item.post, &item.delete, &item.patch].into_iter().flatten() {
                let name = operation.operation_id.clone().unwrap_or_default();
                assert!(!name.is_empty() && names.insert(name.clone()), "{path}: {name:?} is the name of another operation");
                assert!(operation.responses.responses.contains_key("default"), "{path}");
            }
        }
        assert!(names.contains("submitAllocation") && names.len() > 50, "{names:?}");
    }
}
