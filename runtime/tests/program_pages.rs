//! A process of its own, in which nothing else uses the program's pages meanwhile.

use lattice_runtime::program_pages;

#[test]
fn a_program_continues_after_its_pages_are_unmapped() {
    // The resident size of the program's code.
    let resident = || -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_program = maps.split("VmFlags:").find(|one| one.contains(" r-xp ") && one.contains("program_pages-")).unwrap();
        let rss = of_program.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let before = resident();
    assert!(program_pages::unmap().unwrap() > 0);
    let after = resident();
    assert!(after < before, "{before} kB, then {after} kB");
}
