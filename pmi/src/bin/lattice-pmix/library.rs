//! The machine's libpmix, loaded at run time. Only this module calls it.

use crate::abi::{
    self, Data, DataArray, Info, ModexCallback, Module, NameTooLong, Proc, Status, Value, data_type, pass_bytes, proc_of, rank_of,
};
use crate::gate;
use crate::host::{HOST, Host, Leaving, WaitingFence, send};
use crate::publishing;
use lattice_model::with_causes;
use lattice_pmi::bridge::{AnswerStatus, BridgeJob, FromBridge, Published, listed};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

/// The library's file name for the loader, since version 2.0.
const NAME: &str = "libpmix.so.2";
/// Major versions whose types match [`abi`].
const MAJORS: [u32; 2] = [4, 5];

/// Settings of the library, made before it starts. Plain memory instead of segments shared with the
/// ranks leaves no files behind. Lists of nodes are text, not compressed bytes. The library trusts
/// the user id that a rank sends, because [`gate`] has checked it. Events are sent at once, not
/// collected for a second. Only the GPUs are left out of its hardware detection, because querying
/// them takes longest.
const SETTINGS: [(&str, &str); 5] = [
    ("PMIX_MCA_gds", "hash"),
    ("PMIX_MCA_preg", "native"),
    ("PMIX_MCA_psec", "native"),
    ("PMIX_MCA_pmix_event_caching_window", "0"),
    ("HWLOC_COMPONENTS", "-gl,-opencl,-cuda,-nvml,-rsmi,-levelzero"),
];

/// Makes Open MPI 4 look for a server although it was not started by its own launcher; without it
/// each rank is a world of its own.
const FOR_OPEN_MPI: (&str, &str) = ("JSM_JSRUN_PORT", "1");

/// Makes the ranks of Open MPI 4 yield the processor while they wait, as its own mpirun does if a
/// node has more ranks than processors; for Open MPI 5 the attribute `pmix.ndosub` does so.
const FOR_CROWDED_OPEN_MPI: (&str, &str) = ("OMPI_MCA_mpi_oversubscribe", "1");

/// Why the library cannot be used, or refused a call.
#[derive(Debug, Error)]
pub enum LibraryError {
    // The remedy comes last, so the cause is part of the text.
    #[error("{NAME} cannot be loaded ({}): install OpenPMIx, of a version {}", .0, majors())]
    Load(libloading::Error),
    #[error("this build of lattice-pmix cannot check who connects: link it with --export-dynamic-symbol=accept")]
    NoGate,
    #[error("{NAME} is `{text}`: install OpenPMIx, of a version {}", majors())]
    UnknownVersion { text: String },
    #[error("it serves a launch already")]
    ServesAlready,
    #[error("{subject}: a zero byte")]
    ZeroByte { subject: String },
    #[error("{0} ranks on one node are too many for {NAME}")]
    TooManyRanks(usize),
    #[error(transparent)]
    Namespace(#[from] NameTooLong),
    #[error("{NAME} {version}")]
    Symbol {
        version: String,
        #[source]
        source: libloading::Error,
    },
    #[error("{function} of {NAME} {version}: {text} ({status})")]
    Refused { function: String, version: String, text: String, status: Status },
    #[error("{function} returned nothing for {list:?}")]
    Nothing { function: String, list: CString },
}

/// The loaded library.
pub struct Library {
    loaded: libloading::Library,
    version: String,
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// It is missing, or its version is unknown.
    pub fn load() -> Result<Self, LibraryError> {
        for (name, value) in SETTINGS {
            // SAFETY: no other thread has been started yet.
            unsafe { std::env::set_var(name, value) };
        }
        // SAFETY: it is the system's own library; its vendor is responsible for its initialisers.
        let loaded = unsafe { libloading::Library::new(NAME) }.map_err(LibraryError::Load)?;
        if !gate::is_in_use() {
            return Err(LibraryError::NoGate);
        }
        let mut library = Self { loaded, version: String::new() };
        // SAFETY: declared so in the header; it returns a string that lives as long as the library.
        let text = unsafe { CStr::from_ptr(library.function::<abi::GetVersion>("PMIx_Get_version")?()) };
        let text = text.to_string_lossy();
        let known = version(&text).filter(|version| MAJORS.contains(&major(version)));
        match known {
            Some(version) => library.version = version.to_owned(),
            None => return Err(LibraryError::UnknownVersion { text: text.into_owned() }),
        }
        Ok(library)
    }

