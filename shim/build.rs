//! A shim is started for every allocation: its libc is linked into it, so that no loader looks for libraries, maps them and
//! resolves their symbols each time. Its address stays random (static-pie), since it has root's rights. It asks no name service,
//! the one thing that such a libc cannot do by itself.
//!
//! rustc links `-lc` and what belongs to it as shared libraries; a directory of linker scripts under those names, which is looked into
//! before the system's, gives the archives instead. Where they are not installed (glibc-static), the shim stays as it was.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, io};

/// What rustc names, and the archives for it.
const ARCHIVES: [(&str, &str); 7] = [
    ("gcc_s", "GROUP(-l:libgcc_eh.a -l:libc.a)"),
    ("c", "GROUP(-l:libgcc_eh.a -l:libc.a)"),
    ("m", "INPUT(-l:libm.a)"),
    ("dl", "INPUT(-l:libdl.a)"),
    ("rt", "INPUT(-l:librt.a)"),
    ("util", "INPUT(-l:libutil.a)"),
    ("pthread", "INPUT(-l:libpthread.a)"),
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if !["libc.a", "libgcc_eh.a", "rcrt1.o"].into_iter().all(is_installed) {
        println!("cargo::warning=no static libc is installed (libc6-dev, glibc-static): each shim starts slower and takes more memory");
        return Ok(());
    }
    let scripts = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?).join("static");
    fs::create_dir_all(&scripts)?;
    for (name, script) in ARCHIVES {
        fs::write(scripts.join(format!("lib{name}.so")), script)?;
    }
    println!("cargo::rustc-link-arg-bins=-L{}", scripts.display());
    println!("cargo::rustc-link-arg-bins=-static-pie");
    Ok(())
}

/// Whether the linker's driver finds this file; it gives back the bare name of one that it does not find.
fn is_installed(file: &str) -> bool {
    let asked = Command::new("cc").arg(format!("-print-file-name={file}")).output();
    asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() != file)
}
