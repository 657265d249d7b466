//! Alerts that agents raise.

use super::family::families;

const RULES: &str = "the agent's alert rules";

families! {
    ACTIVE = Gauge "lattice_alert_active", Truth, ["allocation", "alert", "severity"], Agent, RULES,
        "1 while the alert is raised for the allocation's work on this node, 0 after it was cleared; absent before it was first raised.";
    RAISED = Counter "lattice_alerts_raised_total", Count, ["alert"], Agent, RULES,
        "How often the alert was raised here, for any allocation, since the agent began.";
    MEASURED = Gauge "lattice_alert_rule_measured", Truth, ["alert"], Agent, RULES,
        "Whether the rule's measure is available on this node for the work that runs now; if 0, the alert cannot be raised.";
    LAUNCH_IDLE = Gauge "lattice_allocation_launch_idle_seconds", Seconds, ["allocation", "launch"], Agent, "cpu.stat of cgroup v2, and the work's I/O",
        "How long this node's ranks of the launch have been idle; launch 0 is the script; at most 64 launches of an allocation.";
}
