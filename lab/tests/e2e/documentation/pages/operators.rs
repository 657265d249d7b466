//! The operators' pages.

use super::{Manual, Page, Plan, VCLUSTER, page};
use crate::conformance::drifted;
use crate::harness::World;
use crate::network;
use crate::recovery::rebooted_agent;
use lattice_lab::faults;

pub const OPERATORS: Manual = Manual { folder: "how-to/operators", plans: "pages/operators.rs", pages: &PAGES };

/// The page's node, and the cluster's.
const NODE: (&str, &str) = ("n7", "n4");

const PAGES: [(&str, Plan); 48] = [
    ("accounting", Plan::CannotRun("no agent of this cluster has a store; accounting tests it")),
    (
        "add-nodes",
        Plan::Run(Page {
            before: &["cp -r $LAB/ca tls"],
            replace: &[("/etc/lattice/tls", "tls")],
            restore: |w| {
                w.ok(&["node", "admit", "--withdraw", "h[1-6]"]);
            },
            ..page()
        }),
    ),
    ("alerts", Plan::NoCommands),
    ("audit-log", Plan::Run(page())),
    (
        "backup",
        Plan::Run(Page {
            before: &["CONFIG=$LAB/member-1/quorum.yaml", "BACKUP=$(lattice quorum backup --config $CONFIG | head -n 1)"],
            replace: &[
                ("lattice quorum backup", "lattice quorum backup --config $CONFIG"),
                ("lattice quorum verify", "lattice quorum verify --config $CONFIG"),
                ("NAME", "$BACKUP"),
                ("URL", "file://$LAB/backups"),
            ],
            ..page()
        }),
    ),
    ("broken-gpus", Plan::CannotRun("it removes a GPU from the machine's bus; gpus tests what an agent does then")),
    (
        "certificates",
        Plan::Run(Page {
            replace: &[("DIR", "$LAB/ca"), ("--cert FILE --key FILE", "--cert $LAB/n4/n4.crt --key $LAB/n4/n4.key")],
            ..page()
        }),
    ),
    (
        "checkpoint-retention",
        Plan::Run(Page {
            before: &[
                "ENDED=$(lattice submit -o name --cores 1 --checkpoint=signal train.sh)",
                "until lattice checkpoint create $ENDED; do sleep 0.5; done",
                "lattice cancel $ENDED",
                "lattice wait $ENDED || true",
                "LAST=$(lattice checkpoint list $ENDED -o name)",
            ],
            replace: &[("ID", "$ENDED"), ("CHECKPOINT", "$LAST")],
            script_of: Some("checkpoint-by-signal"),
            ..page()
        }),
    ),
    ("checkpoints", Plan::NoCommands),
    (
        "conformance",
        Plan::Run(Page {
            prepare: |w| make_n4_drift(w, Some("the next image")),
            replace: &[("HOSTLIST", "n4")],
            restore: |w| {
                make_n4_drift(w, None);
                w.ok(&["node", "accept-drift", "n4", "--reason", "as before"]);
            },
            ..page()
        }),
    ),
    (
        "ended-work",
        Plan::Run(Page {
            restore: |w| {
                w.ok(&["admin", "limits", "--ended-kept", "7d", "--ended-memory", "256M"]);
            },
            ..page()
        }),
    ),
    ("fabric-manager", Plan::NoCommands),
    (
        "give-people-rights",
        Plan::Run(Page {
            before: &["lattice admin tenant create physics"],
            replace: &[("ada", "daemon"), ("group:leads", "group:daemon")],
            restore: |w| {
                w.ok(&["admin", "tenant", "delete", "physics"]);
            },
            ..page()
        }),
    ),
    ("gossip", Plan::Run(Page { replace: &[("NODE", "n4")], endless: &["lattice gossip watch"], ..page() })),
    ("gossip-keys", Plan::Run(page())),
    ("gpus", Plan::NoCommands),
    ("health-checks", Plan::NoCommands),
    ("hooks", Plan::NoCommands),
    ("images", Plan::NoCommands),
    (
        "install",
        Plan::Run(Page {
            before: &["HOME=$PWD"],
            replace: &[("/etc/lattice", "etc/lattice")],
            but: &[("lattice-quorum --config ", "its members are on three machines; the lab starts its own so")],
            ..page()
        }),
    ),
    (
        "leases",
        Plan::Run(Page {
            before: &["lattice lease grant documented --ttl 1h", "lattice node cordon n1 --reason documented"],
            restore: |w| {
                w.ok(&["node", "uncordon", "n1"]);
            },
            ..page()
        }),
    ),
    ("limit-work", Plan::NoCommands),
    ("log-people-in", Plan::NoCommands),
    ("mail", Plan::NoCommands),
    (
        "measure-closely",
        Plan::Run(Page {
            but: &[("lattice telemetry --alloc ID --mode audit", "it needs a kernel that describes its types; opens tests it")],
            ..page()
        }),
    ),
    (
        "members",
        Plan::Run(Page {
            prepare: |w| assert_eq!([(); 2].map(|()| faults::begin_member(&w.dir).unwrap()), [4, 5]),
            before: &[
                r#"addresses() { sed -n 's/.*service: "\(.*\)", raft: "\(.*\)"}/--service \1 --raft \2/p' $LAB/member-$1/quorum.yaml; }
                MEMBER_4=$(addresses 4)
                MEMBER_5=$(addresses 5)"#,
            ],
            replace: &[
                ("--service h4:50051 --raft h4:9000", "$MEMBER_4"),
                ("--service h5:50051 --raft h5:9000", "$MEMBER_5"),
                // The command before removed member 2.
                ("replace 2 5", "replace 1 5"),
                ("[3]", "3"),
            ],
            restore: |w| {
                for id in [1, 2] {
                    w.wait(&format!("member {id} to end"), || !w.cluster().member(id).unwrap().daemon.alive());
                    faults::forget_member(&w.dir, id).unwrap();
                }
            },
            ..page()
        }),
    ),
    (
        "metrics",
        Plan::Run(Page {
            before: &[r#"LISTEN=$(sed -n 's/.*metrics_listen: "\{0,1\}\([^"]*\).*/\1/p' $LAB/n1/agent.yaml)"#],
            replace: &[("127.0.0.1:9103", "$LISTEN")],
            ..page()
        }),
    ),
    (
        "network-domains",
        Plan::Run(Page {
            before: &[
                "lattice submit --cores 1 --tenant physics --network-domain ml-workspace -- sleep 300",
                "until lattice network status ml-workspace; do sleep 0.2; done",
            ],
            restore: network::restore_pool,
            ..page()
        }),
    ),
    ("notifications", Plan::NoCommands),
    ("object-store", Plan::NoCommands),
    ("operators", Plan::Run(Page { replace: &[("/etc/lattice/tls", "$LAB/ca")], ..page() })),
    ("preemption", Plan::Run(Page { work: "--checkpoint=signal train.sh", script_of: Some("checkpoint-by-signal"), ..page() })),
    (
        "recover",
        Plan::Run(Page { replace: &[("lattice quorum recover", "lattice quorum recover --config $LAB/member-3/quorum.yaml")], ..page() }),
    ),
    (
        "reservations",
        Plan::Run(Page {
            restore: |w| {
                w.ok(&["admin", "reservation", "delete", "course"]);
            },
            ..page()
        }),
    ),
    ("rights-of-work", Plan::NoCommands),
    ("scratch-and-mounts", Plan::NoCommands),
    ("serve-the-api", Plan::CannotRun("its agents serve no network; network_api tests it")),
    (
        "silent-nodes",
        Plan::Run(Page {
            prepare: |w| {
                faults::kill_node(&w.dir, "n4").unwrap();
                w.wait("n4 to be Degraded", || state(w, "n4") == "Degraded");
            },
            replace: &[NODE],
            restore: |w| {
                faults::start_node(&w.dir, "n4").unwrap();
            },
            ..page()
        }),
    ),
    (
        "slurm-commands",
        Plan::Run(Page {
            before: &["mkdir -p bin"],
            replace: &[("/usr/local/bin", "bin"), ("srun --version", "bin/srun --version")],
            ..page()
        }),
    ),
    ("systemd", Plan::NoCommands),
    (
        "take-nodes-out",
        Plan::Run(Page {
            before: &["lattice node drain n3 --reason documented --wait"],
            // Nobody can answer a question.
            replace: &[NODE, ("--urgent", "--urgent --yes"), ("is sold'", "is sold' --yes"), ("n[1-64]", "n3")],
            restore: |w| {
                w.wait("n4 to register again", || w.lattice.nodes().unwrap().iter().any(|(id, _)| id == "n4"));
                boot_n3(w);
                w.ok(&["node", "undrain", "n3"]);
                for lift in ["uncordon", "release", "enable", "repaired"] {
                    w.ok(&["node", lift, "n4"]);
                }
            },
            ..page()
        }),
    ),
    (
        "tenants-and-quotas",
        Plan::Run(Page {
            restore: |w| {
                w.ok(&["admin", "limits", "--user-running", "none", "--budget-period-days", "90", "--share-policy", "anyone"]);
                w.ok(&["admin", "tenant", "delete", "chemistry"]);
            },
            ..page()
        }),
    ),
    (
        "tokens-for-programs",
        Plan::Run(Page {
            replace: &[("--account builder", "--account daemon"), ("7f0c9a4e5b7d4c39", "$(lattice admin token list -o name)")],
            but: &[
                ("LATTICE_TOKEN=", "its agents serve no network; access_tokens tests it"),
                ("curl", "its agents serve no network; rest_api tests it"),
            ],
            ..page()
        }),
    ),
    // A run takes three minutes, and CI has its own.
    ("torture", Plan::Run(Page { replace: &[("--minutes 2", "--minutes 2 --plan")], ..page() })),
    (
        "tune-scheduling",
        Plan::Run(Page {
            before: &[
                "lattice wait $(lattice submit -o name --cores 1 -- true)",
                r"printf 'default:\n  fair-share: 0.35\n' > fair.yaml",
                r"printf 'default:\n  profile: interactive\n' > quick.yaml",
            ],
            restore: |w| {
                w.ok(&["admin", "vcluster", "set-weights", "default", "--profile", "default"]);
            },
            ..page()
        }),
    ),
    ("upgrade", Plan::NoCommands),
    (
        "vclusters",
        Plan::Run(Page {
            before: &["lattice admin vcluster create --name=documented --scheduler=hpc-backfill"],
            replace: &[("n[1-6]", "n[2-4]"), ("n[1-4]", "n[3-4]")],
            restore: |w| {
                w.ok(&["admin", "vcluster", "delete", "physics"]);
                w.ok(&["admin", "vcluster", "delete", VCLUSTER]);
            },
            ..page()
        }),
    ),
    ("wipe-nodes", Plan::Run(Page { replace: &[("HOSTLIST", "n4")], ..page() })),
];

fn state(w: &World, node: &str) -> String {
    let nodes = w.lattice.nodes().unwrap();
    nodes.into_iter().find(|(id, _)| id == node).unwrap().1
}

/// Changes the file of n4 that is a component in the agents' configuration.
fn make_n4_drift(w: &World, image: Option<&str>) {
    let file = w.cluster().run_dir.join("n4/site-image");
    match image {
        Some(image) => std::fs::write(file, image).unwrap(),
        None => std::fs::remove_file(file).unwrap(),
    }
    w.ok(&["node", "fingerprint", "n4"]);
    w.wait("n4 to have drifted", || drifted(w, "n4"));
}

/// Lets n3 register under another boot id, which ends Booting, and then under the machine's own.
fn boot_n3(w: &World) {
    let agent = w.cluster().node("n3").unwrap().daemon.program.clone();
    for program in [rebooted_agent(w), agent] {
        faults::kill_node(&w.dir, "n3").unwrap();
        faults::agent_program(&w.dir, "n3", &program).unwrap();
        faults::start_node(&w.dir, "n3").unwrap();
        w.wait("n3 to register", || state(w, "n3") == "Drained");
    }
}
