//! This agent's memory limit: a variable that its systemd unit sets.
//!
//! It is not the unit's `MemoryMax=`, because work is in the same unit. The agent limits its own
//! cgroup (`DelegateSubgroup=`); at the limit the kernel kills it, systemd starts it again, and
//! work continues.

use anyhow::Context as _;
use lattice_model::size;
use lattice_runtime::cgroup::controllers::Controllers;

/// The variable: an amount such as `2G`.
pub const VARIABLE: &str = "LATTICE_AGENT_MEMORY_MAX";
/// The least limit, in bytes: with less, a working agent would be killed again and again.
const BYTES_MIN: u64 = 64 << 20;

/// Text for `--help`, below the variables of the log.
pub const HELP: &str = "  LATTICE_AGENT_MEMORY_MAX
                      how much memory the agent itself may use, such as 2G
                      [default: no limit]";

/// The requested limit in bytes; `None`: no limit.
///
/// # Errors
/// The variable is no amount, or too small for any agent.
pub fn wanted() -> anyhow::Result<Option<u64>> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = size::parse(&text).context(VARIABLE)?;
    anyhow::ensure!(bytes >= BYTES_MIN, "{VARIABLE} is {text}: an agent needs 64M at least");
    Ok(Some(bytes))
}

/// Limits this process. A limit that cannot be set is noted as a limitation of the node.
pub(crate) fn limit(bytes: Option<u64>, controllers: &Controllers, degraded: &mut Vec<String>) {
    let Some(bytes) = bytes else { return };
    if let Err(error) = controllers.limit_own_memory(bytes) {
        let cause = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        let why = format!("{VARIABLE}: the agent's own memory is not limited: {error}{cause}");
        tracing::warn!(%why, "no limit");
        degraded.push(why);
    }
}
