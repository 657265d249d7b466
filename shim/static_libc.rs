//! For build scripts: a program with its libc in it.
//!
//! rustc links `-lc` and what belongs to it as shared libraries; a directory of linker scripts under those names, which is looked into
//! before the system's, gives the archives instead. Where they are not installed (glibc-static), the program stays as it was.

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

/// Makes the archives be linked, where they and the object `first` that such a program begins with are installed. `false`: they are not.
pub fn link(first: &str) -> io::Result<bool> {
    if !["libc.a", "libgcc_eh.a", first].into_iter().all(is_installed) {
        println!("cargo::warning=no static libc is installed (libc6-dev, glibc-static): this program starts slower and takes more memory");
        return Ok(false);
    }
    let scripts = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?).join("static");
    fs::create_dir_all(&scripts)?;
    for (name, script) in ARCHIVES {
        fs::write(scripts.join(format!("lib{name}.so")), script)?;
    }
    println!("cargo::rustc-link-arg-bins=-L{}", scripts.display());
    Ok(true)
}

/// Whether the linker's driver finds this file; it gives back the bare name of one that it does not find.
fn is_installed(file: &str) -> bool {
    let asked = Command::new("cc").arg(format!("-print-file-name={file}")).output();
    asked.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).trim() != file)
}
