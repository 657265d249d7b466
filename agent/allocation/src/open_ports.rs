//! Finds out which of the ports that work exposes accept connections here, and reports them: the quorum
//! lists an endpoint from then on.
//!
//! A port is checked at the address under which other nodes reach this one, because a program that
//! listens on the loopback address alone serves nobody else. A liveness probe of the work must succeed
//! once before ports are checked: the program may listen before it can answer. A port whose protocol
//! does not run over TCP is reported without a check. The checks continue until every port is open,
//! because a script may begin its server late: a program that never listens is never listed, and the
//! allocation's status says which port is awaited.

use crate::handles::Shared;
use crate::{draining, probing};
use lattice_model::{Backoff, DesiredShare, LivenessProbe};
use lattice_node::Event;
use lattice_registry::Detail;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// The shortest and the longest pause between two checks.
const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Timeout of one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Begins the checks, if the work exposes ports. They end with the handle, or when all ports are open.
pub(super) fn begin(context: &Shared, share: &Arc<DesiredShare>, detail: watch::Sender<Detail>) -> Option<AbortOnDropHandle<()>> {
    if share.spec.connectivity.expose.is_empty() {
        return None;
    }
    let probe = probing::probe_on(share, &context.setup.me);
    let checks = Checks { awaited: awaited(share), probe, host: context.setup.host };
    let (context, share) = (Arc::clone(context), Arc::clone(share));
    Some(AbortOnDropHandle::new(tokio::spawn(report_open_ports(context, share, checks, detail))))
}

/// The exposed ports, and for each whether a connection checks it.
fn awaited(share: &DesiredShare) -> BTreeMap<u16, bool> {
    let mut ports: BTreeMap<u16, bool> = BTreeMap::new();
    for exposed in &share.spec.connectivity.expose {
        *ports.entry(exposed.port).or_default() |= exposed.is_over_tcp();
    }
    ports
}

