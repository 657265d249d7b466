//! The real shim, with a test in its agent's place. A test that this machine cannot run counts as ignored, with the
//! reason, or fails with `LATTICE_TEST_REQUIRE_ALL=1`.

mod attach;
mod bed;
mod binding;
mod data;
// It stands in for the file system of a user in both places.
#[path = "../../../lab/tests/e2e/hung.rs"]
#[expect(dead_code, reason = "only writes hang here")]
mod hung;
mod lane;
mod mpi;
mod run_lease;
mod survival;
mod user_files;
mod work;

use bed::Setting;
use lattice_runtime::cgroup::Slice;
use libtest_mimic::{Arguments, Trial};
use std::path::Path;
use std::process::{Command, Stdio};

fn main() {
    let arguments = Arguments::from_args();
    let root = (!nix::unistd::geteuid().is_root()).then_some("needs root");
    let tree = root.or_else(|| Slice::find(Path::new("x")).is_err().then_some("needs a cgroup v2 tree"));
    let image = tree.or_else(|| missing("mksquashfs").then_some("needs mksquashfs"));
    let mpich = tree.or_else(|| missing("mpicc.mpich").then_some("needs mpicc.mpich"));
    let fuse = tree.or_else(|| (!Path::new("/dev/fuse").exists()).then_some("needs /dev/fuse"));
    let bash = missing("bash").then_some("needs bash");
    let port = tree.or(bash);
    let trials = vec![
        trial("exit_codes_and_signals_are_reported", tree, work::exit_codes),
        trial("what_cannot_start_is_127_or_126_and_says_why", tree, work::not_started),
        trial("rank_environment_and_logs_are_the_users", tree, work::environment_and_logs),
        trial("script_runs_as_its_owner", tree, work::script),
        trial("script_is_started_once", tree, work::script_once),
        trial("launch_is_started_once_and_forgotten_on_request", tree, work::launch_once),
        trial("launch_that_cannot_be_is_refused", tree, work::refused),
        trial("ranks_run_where_they_were_asked_to_and_see_their_own_gpus", tree, binding::places),
        trial("binding_that_cannot_be_is_refused", tree, binding::impossible),
        trial("walltime_ends_what_ignores_sigterm", tree, work::walltime),
        trial("walltime_without_scope", None, work::walltime_without_scope),
        trial("an_abort_takes_no_grace_from_work_that_is_ended", tree, work::grace_of_an_abort),
        trial("stop_leaves_nothing_not_even_daemons", tree, work::daemons),
        trial("stop_without_scope_leaves_nothing", None, work::daemons_without_scope),
        trial("tasks_of_a_lane_run_in_order_each_with_its_index_and_output", tree, lane::in_order),
        trial("silent_tasks_make_no_files", tree, lane::silent),
        trial("task_that_cannot_start_says_why", tree, lane::not_started),
        trial("lane_whose_node_cannot_start_tasks_ends_and_returns_them", tree, lane::node_cannot_start),
        trial("nothing_of_a_task_is_left_when_the_next_begins", tree, lane::leftovers),
        trial("nothing_of_a_task_is_left_without_scope", None, lane::leftovers_without_scope),
        trial("task_whose_walltime_is_over_is_ended_and_the_next_begins", tree, lane::walltime),
        trial("lane_begins_no_task_that_its_walltime_cannot_hold", tree, lane::own_walltime),
        trial("revoked_task_is_ended_and_never_begins", tree, lane::revoked),
        trial("tasks_run_on_without_an_agent_and_none_runs_twice", tree, lane::agent_away),
        trial("shim_killed_leaves_the_ends_of_tasks", tree, lane::killed_shim),
        trial("task_that_is_stopped_is_not_reported_as_ended", tree, lane::stopped),
        trial("task_over_its_walltime_has_ended_so_whatever_stops_the_lane", tree, lane::stopped_after_walltime),
        trial("shim_that_gets_sigterm_ends_its_lane", tree, lane::terminated_shim),
        trial("signal_for_the_script_reaches_the_running_task", tree, lane::signalled),
        trial("run_lease_that_lasts_lets_work_begin_and_go_on", tree, run_lease::lasts),
        trial("run_lease_that_nobody_extends_kills_at_its_end", tree, run_lease::nobody_extends),
        trial("run_lease_that_is_over_is_over_for_a_stopped_shim", tree, run_lease::stopped_shim),
        trial("image_is_mounted_and_goes", image, work::image),
        trial("image_that_is_damaged_is_reported", tree, work::damaged_image),
        trial("sixteen_images_at_once", image, work::sixteen_images),
        trial("attached_program_has_a_terminal_of_its_own_and_is_work", tree, attach::terminal),
        trial("keys_reach_the_foreground_of_an_attached_shell", tree, attach::keys),
        trial("attached_program_is_hung_up_with_its_agent_and_known_to_the_next", tree, attach::hang_up),
        trial("attached_program_that_cannot_start_says_why", tree, attach::not_started),
        trial("attached_shell_ends_with_the_allocation", tree, attach::stop),
        trial("attached_shell_ends_with_the_allocation_without_scope", None, attach::stop_without_scope),
        trial("first_rank_of_a_launch_has_a_terminal_that_outlives_the_agent", tree, attach::launch),
        trial("scratch_in_memory_is_limited_private_and_gone", tree, data::memory),
        trial("directories_are_seen_elsewhere_and_leave_nothing", tree, data::directories),
        trial("mounts_that_must_not_be_are_refused", tree, data::refused),
        trial("agent_killed_in_a_frame_gets_a_full_replay", tree, survival::killed_agent),
        trial("agent_that_vanishes_has_its_last_frame_handled", tree, survival::last_frame),
        trial("agent_away_during_walltime", tree, survival::away_during_walltime),
        trial("agent_that_sends_garbage_loses_only_its_connection", tree, survival::hostile_agent),
        trial("shim_without_descriptors_waits_for_some_and_lets_an_agent_in", tree, survival::no_descriptors),
        trial("newer_agent_replaces_the_older", tree, survival::newer_agent),
        trial("shim_killed_leaves_exits_and_a_scope_to_sweep", tree, survival::killed_shim),
        trial("shim_is_started_once_and_in_any_depth", tree, survival::deep_directory),
        trial("script_runs_though_the_disk_became_full_before_it_was_asked_for", tree, survival::full_before_the_script),
        trial("full_disk_does_not_keep_work_from_ending", tree, survival::full_disk),
        trial("shim_is_small", tree, survival::small),
        trial("output_is_in_the_users_file_as_it_is_written", tree, user_files::written_as_it_comes),
        trial("output_is_whole_in_the_users_file_when_the_end_is_reported", tree, user_files::whole_at_the_end),
        trial("work_whose_files_the_user_may_not_have_does_not_begin", tree, user_files::refused),
        trial("full_disk_of_the_users_file_does_not_harm_the_work", tree, user_files::full_disk),
        trial("users_file_that_hangs_is_reported_while_the_work_runs_and_to_each_agent", fuse, user_files::late),
        trial("signal_comes_before_the_walltime_ends", tree, user_files::warned),
        trial("pmi_garbage_ends_that_launch_alone", tree, mpi::garbage),
        trial("rank_that_dies_after_init_brings_its_launch_down", tree, mpi::dead_rank),
        trial("rank_that_dies_after_init_gives_its_launch_its_code", tree, mpi::death_codes),
        trial("rank_that_closes_its_pmi_socket_and_lives_brings_its_launch_down", tree, mpi::closed_socket),
        trial("rank_that_finalizes_and_ends_at_once_is_no_dead_one", tree, mpi::finalize_and_exit),
        trial("child_that_holds_the_pmi_socket_does_not_hold_the_end", tree, mpi::held_socket),
        trial("fence_outlives_its_agent", tree, mpi::fence),
        trial("abort_from_elsewhere_is_not_reported_back", tree, mpi::abort_elsewhere),
        trial("abort_of_pmi_2_gives_the_code_that_its_rank_ends_with", tree, mpi::abort_of_pmi_2),
        trial("rank_connects_by_its_port_and_nobody_else_can", port, || mpi::by_port(Setting::default())),
        trial("rank_comes_by_its_port_without_scope", bash, || mpi::by_port(Setting { without_scope: true, ..Setting::default() })),
        trial("mpich_program_of_four_ranks", mpich, mpi::mpich),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, lacks: Option<&'static str>, test: fn()) -> Trial {
    match lacks {
        None => Trial::test(name, move || {
            test();
            Ok(())
        }),
        Some(why) if std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_some() => Trial::test(name, move || Err(why.into())),
        Some(why) => Trial::test(name, || Ok(())).with_kind(why).with_ignored_flag(true),
    }
}

fn missing(program: &str) -> bool {
    Command::new(program).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
}
