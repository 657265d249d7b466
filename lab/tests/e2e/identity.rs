//! Identities: which account work runs as, and who may change or read it.

use crate::harness::{DAEMON, Group, JOB, NOBODY, World};
use lattice_lab::lattice::text;
use lattice_lab::process;
use lattice_lab::quorum::members::certificate;
use lattice_model::{AllocationId, Principal};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use libtest_mimic::Trial;

static IDENTITY: Group = Group::small("identity");

pub fn trials() -> Vec<Trial> {
    vec![
        IDENTITY.test("work_runs_as_who_submitted_it", &[], runs_as),
        IDENTITY.test("a_certificate_gives_no_groups", &[], claimed_groups),
        IDENTITY.test("another_users_work_cannot_be_changed", &[], others),
        IDENTITY.test("a_script_submits_the_next_job_and_cancels_another_of_its_owner_alone", &[], inside),
        IDENTITY.test("work_is_no_operator_whoever_owns_it", &[], no_operator),
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
    // A program may write to its own log file by name, and nobody else may.
    let id = submit_as(w, NOBODY, &["--", "/bin/sh", "-c", "echo one; echo two >> /dev/stdout"]);
    w.completed(&id);
    assert_eq!(w.run_as(NOBODY, &["logs", &id]).out(), "one\ntwo\n");
}

/// The holder of an agent's certificate with role `api` can submit for any account; the node still gives the work only
/// that account's own groups.
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
        let request =
            Request::Submit { id, spec: Box::new((*found.spec).clone()), owner, claim: None, life: None, login_tenants: [].into() };
        client.call(&request, JOB).await.unwrap();
    });
    let id = id.to_string();
    let explanation = || w.ok(&["explain", &id]);
    let refused = "groups that it does not have on this node (gid 0, 6, 42)";
    assert!(process::until(JOB, || explanation().contains(refused)), "{}", explanation());
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

/// A job's script, with the CLI as `$L`. The result of each command is a line of its output.
fn inside_script(w: &World, name: &str, commands: &[(&str, String)]) -> String {
    let mut text = format!("#!/bin/sh\nL={}/lattice\n", w.dir.join("bin").display());
    for (what, command) in commands {
        text.push_str(&format!("{command} 2>&1\necho {what} gave $?\n"));
    }
    w.script(name, &text)
}

fn inside(w: &World) {
    let (own, others) = (submit_as(w, NOBODY, &["--", "/bin/sleep", "60"]), submit_as(w, DAEMON, &["--", "/bin/sleep", "60"]));
    w.running(&own);
    w.running(&others);
    let commands = [
        ("launch", "$L launch -n 2 id -u".to_owned()),
        ("submit", "next=$($L submit -o name -- /bin/sh -c 'id -u; echo next ran') && echo next=$next".to_owned()),
        ("status", "$L status $next -o name".to_owned()),
        ("list", "$L status -o name".to_owned()),
        ("cancel", format!("$L cancel {own}")),
        // On the node that is free now.
        ("follow", "$L logs -f $next".to_owned()),
        ("theirs", format!("$L cancel {others}")),
        ("their-logs", format!("$L logs {others}")),
        ("their-launch", format!("$L launch --alloc {others} /bin/true")),
    ];
    let id = submit_as(w, NOBODY, &["--nodes", "1", &inside_script(w, "inside.sh", &commands)]);
    w.completed(&id);
    let log = w.run_as(NOBODY, &["logs", &id]).out();
    let next = log.lines().find_map(|line| line.strip_prefix("next=")).unwrap_or_else(|| panic!("nothing was submitted: {log}"));
    for well in ["launch", "submit", "status", "list", "follow", "cancel"] {
        assert!(log.contains(&format!("{well} gave 0\n")), "{well}: {log}");
    }
    assert!(log.contains("65534\nnext ran\n"), "what it submitted runs as its owner: {log}");
    for (refused, code) in [("theirs", 4), ("their-logs", 4), ("their-launch", 125)] {
        assert!(log.contains(&format!("{refused} gave {code}\n")), "{refused}: {log}");
    }
    assert!(log.matches("belongs to daemon").count() == 3, "{log}");
    assert_eq!((text(&w.completed(next), "owner"), text(&w.ended(&own), "state")), ("nobody".into(), "Cancelled".into()));
    assert_eq!(text(&w.status(&others), "state"), "Running");
    assert_eq!(w.run_as(DAEMON, &["cancel", &others]).code(), 0);
    w.ended(&others);
}

fn no_operator(w: &World) {
    let theirs = submit_as(w, NOBODY, &["--", "/bin/sleep", "60"]);
    w.running(&theirs);
    // Work of root, which could run both commands outside of work.
    let commands = [("cordon", "$L node cordon n1 --reason x".to_owned()), ("cancel", format!("$L cancel {theirs}"))];
    let id = w.submit(&["--nodes", "1", &inside_script(w, "operator.sh", &commands)]);
    w.completed(&id);
    let log = w.run(&["logs", &id]).out();
    assert!(log.contains("cordon gave 4\n") && log.contains("work may not use operators' commands"), "{log}");
    assert!(log.contains("cancel gave 4\n") && log.contains("belongs to nobody"), "{log}");
    assert_eq!(text(&w.status(&theirs), "state"), "Running");
    w.ok(&["cancel", &theirs]);
    w.ended(&theirs);
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
