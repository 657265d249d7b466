//! How many bytes of a specification are committed.

use super::{AllocationSpec, Entrypoint};
use crate::feature_choice::FeatureChoice;

/// Largest size of the part of a specification that says how it scales, in bytes: the text of a metric and some numbers.
const SCALING_BYTES_MAX: usize = 1024;

impl AllocationSpec {
    /// Approximate number of committed bytes of strings, without the script.
    pub fn bytes_without_script(&self) -> usize {
        let env: usize = self.env.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let tags: usize = self.tags.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let features: usize = self.constraints.features.iter().map(|f| f.len() + 4).sum();
        let choice = self.constraints.choice.as_deref().map_or(0, FeatureChoice::bytes);
        let listed: usize = self.constraints.nodes.iter().chain(&self.constraints.excluded).map(|node| node.as_str().len() + 4).sum();
        let args: usize = match &self.entrypoint {
            Entrypoint::Script { args, .. } => args.iter().map(|a| a.len() + 4).sum(),
            Entrypoint::Command { argv } => argv.iter().map(|a| a.len() + 4).sum(),
        };
        env + tags
            + features
            + choice
            + listed
            + args
            + self.data.bytes()
            + self.connectivity.bytes()
            + self.launch.shape.bytes()
            + self.depends_on.len() * 40
            + self.tasks.as_ref().map_or(0, |tasks| tasks.bytes())
            + self.scaling.as_ref().map_or(0, |_| SCALING_BYTES_MAX)
            + self.name.len()
            + self.comment.len()
            + self.reservation.as_ref().map_or(0, String::len)
            + self.mail.as_ref().map_or(0, |mail| mail.user.len() + 128)
            + self.working_dir.as_os_str().len()
            + self.submit_dir.as_ref().map_or(0, |dir| dir.as_os_str().len())
            + self.submit_host.len()
            + self.output_files.as_ref().map_or(0, |files| files.bytes())
            + 256
    }
}
