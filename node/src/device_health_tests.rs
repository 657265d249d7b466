use super::*;

const KEY: &str = "0000:3b:00.0";

/// Copied by hand from NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, table 1, "Resolution
/// Bucket (Immediate Action)") for this test only: RESTART_APP, IGNORE, RESET_GPU, RESTART_BM and
/// CHECK_MECHANICALS.
#[test]
fn the_table_agrees_with_nvidias_catalogue() {
    let restart =
        [8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94, 96, 105, 126, 135, 139];
    let ignore = [14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161];
    let reset = [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158];
    let policy = Policy::default();
    for (numbers, response) in
        [(&restart[..], Response::RestartApplication), (&ignore, Response::None), (&reset, Response::Reset), (&[79, 54], Response::Drain)]
    {
        for number in numbers {
            assert_eq!(policy.xid(*number).0, response, "XID {number}");
        }
    }
    // "WORKFLOW_XID_48" and "WORKFLOW_NVLINK_ERR" end with a reset; RESTART_VM is a restart of the
    // machine here.
    assert_eq!([48, 74, 151].map(|n| policy.xid(n).0), [Response::Reset, Response::Reset, Response::Drain]);
    // Errors without an action in the catalogue, and errors that are not in it.
    assert_eq!([1, 154, 167, 4000].map(|n| policy.xid(n).0), [Response::Warn; 4]);
}

/// Numbers like `46, 48, 143–146` of a line `| XID 46, 48, 143–146 | `reset` |`.
#[test]
fn the_operators_handbook_has_the_same_table() {
    let mut documented = BTreeMap::new();
    for line in include_str!("../../docs/reference/gpu-errors.md").lines().filter_map(|line| line.strip_prefix("| XID ")) {
        let (numbers, response) = line.split_once(" | ").unwrap();
        let response = response.trim_end_matches(" |").trim_matches('`').to_owned();
        for range in numbers.split(", ") {
            let (first, last) = range.split_once('–').unwrap_or((range, range));
            for number in first.parse::<u32>().unwrap()..=last.parse().unwrap() {
                assert!(documented.insert(number, response.clone()).is_none(), "XID {number} is listed twice");
            }
        }
    }
    let named = |response| match response {
        Response::None => "none",
        Response::Warn => "warn",
        Response::RestartApplication => "restart_application",
        Response::Reset => "reset",
        Response::Replace => "replace",
        Response::Drain => "drain",
        Response::Fail => "fail",
    };
    let known = XIDS.iter().flat_map(|(numbers, response, _)| numbers.clone().map(|number| (number, named(*response).to_owned())));
    assert_eq!(documented, known.collect());
}

#[test]
fn no_number_is_in_the_table_twice() {
    for number in 0..1000 {
        assert!(XIDS.iter().filter(|(numbers, ..)| numbers.contains(&number)).count() <= 1, "XID {number}");
    }
}

#[test]
fn a_sites_responses_override_the_table_of_their_version() {
    let xids = BTreeMap::from([(79, Response::Replace), (31, Response::None)]);
    let policy = Policy { version: Some(1), xids, ..Policy::default() };
    assert_eq!([79, 31, 46].map(|n| policy.xid(n).0), [Response::Replace, Response::None, Response::Reset]);
    assert_eq!((Policy::default().shown(), policy.shown()), ("1".to_owned(), "1, with the site's own responses".to_owned()));
    for well in [&policy, &Policy::default(), &Policy { version: Some(1), ..Policy::default() }] {
        well.validate().unwrap();
    }
    for (version, expected) in [(Some(2), "for version 2"), (None, "for no version")] {
        let refused = Policy { version, ..policy.clone() }.validate().unwrap_err().to_string();
        assert!(refused.contains(expected) && refused.contains("table is version 1"), "{refused}");
    }
    assert!(Policy { nvlink_errors_max: 0, ..policy }.validate().is_err());
}

fn look_at_two_gpus() -> GpuLook {
    GpuLook { on_bus: BTreeSet::from([KEY.to_owned(), "0000:5e:00.0".to_owned()]), ..GpuLook::default() }
}

fn xid(number: u32) -> GpuLook {
    GpuLook { events: vec![(KEY.to_owned(), GpuEvent::Xid { number, ago_ms: 0 })], ..look_at_two_gpus() }
}

fn reads_of(reading: GpuReading) -> GpuReads {
    GpuReads { gpus: BTreeMap::from([(KEY.to_owned(), GpuRead::Reading(Box::new(reading)))]), unsupported: Vec::new() }
}

