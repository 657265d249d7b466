//! Measures queries of a long audit log: `cargo bench -p lattice-store --bench audit -- [RECORDS
//! [DIR]]`.
//!
//! Creates a chain of ten million records (or RECORDS) in DIR, or in a temporary directory, like
//! that of a member after a year: 2,000 users, 10,000 nodes, eight records for each allocation, the
//! last two of them much later. An existing chain in DIR is used as it is; one in the temporary
//! directory is pruned in the end, as a member with an archive does. Exits with 1 if a target is
//! missed.

use lattice_ledger::AuditHead;
use lattice_model::{AllocationId, AuditAction, AuditFilter, NodeId, Revision, Timestamp};
use lattice_store::audit::{AuditChain, Step, remove_before};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uuid::Uuid;

const RECORDS: u64 = 10_000_000;
const YEAR_MS: u64 = 365 * DAY_MS;
const DAY_MS: u64 = 86_400_000;
const BEGINNING_MS: u64 = 1_767_225_600_000;
/// Number of records between an allocation's start and its end.
const LIFE_RECORDS: u64 = 1_600_000;
/// The records of an allocation in order.
const ACTIONS: [AuditAction; 8] = [
    AuditAction::AllocationSubmitted,
    AuditAction::AllocationClaimed,
    AuditAction::AllocationRunning,
    AuditAction::AttachStarted,
    AuditAction::AttachEnded,
    AuditAction::LogsRead,
    AuditAction::AllocationEnded,
    AuditAction::ShareReleased,
];

/// Pseudo-random numbers (splitmix64, S. Vigna).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn id(number: u64) -> AllocationId {
    AllocationId(Uuid::from_u64_pair(mixed(number), mixed(!number)))
}

fn user(number: u64) -> String {
    format!("user{:04}", mixed(number) % 2000)
}

fn fill(chain: &mut AuditChain, count: u64) {
    let mut head = AuditHead::default();
    let mut batch = Vec::new();
    for n in 0..count {
        let what = n % 8;
        // An allocation that ends now began LIFE_RECORDS records ago. Among the first LIFE_RECORDS
        // records, the allocation that has just begun ends.
        let story = if what >= 6 && n >= LIFE_RECORDS { (n - LIFE_RECORDS) / 8 } else { n / 8 };
        let at = Timestamp(BEGINNING_MS + u64::try_from(u128::from(n) * u128::from(YEAR_MS) / u128::from(count)).unwrap());
        let node: NodeId = format!("x{:04}", mixed(story ^ 5) % 10_000).parse().unwrap();
        let (owner, action) = (user(story), ACTIONS[usize::try_from(what).unwrap()]);
        let actor = if matches!(what, 0 | 3 | 4) { owner.clone() } else { format!("node:{node}") };
        let detail = format!("epoch {story}, incarnation {n}, 4 nodes from {node}");
        let named = (what != 1).then_some(&node);
        batch.push(head.link(Revision(n), at, &actor, None, action, Some(id(story)), Some(&owner), named, detail));
        if batch.len() == 4096 || n + 1 == count {
            chain.append(&batch).unwrap();
            batch.clear();
            let checked = chain.checkpoint().unwrap().run().unwrap();
            chain.checked(checked);
        }
    }
}

/// The number of records found, and how long the search took.
fn ask(chain: &AuditChain, filter: &AuditFilter) -> (usize, Duration) {
    let began = Instant::now();
    let mut search = chain.search(filter, 0, chain.head().seq);
    let mut found = 0;
    while let Some(step) = search.step().unwrap() {
        found += usize::from(matches!(step, Step::Found(_)));
    }
    (found, began.elapsed())
}

