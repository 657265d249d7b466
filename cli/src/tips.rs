//! What clap adds to a refusal of the command line, without what would lead the user astray.

use crate::unbuilt::UnbuiltFlags;
use clap::Error;
use clap::error::{ContextKind, ContextValue};

/// Takes away the tip to use an option that is refused anyway, and the one to write `-- -u`, which would run a program named `-u`.
pub fn without_wrong_tips(mut error: Error) -> Error {
    let names_unbuilt = |value: &ContextValue| match value {
        ContextValue::String(option) => UnbuiltFlags::NAMES.contains(&option.as_str()),
        ContextValue::Strings(options) => options.iter().all(|option| UnbuiltFlags::NAMES.contains(&option.as_str())),
        _ => false,
    };
    if error.get(ContextKind::SuggestedArg).is_some_and(names_unbuilt) {
        error.remove(ContextKind::SuggestedArg);
    }
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let tips: Vec<_> = tips.into_iter().filter(|tip| !tip.to_string().contains("use '-- ")).collect();
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn refused(words: &[&str]) -> String {
        let line = std::iter::once("lattice").chain(words.iter().copied());
        without_wrong_tips(Cli::try_parse_from(line).map(drop).unwrap_err()).to_string()
    }

    #[test]
    fn a_tip_names_nothing_that_does_not_help() {
        let group = refused(&["submit", "--task-groups=3", "x.sh"]);
        assert!(group.contains("unexpected argument '--task-groups'") && !group.contains("'--task-group'"), "{group}");
        let letter = refused(&["submit", "-u", "x.sh"]);
        assert!(letter.contains("unexpected argument '-u'") && !letter.contains("-- -u"), "{letter}");
        let typo = refused(&["submit", "--waltime=1h", "x.sh"]);
        assert!(typo.contains("'--walltime'"), "a typing error is still helped: {typo}");
    }
}
