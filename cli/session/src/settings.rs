//! The settings of every command: flags, then the environment, then `~/.config/lattice/config.yaml`.

use crate::failure::Failure;
use crate::output::{Format, Width};
use lattice_cli_syntax::args::Global;
use lattice_cli_syntax::args::output::Output;
use serde::Deserialize;
use std::env;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// The agent of this machine, used if no endpoint is given.
const ENDPOINT_DEFAULT: &str = "unix:/run/lattice/agent.sock";

/// The user's configuration file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// `unix:/path` or `https://host:port` of an agent's API; several with commas, the nearest first. Environment:
    /// `LATTICE_ENDPOINT`.
    endpoint: Option<String>,
    /// A file with the authorities that agents on the network are verified by. Environment: `LATTICE_CA`.
    ca: Option<PathBuf>,
    /// A file with an own certificate and its key, if agents demand one. Environment: `LATTICE_CERTIFICATE`.
    certificate: Option<PathBuf>,
    /// The token for agents on the network, in place of a login. Environment: `LATTICE_TOKEN`.
    token: Option<String>,
    /// The tenant of submissions that name none. Environment: `LATTICE_TENANT`.
    tenant: Option<String>,
    /// The queue of submissions that name none. Environment: `LATTICE_VCLUSTER`.
    vcluster: Option<String>,
    /// An operator's credential. Environment: `LATTICE_OPERATOR`.
    operator: Option<PathBuf>,
    /// `table`, `wide`, `json`, `yaml` or `name`, if `-o` is not given.
    output: Option<Output>,
    /// Whether states have colours on a terminal; `--no-color`, and `NO_COLOR` in the environment, turn them off.
    color: Option<bool>,
}

/// The settings in force.
#[derive(PartialEq, Eq)]
pub struct Settings {
    /// The agents to contact, the nearest first; at least one.
    pub endpoints: Vec<String>,
    /// The authorities that agents on the network are verified by. `None`: those of this machine.
    pub ca: Option<PathBuf>,
    /// The own certificate and its key, for agents that demand one.
    pub certificate: Option<PathBuf>,
    /// The token for agents on the network, in place of a login.
    pub token: Option<String>,
    /// The tenant of submissions that name none.
    pub tenant: String,
    /// The queue of submissions that name none.
    pub vcluster: String,
    /// The operator's credential, if one was named.
    pub operator: Option<PathBuf>,
    /// The format of answers.
    pub format: Format,
    /// How much of a table is shown.
    pub width: Width,
    /// Whether states have colours, where there is a terminal.
    pub color: bool,
}

