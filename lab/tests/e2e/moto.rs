//! A real S3 server, with a bucket that is the store of a cluster.

use crate::harness::{JOB, machine};
use lattice_lab::process;
use lattice_lab::up::Options;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// For as long as this process lives, or another one is begun.
struct Moto {
    port: u16,
    server: Child,
    credentials: PathBuf,
    /// A line for each request that it has answered.
    requests: PathBuf,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = fs::remove_file(&self.credentials);
        let _ = fs::remove_file(&self.requests);
    }
}

static MOTO: Mutex<Option<Moto>> = Mutex::new(None);

/// Ends it.
pub fn close() {
    *MOTO.lock().unwrap() = None;
}

/// Begins one, which a cluster is to have as its store, `more` being in its agents' configuration as well.
pub fn begin(options: &mut Options, more: &str) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let program = machine().moto.as_ref().unwrap();
    let (credentials, requests) = (options.dir.with_extension("s3-credentials"), options.dir.with_extension("s3-requests"));
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&requests).unwrap());
    *MOTO.lock().unwrap() = Some(Moto { port, server: command.spawn().unwrap(), credentials: credentials.clone(), requests });
    assert!(process::until(JOB, || TcpStream::connect(("127.0.0.1", port)).is_ok()), "moto_server does not listen");
    assert!(http("PUT", "/lattice").starts_with("HTTP/1.1 200"), "the bucket is made");
    let mut file = File::create(&credentials).unwrap();
    std::os::unix::fs::fchown(&file, Some(0), Some(0)).unwrap();
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file.write_all(b"access_key_id: test\nsecret_access_key: test\n").unwrap();
    options.log_lines = format!(
        "log_store: s3://lattice/some/prefix\nlog_store_options: {{endpoint: \"http://127.0.0.1:{port}\", region: us-east-1, allow_http: \"true\"}}\nlog_store_credentials: {:?}\n{more}",
        credentials.display().to_string()
    );
}

/// One request without a body.
pub fn http(method: &str, path: &str) -> String {
    let port = MOTO.lock().unwrap().as_ref().unwrap().port;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(JOB)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// It answers nobody, and holds who is connected.
pub fn stop() {
    signal(Signal::SIGSTOP);
}

/// It goes on.
pub fn go_on() {
    signal(Signal::SIGCONT);
}

fn signal(signal: Signal) {
    let server = MOTO.lock().unwrap().as_ref().unwrap().server.id();
    kill(Pid::from_raw(i32::try_from(server).unwrap()), signal).unwrap();
}

/// What it was asked for and has answered: a line for each, with the method, the path and the status.
pub fn requests() -> Vec<String> {
    let path = MOTO.lock().unwrap().as_ref().unwrap().requests.clone();
    let text = fs::read(path).unwrap();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}
