//! Who runs what, and who may touch it.

use crate::harness::{DAEMON, Group, JOB, NOBODY, World};
use lattice_lab::lattice::text;
use lattice_lab::process;
use lattice_lab::quorum::members::certificate;
use lattice_model::{AllocationId, Principal};
use lattice_quorum::client::QuorumClient;
use lattice_quorum::credentials::Credentials;
use lattice_quorum::identity::Role;
use lattice_quorum::wire::{Answer, Request};
use libtest_mimic::Trial;

static IDENTITY: Group = Group::small("identity");

pub fn trials() -> Vec<Trial> {
    vec![
        IDENTITY.test("work_runs_as_who_submitted_it", &[], runs_as),
        IDENTITY.test("a_certificate_gives_no_groups", &[], claimed_groups),
        IDENTITY.test("another_users_work_is_not_to_be_touched", &[], others),
        IDENTITY.test("work_acts_for_its_own_allocation", &[], inside),
        IDENTITY.test("an_unreadable_script_and_image_are_refused", &[], unreadable),
    ]
}

fn submit_as(w: &World, uid: u32, args: &[&str]) -> String {
    let done = w.run_as(uid, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

fn runs_as(w: &World) {
    let id = submit_as(w, NOBODY, &["--nodes", "2", "--", "/bin/sh", "-c", "id -u; id -g; id -un; echo x > mine.$LATTICE_RANK; pwd"]);
    w.completed(&id);
    let log = w.run_as(NOBODY, &["logs", &id]);
    assert_eq!(log.out().matches("65534\n65534\nnobody\n").count(), 2, "{}{}", log.out(), log.err());
    use std::os::unix::fs::MetadataExt;
    let home = w.dir.join(format!("home-{NOBODY}"));
    assert!((0..2).all(|r| std::fs::metadata(home.join(format!("mine.{r}"))).is_ok_and(|m| m.uid() == NOBODY)));
    assert_eq!(text(&w.status(&id), "owner"), "nobody");
    // What a program writes to its own log file by name is its right, and nobody else's.
    let id = submit_as(w, NOBODY, &["--", "/bin/sh", "-c", "echo one; echo two >> /dev/stdout"]);
    w.completed(&id);
    assert_eq!(w.run_as(NOBODY, &["logs", &id]).out(), "one\ntwo\n");
}

/// Who holds a certificate of an agent with role `api` submits for any account; the node still gives the work that account's own groups alone.
fn claimed_groups(w: &World) {
    let plain = submit_as(w, NOBODY, &["--nodes", "1", "--", "/bin/sh", "-c", "id -G"]);
    w.completed(&plain);
    let own = w.run_as(NOBODY, &["logs", &plain]).out();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let id = AllocationId(uuid::Uuid::new_v4());
    runtime.block_on(async {
        let cluster = w.cluster();
        let credentials = Credentials::new(certificate(&cluster, "n9", Role::Api).unwrap()).unwrap();
        let client = QuorumClient::new(cluster.members.iter().map(|m| m.service.clone()).collect(), credentials).unwrap();
        let Ok(Answer::Allocation(found)) = client.call(&Request::GetAllocation { key: plain }, JOB).await else { panic!("it is known") };
        let owner = Principal { groups: [found.owner.groups.clone(), vec![0, 6, 42]].concat(), ..found.owner.clone() };
        let request = Request::Submit { id, spec: Box::new(found.spec.clone()), owner, claim: None, life: None };
        client.call(&request, JOB).await.unwrap();
    });
    let id = id.to_string();
    let says = || w.ok(&["explain", &id]);
    let refused = "groups that it does not have on this node (gid 0, 6, 42)";
    assert!(process::until(JOB, || says().contains(refused)), "{}", says());
    w.ok(&["cancel", &id]);
    w.ended(&id);
    assert_eq!(w.ok(&["logs", &id]), "", "it never began; the account's own groups are {own}");
}

fn others(w: &World) {
    let id = submit_as(w, NOBODY, &["--nodes", "1", "--", "/bin/sh", "-c", "echo secret; exec sleep 60"]);
    w.running(&id);
    for command in [&["cancel", &id][..], &["logs", &id], &["launch", "--alloc", &id, "/bin/echo", "intruder"]] {
        let done = w.run_as(DAEMON, command);
        let expected = if command[0] == "launch" { 125 } else { 4 };
        assert_eq!(done.code(), expected, "{command:?}: {}{}", done.out(), done.err());
        assert!(!done.out().contains("secret") && !done.out().contains("intruder"), "{command:?}: {}", done.out());
        assert!(done.err().contains("nobody"), "it says whose it is: {}", done.err());
    }
    assert_eq!(text(&w.status(&id), "state"), "Running");
    let mine = w.run_as(DAEMON, &["status", "-o", "name"]);
    assert!(!mine.out().contains(&id), "status lists one's own: {}", mine.out());
    assert_eq!(w.run_as(NOBODY, &["cancel", &id]).code(), 0);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    assert!(text(&w.status(&id), "reason").contains("nobody"));
}

fn inside(w: &World) {
    let victim = submit_as(w, NOBODY, &["--", "/bin/sleep", "60"]);
    w.running(&victim);
    let bin = w.dir.join("bin");
    let script = w.script(
        "inside.sh",
        &format!(
            "#!/bin/sh\n{bin}/lattice launch -n 2 id -u\n{bin}/lattice cancel {victim} 2>&1\necho cancel gave $?\n{bin}/lattice launch --alloc {victim} /bin/true 2>&1\necho launch gave $?\n",
            bin = bin.display()
        ),
    );
    let id = submit_as(w, NOBODY, &[&script]);
    w.completed(&id);
    let log = w.run_as(NOBODY, &["logs", &id]).out();
    assert!(log.starts_with("65534\n65534\n"), "{log}");
    assert!(log.contains("cancel gave 4\n") && log.contains("launch gave 125\n"), "work acts for its own allocation alone: {log}");
    assert_eq!(text(&w.status(&victim), "state"), "Running");
    assert_eq!(w.run_as(NOBODY, &["cancel", &victim]).code(), 0);
    w.ended(&victim);
}

fn unreadable(w: &World) {
    use std::os::unix::fs::PermissionsExt;
    let script = w.script("private.sh", "#!/bin/sh\necho private\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o600)).unwrap();
    let done = w.run_as(NOBODY, &["submit", &script]);
    assert!([1, 2].contains(&done.code()) && done.err().contains("private.sh"), "{} {}", done.code(), done.err());
    let image = w.script("private.sqfs", "x");
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
    let done = w.run_as(NOBODY, &["submit", "--uenv", &image, "--", "/bin/true"]);
    assert!(done.code() != 0 && done.err().contains("private.sqfs"), "the user's rights count: {} {}", done.code(), done.err());
}