impl Settings {
    /// Reads the file and the environment.
    pub fn read(global: &Global) -> Result<Self, Failure> {
        let named = global.config.clone().or_else(|| env::var_os("LATTICE_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from));
        let file = match (named, config_path()) {
            (Some(path), _) if !path.exists() => {
                return Err(Failure::usage(format!("there is no file {}", path.display()))
                    .hint("--config and LATTICE_CONFIG name a file of settings: docs/reference/settings.md"));
            }
            (Some(path), _) | (None, Some(path)) => read_file(&path)?,
            (None, None) => File::default(),
        };
        Ok(Self::merge(global, file, |name| env::var(name).ok().filter(|value| !value.is_empty())))
    }

    fn merge(global: &Global, file: File, variable: impl Fn(&str) -> Option<String>) -> Self {
        // `-o per-rank` is only for launches, and does not set the format of answers.
        let output = global.output.filter(|output| Format::of(*output).is_some()).or(file.output);
        let endpoint = global.endpoint.clone().or_else(|| variable("LATTICE_ENDPOINT")).or(file.endpoint);
        Self {
            endpoints: endpoints(&endpoint.unwrap_or_default()),
            ca: variable("LATTICE_CA").map(PathBuf::from).or(file.ca),
            certificate: variable("LATTICE_CERTIFICATE").map(PathBuf::from).or(file.certificate),
            token: variable("LATTICE_TOKEN").or(file.token),
            tenant: global.tenant.clone().or_else(|| variable("LATTICE_TENANT")).or(file.tenant).unwrap_or_default(),
            vcluster: variable("LATTICE_VCLUSTER").or(file.vcluster).unwrap_or_default(),
            operator: variable("LATTICE_OPERATOR").map(PathBuf::from).or(file.operator),
            format: output.and_then(Format::of).unwrap_or_default(),
            width: output.map(Width::of).unwrap_or_default(),
            color: !global.no_color && file.color.unwrap_or(true),
        }
    }
}

/// The parts of a list with commas; an empty list gives the agent of this machine.
fn endpoints(list: &str) -> Vec<String> {
    let named: Vec<String> = list.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if named.is_empty() { vec![ENDPOINT_DEFAULT.to_owned()] } else { named }
}

fn config_path() -> Option<PathBuf> {
    Some(user_dir("XDG_CONFIG_HOME", ".config")?.join("lattice/config.yaml"))
}

/// `$variable`, or `$HOME/under`; the variable only if it is absolute, as the XDG base directory specification
/// requires.
pub fn user_dir(variable: &str, under: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(PathBuf::from(env::var_os("HOME").filter(|home| !home.is_empty())?).join(under)))
}

fn read_file(path: &PathBuf) -> Result<File, Failure> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(File::default()),
        Err(error) => return Err(Failure::usage(format!("cannot read {shown}: {error}"))),
    };
    let file: File = lattice_model::config::parse(&shown.to_string(), &text).map_err(|error| Failure::usage(error.to_string()))?;
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    if file.token.is_some() && mode & 0o077 != 0 {
        let text = format!("{shown} has a token, and others may read the file (mode {mode:o})");
        return Err(Failure::usage(text).hint(format!("run chmod 600 {shown}")));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Notation;

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let file = || lattice_model::config::parse::<File>("c", "endpoint: unix:/f\ntenant: f\nvcluster: f\noutput: json\n").unwrap();
        let none = Global::default();
        let flags = Global {
            output: Some(Output::Name),
            endpoint: Some("unix:/g, unix:/h,".into()),
            tenant: Some("g".into()),
            ..Global::default()
        };
        let from_file = Settings::merge(&none, file(), |_| None);
        assert_eq!(
            (from_file.endpoints, from_file.tenant.as_str(), from_file.format),
            (vec!["unix:/f".to_owned()], "f", Format::Data(Notation::Json))
        );
        assert_eq!((from_file.ca, from_file.certificate, from_file.token), (None, None, None));
        let remote = "endpoint: https://f:1\nca: /f.crt\ncertificate: /f.pem\ntoken: f\n";
        let remote = Settings::merge(&none, lattice_model::config::parse("c", remote).unwrap(), |_| None);
        assert_eq!((remote.ca, remote.certificate, remote.token), (Some("/f.crt".into()), Some("/f.pem".into()), Some("f".into())));
        let from_env = Settings::merge(&none, file(), |name| Some(name.to_lowercase()));
        assert_eq!((from_env.ca, from_env.token), (Some("lattice_ca".into()), Some("lattice_token".into())));
        assert_eq!((from_env.endpoints, from_env.vcluster.as_str()), (vec!["lattice_endpoint".to_owned()], "lattice_vcluster"));
        let from_flags = Settings::merge(&flags, file(), |name| Some(name.to_lowercase()));
        assert_eq!((from_flags.endpoints, from_flags.format), (vec!["unix:/g".to_owned(), "unix:/h".to_owned()], Format::Name));
        assert_eq!(from_flags.tenant, "g");
        let nothing = Settings::merge(&none, File::default(), |_| None);
        assert_eq!((nothing.endpoints, nothing.format, nothing.width), (vec![ENDPOINT_DEFAULT.to_owned()], Format::Table, Width::Terse));
        let wide = || lattice_model::config::parse::<File>("c", "output: wide\n").unwrap();
        let of = |output| Settings::merge(&Global { output, ..Global::default() }, wide(), |_| None);
        assert_eq!(
            (of(None).width, of(Some(Output::PerRank)).width, of(Some(Output::Table)).width),
            (Width::Wide, Width::Wide, Width::Terse)
        );
    }

    #[test]
    fn colours_are_on_unless_the_file_or_an_option_turns_them_off() {
        let color = |file: &str, no_color| {
            let global = Global { no_color, ..Global::default() };
            Settings::merge(&global, lattice_model::config::parse("c", file).unwrap(), |_| None).color
        };
        assert!(color("tenant: f\n", false) && color("color: true\n", false));
        assert!(!color("color: false\n", false) && !color("color: true\n", true));
    }

    #[test]
    fn a_token_is_not_for_others_to_read() {
        let path = std::env::temp_dir().join(format!("lattice-config-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, "token: lattice_x\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_file(&path).map(|file| file.token).map_err(|failure| failure.text())
        };
        let refused = with_mode(0o640).unwrap_err();
        assert!(refused.contains("others may read the file (mode 640)\nhint: run chmod 600 "), "{refused}");
        assert_eq!(with_mode(0o600), Ok(Some("lattice_x".to_owned())));
        std::fs::write(&path, "tenant: physics\n").unwrap();
        assert_eq!(with_mode(0o644), Ok(None), "nothing secret is in it");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_known_ones() {
        let error = lattice_model::config::parse::<File>("c.yaml", "endpont: unix:/f\n").err().unwrap().to_string();
        assert!(error.contains("line 1") && error.contains("`endpont`, expected one of endpoint, ca"), "{error}");
    }
}
