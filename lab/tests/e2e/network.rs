//! Network domains: their numbers, sharing, waiting for a free number, and the note where nothing enforces them.

use crate::harness::{DAEMON, Group, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static NETWORK: Group = Group::small("network");

pub fn trials() -> Vec<Trial> {
    vec![
        NETWORK.test("work_of_one_domain_has_one_number_in_its_environment", &[], shared),
        NETWORK.test("work_without_a_number_waits_with_the_reason_and_delays_no_other", &[], exhausted),
    ]
}

fn pool(w: &World, start: &str, end: &str, grace: &str) {
    w.ok(&["admin", "network", "pool", "--start", start, "--end", end, "--grace", grace]);
}

/// Restores the initial pool, without domains.
pub fn restore_pool(w: &World) {
    pool(w, "1000", "4095", "0");
    for domain in domains(w) {
        // A domain may be released meanwhile.
        let _gone = w.run(&[
            "admin",
            "network",
            "set-grace",
            "--domain",
            &text(&domain, "name"),
            "--tenant",
            &text(&domain, "tenant"),
            "--grace",
            "0",
        ]);
    }
    w.wait("all domains to be released", || domains(w).is_empty());
    pool(w, "1000", "4095", "5m");
}

fn domains(w: &World) -> Vec<Value> {
    w.lattice.json(&["network", "list"]).unwrap().as_array().unwrap().clone()
}

fn sleeper(w: &World, tenant: &str, domain: &str) -> String {
    w.submit(&["--cores", "1", "--tenant", tenant, "--network-domain", domain, "--", "/bin/sleep", "60"])
}

fn shared(w: &World) {
    pool(w, "1000", "4095", "30s");
    let path = format!("PATH={}:/usr/bin:/bin", w.dir.join("bin").display());
    let script = w.script(
        "domain.sh",
        "#!/bin/sh\n#LATTICE network_domain=ml\n#LATTICE --tenant=physics --nodes=2\n\
         lattice launch sh -c 'echo rank $LATTICE_NETWORK_DOMAIN $LATTICE_VNI $FI_CXI_DEFAULT_VNI'\n\
         echo script $LATTICE_NETWORK_DOMAIN $LATTICE_VNI $FI_CXI_DEFAULT_VNI\nsleep 60\n",
    );
    let first = w.submit(&["--cores", "1", "--env", &path, &script]);
    w.wait_log(&first, "script ml 1000 1000");
    assert_eq!(w.log(&first).matches("rank ml 1000 1000").count(), 2, "{}", w.log(&first));
    let second = sleeper(w, "physics", "ml");
    let other = sleeper(w, "chemistry", "ml");
    for id in [&second, &other] {
        w.running(id);
    }
    let number = |id: &str| w.status(id)["vni"].as_u64();
    assert_eq!([&first, &second, &other].map(|id| number(id)), [Some(1000), Some(1000), Some(1001)]);
    // Nothing on this machine isolates the domain, and every answer says so.
    let now = w.status(&first);
    let note = text(&now, "network_note");
    let nodes: Vec<&str> = now["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    assert!(note.contains("no CXI device is known there") && note.contains("isolates nothing"), "{note}");
    assert!(w.ok(&["status", &first]).contains("ml (VNI 1000)"));
    let explained = w.ok(&["explain", &first]);
    assert!(explained.contains("isolates nothing") && nodes.len() == 2, "{explained}");
    let doctor = w.run(&["doctor"]).out();
    assert!(doctor.lines().any(|l| l.starts_with("degraded") && l.contains("network domains") && l.contains("/sys/class/cxi")), "{doctor}");
    // Operators see all domains, users those of their own tenants or of one that they name.
    let shown: Vec<_> = domains(w).iter().map(|d| (text(d, "tenant"), text(d, "name"), text(d, "vni"), text(d, "state"))).collect();
    let want = |tenant: &str, vni: &str| (tenant.to_owned(), "ml".to_owned(), vni.to_owned(), "active".to_owned());
    assert_eq!(shown, [want("chemistry", "1001"), want("physics", "1000")]);
    let status = w.ok(&["network", "status", "ml", "--tenant", "physics"]);
    assert!(status.contains(&first[..8]) && status.contains(&second[..8]) && !status.contains(&other[..8]), "{status}");
    assert_eq!(w.run_as(DAEMON, &["network", "list", "-o", "json"]).out().trim(), "[]");
    assert_eq!(w.run_as(DAEMON, &["network", "list", "--tenant", "physics", "-o", "name"]).out().trim(), "ml");
    let nobody = w.run_as(NOBODY, &["admin", "network", "pool", "--end", "5000"]);
    assert!(nobody.code() == 4 && nobody.err().contains("operator"), "{}", nobody.err());
    // The domains are committed, so they survive the loss of a member.
    faults::kill_member(&w.dir, 1).unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the member", || w.run(&["network", "list"]).code() == 0);
    assert_eq!(domains(w).len(), 2);
    // A domain may have its own grace.
    w.ok(&["admin", "network", "set-grace", "--domain", "ml", "--tenant", "physics", "--grace", "20s"]);
    assert_eq!(w.run(&["admin", "network", "set-grace", "--domain", "none", "--grace", "20s"]).code(), 3);
    // Without work a domain keeps its number for a while, and work that joins meanwhile gets the same number.
    w.ok(&["cancel", &first, &second]);
    let physics = |w: &World| w.lattice.json(&["network", "status", "ml", "--tenant", "physics"]).unwrap()[0].clone();
    let idle = physics(w);
    assert!(text(&idle, "state") == "grace" && idle["left_seconds"].as_u64().is_some_and(|s| s <= 20), "{idle}");
    let third = sleeper(w, "physics", "ml");
    w.running(&third);
    assert_eq!((number(&third), text(&physics(w), "state")), (Some(1000), "active".to_owned()));
    w.ok(&["cancel", &third, &other]);
    let audited = w.ok(&["audit", "query", "--type", "vni-pool-set,network-domain-created"]);
    assert!(
        audited.contains("VNIs 1000 to 4095, grace 30000 ms") && audited.contains("\"ml\" of tenant \"physics\", VNI 1000"),
        "{audited}"
    );
    restore_pool(w);
    assert_eq!(w.run(&["network", "status", "ml"]).code(), 3);
}

fn exhausted(w: &World) {
    pool(w, "1000", "1000", "0");
    let first = sleeper(w, "physics", "a");
    w.running(&first);
    let waits = w.submit(&["--cores", "1", "--tenant", "physics", "--network-domain", "b", "--", "/bin/true"]);
    w.wait("its reason", || text(&w.status(&waits), "reason").starts_with("vni_pool_exhausted"));
    let why = text(&w.status(&waits), "reason");
    assert!(why.contains("VNI pool exhausted (1/1 in use)") && why.contains("wait for running allocations"), "{why}");
    for agent in ["n1", "n2"] {
        let explained = w.at(agent).ok(&["explain", &waits]).unwrap();
        assert!(explained.contains("vni_pool_exhausted"), "{agent}: {explained}");
    }
    // Work that needs no new number is placed: without a domain, or with one that has a number.
    w.completed(&w.submit(&["--cores", "1", "--", "/bin/true"]));
    w.completed(&w.submit(&["--cores", "1", "--tenant", "physics", "--network-domain", "a", "--", "/bin/true"]));
    assert_eq!(text(&w.status(&waits), "state"), "Pending");
    // A new pool takes no number away, and has some for the waiting work.
    pool(w, "2000", "2001", "0");
    assert_eq!(w.completed(&waits)["vni"].as_u64(), Some(2000));
    assert_eq!(w.status(&first)["vni"].as_u64(), Some(1000));
    let shown = w.lattice.json(&["admin", "network", "pool"]).unwrap();
    assert_eq!((&shown["start"], &shown["size"], &shown["outside"]), (&2000.into(), &2.into(), &1.into()), "{shown}");
    let refused = w.run(&["admin", "network", "pool", "--start", "999"]);
    assert!(refused.code() == 2 && refused.err().contains("reserved"), "{}", refused.err());
    w.ok(&["cancel", &first]);
    // Only an operator sets the limit of sensitive use, and it is audited.
    w.ok(&["admin", "limits", "--sensitive-pool-size", "4"]);
    assert_eq!(w.lattice.json(&["admin", "limits"]).unwrap()["sensitive_pool_size"], 4);
    let nobody = w.run_as(NOBODY, &["admin", "limits", "--no-sensitive-pool-size"]);
    assert!(nobody.code() == 4 && nobody.err().contains("operator"), "{}", nobody.err());
    w.ok(&["admin", "limits", "--no-sensitive-pool-size"]);
    assert!(w.lattice.json(&["admin", "limits"]).unwrap()["sensitive_pool_size"].is_null());
    assert!(w.ok(&["audit", "query", "--type", "limits-set"]).contains("sensitive_pool_size 4"));
    restore_pool(w);
}
