//! Which peers the mesh accepts, and under which name.

use super::*;
use lattice_model::with_causes;
use lattice_pki::ca;
use lattice_pki::tls::{ClientTls, TlsFiles};
use std::path::{Path, PathBuf};

/// How long a busy machine may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lattice-mesh-{name}-{}", std::process::id()));
        let _old = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn authority(&self, name: &str) -> PathBuf {
        let dir = self.0.join(name);
        ca::init(&dir).unwrap();
        dir
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn issued(authority: &Path, name: &str, role: Role, lifetime: Duration) -> ClientTls {
    let files = ca::issue(authority, name, role, &[], &authority.join(format!("{name}-{role}")), lifetime).unwrap();
    TlsFiles { ca: authority.join("ca.crt"), cert: files.cert, key: files.key }.read().unwrap()
}

struct Agent {
    mesh: Mesh,
    incoming: mpsc::Receiver<Incoming>,
    credentials: Credentials,
    address: String,
    _stop: tokio_util::sync::DropGuard,
}

impl Agent {
    fn new(pem: ClientTls) -> Self {
        let credentials = Credentials::new(pem).unwrap();
        let stop = CancellationToken::new();
        let (mesh, incoming) = Mesh::listen("127.0.0.1:0".parse().unwrap(), &credentials, stop.clone()).unwrap();
        let address = mesh.endpoint.local_addr().unwrap().to_string();
        Self { mesh, incoming, credentials, address, _stop: stop.drop_guard() }
    }

    /// Sends a request for `node` to the other agent's address, and returns why it gets no answer.
    async fn refused_by(&self, node: &str, other: &Self) -> String {
        self.refused_within(PATIENCE, node, other).await
    }

    async fn refused_within(&self, limit: Duration, node: &str, other: &Self) -> String {
        let (mut send, mut recv) = match self.mesh.open(&node.parse().unwrap(), &other.address).await {
            Ok(streams) => streams,
            Err(error) => return error.to_string(),
        };
        let _sent = send.write_all(b"x").await;
        match tokio::time::timeout(limit, recv.read_to_end(8)).await {
            Ok(answer) => with_causes(&answer.unwrap_err()),
            Err(_) => "no answer".to_owned(),
        }
    }

    fn refusal_counts(&self) -> Vec<(String, u64)> {
        self.credentials.refused().counts()
    }
}

#[tokio::test]
async fn a_peer_is_known_by_its_certificate_and_others_are_refused_and_counted() {
    let dir = Dir::new("peers");
    let ours = dir.authority("ours");
    let day = Duration::from_secs(86_400);
    let mut one = Agent::new(issued(&ours, "n1", Role::Node, day));
    let two = Agent::new(issued(&ours, "n2", Role::Api, day));
    let (mut send, _recv) = two.mesh.open(&"n1".parse().unwrap(), &one.address).await.unwrap();
    send.write_all(b"x").await.unwrap();
    assert_eq!(one.incoming.recv().await.unwrap().peer, Caller { name: "n2".to_owned(), role: Role::Api });
    assert_eq!((one.refusal_counts(), two.refusal_counts()), (vec![], vec![]));

    // The dialling side verifies that it reached the right node.
    let why = two.refused_by("n9", &one).await;
    assert!(why.contains("not valid for name"), "{why}");
    assert_eq!(two.refusal_counts(), vec![("certificates of another name".to_owned(), 1)]);

    // The certificates of another authority, an expired one, and one of a quorum member.
    let foreign =
        ClientTls { ca: two.credentials.material().borrow().pem.ca.clone(), ..issued(&dir.authority("other"), "n3", Role::Api, day) };
    let why = Agent::new(foreign).refused_by("n1", &one).await;
    assert!(why.contains("the cryptographic handshake failed"), "{why}");
    let expired = issued(&ours, "n4", Role::Api, Duration::ZERO);
    let began = std::time::Instant::now();
    while one.refusal_counts().iter().all(|(what, _)| what != "expired certificates") {
        assert!(began.elapsed() < PATIENCE, "{:?}", one.refusal_counts());
        // It expires at the end of the second in which it was issued.
        let _why = Agent::new(expired.clone()).refused_within(Duration::from_secs(1), "n1", &one).await;
    }
    let why = Agent::new(issued(&ours, "member-1", Role::Quorum, day)).refused_by("n1", &one).await;
    assert!(why.contains("a certificate with a node's name and role is needed"), "{why}");
    let counted = one.refusal_counts();
    for what in ["certificates of another role", "expired certificates", "certificates of another authority"] {
        assert!(counted.iter().any(|(w, count)| w == what && *count > 0), "{what}: {counted:?}");
    }
}

#[tokio::test]
async fn a_revocation_closes_connections_at_both_ends_and_refuses_new_ones_until_a_new_certificate() {
    let dir = Dir::new("revoked");
    let ours = dir.authority("ours");
    let day = Duration::from_secs(86_400);
    let stolen = issued(&ours, "n1", Role::Node, day);
    let (mut one, mut two) = (Agent::new(stolen.clone()), Agent::new(issued(&ours, "n2", Role::Api, day)));
    let open = async |from: &Agent, node: &str, to: &mut Agent| {
        let (mut send, recv) = from.mesh.open(&node.parse().unwrap(), &to.address).await.unwrap();
        send.write_all(b"x").await.unwrap();
        let incoming = to.incoming.recv().await.unwrap();
        (send, recv, incoming)
    };
    let (_, mut towards, _at_one) = open(&two, "n1", &mut one).await;
    let (_, _, mut from_one) = open(&one, "n2", &mut two).await;
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let before = lattice_model::Timestamp(u64::try_from(now).unwrap() + 1);
    two.credentials.revoked().learn([("n1".to_owned(), before)]);
    assert!(tokio::time::timeout(PATIENCE, towards.read_to_end(8)).await.unwrap().is_err(), "a stream opened to the revoked node");
    from_one.recv.read_exact(&mut [0]).await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, from_one.recv.read_to_end(8)).await.unwrap().is_err(), "a stream opened by the revoked node");
    let why = two.refused_by("n1", &one).await;
    assert!(why.contains("the certificate of n1 is revoked"), "{why}");
    let why = one.refused_by("n2", &two).await;
    assert!(why.contains("the certificate of n1 is revoked"), "{why}");
    assert!(two.refusal_counts().iter().any(|(what, count)| what == "revoked certificates" && *count >= 4), "{:?}", two.refusal_counts());

    // The stolen certificate is still refused when its owner has a new one.
    while std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() <= u128::from(before.0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    std::fs::rename(ours.join("n1-node"), ours.join("n1-before")).unwrap();
    let reissued = Agent::new(issued(&ours, "n1", Role::Node, day));
    open(&reissued, "n2", &mut two).await;
    let why = Agent::new(stolen).refused_by("n2", &two).await;
    assert!(why.contains("the certificate of n1 is revoked"), "{why}");
}
