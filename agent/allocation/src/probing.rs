//! Probes a service, and reports when it is dead. [`ProbeWatch`] decides what a result means.

use crate::draining;
use crate::handles::Shared;
use lattice_model::{DesiredShare, EndReason, Entrypoint, LivenessProbe, NodeId, ProbeCheck};
use lattice_node::{Event, ProbeWatch, Verdict};
use lattice_registry::Detail;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How many bytes of an answer are searched for its first line.
const STATUS_LINE_BYTES_MAX: usize = 1024;

/// Begins to probe, if this node must. Ends with the handle.
pub(super) fn begin(context: &Shared, share: &Arc<DesiredShare>, detail: watch::Sender<Detail>) -> Option<AbortOnDropHandle<()>> {
    let probe = probe_on(share, &context.setup.me)?;
    let (context, share) = (Arc::clone(context), Arc::clone(share));
    Some(AbortOnDropHandle::new(tokio::spawn(probing(context, share, probe, detail))))
}

/// The probe that this node makes, if it makes one.
pub(super) fn probe_on(share: &DesiredShare, me: &NodeId) -> Option<LivenessProbe> {
    share.spec.liveness_probe.as_deref().cloned().filter(|_| is_probed_on(share, me))
}

/// The service of a script is on the node where the script runs; a command runs on every node.
fn is_probed_on(share: &DesiredShare, me: &NodeId) -> bool {
    match share.spec.entrypoint {
        Entrypoint::Script { .. } => share.nodes.head().as_ref() == Some(me),
        Entrypoint::Command { .. } => true,
    }
}

async fn probing(context: Shared, share: Arc<DesiredShare>, probe: LivenessProbe, detail: watch::Sender<Detail>) {
    let began = Instant::now();
    let mut watch = ProbeWatch::new(probe.clone());
    loop {
        tokio::time::sleep_until(began + watch.due()).await;
        let outcome = attempt(&probe).await;
        // A replica that leaves may refuse connections while it completes what it has.
        if draining::is_leaving(&context, &share) {
            return;
        }
        let outcome = outcome.map_err(|error| error.to_string());
        let verdict = watch.probed(began.elapsed(), outcome.as_ref().copied().map_err(String::as_str));
        let text = match &verdict {
            Verdict::Alive => "running; its liveness probe succeeds".to_owned(),
            Verdict::Doubtful { why } | Verdict::Dead { why } => format!("running; liveness probe: {why}"),
        };
        detail.send_if_modified(|d| std::mem::replace(&mut d.text, text.clone()) != text);
        match verdict {
            Verdict::Alive => {}
            Verdict::Doubtful { why } => tracing::info!(allocation = %share.allocation, %why, "a liveness probe failed"),
            Verdict::Dead { why } => {
                tracing::warn!(allocation = %share.allocation, %why, "a service is ended: its liveness probe failed too often");
                let (allocation, epoch) = (share.allocation, share.epoch);
                let reason = EndReason::ProbeFailed { node: context.setup.me.clone(), why };
                return context.driver.send(Event::Ended { allocation, epoch, reason }).await;
            }
        }
    }
}

/// Why a probe failed.
#[derive(Debug, Error)]
pub(super) enum ProbeError {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{}", describe(.0))]
    Connection(#[from] io::Error),
    #[error("status {0}")]
    Status(u16),
    #[error("the answer is not HTTP")]
    NotHttp,
}

/// Makes one probe, within its timeout.
pub(super) async fn attempt(probe: &LivenessProbe) -> Result<(), ProbeError> {
    tokio::time::timeout(probe.timeout, make(probe)).await.unwrap_or(Err(ProbeError::Timeout(probe.timeout)))
}

async fn make(probe: &LivenessProbe) -> Result<(), ProbeError> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, probe.port)).await?;
    match &probe.check {
        ProbeCheck::Tcp => Ok(()),
        ProbeCheck::Http { path } => {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUser-Agent: lattice-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n",
                probe.port
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            while !answer.contains(&b'\n') && answer.len() < STATUS_LINE_BYTES_MAX {
                let mut chunk = [0; 256];
                match stream.read(&mut chunk).await? {
                    0 => break,
                    n => answer.extend_from_slice(&chunk[..n]),
                }
            }
            match status_code(&answer) {
                Some(200..=399) => Ok(()),
                Some(code) => Err(ProbeError::Status(code)),
                None => Err(ProbeError::NotHttp),
            }
        }
    }
}

/// The code in a status line (RFC 9112, section 4).
fn status_code(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|b| *b == b'\n').next()?;
    let (version, code) = std::str::from_utf8(line.get(..12)?).ok()?.split_once(' ')?;
    (version.starts_with("HTTP/1.") && code.len() == 3).then(|| code.parse().ok()).flatten()
}