    /// The version, such as `4.2.2`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Starts to serve a launch. Returns each local rank's variables.
    pub fn serve(&self, job: &BridgeJob, shim: UnixStream) -> Result<Vec<Vec<(String, String)>>, LibraryError> {
        let host = Host {
            shim: Mutex::new(shim),
            size: job.size(),
            fence: Mutex::new(None),
            leaving: Mutex::default(),
            namespace: job.namespace.clone(),
            questions: Mutex::default(),
        };
        HOST.set(host).map_err(|_| LibraryError::ServesAlready)?;
        let mut owned = OwnedData::default();
        let mut about = vec![
            owned.text("pmix.srvr.tmpdir", &job.directory)?,
            owned.text("pmix.sys.tmpdir", &job.directory)?,
            owned.text("pmix.srv.nspace", "lattice-pmix")?,
            number("pmix.srv.rank", data_type::PROC_RANK, job.here),
            // The topology is detected once and passed to the ranks; otherwise each of them would
            // detect it again, with all devices.
            flag("pmix.srvr.share"),
        ];
        if let Some(node) = job.nodes.get(job.here as usize) {
            about.push(owned.text("pmix.hname", &node.name)?);
        }
        // The library keeps the address, so the module is never freed.
        let module = Box::leak(Box::new(Module {
            client_connected: Some(client_connected),
            client_finalized: Some(client_finalized),
            abort: Some(abort),
            fence_nb: Some(fence),
            direct_modex: Some(publishing::direct_modex),
            publish: Some(publishing::publish),
            lookup: Some(publishing::lookup),
            unpublish: Some(publishing::unpublish),
            not_given: [std::ptr::null(); abi::NOT_GIVEN],
        }));
        let init = self.function::<abi::ServerInit>("PMIx_server_init")?;
        // SAFETY: the module is never freed, the array lives during the call; the library copies
        // what it needs later.
        let status = unsafe { init(module, about.as_mut_ptr(), about.len()) };
        self.check_status("PMIx_server_init", status)?;
        self.register_loss_handler()?;
        self.register(job, &mut owned)?;
        self.environments(job)
    }

    /// Completes the fence in which the ranks wait.
    pub fn complete_fence(&self, data: Vec<u8>) {
        let Some(host) = HOST.get() else { return };
        let waiting = host.fence.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(WaitingFence { done: Some(done), cbdata }) = waiting else { return };
        // SAFETY: `cbdata` is what came with the callback.
        unsafe { pass_bytes(done, abi::SUCCESS, data, cbdata) };
    }

    /// Delivers the answer to a rank's question about published data.
    pub fn deliver_answer(&self, id: u64, status: AnswerStatus, found: Vec<Published>) {
        let Some(host) = HOST.get() else { return };
        let waiting = host.questions.lock().unwrap_or_else(PoisonError::into_inner).take(id);
        if let Some(waiting) = waiting {
            waiting.answer(status, &found, &host.namespace);
        }
    }

    /// Delivers the data of a rank of another node.
    pub fn deliver_modex(&self, id: u64, status: Status, data: Vec<u8>) {
        let Some(host) = HOST.get() else { return };
        let waiting = host.questions.lock().unwrap_or_else(PoisonError::into_inner).take(id);
        if let Some(waiting) = waiting {
            waiting.answer_modex(status, data);
        }
    }