async fn report_open_ports(context: Shared, share: Arc<DesiredShare>, mut checks: Checks, detail: watch::Sender<Detail>) {
    let mut pauses = Backoff::new(CHECK_INTERVAL.0, CHECK_INTERVAL.1);
    let mut is_logged = false;
    loop {
        let Found { open, closed } = checks.look().await;
        // A replica that leaves is listed no more.
        if draining::is_leaving(&context, &share) {
            detail.send_if_modified(|d| d.unlisted.take().is_some());
            return;
        }
        if !open.is_empty() {
            let (allocation, epoch) = (share.allocation, share.epoch);
            context.driver.send(Event::PortsOpened { allocation, epoch, ports: open }).await;
        }
        if let Some(why) = closed.as_ref().filter(|_| !is_logged) {
            tracing::info!(allocation = %share.allocation, %why, "an exposed port is not listed before it accepts connections");
            is_logged = true;
        }
        // A field apart from the text, because the probes set the text.
        detail.send_if_modified(|d| std::mem::replace(&mut d.unlisted, closed.clone()) != closed);
        if closed.is_none() {
            return;
        }
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

/// What is still to be checked.
struct Checks {
    awaited: BTreeMap<u16, bool>,
    /// The liveness probe; `None`: there is none here, or it has succeeded.
    probe: Option<LivenessProbe>,
    /// The address at which ports are checked.
    host: IpAddr,
}

/// What one look found.
struct Found {
    /// Ports that this look found open for the first time.
    open: Vec<u16>,
    /// Why some port is not open; `None`: all ports are open.
    closed: Option<String>,
}

impl Checks {
    async fn look(&mut self) -> Found {
        if let Some(probe) = &self.probe {
            if let Err(error) = probing::attempt(probe).await {
                return Found { open: Vec::new(), closed: Some(format!("{probe} failed: {error}")) };
            }
            self.probe = None;
        }
        let (mut open, mut closed) = (Vec::new(), None);
        for (port, is_over_tcp) in &self.awaited {
            let connected = if *is_over_tcp { connect(self.host, *port).await } else { Ok(()) };
            match connected {
                Ok(()) => open.push(*port),
                Err(error) => closed = Some(format!("port {port} at {}: {}", self.host, probing::describe(&error))),
            }
        }
        self.awaited.retain(|port, _| !open.contains(port));
        Found { open, closed }
    }
}

/// Opens a connection and closes it at once.
async fn connect(host: IpAddr, port: u16) -> io::Result<()> {
    match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await {
        Ok(connected) => connected.map(drop),
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::Bench;
    use lattice_model::network::Exposed;
    use lattice_model::{ProbeCheck, test_builders};
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    fn checks(awaited: &[(u16, bool)], probe: Option<LivenessProbe>) -> Checks {
        Checks { awaited: awaited.iter().copied().collect(), probe, host: Ipv4Addr::LOCALHOST.into() }
    }

    /// A port on which nobody listens.
    async fn closed_port() -> u16 {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn each_port_is_open_when_it_accepts_and_is_found_once() {
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (open, closed) = (service.local_addr().unwrap().port(), closed_port().await);
        let mut checks = checks(&[(open, true), (closed, true)], None);
        let found = checks.look().await;
        assert_eq!(found.open, [open]);
        assert_eq!(found.closed, Some(format!("port {closed} at 127.0.0.1: connection refused")));
        assert_eq!(checks.look().await.open, [0_u16; 0]);
        let _late = TcpListener::bind((Ipv4Addr::LOCALHOST, closed)).await.unwrap();
        let found = checks.look().await;
        assert_eq!((found.open, found.closed), (vec![closed], None));
    }

    #[tokio::test]
    async fn a_port_that_does_not_run_over_tcp_is_open_from_the_beginning() {
        let found = checks(&[(closed_port().await, false)], None).look().await;
        assert!(found.open.len() == 1 && found.closed.is_none());
    }

    #[tokio::test]
    async fn a_probe_must_succeed_once_before_a_port_counts() {
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (open, probed) = (service.local_addr().unwrap().port(), closed_port().await);
        let second = Duration::from_secs(1);
        let probe =
            LivenessProbe { check: ProbeCheck::Tcp, port: probed, initial_delay: second, period: second, timeout: second, failures_max: 1 };
        let mut checks = checks(&[(open, true)], Some(probe));
        let found = checks.look().await;
        assert!(found.open.is_empty() && found.closed.unwrap().ends_with("failed: connection refused"));
        let ready = TcpListener::bind((Ipv4Addr::LOCALHOST, probed)).await.unwrap();
        assert_eq!(checks.look().await.open, [open]);
        drop(ready);
        assert!(checks.look().await.closed.is_none(), "once is enough");
    }

    #[tokio::test]
    async fn open_ports_are_sent_to_the_driver_and_the_status_shows_what_is_awaited() {
        let mut bench = Bench::new();
        let mut share = test_builders::desired_share("00000000-0000-4000-8000-000000000001".parse().unwrap());
        let port = closed_port().await;
        share.spec.connectivity.expose = vec![Exposed { name: "api".into(), port, protocol: "http".into() }];
        let (share, detail) = (Arc::new(share), watch::Sender::new(Detail { text: "running".into(), ..Detail::default() }));
        let mut shown = detail.subscribe();
        let _running = begin(&bench.handles, &share, detail).expect("it exposes a port");
        shown.changed().await.unwrap();
        let awaited = format!("running; not listed as a service yet: port {port} at 127.0.0.1: connection refused");
        assert_eq!(shown.borrow_and_update().status_text(), awaited);
        let _service = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let event = tokio::time::timeout(Duration::from_secs(60), bench.events.recv()).await.unwrap();
        let expected = Event::PortsOpened { allocation: share.allocation, epoch: share.epoch, ports: vec![port] };
        assert_eq!(event, Some(expected));
        shown.changed().await.unwrap();
        assert_eq!(shown.borrow().status_text(), "running");
    }
}
