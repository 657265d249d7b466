//! The order of a queue by score and class, weights changed while it runs, and preemption by the
//! scheduler.

use crate::broker::holder;
use crate::checkpoint::Chain;
use crate::harness::{Group, World, fresh_dir};
use crate::preemption::{goes_on_from, step_of_last};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static PRIORITIES: Group = Group::small("priorities");

pub fn trials() -> Vec<Trial> {
    vec![
        PRIORITIES.test("a_queue_follows_the_shares_of_tenants_until_its_weights_are_changed", &[], weighs),
        PRIORITIES.test("work_of_a_tenant_comes_last_while_the_tenants_budget_is_exceeded", &[], over_budget),
        PRIORITIES.test("work_of_a_lower_class_gives_its_nodes_back_and_runs_again", &[], preempts),
        PRIORITIES.test("work_whose_class_is_raised_overtakes_and_what_runs_gives_way_if_its_class_is_lowered", &[], changes_class),
        PRIORITIES.test("work_that_saves_itself_continues_from_its_step_after_work_of_a_higher_class", &[], saves_itself),
        PRIORITIES.test("work_is_preempted_once_and_begins_once_if_the_schedulers_agent_is_killed_meanwhile", &[], scheduler_killed),
        PRIORITIES.test("idle_nodes_are_lent_and_given_back", &[], lends),
        PRIORITIES.test("weights_and_classes_that_make_no_sense_are_refused", &[], refuses),
    ]
}

/// The names of what waits in the default queue, in order.
fn waiting(w: &World) -> Vec<String> {
    let queue: Vec<Value> = serde_json::from_str(&w.ok(&["explain", "--queue", "-o", "json"])).unwrap();
    queue.iter().map(|a| text(a, "name")).collect()
}

fn weighs(w: &World) {
    for tenant in ["much", "little"] {
        w.ok(&["admin", "tenant", "create", tenant, "--fair-share-target", "0.5"]);
    }
    let used = w.submit(&["--tenant", "much", "-N", "3", "--walltime", "5m", "--", "/bin/sleep", "2"]);
    w.completed(&used);
    let held = w.submit(&["--name", "held", "-N", "3", "--walltime", "10m", "--", "/bin/sleep", "600"]);
    w.running(&held);
    let of = |tenant: &str| w.submit(&["--name", tenant, "--tenant", tenant, "-N", "3", "--walltime", "5m", "--", "/bin/true"]);
    let (much, little) = (of("much"), of("little"));
    w.wait("the tenant that has used less to be first", || waiting(w) == ["little", "much"]);
    let explained: Value = serde_json::from_str(&w.ok(&["explain", &little, "-o", "json"])).unwrap();
    let terms = explained["score"]["terms"].as_array().unwrap();
    let fair_share = terms.iter().find(|term| term["factor"] == "fair-share").unwrap();
    assert_eq!(
        (&fair_share["value"], &fair_share["weight"], &fair_share["known"]),
        (&1.0.into(), &0.2.into(), &true.into()),
        "{explained}"
    );
    assert_eq!(explained["score"]["class"], 5);
    let shown = w.ok(&["explain", &much]);
    let line = |factor: &str| shown.lines().find(|line| line.starts_with(factor)).unwrap_or_else(|| panic!("{shown}"));
    assert!(line("fair-share").contains(" 0.000 ") && line("energy").ends_with("the same for all"), "{shown}");

    // From the next round on, the time of waiting alone decides.
    let set = w.ok(&["admin", "vcluster", "set-weights", "default", "--fair-share", "0", "--priority=0"]);
    assert!(set.contains("set by an operator") && set.contains("fair-share 0"), "{set}");
    w.wait("the one that was submitted first to be first", || waiting(w) == ["much", "little"]);
    w.ok(&["cancel", &held]);
    let (much, little) = (w.completed(&much), w.completed(&little));
    assert!(text(&much, "started_at") < text(&little, "started_at"), "{much} {little}");
    let reset = w.ok(&["admin", "vcluster", "set-weights", "default", "--profile", "default"]);
    assert!(reset.contains("those of its scheduler") && reset.contains("fair-share 0.2"), "{reset}");
    let audit = w.ok(&["audit", "query", "--type", "v-cluster-set"]);
    assert!(audit.contains("fair-share 0 "), "{audit}");
}

