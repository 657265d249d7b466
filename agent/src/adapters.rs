//! What InfiniBand and RoCE adapters have counted, every quarter of a minute. Each number is a question to an adapter's firmware, which may
//! hang: a helper asks it that is left behind, it is not asked again while that waits, and what it said before is told for a minute.

use crate::diagnosis::helper::{Asked, OF_ADAPTERS};
use crate::diagnosis::storage::Question;
use lattice_telemetry::readers::Text;
use lattice_telemetry::readers::fabric::{PORTS_MAX, Port, adapters, ports};
use lattice_telemetry::sample::{Collect, Samples, Whose};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const CLASS: &str = "/sys/class/infiniband";
const EVERY: Duration = Duration::from_secs(15);
/// How long one adapter may take for all its ports.
const WITHIN: Duration = Duration::from_secs(5);
/// How long an answer is told.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// How soon the thread sees that it is time to stop.
const STEP: Duration = Duration::from_secs(1);

/// What each adapter last said, and when.
type Said = BTreeMap<String, (Instant, Vec<Port>)>;

/// What all last said. Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Adapters(Arc<Mutex<Said>>);

impl Adapters {
    /// Looks on a thread of its own until `stop`.
    pub fn begin(&self, stop: CancellationToken) -> io::Result<()> {
        let known = self.clone();
        let run = move || {
            let mut next = Instant::now();
            while !stop.is_cancelled() {
                if Instant::now() < next {
                    std::thread::sleep(STEP);
                    continue;
                }
                next = Instant::now() + EVERY;
                known.look(Path::new(CLASS));
            }
        };
        std::thread::Builder::new().name("adapters".to_owned()).spawn(run).map(drop)
    }

    fn look(&self, class: &Path) {
        for adapter in adapters(class).into_iter().take(PORTS_MAX) {
            let Some(ports) = ask(class.to_owned(), adapter.clone()) else { continue };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(adapter, (Instant::now(), ports));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, (at, _)| at.elapsed() < TOLD_FOR);
    }
}

/// `None`: it does not answer.
fn ask(class: PathBuf, adapter: String) -> Option<Vec<Port>> {
    let question = Question::begin(&format!("{}/{adapter}", class.display())).ok()?;
    let answer = OF_ADAPTERS.ask(WITHIN, move || {
        let _question = question;
        ports(&class, &adapter, &mut Text::default())
    });
    match answer {
        Asked::Answered(ports) => Some(ports),
        Asked::Silent | Asked::TooMany => None,
    }
}

impl Collect for Adapters {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now_known = known.values().filter(|(at, _)| at.elapsed() < TOLD_FOR);
        now_known.flat_map(|(_, ports)| ports).take(PORTS_MAX).for_each(|port| port.tell(samples));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::exposition::page;
    use nix::sys::stat::Mode;
    use std::fs;

    #[test]
    fn one_whose_firmware_hangs_keeps_no_other_from_being_told() {
        let class = std::env::temp_dir().join(format!("lattice-adapters-{}", std::process::id()));
        let _ = fs::remove_dir_all(&class);
        let counters = |adapter: &str| class.join(adapter).join("ports/1/counters");
        for adapter in ["mlx5_0", "mlx5_1"] {
            fs::create_dir_all(counters(adapter)).unwrap();
        }
        let hangs = counters("mlx5_0").join("port_xmit_data");
        nix::unistd::mkfifo(&hangs, Mode::S_IRWXU).unwrap();
        fs::write(counters("mlx5_1").join("port_xmit_data"), "25\n").unwrap();
        let known = Adapters::default();
        known.look(&class);
        let mut samples = Samples::default();
        let began = Instant::now();
        known.collect(&mut samples, Whose::Ours);
        assert!(began.elapsed() < Duration::from_secs(1));
        let page = page(&samples);
        assert!(page.contains("lattice_node_infiniband_bytes_total{device=\"mlx5_1\",port=\"1\",direction=\"sent\"} 100\n"), "{page}");
        assert!(!page.contains("mlx5_0"), "{page}");
        // While it waits it is not asked again.
        let began = Instant::now();
        assert!(ask(class.clone(), "mlx5_0".to_owned()).is_none());
        assert!(began.elapsed() < WITHIN);
        // Whoever waits for it ends.
        drop(fs::OpenOptions::new().write(true).open(&hangs).unwrap());
        fs::remove_dir_all(&class).unwrap();
    }
}
