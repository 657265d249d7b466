//! Services of agents: their API, the queues that they schedule, and the waiting time of work. The requirement's names.

use super::family::families;

const API: &str = "the API on the agent's socket";
const NETWORK: &str = "the API on the network";
const SCHEDULER: &str = "the scheduler, for queues whose lease this agent has";
const SCALING: &str = "the loop that scales services, for queues whose lease this agent has";
const ACCOUNTING: &str = "the role accounting";

families! {
    API_REQUESTS = Counter "lattice_api_requests_total", Count, ["method", "status"], Agent, API,
        "Calls by method and gRPC status; a call that is answered by a stream counts when the stream begins.";
    API_DENIED = Counter "lattice_api_denied_total", Count, ["method"], Agent, API,
        "Calls that were refused because the caller may not make them; also in `lattice_api_requests_total`, with the status permission_denied.";
    API_SECONDS = Histogram "lattice_api_request_duration_seconds", Seconds, ["method"], Agent, API,
        "From a call to its answer, for calls that are not answered by a stream.";
    API_STREAMS = Gauge "lattice_api_active_streams", Count, ["stream_type"], Agent, API,
        "Streams that are open.";
    NETWORK_CONNECTIONS = Gauge "lattice_api_network_connections", Count, [], Agent, NETWORK,
        "Connections that are open.";
    API_RATE_LIMITED = Counter "lattice_api_rate_limited_total", Count, ["kind"], Agent, NETWORK,
        "What a limit refused: connections, failures (requests of an address that presented too many wrong tokens), requests, submissions, tenants (requests of all accounts of one tenant).";
    API_AUTHENTICATIONS = Counter "lattice_api_authentications_total", Count, ["kind", "result"], Agent, NETWORK,
        "Authentications of calls, by kind of token (oidc, token, certificate, none) and result: ok, or why the token was refused.";
    CYCLE_SECONDS = Histogram "lattice_scheduling_cycle_duration_seconds", Seconds, [], Agent, SCHEDULER,
        "One round over all queues that are served here, with the quorum's answers to its claims.";
    PLAN_FAILURES = Counter "lattice_scheduling_plan_failures_total", Count, [], Agent, "the scheduler, and submissions with a claim",
        "Plans that failed because of an error of the scheduler; after one, the agent leaves its queues to others for a while.";
    QUEUE_DEPTH = Gauge "lattice_scheduling_queue_depth", Count, ["vcluster"], Agent, SCHEDULER,
        "Allocations that wait in a queue that is served here, as of the last round.";
    CLAIMS = Counter "lattice_scheduling_proposals_total", Count, ["vcluster", "result"], Agent, "the scheduler, and submissions with a claim",
        "Claims proposed to the quorum from here, by result: accepted, rejected, unanswered.";
    PLACEMENTS = Counter "lattice_scheduling_placements_total", Count, ["vcluster"], Agent, "the scheduler, and submissions with a claim",
        "Allocations that got nodes by a claim from here.";
    SCALING_LOOKS = Counter "lattice_scaling_looks_total", Count, ["result"], Agent, SCALING,
        "Readings of the metrics of scaled services, by result: unchanged, noted, up, down, refused, unanswered, dropped.";
    SCALING_STEPS = Counter "lattice_scaling_steps_total", Count, ["direction"], Agent, SCALING,
        "Changes of the wanted number of replicas that the quorum accepted, by direction: up, down.";
    SCALING_METRIC_FAILURES = Counter "lattice_autoscaling_metric_query_failures_total", Count, [], Agent, SCALING,
        "Readings of the metrics of scaled services that found no value.";
    SCALING_SERVICES = Gauge "lattice_scaling_services", Count, ["state"], Agent, SCALING,
        "Services that scale by themselves in queues that are served here, by state: missing (several readings in a row found no value), oscillating, ok.";
    SCALING_SERVICES_BELOW_MIN = Gauge "lattice_scaling_services_below_min", Count, [], Agent, SCALING,
        "Scaled services, in queues that are served here, with nodes for fewer replicas than their minimum; services that are held or wait for other work are not counted.";
    ACCOUNTING_STORED = Counter "lattice_accounting_stored_total", Count, [], Agent, ACCOUNTING,
        "Ended allocations that this agent wrote into the accounting store.";
    ACCOUNTING_FAILURES = Counter "lattice_accounting_failures_total", Count, [], Agent, ACCOUNTING,
        "Attempts to store ended work that failed; the problems of the node say why.";
    ACCOUNTING_SINK_DELIVERED = Counter "lattice_accounting_sink_delivered_total", Count, ["sink"], Agent, ACCOUNTING,
        "Records of ended work that this agent delivered to a sink, http or file.";
    ACCOUNTING_SINK_FAILURES = Counter "lattice_accounting_sink_failures_total", Count, ["sink"], Agent, ACCOUNTING,
        "Deliveries to a sink that failed and are repeated; the problems of the node say why.";
    ACCOUNTING_SINK_LAG = Gauge "lattice_accounting_sink_lag_seconds", Seconds, ["sink"], Agent, ACCOUNTING,
        "Time since the end of the oldest work that is in the accounting store and not in a sink; 0: the sink has all. Only of the agent that delivers.";
    HEARTBEAT_SECONDS = Histogram "lattice_agent_heartbeat_latency_seconds", Seconds, [], Agent, "the session with the quorum",
        "From a heartbeat to the leader's acknowledgement.";
    STARTUP_SECONDS = Histogram "lattice_agent_allocation_startup_seconds", Seconds, [], Agent, "the allocations' tasks",
        "From the assignment of an allocation to this node to its first process here, including images, mounts and hooks.";
}
