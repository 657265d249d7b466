use super::*;
use crate::layout::{AT_BYTES, AT_VERSION, BYTES, MAGIC, VERSION};
use std::fs::File;
use std::os::unix::fs::FileExt;

struct Bed {
    dir: PathBuf,
    file: File,
}

impl Bed {
    fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("lattice-client-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(dir.join("page")).unwrap();
        file.set_len(BYTES as u64).unwrap();
        let bed = Self { dir, file };
        bed.file.write_all_at(&MAGIC, 0).unwrap();
        bed.put(AT_VERSION, VERSION);
        bed.put(AT_BYTES, 4096);
        bed
    }

    fn put(&self, at: usize, value: u32) {
        self.file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    fn get(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at as u64).unwrap();
        u32::from_ne_bytes(bytes)
    }

    fn ask(&self, number: u32, token: &str) {
        self.put(AT_OF_REQUEST, number);
        self.file.write_all_at(&[token.as_bytes(), &[0]].concat(), AT_TOKEN as u64).unwrap();
        self.put(AT_REQUEST, number);
    }

    fn listener(&self) -> io::Result<Listener> {
        Listener::open(&self.dir.join("page"), &self.dir)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_request_is_pending_until_it_is_answered() {
    let bed = Bed::new("asked");
    let listener = bed.listener().unwrap();
    assert!(listener.asked().is_none() && listener.wait(Duration::from_millis(5)).is_none());
    bed.ask(1, "aa-1");
    let request = listener.asked().unwrap();
    assert_eq!((request.token.as_str(), request.directory.as_path()), ("aa-1", bed.dir.join("aa-1").as_path()));
    request.progress(40, None);
    assert_eq!((bed.get(AT_TAKEN), bed.get(AT_PERCENT)), (1, 40));
    drop(request);
    listener.asked().expect("not answered, it is asked for again").done(Done { step: Some(7), ..Done::default() });
    assert_eq!((bed.get(AT_ANSWERED), bed.get(AT_ANSWER), bed.get(AT_STEP)), (1, DONE, 7));
    assert!(listener.asked().is_none());
    bed.ask(2, "aa-2");
    listener.wait(Duration::from_secs(9)).unwrap().defer(Duration::from_secs(3));
    assert_eq!((bed.get(AT_ANSWERED), bed.get(AT_ANSWER), bed.get(AT_DEFERRAL)), (2, DEFERRED, 3000));
}

#[test]
fn a_half_written_request_and_a_token_with_a_path_are_ignored() {
    let bed = Bed::new("half");
    let listener = bed.listener().unwrap();
    bed.ask(1, "../elsewhere");
    assert!(listener.asked().is_none());
    bed.ask(1, "aa-1");
    bed.put(AT_OF_REQUEST, 2);
    assert!(listener.asked().is_none(), "the next one is being written");
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let bed = Bed::new("reason");
    let listener = bed.listener().unwrap();
    bed.ask(1, "aa-1");
    listener.asked().unwrap().failed(&"ä".repeat(REASON_BYTES));
    let mut text = [0; REASON_BYTES];
    bed.file.read_exact_at(&mut text, AT_REASON as u64).unwrap();
    let end = text.iter().position(|b| *b == 0).unwrap();
    assert_eq!(std::str::from_utf8(&text[..end]).unwrap(), "ä".repeat((REASON_BYTES - 1) / 2));
}

#[test]
fn a_file_that_is_not_a_page_is_refused() {
    let bed = Bed::new("odd");
    bed.put(AT_VERSION, 9);
    assert!(bed.listener().unwrap_err().to_string().contains("version 9"));
    bed.put(0, 0);
    assert!(bed.listener().unwrap_err().to_string().contains("not a checkpoint page"));
    bed.file.set_len(100).unwrap();
    assert!(bed.listener().unwrap_err().to_string().contains("shorter"));
}