fn over_budget(w: &World) {
    let tenants = ["spent", "within"];
    for tenant in tenants {
        w.ok(&["admin", "tenant", "create", tenant, "--node-hours-budget=100"]);
        w.completed(&w.submit(&["--tenant", tenant, "--", "/bin/sleep", "1"]));
    }
    let held = w.submit(&["-N", "3", "--walltime", "10m", "--", "/bin/sleep", "600"]);
    w.running(&held);
    let submit = |tenant| w.submit(&["--name", tenant, "--tenant", tenant, "-N", "3", "--walltime", "5m", "--", "/bin/true"]);
    let [spent, within] = tenants.map(submit);
    let set_budget = |hours| w.ok(&["admin", "tenant", "update", "spent", "--node-hours-budget", hours]);
    w.wait("the one that was submitted first to be first", || waiting(w) == ["spent", "within"]);
    // Whatever it has used is more.
    set_budget("0");
    w.wait("the one whose budget is exceeded to be last", || waiting(w) == ["within", "spent"]);
    set_budget("100");
    w.wait("the one that was submitted first to be first again", || waiting(w) == ["spent", "within"]);
    set_budget("0");
    w.wait("the one whose budget is exceeded to be last again", || waiting(w) == ["within", "spent"]);
    w.ok(&["cancel", &held]);
    let (spent, within) = (w.completed(&spent), w.completed(&within));
    assert!(text(&within, "started_at") < text(&spent, "started_at"), "{within} {spent}");
    tenants.iter().for_each(|tenant| drop(w.ok(&["admin", "tenant", "delete", tenant])));
}

fn preempts(w: &World) {
    let dir = fresh_dir("priorities");
    std::fs::create_dir(&dir).unwrap();
    let mark = dir.join("began");
    let body = format!("test -e {0} || {{ touch {0}; sleep 600; }}", mark.display());
    let scavenger = ["--name", "scavenger", "--preemption-class", "1", "--requeue=always", "--walltime", "30m", "-N", "3"];
    let victim = w.submit(&[&scavenger[..], &["--", "/bin/sh", "-c", &body]].concat());
    w.wait("it to have begun", || mark.exists());
    let urgent = w.submit(&["--name", "usual", "-N", "2", "--walltime", "5m", "--", "/bin/true"]);
    w.completed(&urgent);
    let again = w.completed(&victim);
    assert_eq!((&again["requeue_count"], &again["attempt"]), (&1.into(), &2.into()), "{again}");
    let reason = text(&again["attempts"][0], "reason");
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(reason.contains("preempted by scheduler") && reason.contains(&format!("allocation {} of class 5", &urgent[..8])), "{reason}");

    // Work of the usual class is left alone by work that calls itself urgent.
    let usual = w.submit(&["--name", "long", "--requeue=always", "-N", "3", "--walltime", "30m", "--", "/bin/sleep", "600"]);
    w.running(&usual);
    let loud = w.submit(&["--name", "loud", "--preemption-class", "9", "--walltime", "5m", "--", "/bin/true"]);
    let shown = w.ok(&["explain", &loud]);
    assert!(shown.contains("among work of class 5"), "{shown}");
    assert_eq!(text(&w.status(&usual), "state"), "Running");
    w.ok(&["cancel", &usual]);
    w.completed(&loud);
}

fn changes_class(w: &World) {
    let long = w.submit(&["--name", "long", "--requeue=always", "-N", "3", "--walltime", "30m", "--", "/bin/sleep", "600"]);
    w.running(&long);
    let submit = |name| w.submit(&["--name", name, "--preemption-class", "3", "-N", "3", "--walltime", "5m", "--", "/bin/true"]);
    let [first, second] = ["first", "second"].map(submit);
    w.wait("the one that was submitted first to be first", || waiting(w) == ["first", "second"]);
    w.ok(&["update", &second, "--preemption-class", "4"]);
    w.wait("the one of the higher class to be first", || waiting(w) == ["second", "first"]);
    assert!(w.ok(&["explain", &second]).contains("among work of class 4"));
    assert_eq!(text(&w.status(&long), "state"), "Running");
    w.ok(&["update", &long, "--preemption-class", "1"]);
    let (first, second) = (w.completed(&first), w.completed(&second));
    assert!(text(&second, "started_at") < text(&first, "started_at"), "{second} {first}");
    w.running(&long);
    let again = w.status(&long);
    assert_eq!((&again["preempted_count"], &again["preemption_class"]), (&1.into(), &1.into()), "{again}");
    w.ok(&["cancel", &long]);
    w.ended(&long);
}