    /// Requests the data of a local rank for another node.
    pub fn give_modex(&self, from: u32, number: u64, rank: u32) {
        let Some(host) = HOST.get() else { return };
        let asked = self.function::<abi::RequestModex>("PMIx_server_dmodex_request").and_then(|request| {
            let rank = proc_of(&host.namespace, rank)?;
            let whose = Box::into_raw(Box::new((from, number)));
            // SAFETY: the library copies the rank; `whose` is freed by `modex_given`, or below if
            // the library refuses the request.
            let status = unsafe { request(&rank, Some(modex_given), whose.cast()) };
            if status != abi::SUCCESS {
                // SAFETY: the request was refused, so nobody else has it.
                drop(unsafe { Box::from_raw(whose) });
            }
            self.check_status("PMIx_server_dmodex_request", status)
        });
        if asked.is_err() {
            send(&FromBridge::Modex { from, number, status: abi::ERR_NOT_SUPPORTED, data: Vec::new() });
        }
    }

    /// The shim has received a rank's finalize or abort: the rank may continue.
    pub fn release_rank(&self, rank: u32) {
        let Some(host) = HOST.get() else { return };
        let mut leaving = host.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let released: Vec<_> = leaving.extract_if(.., |(who, _)| *who == rank).collect();
        drop(leaving);
        for (_, Leaving { done, cbdata }) in released {
            if let Some(done) = done {
                // SAFETY: `cbdata` is what came with the callback.
                unsafe { done(abi::SUCCESS, cbdata) };
            }
        }
    }

    /// Reports a rank's death to the ranks that registered a handler for it. Other ranks must not
    /// be notified: Open MPI's default handler aborts.
    pub fn notify_death(&self, rank: u32, code: i32) {
        let Some(host) = HOST.get() else { return };
        let notified = self.function::<abi::NotifyEvent>("PMIx_Notify_event").and_then(|notify| {
            let event = Box::into_raw(Box::new(Event::of(proc_of(&host.namespace, rank)?, code)));
            // SAFETY: it was created here, and nobody else has it yet.
            let (proc, about, count) =
                unsafe { (&raw const *(*event).who, (&raw const (*event).about).cast::<Info>(), (*event).about.len()) };
            let event = event.cast();
            // SAFETY: everything pointed to lives in the event, which `event_notified` frees; if
            // the library will not call that, the event is freed below.
            let status = unsafe { notify(abi::ERR_PROC_ABORTED, proc, abi::RANGE_NAMESPACE, about, count, Some(event_notified), event) };
            if status != abi::SUCCESS {
                // SAFETY: nobody else has it.
                unsafe { event_notified(status, event) };
            }
            self.check_status("PMIx_Notify_event", status)
        });
        if let Err(why) = notified {
            eprintln!("lattice-pmix: the ranks here cannot be notified of the death of rank {rank}: {}", with_causes(&why));
        }
    }

    /// Registers for lost connections: if a rank below a shell dies and the shell lives on, nothing
    /// else shows it.
    fn register_loss_handler(&self) -> Result<(), LibraryError> {
        let register = self.function::<abi::RegisterEventHandler>("PMIx_Register_event_handler")?;
        let (mut event, none) = (abi::ERR_LOST_CONNECTION, std::ptr::null_mut());
        // SAFETY: the library copies the event's number before the call returns.
        let status = unsafe { register(&mut event, 1, none, 0, connection_lost, std::ptr::null(), std::ptr::null_mut()) };
        if status >= 0 { Ok(()) } else { self.check_status("PMIx_Register_event_handler", status) }
    }

