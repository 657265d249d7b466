//! Alerts that agents raise.

use super::family::families;

const RULES: &str = "the agent's alert rules";

families! {
    ACTIVE = Gauge "lattice_alert_active", Truth, ["allocation", "alert", "severity"], Agent, RULES,
        "1 while the alert is raised for the allocation's work on this node, 0 once it was cleared; absent before it was first raised.";
    RAISED = Counter "lattice_alerts_raised_total", Count, ["alert"], Agent, RULES,
        "How often the alert was raised here, for whatever allocation, since the agent began.";
    MEASURED = Gauge "lattice_alert_rule_measured", Truth, ["alert"], Agent, RULES,
        "Whether what the rule is about is measured on this node, of the work that runs now: where it is 0 the alert cannot be raised.";
    LAUNCH_IDLE = Gauge "lattice_allocation_launch_idle_seconds", Seconds, ["allocation", "launch"], Agent, "cpu.stat of cgroup v2, and what the work read and wrote",
        "How long this node's ranks of the launch have done nothing; launch 0 is the script; at most 64 launches of an allocation.";
}
