//! Documented options that are not built. They are sent, and the server refuses them by name. None is ignored.

use clap::Args;
use lattice_api::v1;

/// Documented options that are not built. All are hidden from `--help`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct UnbuiltFlags {
    #[arg(long, hide = true)]
    intent: Option<String>,
    #[arg(long, hide = true)]
    view: Option<String>,
    #[arg(long, hide = true)]
    image: Option<String>,
    #[arg(long, hide = true)]
    telemetry: Option<String>,
    #[arg(long, hide = true)]
    sensitive: bool,
}

impl UnbuiltFlags {
    /// The names of all these options.
    pub const NAMES: [&str; 5] = ["--intent", "--view", "--image", "--telemetry", "--sensitive"];

    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            intent: self.intent.or(under.intent),
            view: self.view.or(under.view),
            image: self.image.or(under.image),
            telemetry: self.telemetry.or(under.telemetry),
            sensitive: self.sensitive || under.sensitive,
        }
    }

    /// The first of these options that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [self.intent.is_some(), self.view.is_some(), self.image.is_some(), self.telemetry.is_some(), self.sensitive];
        Self::NAMES.into_iter().zip(given).find(|(_, set)| *set).map(|(flag, _)| flag)
    }

    /// Sets these options in the specification.
    pub fn apply(&self, spec: &mut v1::AllocationSpec) {
        spec.intent = self.intent.clone().unwrap_or_default();
        if self.view.is_some() || self.image.is_some() {
            let environment = spec.environment.get_or_insert_default();
            environment.view = self.view.clone().unwrap_or_default();
            environment.image = self.image.clone().unwrap_or_default();
        }
        spec.telemetry_mode = self.telemetry.clone().unwrap_or_default();
        spec.sensitive = self.sensitive;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use lattice_model::SpecError;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: UnbuiltFlags,
    }

    /// The server's own conversion refuses each of them under the name that the user typed.
    #[test]
    fn each_is_refused_by_the_name_that_was_typed() {
        for (typed, named) in [
            ("--intent=train", "--intent"),
            ("--view=default", "--view"),
            ("--image=a/b:c", "--image"),
            ("--telemetry=debug", "--telemetry"),
            ("--sensitive", "--sensitive"),
        ] {
            let flags = Line::try_parse_from(["x", typed]).unwrap().flags;
            let mut spec = v1::AllocationSpec::default();
            flags.apply(&mut spec);
            let refused = lattice_api::spec::to_model(&spec).map(drop);
            assert_eq!(refused, Err(SpecError::NotBuilt { field: named }), "{typed}");
            assert!(named.starts_with(flags.first_given().unwrap()), "{typed}");
        }
        assert_eq!(UnbuiltFlags::default().first_given(), None);
    }
}