    fn register(&self, job: &BridgeJob, owned: &mut OwnedData) -> Result<(), LibraryError> {
        let namespace = proc_of(&job.namespace, abi::RANK_WILDCARD)?;
        let mut about = self.job_info(job, owned)?;
        let count = job.local().len();
        let local = c_int::try_from(count).map_err(|_| LibraryError::TooManyRanks(count))?;
        let register = self.function::<abi::RegisterNamespace>("PMIx_server_register_nspace")?;
        // SAFETY: `owned` has everything that the array points to, and outlives the call; without a
        // callback the call returns after all is copied.
        let status = unsafe { register(namespace.namespace.as_ptr(), local, about.as_mut_ptr(), about.len(), None, std::ptr::null_mut()) };
        self.check_status("PMIx_server_register_nspace", status)?;
        let register = self.function::<abi::RegisterClient>("PMIx_server_register_client")?;
        for rank in job.local() {
            let rank = proc_of(&job.namespace, *rank)?;
            // SAFETY: the rank lives during the call; the ids are our own, which are also the
            // ranks'.
            let status = unsafe { register(&rank, libc::geteuid(), libc::getegid(), std::ptr::null_mut(), None, std::ptr::null_mut()) };
            self.check_status("PMIx_server_register_client", status)?;
        }
        Ok(())
    }

    /// The launch information that a rank may query locally.
    fn job_info(&self, job: &BridgeJob, owned: &mut OwnedData) -> Result<Vec<Info>, LibraryError> {
        let uint32 = |key: &str, value: u32| number(key, data_type::UINT32, value);
        let (size, local) = (job.size(), job.local());
        let local_size = u32::try_from(local.len()).unwrap_or(u32::MAX);
        let nodes = self.generated("PMIx_generate_regex", &job.node_names())?;
        let ranks = self.generated("PMIx_generate_ppn", &job.node_ranks())?;
        let mut about = vec![
            owned.text("pmix.jobid", &job.namespace)?,
            uint32("pmix.univ.size", size),
            uint32("pmix.job.size", size),
            uint32("pmix.max.size", size),
            uint32("pmix.job.napps", u32::try_from(job.programs.len()).unwrap_or(u32::MAX)),
            uint32("pmix.num.nodes", u32::try_from(job.nodes.len()).unwrap_or(u32::MAX)),
            uint32("pmix.local.size", local_size),
            uint32("pmix.node.size", local_size),
            owned.text("pmix.nmap", &nodes)?,
            owned.text("pmix.pmap", &ranks)?,
            owned.text("pmix.lpeers", &listed(local))?,
            owned.text("pmix.tmpdir", &job.directory)?,
            owned.text("pmix.nsdir", &job.directory)?,
            flag("pmix.tdir.rmclean"),
        ];
        if is_crowded(job) {
            about.push(flag("pmix.ndosub"));
        }
        if let Some(first) = local.first() {
            about.push(number("pmix.lldr", data_type::PROC_RANK, *first));
        }
        let mut programs = vec![(0, 0); size as usize];
        for (program, ranks) in job.programs() {
            let count = ranks.end - ranks.start;
            let first = number("pmix.aldr", data_type::PROC_RANK, ranks.start);
            let one = vec![uint32("pmix.appnum", program), uint32("pmix.app.size", count), first];
            about.push(owned.array("pmix.app.arr", one));
            for (of_it, rank) in (0..).zip(ranks) {
                if let Some(of_rank) = programs.get_mut(rank as usize) {
                    *of_rank = (program, of_it);
                }
            }
        }
        for (node_id, node) in (0u32..).zip(&job.nodes) {
            for (local, rank) in (0u16..).zip(&node.ranks) {
                let (program, of_it) = programs.get(*rank as usize).copied().unwrap_or_default();
                let one = vec![
                    number("pmix.rank", data_type::PROC_RANK, *rank),
                    number("pmix.grank", data_type::PROC_RANK, *rank),
                    number("pmix.apprank", data_type::PROC_RANK, of_it),
                    uint32("pmix.appnum", program),
                    uint16("pmix.lrank", local),
                    uint16("pmix.nrank", local),
                    uint32("pmix.nodeid", node_id),
                    owned.text("pmix.hname", &node.name)?,
                ];
                about.push(owned.array("pmix.pdata", one));
            }
        }
        Ok(about)
    }

