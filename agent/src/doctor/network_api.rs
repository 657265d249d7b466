//! The API on the network: whether its certificate can be used, and its address.

use super::Health;
use super::tried::Look;
use lattice_agent_common::config::AgentConfig;
use lattice_model::with_causes;
use lattice_pki::credentials::Credentials;
use std::io::ErrorKind;
use std::net::TcpListener;

/// Whether the API can be served on the network; `None`: it is not configured.
pub fn served(config: &AgentConfig) -> Option<Look> {
    let address = config.api.address()?;
    let remedy = "see api.tls_cert, api.tls_key and api.client_ca in the configuration";
    let read = Credentials::open(&config.tls, &config.certificate_file()).and_then(|own| lattice_edge::certificate(&config.api, &own));
    let certificate = match read {
        Ok(certificate) => certificate,
        Err(error) => return Some((Health::Missing, format!("{}; {remedy}", with_causes(&error)))),
    };
    let Some(left) = certificate.left() else {
        return Some((Health::Missing, format!("its certificate has expired, and clients refuse it; {remedy}")));
    };
    let whose = if config.api.tls_cert.as_os_str().is_empty() { "the agent's own" } else { "its own" };
    let at = format!("https://{address}");
    Some(match TcpListener::bind(address) {
        Ok(_) => (Health::Ok, format!("{at} can be served; {whose} certificate holds for {left} more")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            (Health::Ok, format!("{at} is in use, by this node's agent if it runs; {whose} certificate holds for {left} more"))
        }
        Err(error) => (Health::Missing, format!("{address}: {error}: set api.listen to an address of this machine")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_pki::ca;
    use lattice_pki::identity::Role;

    #[test]
    fn a_certificate_and_an_address_are_needed_where_it_is_configured() {
        let dir = std::env::temp_dir().join(format!("lattice-doctor-api-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        ca::init(&dir).unwrap();
        ca::issue(&dir, "n1", Role::Api, &[], &dir, ca::LIFETIME).unwrap();
        let mut config = AgentConfig { state_dir: dir.clone(), ..AgentConfig::default() };
        config.tls = lattice_pki::tls::TlsFiles { ca: dir.join("ca.crt"), cert: dir.join("n1.crt"), key: dir.join("n1.key") };
        assert_eq!(served(&config), None);
        config.api.listen = "127.0.0.1:0".to_owned();
        let (health, text) = served(&config).unwrap();
        assert!(health == Health::Ok && text.contains("can be served; the agent's own certificate holds for"), "{text}");
        (config.api.tls_cert, config.api.tls_key) = (dir.join("none"), dir.join("n1.key"));
        let (health, text) = served(&config).unwrap();
        assert!(health == Health::Missing && text.contains("cannot be read"), "{text}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
