//! The configuration's section `hooks`.

use super::setting::{SettingError, absolute, within};
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// The site's own programs on this node. See `docs/reference/hooks.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookSettings {
    /// Runs before each allocation on this node.
    pub prologue: SiteHook<300>,
    /// Runs after each allocation on this node.
    pub epilogue: SiteHook<300>,
    /// Wipes this node (`lattice node wipe`). Without a program the node cannot be wiped.
    pub wipe: SiteHook<1800>,
}

/// A program of the site, with its own default timeout.
#[derive(Clone, Debug)]
pub struct SiteHook<const TIMEOUT_SECONDS: u64> {
    /// Absolute path of the program; empty: none.
    pub program: PathBuf,
    /// Timeout of the program in seconds; 1 to 86,400.
    pub timeout_seconds: u64,
}

/// A [`SiteHook`] as it is in the configuration file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HookText {
    program: PathBuf,
    timeout_seconds: Option<u64>,
}

impl<'de, const TIMEOUT_SECONDS: u64> Deserialize<'de> for SiteHook<TIMEOUT_SECONDS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let HookText { program, timeout_seconds } = HookText::deserialize(deserializer)?;
        Ok(Self { program, timeout_seconds: timeout_seconds.unwrap_or(TIMEOUT_SECONDS) })
    }
}

impl<const TIMEOUT_SECONDS: u64> Default for SiteHook<TIMEOUT_SECONDS> {
    fn default() -> Self {
        Self { program: PathBuf::new(), timeout_seconds: TIMEOUT_SECONDS }
    }
}

impl<const TIMEOUT_SECONDS: u64> SiteHook<TIMEOUT_SECONDS> {
    /// Whether there is a program.
    pub fn is_configured(&self) -> bool {
        !self.program.as_os_str().is_empty()
    }

    fn validate(&self, name: &str) -> Result<(), SettingError> {
        absolute(&format!("hooks.{name}.program"), &self.program)?;
        within(&format!("hooks.{name}.timeout_seconds"), self.timeout_seconds, 1, 86_400)
    }
}

impl HookSettings {
    /// Checks paths and ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.prologue.validate("prologue")?;
        self.epilogue.validate("epilogue")?;
        self.wipe.validate("wipe")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_without_a_timeout_has_its_own_default() {
        let text = "{prologue: {program: /a}, epilogue: {timeout_seconds: 7}, wipe: {program: /c}}";
        let hooks = lattice_model::config::parse::<HookSettings>("a.yaml", text).unwrap();
        hooks.validate().unwrap();
        assert_eq!((hooks.prologue.timeout_seconds, hooks.epilogue.timeout_seconds, hooks.wipe.timeout_seconds), (300, 7, 1800));
        assert!(hooks.wipe.is_configured() && !hooks.epilogue.is_configured());
    }

    #[test]
    fn an_invalid_setting_is_refused_with_its_path() {
        let refused =
            |text: &str| lattice_model::config::parse::<HookSettings>("a.yaml", text).unwrap().validate().unwrap_err().to_string();
        assert!(refused("{wipe: {timeout_seconds: 0}}").starts_with("hooks.wipe.timeout_seconds: "));
        for path in ["a", "/", "/a/../b"] {
            assert!(refused(&format!("{{prologue: {{program: {path}}}}}")).starts_with("hooks.prologue.program: "), "{path}");
        }
        assert!(lattice_model::config::parse::<HookSettings>("a.yaml", "{wipe: {programme: /a}}").is_err());
    }
}
