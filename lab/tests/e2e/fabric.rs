//! Keys for the fabric: made before work begins, passed only to its ranks, revoked when it has ended, whichever process
//! was killed meanwhile. The manager is simulated by the lab, as a separate process.

use crate::harness::{Group, JOB, World, lab_program};
use lattice_lab::fabric::{Service, State};
use lattice_lab::lattice::text;
use lattice_lab::ports::Ports;
use lattice_lab::process::{self, Identity};
use lattice_lab::{faults, process::until};
use libtest_mimic::Trial;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

const TOKEN: &str = "let-me-in";

static FABRIC: Group = Group {
    theme: "fabric",
    name: "fabric",
    nodes: 2,
    quorum: 1,
    tweak: |options| {
        let token = file("fabric-token");
        fs::write(&token, format!("{TOKEN}\n")).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        options.agent_lines = format!("fabric_manager: {{url: \"http://{}/\", token: {:?}}}", address(), token.to_string_lossy());
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        FABRIC.test("ranks_of_a_domain_have_its_key_which_is_revoked_at_their_end", &[], keyed),
        FABRIC.test("an_agent_is_killed_while_a_key_is_made_and_before_it_is_revoked", &[], killed),
        FABRIC.test("an_unreachable_manager_is_waited_for_and_a_refusal_is_reported", &[], away),
    ]
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn address() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| format!("127.0.0.1:{}", Ports::new(u64::from(std::process::id())).take().unwrap()))
}

/// The simulated manager, until it is dropped. Its state stays.
struct Manager(Identity);

impl Manager {
    fn start(more: &[&str]) -> Self {
        Self::with_token(TOKEN, more)
    }

    fn with_token(token: &str, more: &[&str]) -> Self {
        let state = file("fabric-state").to_string_lossy().into_owned();
        let args = ["fabric-manager", "--listen", address(), "--state", &state, "--token", token];
        let args: Vec<String> = args.iter().chain(more).map(|arg| (*arg).to_owned()).collect();
        let manager = Self(process::spawn_detached(lab_program(), &args, &[], &file("fabric-manager.log")).unwrap());
        assert!(until(JOB, || TcpStream::connect(address()).is_ok()), "it does not listen");
        manager
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn services() -> Vec<Service> {
    State::load(&file("fabric-state")).unwrap().services
}

fn standing() -> usize {
    services().iter().filter(|service| !service.revoked).count()
}

fn of(id: &str) -> Vec<Service> {
    services().into_iter().filter(|service| service.allocation_id == id).collect()
}

fn submit(w: &World, name: &str, script: &str) -> String {
    let path = format!("PATH={}:/usr/bin:/bin", w.dir.join("bin").display());
    let script = w.script(name, &format!("#!/bin/sh\n{script}"));
    w.submit(&["--nodes", "2", "--cores", "1", "--network-domain", "ml", "--env", &path, &script])
}

fn keyed(w: &World) {
    let _manager = Manager::start(&[]);
    let print_keys = "echo $0 $FI_CXI_DEFAULT_VNI ${FI_CXI_AUTH_KEY:-none} ${FI_PROVIDER:-none}";
    let go = w.dir.join("fabric.go");
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("lattice launch sh -c '{print_keys}' rank\nsh -c '{print_keys}' script\nread -r go < {}\n", go.display());
    let id = submit(w, "keyed.sh", &script);
    w.wait_log(&id, "script ");
    let [service] = of(&id).try_into().unwrap();
    let Service { vni, auth_key, nodes, revoked, .. } = service;
    let line = |who: &str| format!("{who} {vni} {auth_key} cxi\n");
    assert_eq!(w.log(&id), [line("rank"), line("rank"), line("script")].concat());
    assert_eq!((w.status(&id)["vni"].as_u64(), revoked), (Some(vni), false));
    assert_eq!(w.status(&id)["nodes"], serde_json::json!(nodes));
    // A job with one launch; the user's own setting of the provider stays. Without a domain there is no key, and the
    // manager gets no request.
    let arguments = ["--nodes", "2", "--cores", "1", "--", "/bin/sh", "-c", print_keys, "rank"];
    let launch = w.submit(&[&["--network-domain", "ml", "--env", "FI_PROVIDER=tcp"], &arguments[..]].concat());
    w.completed(&launch);
    let key = of(&launch)[0].auth_key.clone();
    assert_ne!(key, auth_key);
    assert_eq!(w.log(&launch), format!("rank {vni} {key} tcp\n").repeat(2));
    let plain = w.submit(&arguments);
    w.completed(&plain);
    assert_eq!((w.log(&plain).as_str(), of(&plain).len()), ("rank none none\nrank none none\n", 0));
    w.wait("the key of what has ended to be revoked", || of(&launch)[0].revoked);
    fs::write(&go, "\n").unwrap();
    w.completed(&id);
    w.wait("its key to be revoked", || standing() == 0);
    w.assert_nothing_left();
}

fn killed(w: &World) {
    // The manager makes the service, and the agent that requested it is killed before the answer.
    let slow = Manager::start(&["--answer-after-ms", "3000"]);
    let id = submit(w, "killed.sh", "echo up\nexec sleep 60\n");
    w.wait("a service that nobody knows", || of(&id).len() == 1);
    let head = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &head).unwrap();
    drop(slow);
    let manager = Manager::start(&[]);
    faults::start_node(&w.dir, &head).unwrap();
    w.wait_log(&id, "up");
    assert_eq!(of(&id).len(), 1, "the same service was given again: {:?}", of(&id));
    // The agent is killed again. Then the manager is down at the end of work, and the agent is killed once more.
    faults::kill_node(&w.dir, &head).unwrap();
    faults::start_node(&w.dir, &head).unwrap();
    drop(manager);
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    let status = || w.at(&head).ok(&["node", "status"]).unwrap();
    w.wait("its node to say so", || status().contains("keys of work that has ended are not revoked"));
    faults::kill_node(&w.dir, &head).unwrap();
    faults::start_node(&w.dir, &head).unwrap();
    assert_eq!(standing(), 1);
    let _manager = Manager::start(&[]);
    w.wait("its key to be revoked", || standing() == 0);
    w.wait("its node to be well again", || !status().contains("keys of work"));
    w.assert_nothing_left();
}

fn away(w: &World) {
    let id = submit(w, "away.sh", "echo $FI_CXI_AUTH_KEY\n");
    w.wait("it to be prepared", || text(&w.status(&id), "state") == "Staging");
    let manager = Manager::start(&[]);
    w.completed(&id);
    assert_eq!(w.log(&id), format!("{}\n", of(&id)[0].auth_key));
    w.wait("its key to be revoked", || standing() == 0);
    drop(manager);
    let manager = Manager::with_token("another", &[]);
    let id = submit(w, "refused.sh", "echo up\n");
    // After the refusal the job's first node is excluded, and two other nodes do not exist.
    let refused = "the fabric's manager does not make a CXI service: it answers 401 Unauthorized";
    w.wait("why it does not begin", || text(&w.status(&id), "reason").contains(refused));
    w.ok(&["cancel", &id]);
    assert!(w.log(&id).contains("has not run"), "{}", w.log(&id));
    drop(manager);
    // The agents cannot know that the manager made no service, so they revoke it.
    let _manager = Manager::start(&[]);
    w.wait("both nodes to be well", || ["n1", "n2"].iter().all(|n| !w.at(n).ok(&["node", "status"]).unwrap().contains("keys of work")));
    assert_eq!(standing(), 0);
    w.assert_nothing_left();
}