    /// The library's encoding of a list of nodes or of their ranks.
    fn generated(&self, name: &str, list: &str) -> Result<String, LibraryError> {
        let list = CString::new(list).map_err(|_| LibraryError::ZeroByte { subject: name.to_owned() })?;
        let generate = self.function::<abi::Generate>(name)?;
        let mut made = std::ptr::null_mut();
        // SAFETY: both pointers are valid during the call.
        let status = unsafe { generate(list.as_ptr(), &mut made) };
        self.check_status(name, status)?;
        if made.is_null() {
            return Err(LibraryError::Nothing { function: name.to_owned(), list });
        }
        // SAFETY: with the settings above it is a string that ends with a zero byte. It belongs to
        // the caller and is not freed: the process is short-lived.
        Ok(unsafe { CStr::from_ptr(made) }.to_string_lossy().into_owned())
    }

    fn environments(&self, job: &BridgeJob) -> Result<Vec<Vec<(String, String)>>, LibraryError> {
        let setup = self.function::<abi::SetupFork>("PMIx_server_setup_fork")?;
        let one = |rank: &u32| {
            let rank = proc_of(&job.namespace, *rank)?;
            let mut made: *mut *mut c_char = std::ptr::null_mut();
            // SAFETY: both pointers are valid during the call; a null array is an empty one.
            let status = unsafe { setup(&rank, &mut made) };
            self.check_status("PMIx_server_setup_fork", status)?;
            let ours = [Some(FOR_OPEN_MPI), is_crowded(job).then_some(FOR_CROWDED_OPEN_MPI)];
            let mut variables: Vec<_> = ours.into_iter().flatten().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            // SAFETY: a null-terminated array of strings, like an environment.
            while let Some(text) = unsafe { made.as_ref() }.filter(|text| !text.is_null()) {
                // SAFETY: each is a string that ends with a zero byte.
                let text = unsafe { CStr::from_ptr(*text) }.to_string_lossy();
                variables.extend(text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
                // SAFETY: the terminating null was not reached yet.
                made = unsafe { made.add(1) };
            }
            Ok(variables)
        };
        job.local().iter().map(one).collect()
    }

    fn function<F: Copy>(&self, name: &str) -> Result<F, LibraryError> {
        // SAFETY: the types in `abi` match the functions, whose names are listed there.
        let found = unsafe { self.loaded.get::<F>(name.as_bytes()) };
        found.map(|symbol| *symbol).map_err(|source| LibraryError::Symbol { version: self.version.clone(), source })
    }

    fn check_status(&self, function: &str, status: Status) -> Result<(), LibraryError> {
        if status == abi::SUCCESS || status == abi::OPERATION_SUCCEEDED {
            return Ok(());
        }
        let text = self.function::<abi::ErrorString>("PMIx_Error_string")?;
        // SAFETY: it returns a string that lives as long as the library.
        let text = unsafe { CStr::from_ptr(text(status)) };
        let (function, version) = (function.to_owned(), self.version.clone());
        Err(LibraryError::Refused { function, version, text: text.to_string_lossy().into_owned(), status })
    }
}

/// Whether the launch has more ranks on this node than processors. The ranks may use the same
/// processors as this process.
fn is_crowded(job: &BridgeJob) -> bool {
    std::thread::available_parallelism().is_ok_and(|processors| job.local().len() > processors.get())
}

/// Extracts the version from the library's version string: `OpenPMIx 4.2.2, repo rev: …`.
fn version(text: &str) -> Option<&str> {
    let version = text.strip_prefix("OpenPMIx ").or_else(|| text.strip_prefix("PMIx "))?;
    version.split([',', ' ']).next().filter(|version| !version.is_empty())
}

fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}

fn majors() -> String {
    MAJORS.map(|major| format!("{major}.x")).join(" or ")
}

/// The notification of a rank's death, and the data that it points to.
struct Event {
    who: Box<Proc>,
    about: [Info; 3],
}

impl Event {
    fn of(who: Proc, code: i32) -> Self {
        let who = Box::new(who);
        let affected = info("pmix.evproc", data_type::PROC, Data { proc: &raw const *who });
        let code = info("pmix.exit.code", data_type::INT, Data { uint32: code.cast_unsigned() });
        Self { who, about: [affected, code, flag("pmix.evnondef")] }
    }
}

/// The data that the arrays passed to the library point to.
#[derive(Default)]
struct OwnedData {
    texts: Vec<CString>,
    arrays: Vec<(Box<DataArray>, Vec<Info>)>,
}

impl OwnedData {
    fn text(&mut self, key: &str, text: &str) -> Result<Info, LibraryError> {
        let text = CString::new(text).map_err(|_| LibraryError::ZeroByte { subject: key.to_owned() })?;
        // The bytes of a CString stay in place when it is moved.
        let string = text.as_ptr();
        self.texts.push(text);
        Ok(info(key, data_type::STRING, Data { string }))
    }

