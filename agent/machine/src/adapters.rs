//! Counters of fabric adapters, read every 15 seconds. A read may hang in an adapter or its
//! firmware. Therefore a helper thread reads, and is abandoned if it hangs. An adapter is not read
//! again while an earlier read of it hangs. Its last answer is shown for a minute.

use crate::questions::{Asked, OF_ADAPTERS, Question};
use lattice_telemetry::readers::Text;
use lattice_telemetry::readers::fabric::{Kind, PORTS_MAX, Port};
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const READ_INTERVAL: Duration = Duration::from_secs(15);
/// Timeout of one adapter for all its ports.
const ADAPTER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer is shown.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(60);
/// How soon the thread notices that it should stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The last answer of each adapter, and when it came.
type Answers = BTreeMap<(Kind, String), (Instant, Vec<Port>)>;

/// The last answers of all adapters. All clones share them.
#[derive(Clone, Default)]
pub struct Adapters(Arc<Mutex<Answers>>);

impl Adapters {
    /// Starts a thread that asks all adapters at intervals until `stop`.
    pub fn begin(&self, stop: CancellationToken) -> io::Result<()> {
        let known = self.clone();
        let run = move || {
            let mut next = Instant::now();
            while !stop.is_cancelled() {
                if Instant::now() < next {
                    std::thread::sleep(STOP_CHECK_INTERVAL);
                    continue;
                }
                next = Instant::now() + READ_INTERVAL;
                known.look(Path::new("/"));
            }
        };
        std::thread::Builder::new().name("adapters".to_owned()).spawn(run).map(drop)
    }

    fn look(&self, root: &Path) {
        for (kind, adapter) in Kind::ALL.into_iter().flat_map(|kind| kind.adapters(root).into_iter().map(move |adapter| (kind, adapter))) {
            let Some(ports) = ask(kind, root.to_owned(), adapter.clone(), ADAPTER_TIMEOUT) else { continue };
            self.0.lock().insert((kind, adapter), (Instant::now(), ports));
        }
        self.0.lock().retain(|_, (at, _)| at.elapsed() < ANSWER_AGE_MAX);
    }
}

/// Asks one adapter, below this root. `None`: no answer within this time, or an earlier question
/// still waits.
pub fn ask(kind: Kind, root: PathBuf, adapter: String, within: Duration) -> Option<Vec<Port>> {
    let question = Question::begin(&format!("{}/{adapter}", kind.class(&root).display())).ok()?;
    let answer = OF_ADAPTERS.ask(within, move || {
        let _question = question;
        kind.ports(&root, &adapter, &mut Text::default())
    });
    match answer {
        Asked::Answered(ports) => Some(ports),
        Asked::Silent | Asked::TooMany => None,
    }
}

impl Collect for Adapters {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let known = self.0.lock();
        for kind in Kind::ALL {
            let now_known = known.iter().filter(|((of, _), (at, _))| *of == kind && at.elapsed() < ANSWER_AGE_MAX);
            now_known.flat_map(|(_, (_, ports))| ports).take(PORTS_MAX).for_each(|port| port.write_metrics(samples));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::exposition::page;
    use nix::sys::stat::Mode;
    use std::fs;

    #[test]
    fn an_adapter_that_hangs_does_not_hide_the_others() {
        let root = std::env::temp_dir().join(format!("lattice-adapters-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let counters = |adapter: &str| Kind::Infiniband.class(&root).join(adapter).join("ports/1/counters");
        let cassini = Kind::Cxi.class(&root).join("cxi0/device/telemetry");
        fs::create_dir_all(&cassini).unwrap();
        fs::write(cassini.join("hni_sts_tx_ok_octets"), "7@1.000000001\n").unwrap();
        for adapter in ["mlx5_0", "mlx5_1"] {
            fs::create_dir_all(counters(adapter)).unwrap();
        }
        let hangs = counters("mlx5_0").join("port_xmit_data");
        nix::unistd::mkfifo(&hangs, Mode::S_IRWXU).unwrap();
        fs::write(counters("mlx5_1").join("port_xmit_data"), "25\n").unwrap();
        let known = Adapters::default();
        // A machine that stalls may delay the others' answers, and the page.
        let page = (0..20).find_map(|_| {
            known.look(&root);
            let mut samples = Samples::default();
            let began = Instant::now();
            known.collect(&mut samples, Whose::Ours);
            let is_prompt = began.elapsed() < Duration::from_secs(1);
            let page = page(&samples);
            (is_prompt && page.contains("mlx5_1") && page.contains("cxi0")).then_some(page)
        });
        let page = page.expect("a page with the others' counters, at once");
        assert!(page.contains("lattice_node_infiniband_bytes_total{device=\"mlx5_1\",port=\"1\",direction=\"sent\"} 100\n"), "{page}");
        assert!(page.contains("lattice_node_cxi_bytes_total{device=\"cxi0\",direction=\"sent\"} 7\n"), "{page}");
        assert!(!page.contains("mlx5_0"), "{page}");
        // While a question waits, the adapter is not asked again.
        let is_refused_early = || {
            let began = Instant::now();
            assert!(ask(Kind::Infiniband, root.clone(), "mlx5_0".to_owned(), ADAPTER_TIMEOUT).is_none());
            began.elapsed() < ADAPTER_TIMEOUT
        };
        assert!((0..20).any(|_| is_refused_early()), "each question waits for an answer");
        // Ends the waiting helper.
        drop(fs::OpenOptions::new().write(true).open(&hangs).unwrap());
        fs::remove_dir_all(&root).unwrap();
    }
}