fn device(address: &str, index: u32) -> GpuDevice {
    GpuDevice {
        index,
        id: format!("GPU-{index}"),
        vendor: lattice_model::topology::GpuVendor::Nvidia,
        model: String::new(),
        memory_bytes: 0,
        compute_capability: String::new(),
        partitioned: false,
        pci_address: Some(address.to_owned()),
        numa_node: None,
        device_files: Vec::new(),
    }
}

fn status_of(gpus: &Gpus, now: u64) -> GpuStatus {
    gpus.statuses(Timestamp(now)).remove(KEY).unwrap()
}

fn finding(gpus: &Gpus, now: u64, expected: u64, name: &str) -> Finding {
    let devices = [device(KEY, 0), device("0000:5e:00.0", 1)];
    gpus.findings(Timestamp(now), expected, &devices).into_iter().find(|(of, _)| of == name).unwrap().1
}

fn two_gpus_seen() -> Gpus {
    let mut gpus = Gpus::new(Policy::default());
    gpus.looked(Timestamp(0), &look_at_two_gpus());
    gpus
}

#[test]
fn an_error_has_the_response_of_the_table() {
    for (number, healthy, allocatable) in [(63, true, true), (31, true, true), (78, false, true), (119, false, false), (79, false, false)] {
        let mut gpus = two_gpus_seen();
        gpus.looked(Timestamp(1), &xid(number));
        let status = status_of(&gpus, 1);
        assert_eq!((status.is_healthy(), status.is_allocatable()), (healthy, allocatable), "XID {number}");
        assert!(status_of(&gpus, 1).lost.is_none());
        let drains = matches!(finding(&gpus, 1, 0, &format!("gpu {KEY}")), Finding::Drain(why) if why.contains("XID 79"));
        assert_eq!(drains, number == 79);
        // An error without a lasting response is reported for an hour.
        let status = status_of(&gpus, 2 + XID_REPORT_MS);
        assert_eq!(status.is_allocatable(), allocatable);
        assert_eq!(status.why().is_empty(), allocatable, "XID {number}: {}", status.why());
    }
}

#[test]
fn a_flood_of_errors_hides_no_lasting_one() {
    let mut gpus = two_gpus_seen();
    for number in [119].into_iter().chain(2000..2100) {
        gpus.looked(Timestamp(u64::from(number)), &xid(number));
    }
    let status = status_of(&gpus, 2100);
    assert!(status.problems.len() == XIDS_MAX && status.why().starts_with("XID 119"), "{}", status.why());
}

#[test]
fn the_response_to_an_error_lasts_until_the_gpu_was_visibly_reset() {
    let marked = || {
        let mut gpus = two_gpus_seen();
        gpus.looked(Timestamp(1), &xid(119));
        gpus.looked(Timestamp(2), &look_at_two_gpus());
        assert!(!status_of(&gpus, 2).is_allocatable());
        gpus
    };
    let mut gpus = marked();
    gpus.looked(Timestamp(3), &GpuLook { events: vec![(KEY.to_owned(), GpuEvent::Found)], ..look_at_two_gpus() });
    assert!(status_of(&gpus, 3).is_healthy());

    let mut gpus = marked();
    let mut without = look_at_two_gpus();
    without.on_bus.remove(KEY);
    gpus.looked(Timestamp(3), &without);
    assert!(status_of(&gpus, 3).lost.is_some_and(|why| why.contains("bus")));
    // An answer from before the GPU left the bus does not bring it back.
    gpus.read(Timestamp(3), &reads_of(GpuReading::default()));
    assert!(status_of(&gpus, 3).lost.is_some());
    gpus.looked(Timestamp(4), &look_at_two_gpus());
    assert!(status_of(&gpus, 4).is_healthy());

    let mut gpus = marked();
    gpus.read(Timestamp(3), &reads_of(GpuReading { recovery: Some(GpuRecovery::None), ..GpuReading::default() }));
    assert!(!status_of(&gpus, 3).is_allocatable(), "a driver does not ask for a recovery after every error");
    gpus.read(Timestamp(4), &reads_of(GpuReading { recovery: Some(GpuRecovery::Reset), ..GpuReading::default() }));
    assert!(status_of(&gpus, 4).why().contains("asks for a reset"));
    gpus.read(Timestamp(5), &reads_of(GpuReading { recovery: Some(GpuRecovery::None), ..GpuReading::default() }));
    assert!(status_of(&gpus, 5).is_healthy());
}

