use super::histories::Exported;
use super::*;
use crate::alerting::saved::Saved;
use lattice_model::test_builders;
use lattice_telemetry::alert::rules::{MEASURES, Rule};
use lattice_telemetry::catalogue::allocation as family;
use lattice_telemetry::sample::Samples;

pub fn share(n: u128, epoch: u64) -> Arc<DesiredShare> {
    Arc::new(DesiredShare { epoch: Epoch(epoch), ..test_builders::desired_share(AllocationId(Uuid::from_u128(n))) })
}

/// A look in which the work had used this many processor seconds.
fn look(at: Instant, took_ms: u64, cpu: f64) -> Look {
    let mut usage = Usage::default();
    usage.offer(Measure::CpuUser, Some(cpu), Source::CgroupV2);
    usage.offer(Measure::CpuSystem, Some(0.0), Source::CgroupV2);
    Look { usage, at, took: Duration::from_millis(took_ms) }
}

#[test]
fn a_long_look_gives_counters_and_no_rates() {
    let (mut known, share, began) = (Known::default(), share(1, 1), Instant::now());
    let after = |ms| began + Duration::from_millis(ms);
    known.take(&share, look(began, 0, 0.0), 0);
    known.take(&share, look(after(1000), 90, 1.0), 1000);
    let rate = |known: &Known| known.running[&share.allocation].cpu_rate().map(|(rate, _)| rate);
    assert_eq!(rate(&known), Some(1.0));
    known.take(&share, look(after(2000), 900, 2.9), 2000);
    assert_eq!(rate(&known), Some(1.0), "not 1.9");
    assert_eq!(known.running[&share.allocation].usage.cpu_seconds(), Some((2.9, Source::CgroupV2)));
    known.take(&share, look(after(3000), 0, 2.0), 3000);
    assert_eq!(rate(&known), Some(0.5), "over the two seconds since the look before that one");
}

#[test]
fn ended_work_is_reported_for_a_while_with_its_last_window() {
    let (mut known, began, while_ended) = (Known::default(), Instant::now(), (Duration::from_secs(60), Smoothing::None));
    let after = |seconds| began + Duration::from_secs(seconds);
    let (first, again) = (share(1, 1), share(1, 2));
    known.take(&first, look(began, 0, 0.0), 0);
    known.take(&first, look(after(1), 0, 1.0), 1000);
    let window = |tracked: &Tracked| tracked.histories.cpu_cores.whole().exported(Smoothing::None, None);
    assert!(known.all().all(|(tracked, _)| window(tracked).is_none()));
    known.retain_recent(after(2), while_ended, |_| false);
    let windows: Vec<_> = known.all().filter_map(|(tracked, _)| window(tracked)).map(|window| (window.count, window.mean)).collect();
    assert_eq!((known.running.len(), windows), (0, vec![(1, 1.0)]));
    // The allocation's next run has the series now.
    known.take(&again, look(after(3), 0, 0.0), 3000);
    assert_eq!((known.all().count(), known.ended.len()), (1, 0));
    known.retain_recent(after(4), while_ended, |_| false);
    known.retain_recent(after(64), while_ended, |_| false);
    assert_eq!(known.ended.len(), 1);
    known.retain_recent(after(65), while_ended, |_| false);
    assert_eq!(known.all().count(), 0);
    for n in 0..=ALLOCATIONS_MAX as u64 {
        known.take(&share(u128::from(n), 1), look(after(70 + n), 0, 0.0), 0);
        known.retain_recent(after(70), while_ended, |_| false);
    }
    assert_eq!(known.ended.len(), ALLOCATIONS_MAX);
}

