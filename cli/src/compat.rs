//! The site's names: reads `lattice-compat.yaml`.

use lattice_cli_session::failure::Failure;
use lattice_cli_syntax::compat::Compat;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Where the file is, unless `LATTICE_COMPAT` names another one.
const FILE_DEFAULT: &str = "/etc/lattice/lattice-compat.yaml";

/// Reads the file. Without one, all names are the same.
///
/// # Errors
/// It cannot be read or is malformed, or the one that `LATTICE_COMPAT` names does not exist.
pub fn read() -> Result<Compat, Failure> {
    let named = std::env::var_os("LATTICE_COMPAT").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = named.clone().unwrap_or_else(|| FILE_DEFAULT.into());
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => return Ok(Compat::default()),
        Err(error) => return Err(Failure::usage(format!("cannot read {}: {error}", path.display()))),
    };
    Compat::parse(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())).hint("the site's administrator can correct it"))
}

/// The site's names, if a script has lines that need them.
///
/// # Errors
/// As [`read`].
pub fn of_script(text: &str) -> Result<Compat, Failure> {
    if text.contains("#SBATCH") { read() } else { Ok(Compat::default()) }
}