#[test]
fn errors_from_before_the_first_look_last_unless_the_driver_first_asks_for_no_recovery() {
    let begun = || {
        let mut gpus = Gpus::new(Policy::default());
        gpus.looked(Timestamp(1), &xid(119));
        assert!(!status_of(&gpus, 1).is_allocatable());
        gpus
    };
    let recovery_reads = |recovery| reads_of(GpuReading { recovery, ..GpuReading::default() });
    let mut gpus = begun();
    gpus.read(Timestamp(2), &recovery_reads(Some(GpuRecovery::None)));
    assert!(status_of(&gpus, 2).is_healthy(), "it was reset while no agent ran, or by the agent before");
    // An error after the first look is not dropped.
    gpus.looked(Timestamp(3), &xid(119));
    gpus.read(Timestamp(4), &recovery_reads(Some(GpuRecovery::None)));
    assert!(!status_of(&gpus, 4).is_allocatable());
    // The same error again, before the driver answered.
    let mut gpus = begun();
    gpus.looked(Timestamp(2), &xid(119));
    gpus.read(Timestamp(3), &recovery_reads(Some(GpuRecovery::None)));
    assert!(!status_of(&gpus, 3).is_allocatable());
    // A driver that cannot tell, or asks for a recovery.
    for first in [None, Some(GpuRecovery::Reset)] {
        let mut gpus = begun();
        gpus.read(Timestamp(2), &recovery_reads(first));
        assert!(!status_of(&gpus, 2).is_allocatable(), "{first:?}");
    }
}

#[test]
fn a_gpu_without_a_driver_gets_the_response_of_the_site() {
    let judged = |policy: Policy, read| {
        let mut gpus = Gpus::new(policy);
        gpus.looked(Timestamp(0), &look_at_two_gpus());
        gpus.read(Timestamp(1), &GpuReads { gpus: BTreeMap::from([(KEY.to_owned(), read)]), unsupported: Vec::new() });
        (status_of(&gpus, 1).is_allocatable(), matches!(finding(&gpus, 1, 0, &format!("gpu {KEY}")), Finding::Drain(_)))
    };
    let silent = || GpuRead::Silent("driver: vfio-pci".to_owned());
    let lost = || GpuRead::Lost("fell".to_owned());
    let policy = Policy { version: Some(POLICY_VERSION), ..Policy::default() };
    assert_eq!(judged(policy.clone(), silent()), (false, false));
    assert_eq!(judged(Policy { silent: Response::Drain, ..policy.clone() }, silent()), (false, true));
    assert_eq!(judged(Policy { silent: Response::Warn, ..policy.clone() }, silent()), (true, false));
    assert_eq!(judged(policy.clone(), lost()), (false, true));
    let own = Policy { xids: BTreeMap::from([(79, Response::Replace)]), ..policy };
    assert_eq!(judged(own, lost()), (false, false));
}

#[test]
fn a_site_may_have_memory_errors_and_others_take_the_node_out_of_service() {
    let own =
        Policy { version: Some(1), xids: BTreeMap::from([(140, Response::Fail)]), ecc_uncorrected: Response::Fail, ..Policy::default() };
    let mut gpus = Gpus::new(own);
    let name = format!("gpu {KEY}");
    gpus.looked(Timestamp(0), &look_at_two_gpus());
    gpus.read(Timestamp(1), &reads_of(GpuReading { ecc_uncorrected: Some(1), ..GpuReading::default() }));
    assert!(matches!(finding(&gpus, 1, 0, &name), Finding::Failure(why) if why.contains("1 memory errors that could not be corrected")));
    assert!(!status_of(&gpus, 1).is_allocatable());
    gpus.read(Timestamp(2), &reads_of(GpuReading::default()));
    assert_eq!(finding(&gpus, 2, 0, &name), Finding::Ok);
    // This is severer than a drain.
    gpus.looked(Timestamp(3), &xid(79));
    gpus.looked(Timestamp(3), &xid(140));
    assert!(matches!(finding(&gpus, 3, 0, &name), Finding::Failure(why) if why.starts_with("XID 140")));
}

