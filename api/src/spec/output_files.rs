//! Files of the user that the output is also written to.

use crate::v1;
use lattice_model::OutputFiles;

/// The files; `None`: there are none. The model validates their names.
pub(super) fn to_model(files: Option<&v1::OutputFiles>) -> Option<OutputFiles> {
    let v1::OutputFiles { stdout, stderr, stdin, append } = files?.clone();
    let files = OutputFiles { stdout, stderr, stdin, append };
    (files != OutputFiles::default()).then_some(files)
}

/// Encodes them.
pub(crate) fn from_model(files: &OutputFiles) -> v1::OutputFiles {
    let OutputFiles { stdout, stderr, stdin, append } = files.clone();
    v1::OutputFiles { stdout, stderr, stdin, append }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_a_file_is_none() {
        assert_eq!(to_model(None), None);
        assert_eq!(to_model(Some(&v1::OutputFiles::default())), None);
        let message = v1::OutputFiles { stderr: "e".to_owned(), append: true, ..Default::default() };
        let files = to_model(Some(&message)).unwrap();
        assert_eq!((files.stdout.as_str(), files.stderr.as_str(), files.append), ("", "e", true));
        assert_eq!(from_model(&files), message);
    }
}
