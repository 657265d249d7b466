//! The script of `lattice completion bash` in a real bash, without an agent. A machine without bash fails this test.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn completion(shell: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
    command.args(["completion", shell]).env_clear().env("HOME", "/nonexistent").output().unwrap()
}

/// The output of `bash ARGS` with this input.
fn bash(args: &[&str], input: &[u8]) -> String {
    let mut command = Command::new("bash");
    let programs = Path::new(env!("CARGO_BIN_EXE_lattice")).parent().unwrap().display().to_string();
    command
        .args(args)
        .env_clear()
        .env("PATH", format!("{programs}:/usr/bin:/bin"))
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("this test needs bash");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && stderr.is_empty(), "bash {args:?}: {stderr}");
    String::from_utf8(done.stdout).unwrap()
}

/// Bash's completions for the last of these words, from the function that the script registers for `lattice`.
fn offered(script: &[u8], words: &[&str]) -> Vec<String> {
    let (last, before) = (words.len() - 1, words[words.len() - 2]);
    let ask = format!(
        "\nregistered=$(complete -p lattice)\nregistered=${{registered#*-F }}\nCOMP_WORDS=({})\nCOMP_CWORD={last}\n\
         ${{registered%% *}} lattice '{}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words[last],
    );
    let completions = bash(&["--norc", "--noprofile"], &[script, ask.as_bytes()].concat());
    completions.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_takes_the_script_and_completes_with_it() {
    let done = completion("bash");
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let script = done.stdout;
    assert_eq!(bash(&["-n"], &script), "");
    assert_eq!(offered(&script, &["lattice", "sub"]), ["submit"]);
    assert_eq!(offered(&script, &["lattice", "submit", "--wallt"]), ["--walltime", "--walltime-min"]);
    assert_eq!(offered(&script, &["lattice", "status", "-o", "js"]), ["json"]);
    assert_eq!(offered(&script, &["lattice", "node", "undr"]), ["undrain"]);
    assert_eq!(offered(&script, &["lattice", "completion", "f"]), ["fish"]);
    assert_eq!(offered(&script, &["lattice", "admin", "role", "grant", "sys"]), ["system-admin"]);
    assert_eq!(offered(&script, &["lattice", "admin", "limits", "--root-acts-for", "it"]), ["itself"]);
    assert!(offered(&script, &["lattice", "submit", "--sensi"]).is_empty(), "it is not built");
    assert_eq!(offered(&script, &["lattice", "status", "--state", "=", "x"]), Vec::<String>::new());
    assert_eq!(offered(&script, &["lattice", "status", "--output", "=", "js"]), ["json"]);
    assert!(offered(&script, &["lattice", "cancel", "1"]).is_empty(), "no agent answers, and nothing is said");
}

#[test]
fn other_shells_have_scripts_and_what_is_none_is_refused() {
    for (shell, begins) in [
        ("zsh", "#compdef lattice"),
        ("fish", "complete "),
        ("elvish", "\nset edit:completion"),
        ("powershell", "\nRegister-ArgumentCompleter"),
    ] {
        let done = completion(shell);
        let script = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success() && script.starts_with(begins) && script.contains("LATTICE_COMPLETE"), "{shell}: {script}");
    }
    let refused = completion("csh");
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty() && String::from_utf8_lossy(&refused.stderr).contains("csh"));
}