    fn array(&mut self, key: &str, mut infos: Vec<Info>) -> Info {
        let array = DataArray { data_type: data_type::INFO, size: infos.len(), array: infos.as_mut_ptr().cast() };
        let mut array = Box::new(array);
        let address: *mut DataArray = &mut *array;
        self.arrays.push((array, infos));
        info(key, data_type::DATA_ARRAY, Data { array: address })
    }
}

fn info(key: &str, data_type: u16, data: Data) -> Info {
    let mut made = Info { key: [0; _], flags: 0, value: Value { data_type, data } };
    for (to, from) in made.key.iter_mut().zip(key.bytes()) {
        *to = from.cast_signed();
    }
    made
}

fn number(key: &str, data_type: u16, value: u32) -> Info {
    info(key, data_type, Data { uint32: value })
}

fn uint16(key: &str, value: u16) -> Info {
    info(key, data_type::UINT16, Data { uint16: value })
}

fn flag(key: &str) -> Info {
    info(key, data_type::BOOL, Data { flag: true })
}

unsafe extern "C" fn client_connected(who: *const Proc, _: *mut c_void, _: abi::OpCallback, _: *mut c_void) -> Status {
    // SAFETY: the library passes a valid rank.
    if let Some(rank) = unsafe { rank_of(who) } {
        send(&FromBridge::Joined { rank });
    }
    abi::OPERATION_SUCCEEDED
}

/// A rank sent finalize and waits for the answer. The library also calls this if the connection was
/// lost.
unsafe extern "C" fn client_finalized(who: *const Proc, _: *mut c_void, done: abi::OpCallback, cbdata: *mut c_void) -> Status {
    // SAFETY: the library passes a valid rank.
    let (Some(rank), Some(host)) = (unsafe { rank_of(who) }, HOST.get()) else { return abi::OPERATION_SUCCEEDED };
    host.leaving.lock().unwrap_or_else(PoisonError::into_inner).push((rank, Leaving { done, cbdata }));
    send(&FromBridge::Finalized { rank });
    abi::SUCCESS
}

/// A rank's connection ended without finalize. The library may combine several into one event and
/// name only the first, which is enough: it ends the launch.
unsafe extern "C" fn connection_lost(
    _: usize,
    _: Status,
    who: *const Proc,
    _: *mut Info,
    _: usize,
    _: *mut Info,
    _: usize,
    done: abi::EventHandled,
    cbdata: *mut c_void,
) {
    // SAFETY: the library passes a valid rank.
    if let Some(rank) = unsafe { rank_of(who) } {
        send(&FromBridge::Lost { rank });
    }
    if let Some(done) = done {
        // SAFETY: `cbdata` came with the callback; no other data is passed.
        unsafe { done(abi::EVENT_ACTION_COMPLETE, std::ptr::null_mut(), 0, None, std::ptr::null_mut(), cbdata) };
    }
}

/// The set of ranks to abort is ignored: a launch ends as a whole. The rank gets its answer at once
/// if the launch is already being ended. Otherwise it waits until it is ended together with the
/// others: if it exited first, another rank that loses the connection could abort with a code of
/// its own, and that code might arrive first.
unsafe extern "C" fn abort(
    who: *const Proc,
    _: *mut c_void,
    code: c_int,
    message: *const c_char,
    _: *mut Proc,
    _: usize,
    done: abi::OpCallback,
    cbdata: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid rank, and its message, if not null, ends with a zero byte.
    let (rank, message) = unsafe { (rank_of(who), (!message.is_null()).then(|| CStr::from_ptr(message))) };
    let message = message.map(|text| text.to_string_lossy().trim().to_owned()).unwrap_or_default();
    let (Some(rank), Some(host)) = (rank, HOST.get()) else { return abi::OPERATION_SUCCEEDED };
    host.leaving.lock().unwrap_or_else(PoisonError::into_inner).push((rank, Leaving { done, cbdata }));
    send(&FromBridge::Aborted { rank, code, message });
    abi::SUCCESS
}

/// All local members of a set of ranks wait in a fence. Only the fences of the whole launch are
/// served here. The library itself serves smaller sets within one node; others are refused.
unsafe extern "C" fn fence(
    ranks: *const Proc,
    count: usize,
    _: *const Info,
    _: usize,
    data: *mut c_char,
    bytes: usize,
    done: ModexCallback,
    cbdata: *mut c_void,
) -> Status {
    let Some(host) = HOST.get() else { return abi::ERR_NOT_SUPPORTED };
    // SAFETY: the array has `count` elements.
    let ranks = if ranks.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(ranks, count) } };
    let whole = ranks.iter().any(|who| who.rank == abi::RANK_WILDCARD) || ranks.len() == host.size as usize;
    if !whole {
        return abi::ERR_NOT_SUPPORTED;
    }
    {
        let mut waiting = host.fence.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_some() {
            return abi::ERR_NOT_SUPPORTED;
        }
        *waiting = Some(WaitingFence { done, cbdata });
    }
    let ours = match data.is_null() {
        true => Vec::new(),
        // SAFETY: the data has the given length and belongs to us now: it was allocated by malloc,
        // and we free it.
        false => unsafe {
            let ours = std::slice::from_raw_parts(data.cast::<u8>(), bytes).to_vec();
            libc::free(data.cast());
            ours
        },
    };
    send(&FromBridge::Fence { data: ours });
    abi::SUCCESS
}