fn lends(w: &World) {
    let create = |name, nodes, how| w.ok(&["admin", "vcluster", "create", name, "--scheduler=hpc-backfill", "--nodes", nodes, how]);
    let shown = create("lender", "n1,n2", "--lend=2h");
    assert!(shown.contains("Lends:      its idle nodes to work of 02:00:00 at most"), "{shown}");
    create("borrower", "n3", "--borrow");
    let of_borrower = ["--vcluster=borrower", "--walltime=1h"];
    let own = w.submit(&[&of_borrower[..], &["--", "/bin/sleep", "600"]].concat());
    w.running(&own);
    // Work that cannot save itself gets no lent node, because it could not give the node back.
    let stays = w.submit(&[&of_borrower[..], &["--", "/bin/sleep", "600"]].concat());
    let chain = Chain::submit(w, &[], &[&of_borrower[..], &["--nodes", "1"]].concat());
    let runs = w.status(&chain.id);
    assert!(runs["nodes"][0] == "n1" || runs["nodes"][0] == "n2", "{runs}");
    assert_eq!(text(&w.status(&stays), "state"), "Pending");

    let wanted = w.submit(&["--vcluster=lender", "-N", "2", "--walltime=5m", "--", "/bin/true"]);
    w.completed(&wanted);
    w.running(&chain.id);
    let again = w.status(&chain.id);
    let reason = text(&again["attempts"][0], "reason");
    assert!(reason.contains("vCluster lender needs the nodes that it lent"), "{again}");
    assert!(w.ok(&["audit", "query", "--alloc", &chain.id]).contains("(reclaim)"));
    assert_eq!(again["preempted_count"], 1, "{again}");
    goes_on_from(w, &chain.id, step_of_last(w, &chain.id));
    chain.end(w);
    for id in [&own, &stays] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    for name in ["lender", "borrower"] {
        w.ok(&["admin", "vcluster", "delete", name]);
    }
}

/// Work of class 1 on one node that saves itself.
fn scavenger(w: &World) -> Chain {
    Chain::submit(w, &[], &["--nodes", "1", "--requeue=never", "--preemption-class=1", "--walltime=2h"])
}

/// What urgent work writes on each node.
const URGENT: &str = "urgent work";

/// Submits work of class 8 for this many nodes; the tenant `urgent` must exist.
fn submit_urgent(w: &World, nodes: &str) -> String {
    w.submit(&["--tenant=urgent", "--preemption-class=8", "--walltime=5m", "--nodes", nodes, "--", "/bin/echo", URGENT])
}

/// Waits until it has completed, and checks that it began once.
fn completed_once(w: &World, id: &str, nodes: usize) -> Value {
    let urgent = w.completed(id);
    assert_eq!((&urgent["attempt"], &urgent["attempts"]), (&1.into(), &Value::Array(vec![])), "{urgent}");
    w.wait("what it wrote on each node", || w.log(id).matches(URGENT).count() == nodes);
    urgent
}

/// Checks that it was preempted once, for this work, and that it continues once from what it saved, after that work.
fn continues_after(w: &World, chain: &Chain, urgent: &Value) {
    let id = &chain.id;
    w.running(id);
    let step = step_of_last(w, id);
    assert!(step >= 3, "it had counted to three: {step}");
    goes_on_from(w, id, step);
    let now = w.status(id);
    assert_eq!((&now["attempt"], &now["preempted_count"], &now["requeue_count"]), (&2.into(), &1.into(), &0.into()), "{now}");
    let reason = text(&now["attempts"][0], "reason");
    let beneficiary = &text(urgent, "id")[..8];
    let expected = format!("preempted by scheduler: allocation {beneficiary} of class 8 needs its nodes; saved as checkpoint");
    assert!(reason.starts_with(&expected), "{reason}");
    assert!(text(&now, "started_at") >= text(urgent, "ended_at"), "{now} {urgent}");
    let audit = w.ok(&["audit", "query", "--alloc", id]);
    assert_eq!(audit.matches("PreemptRequested").count(), 1, "{audit}");
}

