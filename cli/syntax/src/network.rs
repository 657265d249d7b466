//! Options for network domains and exposed ports.

use clap::Args;
use lattice_api::v1;
use lattice_api::v1::connectivity::Expose;
use thiserror::Error;

/// Options for network domains and exposed ports.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkFlags {
    /// A network domain: all work of a tenant that gives the same name shares one VNI
    #[arg(long, alias = "network_domain", value_name = "NAME", overrides_with = "network_domain")]
    pub network_domain: Option<String>,
    /// Offer a port while the work runs: `lattice service lookup NAME` finds it; may be given more than once [default
    /// NAME: the name of the allocation]
    #[arg(long, value_name = "[NAME:]PORT[/PROTOCOL]", value_parser = parse_expose)]
    pub expose: Vec<Expose>,
}

impl NetworkFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`. The ports of both are exposed.
    pub fn merge_over(self, under: Self) -> Self {
        Self { network_domain: self.network_domain.or(under.network_domain), expose: [under.expose, self.expose].concat() }
    }

    /// The first of these options that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [("--network-domain", self.network_domain.is_some()), ("--expose", !self.expose.is_empty())];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag)
    }

    /// The options as a message, if any was given.
    pub fn to_message(&self) -> Option<v1::Connectivity> {
        let network_domain = self.network_domain.clone().unwrap_or_default();
        self.first_given().map(|_| v1::Connectivity { network_domain, expose: self.expose.clone() })
    }
}

/// The text is not a port to expose.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a port to expose: write 8080, api:8080 or api:8080/http, with a port from 1 to 65535")]
struct ExposeError(String);

fn parse_expose(text: &str) -> Result<Expose, ExposeError> {
    let (rest, protocol) = text.split_once('/').unwrap_or((text, ""));
    let (name, port) = rest.rsplit_once(':').unwrap_or(("", rest));
    let port = port.parse().ok().filter(|port: &u16| *port > 0);
    let port = port.ok_or_else(|| ExposeError(text.to_owned()))?;
    Ok(Expose { name: name.to_owned(), port: port.into(), protocol: protocol.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: NetworkFlags,
    }

    #[test]
    fn a_port_may_have_a_name_and_a_protocol() {
        let parse = |line: &str| Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).map(|l| l.flags);
        let flags = parse("--network_domain d --expose 80 --expose=api:8080/http --expose a:b:1").unwrap();
        let expose = |name: &str, port, protocol: &str| Expose { name: name.into(), port, protocol: protocol.into() };
        assert_eq!(flags.expose, [expose("", 80, ""), expose("api", 8080, "http"), expose("a:b", 1, "")]);
        assert_eq!(flags.to_message().unwrap().network_domain, "d");
        assert_eq!(NetworkFlags::default().to_message(), None);
        for bad in ["--expose=0", "--expose=api", "--expose=api:", "--expose=65536", "--expose=/http"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
