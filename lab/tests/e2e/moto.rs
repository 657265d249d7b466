//! A real S3 server, with a bucket that a cluster uses as its store.

use crate::harness::{JOB, machine};
use lattice_lab::up::Options;
use lattice_lab::{configs, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// The server. It lives as long as this process, or until another one is started.
struct Moto {
    port: u16,
    server: Child,
    credentials: PathBuf,
    /// The file with a line for each answered request.
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

/// Ends the server.
pub fn close() {
    *MOTO.lock().unwrap() = None;
}

/// Starts a server that a cluster uses as its store; `more` is added to its agents' configuration.
pub fn begin(options: &mut Options, more: &str) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (credentials, requests) = (options.dir.with_extension("s3-credentials"), options.dir.with_extension("s3-requests"));
    let server = spawned(port, File::create(&requests).unwrap());
    *MOTO.lock().unwrap() = Some(Moto { port, server, credentials: credentials.clone(), requests });
    make_bucket();
    let mut file = File::create(&credentials).unwrap();
    std::os::unix::fs::fchown(&file, Some(0), Some(0)).unwrap();
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file.write_all(b"access_key_id: test\nsecret_access_key: test\n").unwrap();
    let store = format!(
        "logs:\n  store:\n    url: s3://lattice/some/prefix\n    \
         options: {{endpoint: \"http://127.0.0.1:{port}\", region: us-east-1, allow_http: \"true\"}}\n    credentials: {:?}\n",
        credentials.display().to_string()
    );
    options.log_lines = configs::merged(&store, more).unwrap();
}

fn spawned(port: u16, requests: File) -> Child {
    let mut command = Command::new(machine().moto.as_ref().unwrap());
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(requests);
    command.spawn().unwrap()
}

/// Makes the bucket once the server listens.
fn make_bucket() {
    let port = MOTO.lock().unwrap().as_ref().unwrap().port;
    assert!(process::until(JOB, || TcpStream::connect(("127.0.0.1", port)).is_ok()), "moto_server does not listen");
    assert!(http("PUT", "/lattice").starts_with("HTTP/1.1 200"), "the bucket is made");
}

/// One request without a body.
pub fn http(method: &str, path: &str) -> String {
    String::from_utf8(exchange(method, path, &[])).unwrap()
}

/// Sends one request, returns the whole answer.
fn exchange(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let port = MOTO.lock().unwrap().as_ref().unwrap().port;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(JOB)).unwrap();
    let length = body.len();
    // The server reads the user, and does not verify signatures.
    let who = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
    let head = format!("Host: 127.0.0.1:{port}\r\nAuthorization: {who}\r\nContent-Length: {length}\r\nConnection: close");
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// The server's objects while its process is gone and nothing listens: a real server would have them on its disks, but
/// this one has them only in memory.
pub struct Gone(Vec<(String, Vec<u8>)>);

/// Ends the server's process. Nobody uploads meanwhile.
pub fn kill_server() -> Gone {
    let (list, mut listed) = (|| http("GET", "/lattice?list-type=2"), String::new());
    let keys_of = |listed: &str| listed.split_once("<ListBucketResult").unwrap_or_default().1.to_owned();
    // Uploads in progress when the clients were stopped are complete by then.
    let settled = process::until(JOB, || {
        let before = std::mem::replace(&mut listed, keys_of(&list()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        before == listed && !listed.is_empty()
    });
    assert!(settled, "its objects change");
    assert!(listed.contains("<IsTruncated>false</IsTruncated>"), "{listed}");
    let keys = listed.split("<Key>").skip(1).map(|rest| rest.split_once("</Key>").unwrap().0.to_owned());
    let objects = keys.map(|key| {
        let answer = exchange("GET", &format!("/lattice/{key}"), &[]);
        let head = answer.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{key}: {}", String::from_utf8_lossy(&answer[..head]));
        (key, answer[head..].to_vec())
    });
    let gone = Gone(objects.collect());
    let mut moto = MOTO.lock().unwrap();
    let moto = moto.as_mut().unwrap();
    moto.server.kill().unwrap();
    moto.server.wait().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", moto.port)).is_err(), "somebody else listens there");
    gone
}

impl Gone {
    /// Starts it again, with the same objects.
    pub fn start(self) {
        {
            let mut moto = MOTO.lock().unwrap();
            let moto = moto.as_mut().unwrap();
            moto.server = spawned(moto.port, File::options().append(true).open(&moto.requests).unwrap());
        }
        make_bucket();
        for (key, object) in self.0 {
            let answer = exchange("PUT", &format!("/lattice/{key}"), &object);
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{key}: {}", String::from_utf8_lossy(&answer));
        }
    }
}

/// Stops it (SIGSTOP): it answers nobody, and its connections stay open.
pub fn stop() {
    signal(Signal::SIGSTOP);
}

/// Lets it continue.
pub fn go_on() {
    signal(Signal::SIGCONT);
}

fn signal(signal: Signal) {
    let server = MOTO.lock().unwrap().as_ref().unwrap().server.id();
    kill(Pid::from_raw(i32::try_from(server).unwrap()), signal).unwrap();
}

/// The answered requests: a line for each, with method, path and status.
pub fn requests() -> Vec<String> {
    let path = MOTO.lock().unwrap().as_ref().unwrap().requests.clone();
    let text = fs::read(path).unwrap();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}