pub(super) fn describe(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::ConnectionReset => "connection reset".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::Bench;
    use lattice_agent_common::node_view::NodeView;
    use lattice_model::{PreemptCause, Preemption, test_builders};
    use lattice_node::{Local, Phase};
    use tokio::net::TcpListener;

    #[test]
    fn only_a_status_line_has_a_code() {
        assert_eq!(status_code(b"HTTP/1.1 200 OK\r\nServer: x"), Some(200));
        assert_eq!(status_code(b"HTTP/1.0 404\r\n"), Some(404));
        for other in
            [&b""[..], b"HTTP/1.1\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 2x0 OK", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert_eq!(status_code(other), None, "{other:?}");
        }
    }

    fn probe(port: u16, check: ProbeCheck) -> LivenessProbe {
        let second = Duration::from_secs(1);
        LivenessProbe { check, port, initial_delay: second, period: second, timeout: second, failures_max: 1 }
    }

    fn http() -> ProbeCheck {
        ProbeCheck::Http { path: "/ready".into() }
    }

    /// Probes a service that gives this answer; returns the request as well.
    async fn probed(answer: &[u8]) -> (Result<(), String>, String) {
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let probe = probe(service.local_addr().unwrap().port(), http());
        let serve = async {
            let (mut stream, _) = service.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let n = stream.read(&mut request).await.unwrap();
            // A probe that has read enough closes the connection.
            let _closed = stream.write_all(answer).await;
            if answer.is_empty() {
                stream.shutdown().await.unwrap();
            }
            let _closed = stream.read(&mut [0]).await;
            String::from_utf8_lossy(&request[..n]).into_owned()
        };
        let probed = tokio::time::timeout(Duration::from_secs(60), make(&probe));
        let (outcome, request) = tokio::join!(probed, serve);
        (outcome.expect("it waits for no more").map_err(|error| error.to_string()), request)
    }

    #[tokio::test]
    async fn an_http_service_is_alive_with_a_good_status_alone() {
        let (outcome, request) = probed(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(outcome, Ok(()));
        assert!(request.starts_with("GET /ready HTTP/1.1\r\nHost: 127.0.0.1:") && request.ends_with("\r\n\r\n"), "{request}");
        assert_eq!(probed(b"HTTP/1.1 399 Odd\r\n").await.0, Ok(()));
        assert_eq!(probed(b"HTTP/1.1 400 Bad Request\r\n").await.0, Err("status 400".to_owned()));
        assert_eq!(probed(b"HTTP/1.1 199 Odd\r\n").await.0, Err("status 199".to_owned()));
        assert_eq!(probed(b"").await.0, Err("the answer is not HTTP".to_owned()));
        assert_eq!(probed(&b"x".repeat(1 << 20)).await.0, Err("the answer is not HTTP".to_owned()), "not all of it is read");
    }

    #[tokio::test]
    async fn a_service_of_tcp_is_alive_when_it_listens() {
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let probe = probe(service.local_addr().unwrap().port(), ProbeCheck::Tcp);
        assert!(make(&probe).await.is_ok());
        drop(service);
        assert_eq!(make(&probe).await.unwrap_err().to_string(), "connection refused");
    }

    #[tokio::test]
    async fn a_replica_that_leaves_is_not_ended_by_its_probe() {
        let mut bench = Bench::new();
        let share = test_builders::desired_share("00000000-0000-4000-8000-000000000001".parse().unwrap());
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let soon = Duration::from_millis(1);
        let refused = probe(service.local_addr().unwrap().port(), ProbeCheck::Tcp);
        drop(service);
        let refused = LivenessProbe { initial_delay: soon, period: soon, ..refused };
        let probed =
            || probing(Arc::clone(&bench.handles), Arc::new(share.clone()), refused.clone(), watch::Sender::new(Detail::default()));
        tokio::time::timeout(Duration::from_secs(60), probed()).await.expect("one failure is enough");
        let (by, reason) = ("scaling".to_owned(), String::new());
        let (id, cause) = ("00000000-0000-4000-8000-000000000007".parse().unwrap(), PreemptCause::ScaleDown);
        let order = Preemption { id, by, reason, cause, deadline_ms: 60_000, hold: false, failed: None };
        let leaving = DesiredShare { preempt: Some(order), ..share.clone() };
        let local = Local { share: leaving, phase: Phase::Running, assignment: None };
        bench.view.send_replace(Arc::new(NodeView { locals: vec![local], ..NodeView::default() }));
        tokio::time::timeout(Duration::from_secs(60), probed()).await.expect("it is probed no more");
        let ended = bench.events.try_recv();
        assert!(matches!(ended, Ok(Event::Ended { reason: EndReason::ProbeFailed { .. }, .. })), "{ended:?}");
        assert!(bench.events.try_recv().is_err(), "only the one that was not asked to leave");
    }

    #[test]
    fn a_script_is_probed_on_its_head_and_a_command_everywhere() {
        let mut share = test_builders::desired_share("00000000-0000-4000-8000-000000000001".parse().unwrap());
        share.nodes = ["n1", "n2"].map(|node| node.parse().unwrap()).into_iter().collect();
        let on = |share: &DesiredShare| ["n1", "n2"].map(|node| is_probed_on(share, &node.parse().unwrap()));
        assert_eq!(on(&share), [true, true]);
        share.spec.entrypoint = Entrypoint::Script { text: "serve".into(), args: vec![] };
        assert_eq!(on(&share), [true, false]);
    }
}
