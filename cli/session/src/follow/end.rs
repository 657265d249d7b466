//! How following ended, and the exit code that follows from it.

use crate::failure::Failure;
use crate::message::write_message_line;
use crate::shown::short;
use lattice_api::v1;

/// The result of following.
#[derive(Debug)]
pub enum End {
    /// The allocation ended; this is its last state.
    Ended(Box<v1::Allocation>),
    /// The head reports that its command ended by itself with this code, and so will the allocation.
    Reported(i32),
    /// We stopped following the allocation after a signal; the value is the exit code of a shell for that signal.
    Left(u8),
}

/// Reports why a launch was ended, if it was.
pub fn report_why_ended(why: &str) {
    if !why.is_empty() {
        write_message_line(format_args!("the launch was ended: {why}"));
    }
}

/// The exit code of a command that followed an allocation to its end: the program's code if it has one.
pub fn exit_code_of_end(end: &End, cancelled_here: Option<u8>) -> Result<u8, Failure> {
    let a = match end {
        End::Ended(allocation) => allocation,
        End::Reported(code) => return Ok(program_code(*code)),
        End::Left(code) => return Ok(*code),
    };
    // The programs of its tasks have many codes.
    if !a.task_group.is_empty() {
        return Ok(u8::from(a.state != "Completed"));
    }
    if let Some(code) = a.exit_code {
        return Ok(program_code(code));
    }
    if a.state == "Completed" {
        return Ok(0);
    }
    if let Some(code) = cancelled_here.filter(|_| a.state == "Cancelled") {
        return Ok(code);
    }
    Err(Failure::other(format!("allocation {} is {} without an exit code of its program: {}", short(&a.id), a.state, a.reason))
        .hint(format!("`lattice explain {}` shows more", short(&a.id))))
}

/// A program's code as our exit code: a code out of range stays a failure.
pub fn program_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(state: &str, exit_code: Option<i32>) -> End {
        End::Ended(Box::new(v1::Allocation { id: "1f0c9a4e-x".into(), state: state.into(), exit_code, ..Default::default() }))
    }

    #[test]
    fn a_task_group_is_0_or_1() {
        let code = |state: &str| {
            let group = v1::Allocation { state: state.into(), task_group: "0-9".into(), ..Default::default() };
            exit_code_of_end(&End::Ended(Box::new(group)), None).ok()
        };
        assert_eq!(["Completed", "Failed", "Cancelled"].map(code), [Some(0), Some(1), Some(1)]);
    }

    #[test]
    fn the_programs_code_is_given() {
        let code = |end: &End, here| exit_code_of_end(end, here).map_err(|failure| failure.beside_a_program().exit());
        assert_eq!(code(&ended("Completed", Some(0)), None), Ok(0));
        assert_eq!(code(&ended("Failed", Some(7)), None), Ok(7));
        assert_eq!(code(&ended("Failed", Some(137)), None), Ok(137));
        assert_eq!(code(&ended("Failed", Some(512)), None), Ok(255));
        assert_eq!(code(&ended("Failed", None), None), Err(125));
        assert_eq!(code(&ended("Cancelled", None), Some(143)), Ok(143));
        assert_eq!(code(&ended("Cancelled", None), None), Err(125));
        assert_eq!(code(&End::Left(143), Some(143)), Ok(143));
        assert_eq!(code(&End::Reported(3), None), Ok(3));
    }
}