#[test]
fn measurements_raise_an_alert_and_a_restart_clears_none() {
    let rule = Rule { for_ms: 1000, ..Rule::above("busy", "cpu_cores", 0.5, 0.2) };
    let settings = AlertSettings { hang_ms: None, rules: vec![rule] };
    let (mut known, share, began) = (Known::default(), share(1, 1), Instant::now());
    let pass = |known: &mut Known, second: u64, cpu: f64| {
        known.take(&share, look(began + Duration::from_secs(second), 0, cpu), second * 1000);
        known.alert(&settings, share.allocation, second * 1000, None, None);
        known.running[&share.allocation].alerts.raised(&settings).len()
    };
    assert_eq!([pass(&mut known, 0, 0.0), pass(&mut known, 1, 1.0), pass(&mut known, 2, 2.0)], [0, 0, 1]);
    assert_eq!(known.raised.get("busy"), Some(&1));
    let saved: Vec<Saved> = known.decided(&settings).collect();
    assert_eq!(saved.len(), 1);
    let mut again = Known::default();
    again.take(&share, look(began + Duration::from_secs(5), 0, 2.0), 5000);
    again.alert(&settings, share.allocation, 5000, None, saved.into_iter().next());
    assert_eq!(again.running[&share.allocation].alerts.raised(&settings).len(), 1, "there are no rates yet");
    // The end of the work clears them.
    again.retain_recent(began + Duration::from_secs(6), (Duration::from_secs(60), Smoothing::None), |_| false);
    assert!(again.all().all(|(tracked, _)| tracked.alerts.raised(&settings).is_empty()));
}

#[test]
fn every_number_that_is_shown_can_be_a_rules_measure() {
    let mut tracked = Tracked::new(share(1, 1));
    let mut usage = Usage::default();
    Measure::ALL.into_iter().for_each(|measure| usage.offer(measure, Some(1.0), Source::CgroupV2));
    let began = Instant::now();
    for second in 0..2 {
        let look = Look { usage: usage.clone(), at: began + Duration::from_secs(second), took: Duration::ZERO };
        tracked.take(look, second * 1000);
    }
    let numbers = tracked.numbers(Some(0.0), |_| true);
    assert!(numbers.len() > 10);
    for number in numbers {
        assert!(MEASURES.contains(&(number.name, number.unit)), "{}", number.name);
    }
}

#[test]
fn only_exported_values_are_smoothed() {
    let mut tracked = Tracked::new(share(1, 1));
    let began = Instant::now();
    let mut cpu = 0.0;
    // The third of six windows is busy, and so are two looks of the seventh.
    for second in 0..182 {
        cpu += if (60..90).contains(&second) { 1.0 } else { 0.0 };
        let mut usage = Usage::default();
        usage.offer(Measure::CpuUser, Some(cpu), Source::CgroupV2);
        usage.offer(Measure::CpuSystem, Some(0.0), Source::CgroupV2);
        usage.offer(Measure::NetworkSent, Some(cpu * 1000.0), Source::Ebpf);
        tracked.take(Look { usage, at: began + Duration::from_secs(second), took: Duration::ZERO }, second * 1000);
    }
    let exported = |smoothing, family: &'static lattice_telemetry::catalogue::Family, stat: &str| {
        let mut samples = Samples::new(Vec::new());
        tracked.write_metrics(Exported { smoothing, ended: None }, &mut samples);
        let (_, all) = samples.families().find(|(one, _)| one.name == family.name)?;
        all.iter().find(|sample| sample.labels.last().is_some_and(|last| last == stat)).map(|sample| sample.value.clone())
    };
    let number = |n| Some(lattice_telemetry::sample::Value::Number(n));
    for (family, most) in [(&family::CPU_CORES, 1.0), (&family::NETWORK_SENT_RATE, 1000.0)] {
        // In the fourth window, smoothing shows its busy neighbour.
        let smoothed = exported(Smoothing::Cubic, family, "mean");
        assert_eq!(smoothed, number(most * 12.0 / 35.0), "{}", family.name);
        assert_eq!((exported(Smoothing::Cubic, family, "max"), exported(Smoothing::None, family, "mean")), (number(0.0), number(0.0)));
    }
    let numbers = tracked.numbers(None, |_| true);
    let cores = numbers.iter().find(|number| number.name == "cpu_cores").unwrap();
    assert_eq!(cores.history.unwrap().since(120_000), Some((0.0, 0.0)));
    assert_eq!(cores.history.unwrap().since(0).unwrap().1, 1.0);
}