#[test]
fn readings_are_judged_as_they_are_now() {
    let none = GpuReading::default;
    let hot = |temperature_c| GpuReading { temperature_c: Some(temperature_c), slowdown_c: Some(87), shutdown_c: Some(92), ..none() };
    let cases = [
        (GpuReading { ecc_uncorrected: Some(0), remap_pending: Some(false), remap_failed: Some(false), ..hot(86) }, None),
        (GpuReading { ecc_uncorrected: Some(2), ..none() }, Some(Response::Warn)),
        (GpuReading { remap_pending: Some(true), ..none() }, Some(Response::Warn)),
        (GpuReading { remap_failed: Some(true), ..none() }, Some(Response::Replace)),
        (hot(87), Some(Response::Warn)),
        (hot(92), Some(Response::Drain)),
        // 0 means that the driver has no limit.
        (GpuReading { slowdown_c: Some(0), ..hot(50) }, None),
        (GpuReading { throttled: vec!["power brake".to_owned()], ..none() }, Some(Response::Warn)),
        (GpuReading { recovery: Some(GpuRecovery::Reboot), ..none() }, Some(Response::Drain)),
    ];
    let mut gpus = two_gpus_seen();
    for (reading, response) in cases {
        gpus.read(Timestamp(1), &reads_of(reading.clone()));
        assert_eq!(status_of(&gpus, 1).problems.first().map(|(r, _)| *r), response, "{reading:?}");
    }
}

#[test]
fn links_are_compared_with_their_earlier_state() {
    let mut gpus = two_gpus_seen();
    let mut links = |at, nvlinks_up, errors| {
        gpus.read(
            Timestamp(at),
            &reads_of(GpuReading { nvlinks_up: Some(nvlinks_up), nvlink_errors: Some(errors), ..GpuReading::default() }),
        );
        status_of(&gpus, at).why()
    };
    assert_eq!(links(0, 18, 90_000), "", "long ago");
    assert_eq!(links(1, 18, 91_000), "");
    assert!(links(2, 18, 91_001).contains("1001 NVLink errors"));
    assert!(links(3, 17, 91_001).starts_with("1 of 18 NVLinks are down"));
    assert_eq!(links(3_600_003, 18, 91_001), "");
}

#[test]
fn bus_and_driver_must_show_the_same_and_as_many_as_are_expected() {
    let mut gpus = two_gpus_seen();
    assert_eq!(finding(&gpus, 0, 2, "gpus"), Finding::Ok);
    assert!(matches!(finding(&gpus, 0, 3, "gpus"), Finding::Critical(why) if why == "2 of 3 GPUs"));
    let all = |expected, devices: &[GpuDevice]| gpus.findings(Timestamp(0), expected, devices).remove(0).1;
    let mismatch = format!("1 of 2 GPUs: {KEY} is on the bus, no driver offers it");
    assert_eq!(all(2, &[device("0000:5e:00.0", 0)]), Finding::Critical(mismatch));
    // Each instance of a partitioned GPU counts.
    assert_eq!(all(7, &[0, 1, 2, 3, 4, 5, 6].map(|index| device(KEY, index))), Finding::Ok);
    let reads = |read| GpuReads { gpus: BTreeMap::from([(KEY.to_owned(), read)]), unsupported: Vec::new() };
    gpus.read(Timestamp(1), &reads(GpuRead::Silent("NVML does not list it".to_owned())));
    let name = format!("gpu {KEY}");
    assert!(matches!(finding(&gpus, 1, 2, &name), Finding::Warning(why) if why.contains("NVML does not list it")));
    assert!(!status_of(&gpus, 1).is_allocatable() && status_of(&gpus, 1).lost.is_none());
    gpus.read(Timestamp(2), &reads(GpuRead::Lost("GPU is lost".to_owned())));
    gpus.looked(Timestamp(3), &look_at_two_gpus());
    assert!(status_of(&gpus, 3).lost.is_some(), "the bus alone does not bring it back");
    assert!(matches!(finding(&gpus, 3, 2, &name), Finding::Drain(why) if why.contains("drain the node")));
    assert!(matches!(finding(&gpus, 3, 2, "gpus"), Finding::Critical(why) if why == format!("1 of 2 GPUs: {KEY} is missing")));
    gpus.read(Timestamp(4), &reads_of(GpuReading::default()));
    assert_eq!((finding(&gpus, 4, 2, &name), finding(&gpus, 4, 2, "gpus")), (Finding::Ok, Finding::Ok));

    let mut without = look_at_two_gpus();
    without.on_bus.remove(KEY);
    gpus.looked(Timestamp(5), &without);
    assert!(matches!(finding(&gpus, 5, 0, &name), Finding::Warning(why) if why.contains("lost")), "nobody expects it");
    let none = Gpus::new(Policy::default());
    assert!(matches!(finding(&none, 0, 0, "gpus"), Finding::Unsupported(_)));
}
