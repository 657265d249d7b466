//! The configuration's sections `mesh` and `gossip`.

use super::setting::SettingError;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Where agents reach each other for everything but gossip.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshSettings {
    /// Address on which the mesh listens (QUIC over UDP); empty: `advertise`, and no other address.
    pub listen: String,
    /// Address at which other agents reach the mesh; empty: `listen`.
    pub advertise: String,
}

impl MeshSettings {
    /// Checks the addresses.
    pub fn validate(&self) -> Result<(), SettingError> {
        addresses("mesh", self.listen(), self.advertise())
    }

    /// Address on which the mesh listens.
    pub fn listen(&self) -> &str {
        or(&self.listen, &self.advertise)
    }

    /// Address at which other agents reach the mesh.
    pub fn advertise(&self) -> &str {
        or(&self.advertise, &self.listen)
    }
}

/// Where and how agents gossip.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GossipSettings {
    /// Address on which gossip listens (UDP); empty: `advertise`, and no other address.
    pub listen: String,
    /// Address at which other agents reach gossip, an IP address and port; empty: `listen`.
    pub advertise: String,
    /// A file of mode 0600 with the cluster's gossip key, 64 hexadecimal digits. The key is in use
    /// until the quorum has other ones; a new node uses it until it has registered.
    pub key_file: PathBuf,
    /// Agents to join gossip through, `host:port`, besides those that the quorum names.
    pub seeds: Vec<String>,
    /// Timers of gossip.
    pub timers: lattice_gossip::Config,
}

impl Default for GossipSettings {
    fn default() -> Self {
        Self {
            listen: String::new(),
            advertise: String::new(),
            key_file: "/etc/lattice/gossip.key".into(),
            seeds: Vec::new(),
            timers: lattice_gossip::Config::default(),
        }
    }
}

/// Why a section `gossip` is invalid.
#[derive(Debug, Error)]
pub enum GossipSettingsError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("gossip.timers.{0}")]
    Timers(#[from] lattice_gossip::ConfigError),
}

impl GossipSettings {
    /// Checks addresses and timers.
    pub fn validate(&self) -> Result<(), GossipSettingsError> {
        addresses("gossip", self.listen(), self.advertise())?;
        Ok(self.timers.validate()?)
    }

    /// Address on which gossip listens.
    pub fn listen(&self) -> &str {
        or(&self.listen, &self.advertise)
    }

    /// Address at which other agents reach gossip.
    pub fn advertise(&self) -> &str {
        or(&self.advertise, &self.listen)
    }
}

/// The first text, or the other one if it is empty.
fn or<'a>(first: &'a str, other: &'a str) -> &'a str {
    if first.is_empty() { other } else { first }
}

/// Checks the two addresses of a section.
fn addresses(section: &str, listen: &str, advertise: &str) -> Result<(), SettingError> {
    let refused = |key: &str, value: &str| SettingError::Address { setting: format!("{section}.{key}"), value: value.to_owned() };
    if listen.parse::<SocketAddr>().is_err() {
        return Err(refused("listen", listen));
    }
    if advertise.parse::<SocketAddr>().is_ok_and(|a| !a.ip().is_unspecified()) { Ok(()) } else { Err(refused("advertise", advertise)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_enough_and_others_must_be_able_to_reach_it() {
        let mesh = |listen: &str, advertise: &str| MeshSettings { listen: listen.to_owned(), advertise: advertise.to_owned() };
        for (listen, advertise) in [("10.0.0.1:1", ""), ("", "10.0.0.1:1"), ("0.0.0.0:1", "10.0.0.1:1")] {
            mesh(listen, advertise).validate().unwrap();
        }
        for (listen, advertise, setting) in
            [("", "", "mesh.listen"), ("0.0.0.0:1", "", "mesh.advertise"), ("10.0.0.1:1", "n1:1", "mesh.advertise")]
        {
            let refused = mesh(listen, advertise).validate().unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{setting}: ")), "{refused}");
        }
    }

    #[test]
    fn a_timer_is_refused_by_its_path() {
        let text = "{listen: \"10.0.0.1:1\", timers: {packet_bytes_max: 9000}}";
        let refused = lattice_model::config::parse::<GossipSettings>("a.yaml", text).unwrap().validate().unwrap_err().to_string();
        assert!(refused.starts_with("gossip.timers.packet_bytes_max is 9000"), "{refused}");
    }
}