/// # Safety
/// `event` was passed by [`Library::notify_death`]; called once for it.
unsafe extern "C" fn event_notified(_: Status, event: *mut c_void) {
    // SAFETY: see above.
    drop(unsafe { Box::from_raw(event.cast::<Event>()) });
}

/// # Safety
/// `whose` was passed by [`Library::give_modex`]; called once for it. `data` has `bytes` bytes, or
/// is null.
unsafe extern "C" fn modex_given(status: Status, data: *mut c_char, bytes: usize, whose: *mut c_void) {
    // SAFETY: see above.
    let (from, number) = unsafe { *Box::from_raw(whose.cast::<(u32, u64)>()) };
    // SAFETY: see above; the library frees the data after this call.
    let data = if data.is_null() { Vec::new() } else { unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec() };
    send(&FromBridge::Modex { from, number, status, data });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_librarys_text() {
        let text = "OpenPMIx 4.2.2, repo rev: gitv4.2.2 (PMIx Standard: 4.1, Stable ABI: 0.0, Provisional ABI: 0.0)";
        assert_eq!(version(text), Some("4.2.2"));
        assert_eq!(version("OpenPMIx 5.0.1 (PMIx Standard: 4.2)"), Some("5.0.1"));
        assert_eq!((version("something"), version("OpenPMIx ")), (None, None));
        assert_eq!((major("4.2.2"), major("10.0"), major("x")), (4, 10, 0));
    }
}