fn saves_itself(w: &World) {
    w.ok(&["admin", "tenant", "create", "urgent", "--class-max=8"]);
    let chains = [(); 3].map(|()| scavenger(w));
    let urgent = completed_once(w, &submit_urgent(w, "3"), 3);
    for chain in &chains {
        continues_after(w, chain, &urgent);
    }
    chains.iter().for_each(|chain| chain.end(w));
    w.ok(&["admin", "tenant", "delete", "urgent"]);
    w.assert_nothing_left();
}

fn scheduler_killed(w: &World) {
    w.ok(&["admin", "tenant", "create", "urgent", "--class-max=8"]);
    // n3 schedules. The heads of the victims, and the agent that this test uses, are others.
    let never = w.submit(&["-w", "n3", "--no-preempt", "--", "/bin/sleep", "600"]);
    w.running(&never);
    let chains = [(); 2].map(|()| scavenger(w));
    chains.iter().for_each(|chain| chain.behaves("wait"));
    w.ok(&["node", "cordon", "n[1-2]", "--reason", "n3 is to schedule"]);
    w.wait("n3 to schedule", || holder(&w.lattice).as_deref() == Some("n3"));
    w.ok(&["node", "uncordon", "n[1-2]"]);
    let urgent = submit_urgent(w, "2");
    chains.iter().for_each(|chain| w.wait_log(&chain.id, "asked "));
    faults::kill_node(&w.dir, "n3").unwrap();
    chains.iter().for_each(Chain::release);
    let urgent = completed_once(w, &urgent, 2);
    assert_ne!(holder(&w.lattice).as_deref(), Some("n3"), "another agent schedules");
    for chain in &chains {
        continues_after(w, chain, &urgent);
    }
    faults::start_node(&w.dir, "n3").unwrap();
    chains.iter().for_each(|chain| chain.end(w));
    w.ok(&["cancel", &never]);
    w.ended(&never);
    w.ok(&["admin", "tenant", "delete", "urgent"]);
    w.assert_nothing_left();
}

fn refuses(w: &World) {
    let refused = |args: &[&str], code: i32, piece: &str| {
        let done = w.run(args);
        assert!(done.code() == code && done.err().contains(piece), "`lattice {}`: {}", args.join(" "), done.err());
    };
    let set = ["admin", "vcluster", "set-weights", "default"];
    for (weight, piece) in [("-0.1", "from 0 to 1000"), ("NaN", "from 0 to 1000"), ("1001", "from 0 to 1000"), ("much", "invalid float")] {
        refused(&[&set[..], &["--fair-share", weight]].concat(), 2, piece);
    }
    refused(&set, 2, "nothing to change");
    refused(&[&set[..], &["--profile", "lottery"]].concat(), 2, "not a weight profile");
    let zero = ["priority", "wait-time", "fair-share", "topology", "data-readiness", "backlog", "energy", "checkpoint", "conformance"];
    let zero: Vec<String> = zero.iter().map(|factor| format!("--{factor}=0")).collect();
    let zero: Vec<&str> = zero.iter().map(String::as_str).collect();
    refused(&[&set[..], &zero[..]].concat(), 2, "all weights would be 0");
    refused(&["admin", "vcluster", "set-config", "default", "--cycle-interval", "11m"], 2, "at most 600 s");
    refused(&["admin", "vcluster", "set-config", "default", "--tenant", "x"], 2, "only its weights, its interval");
    w.ok(&["admin", "vcluster", "create", "line", "--scheduler", "fifo"]);
    refused(&["admin", "vcluster", "set-weights", "line", "--fair-share", "1"], 2, "in the order of submission");
    w.ok(&["admin", "vcluster", "delete", "line"]);
    let default: Value = w.lattice.json(&["admin", "vcluster", "show", "default"]).unwrap();
    assert_eq!(
        (&default["weights_set"], &default["weights"]["fair-share"]),
        (&false.into(), &0.2.into()),
        "nothing has changed: {default}"
    );
}
