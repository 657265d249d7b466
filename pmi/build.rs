//! Exports the `accept` and `writev` of `lattice-pmix`, so that the library that it loads finds
//! them before libc's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if cfg!(feature = "pmix") {
        for ours in ["accept", "writev"] {
            println!("cargo::rustc-link-arg-bin=lattice-pmix=-Wl,--export-dynamic-symbol={ours}");
        }
    }
}
