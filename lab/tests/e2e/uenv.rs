//! Software environments from SquashFS images.

use crate::harness::{Group, JOB, Need, World, configure};
use lattice_lab::image::README;
use lattice_lab::lattice::text;
use lattice_lab::{faults, process};
use libtest_mimic::Trial;

static UENV: Group = Group::small("uenv");

pub fn trials() -> Vec<Trial> {
    let needs: &[Need] = &[Need::Mounts];
    vec![
        UENV.test("the_image_is_there_on_every_node_and_gone_afterwards", needs, seen),
        UENV.test("a_missing_image_is_refused_at_once", &[], missing),
        UENV.test("a_wrong_digest_is_refused_at_once", needs, wrong_digest),
        UENV.test("an_image_that_changes_after_the_submission_is_not_run", needs, changed),
        UENV.test("a_file_that_is_no_image_fails_with_its_reason", needs, no_image),
        UENV.test("a_site_that_refuses_images_runs_no_work_with_one", needs, refused),
        UENV.test("many_jobs_with_one_image_leave_nothing", needs, many),
    ]
}

fn seen(w: &World) {
    let image = w.image().to_string_lossy().into_owned();
    let program = "head -n 1 /user-environment/README; test -x /user-environment/bin/ring && cat /user-environment/meta/env.json | head -c 1; \
                   touch /user-environment/x 2>/dev/null && echo WRITABLE; echo";
    let id = w.submit(&["--nodes", "3", "--uenv", &image, "--", "/bin/sh", "-c", program]);
    let ended = w.completed(&id);
    let log = w.ok(&["logs", &id]);
    assert_eq!(log.matches(README).count(), 3, "{log}");
    assert_eq!(log.matches('{').count(), 3, "{log}");
    assert!(!log.contains("WRITABLE"), "{log}");
    assert_eq!(text(&ended, "uenv_sha256").len(), 64, "the digest is recorded: {ended}");
    assert!(!std::path::Path::new("/user-environment/README").exists(), "the mount belongs to the job's namespace alone");
    w.assert_nothing_left();
}

fn refused(w: &World) {
    let image = w.image().to_string_lossy().into_owned();
    let allowing = configure(&w.dir, "n1", "images: {from_users: refuse}");
    faults::restart_node(&w.dir, "n1").unwrap();

    let submitted = w.run(&["submit", "--uenv", &image, "--", "/bin/true"]);
    // Submitted on a node that allows images, for the one that does not.
    let elsewhere = w.at("n2").ok(&["submit", "-o", "name", "-w", "n1", "--uenv", &image, "--", "/bin/true"]).unwrap();
    let elsewhere = elsewhere.trim();
    let explanation = || w.ok(&["explain", elsewhere]);
    let is_refused =
        process::until(JOB, || explanation().contains("work with an image is refused on this node (images.from_users: refuse)"));
    let (why, state) = (explanation(), text(&w.status(elsewhere), "state"));
    w.ok(&["cancel", elsewhere]);
    w.ended(elsewhere);
    let plain = w.submit(&["-w", "n1", "--", "/bin/true"]);
    w.completed(&plain);
    std::fs::write(w.dir.join("n1/agent.yaml"), allowing).unwrap();
    faults::restart_node(&w.dir, "n1").unwrap();

    assert!(submitted.code() == 4 && submitted.err().contains("images.from_users: refuse"), "{} {}", submitted.code(), submitted.err());
    assert!(is_refused && state == "Pending", "{state}: {why}");
    w.assert_nothing_left();
}

fn missing(w: &World) {
    let before = w.lattice.allocations().unwrap().len();
    let refused = w.run(&["submit", "--uenv", "/nonexistent/env.sqfs", "--", "/bin/true"]);
    assert!([2, 3, 4].contains(&refused.code()) && refused.err().contains("/nonexistent/env.sqfs"), "{} {}", refused.code(), refused.err());
    assert_eq!(w.lattice.allocations().unwrap().len(), before, "nothing was submitted");
}

fn wrong_digest(w: &World) {
    let before = w.lattice.allocations().unwrap().len();
    let named = format!("{}@sha256:{}", w.image().display(), "0".repeat(64));
    let refused = w.run(&["submit", "--uenv", &named, "--", "/bin/true"]);
    assert!([2, 4].contains(&refused.code()) && refused.err().contains("digest"), "{} {}", refused.code(), refused.err());
    assert_eq!(w.lattice.allocations().unwrap().len(), before);
}

fn changed(w: &World) {
    let busy = w.submit(&["--nodes", "3", "--", "/bin/sleep", "60"]);
    w.running(&busy);
    let image = w.dir.join("changes.sqfs");
    std::fs::copy(w.image(), &image).unwrap();
    // Appended bytes make it another file, which no node has in its cache.
    let mut bytes = std::fs::read(&image).unwrap();
    bytes.extend([1u8; 4096]);
    std::fs::write(&image, &bytes).unwrap();
    let id = w.submit(&["--uenv", &image.to_string_lossy(), "--", "/bin/echo", "it-did-start"]);
    bytes.extend([2u8; 4096]);
    std::fs::write(&image, &bytes).unwrap();
    w.ok(&["cancel", &busy]);
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    assert!(text(&ended, "reason").contains("prologue_failed") && text(&ended, "reason").contains("SHA-256"), "{ended}");
    assert!(!w.log(&id).contains("it-did-start"));
    w.assert_nothing_left();
}

fn no_image(w: &World) {
    let path = w.script("no.sqfs", &"this is no archive\n".repeat(1000));
    let done = w.run(&["submit", "-o", "name", "--uenv", &path, "--", "/bin/true"]);
    // Refused at once by an agent that checks the file, else failed by the node that cannot mount it: both report the
    // reason.
    if done.code() == 0 {
        let ended = w.ended(done.out().trim());
        assert_eq!(text(&ended, "state"), "Failed", "{ended}");
        assert!(text(&ended, "reason").contains("prologue_failed"), "{ended}");
    } else {
        assert!(done.err().to_lowercase().contains("squashfs"), "{}", done.err());
    }
    w.assert_nothing_left();
}

fn many(w: &World) {
    let image = w.image().to_string_lossy().into_owned();
    let ids: Vec<String> =
        (0..6).map(|_| w.submit(&["--nodes", "3", "--uenv", &image, "--", "/bin/cat", "/user-environment/README"])).collect();
    for id in &ids {
        w.completed(id);
        assert_eq!(w.log(id).matches(README).count(), 3);
    }
    w.assert_nothing_left();
}