/// Prints one line: median and maximum of several queries, and the target. Returns whether the
/// maximum meets the target.
fn line(what: &str, mut asked: Vec<(usize, Duration)>, at_most: Duration) -> bool {
    asked.sort_by_key(|(_, took)| *took);
    let (middle, longest) = (asked[asked.len() / 2], asked[asked.len() - 1]);
    let met = longest.1 <= at_most;
    let verdict = if met { "met" } else { "MISSED" };
    let ms = |took: Duration| took.as_secs_f64() * 1000.0;
    println!(
        "{what:<44} {:>8.1} ms, longest {:>8.1} ms of {} ({} records)   target {} ms: {verdict}",
        ms(middle.1),
        ms(longest.1),
        asked.len(),
        middle.0,
        at_most.as_millis()
    );
    met
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let count = args.next().map_or(RECORDS, |n| n.parse().expect("RECORDS is a number"));
    let given = args.next().map(PathBuf::from);
    let dir = given.clone().unwrap_or_else(|| std::env::temp_dir().join(format!("lattice-bench-audit-{}", std::process::id())));
    let mut met = measure(&dir, count);
    if given.is_none() {
        met &= prune(&dir);
        std::fs::remove_dir_all(&dir).expect("the temporary directory can be removed");
    }
    if met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Number of segments that a member with an archive keeps, unless it is configured otherwise.
const KEPT: usize = 64;
/// Largest size of these segments and the records after them, in bytes.
const KEPT_BYTES_MAX: u64 = 2_500_000_000;

fn bytes(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// Deletes the segments that a member with an archive deletes; returns whether the rest is small enough.
fn prune(dir: &Path) -> bool {
    let before = bytes(dir);
    let mut chain = AuditChain::open(dir).unwrap();
    let Some(checkpoint) = chain.sealed().last().map(|segment| segment.last.clone()) else { return true };
    let began = Instant::now();
    let Some(upto) = chain.prunable(&checkpoint, KEPT).unwrap() else { return true };
    chain.prune(&upto);
    remove_before(dir, chain.base()).unwrap();
    let (took, after) = (began.elapsed(), bytes(dir));
    drop(chain);
    let began = Instant::now();
    let kept = AuditChain::open(dir).unwrap();
    println!(
        "pruned in {:.2} s: {} of {} MB are left, from record {} on; opened in {:.4} s",
        took.as_secs_f64(),
        after / 1_000_000,
        before / 1_000_000,
        kept.base().seq + 1,
        began.elapsed().as_secs_f64()
    );
    after <= KEPT_BYTES_MAX
}

fn measure(dir: &Path, count: u64) -> bool {
    let began = Instant::now();
    let mut chain = AuditChain::open(dir).unwrap();
    if chain.head().seq == 0 {
        fill(&mut chain, count);
        println!("{count} records created in {:.1} s", began.elapsed().as_secs_f64());
    }
    drop(chain);
    let began = Instant::now();
    let chain = AuditChain::open(dir).unwrap();
    println!("opened in {:.4} s: {} records", began.elapsed().as_secs_f64(), chain.head().seq);
    let began = Instant::now();
    chain.sealed().iter().for_each(|segment| segment.check().unwrap());
    println!("its sealed segments checked in {:.2} s, which a member does while it serves", began.elapsed().as_secs_f64());

    let all = AuditFilter::default();
    let stories = chain.head().seq / 8;
    let some = |n: u64| (0..n).map(move |i| mixed(i) % stories);
    let day = |n: u64| Timestamp(BEGINNING_MS + n * DAY_MS);
    let seconds = Duration::from_secs;
    let of = |filter: &AuditFilter| ask(&chain, filter);
    let allocations = some(100).map(|n| of(&AuditFilter { allocation: Some(id(n).into()), ..all.clone() })).collect();
    let prefixes = some(20).map(|n| of(&AuditFilter { allocation: Some(id(n).short().parse().unwrap()), ..all.clone() })).collect();
    let days =
        some(20).map(|n| of(&AuditFilter { user: Some(user(n)), since: Some(day(100)), until: Some(day(101)), ..all.clone() })).collect();
    let months =
        some(10).map(|n| of(&AuditFilter { user: Some(user(n)), since: Some(day(100)), until: Some(day(130)), ..all.clone() })).collect();
    let nodes = some(10).map(|n| format!("x{:04}", n % 10_000)).map(|n| of(&AuditFilter { node: Some(n.parse().unwrap()), ..all.clone() }));
    [
        line("one allocation's history", allocations, seconds(1)),
        line("the same by the first 8 digits of its id", prefixes, seconds(1)),
        line("one user, one day", days, seconds(2)),
        line("one user, 30 days", months, seconds(10)),
        line("one node, the whole year", nodes.collect(), seconds(10)),
    ]
    .iter()
    .all(|met| *met)
}
