//! The table of docs/design/run.md: programs that do what makes compressed memory hard, a test a row.
//!
//! Each program checks all its bytes, and that pages were away when it did what its row is about.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Holding, Right, can_run, check, command, example, has_ended, output_in_time, right,
};

const BUDGET_MIB: u64 = 64;

/// A program that is right although many pages leave.
fn is_right(verb: &str) -> Option<Right> {
    let right = can_run().then(|| check(BUDGET_MIB, "behaviours", &[verb]))?;
    assert!(right.left > 10_000, "{verb}: {} pages left", right.left);
    Some(right)
}

fn program() -> String {
    example("behaviours").to_str().unwrap().into()
}

#[test]
fn vfork_shares_pages_that_are_away() {
    is_right("vfork");
}

#[test]
fn programs_are_spawned_and_get_bytes_by_pipes() {
    is_right("spawn");
}

#[test]
fn a_process_that_shares_the_memory_works_beside() {
    is_right("clone");
}

#[test]
fn handlers_of_signals_have_their_stack_in_memory_that_is_away() {
    is_right("signals");
}

#[test]
fn memory_beside_a_stack_leaves() {
    is_right("stack");
}

#[test]
fn memory_of_a_thread_that_has_ended_leaves() {
    is_right("stack-again");
}

#[test]
fn a_core_lacks_what_is_compressed_and_has_all_else() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "ulimit -c unlimited && exec \"$0\" core";
    let mut command = command(BUDGET_MIB, &["sh", "-c", script, &program()]);
    let output = output_in_time(command.current_dir(&directory));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(128 + 6), "{output:?}");
    let Some(core) = fs::read_dir(&directory).unwrap().next() else {
        return eprintln!("left out: the system writes cores elsewhere");
    };
    let core = core.unwrap().path();
    let words: Vec<&str> = said.split_whitespace().collect();
    let mut check = Command::new(program());
    let output = output_in_time(check.arg("core-check").arg(core).args(words));
    assert_eq!(output.stdout, b"right\n", "{output:?}");
}

#[test]
fn memory_is_read_from_outside() {
    is_right("outside");
}

#[test]
fn a_debugger_attaches_and_lets_go() {
    if !can_run() {
        return;
    }
    if Command::new("gdb").arg("--version").output().is_err() {
        return eprintln!("left out: there is no gdb");
    }
    let holding = Holding::begin(&mut command(BUDGET_MIB, &[&program(), "holds"]), "holds");
    let (process, address) = (holding.program, holding.line.split_whitespace().nth(1));
    let look = format!("x/2xg 0x{}", address.unwrap());
    for _ in 0..2 {
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-p", &process.to_string()]);
        let output = output_in_time(gdb.args(["-ex", "info registers rip", "-ex", &look]));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("rip ") && said.contains("detached"),
            "{output:?}"
        );
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(!has_ended(process));
    kill(Pid::from_raw(process), Signal::SIGTERM).unwrap();
    assert_eq!(holding.end().0, Some(128 + 15));
}

#[test]
fn a_process_that_is_traced_already_is_left_alone() {
    let Some(right) = is_right("traced") else {
        return;
    };
    let lines = right.told.matches("is left alone").count();
    assert_eq!(lines, 1, "{}", right.told);
}

#[test]
fn locked_memory_stays() {
    is_right("lock");
}

#[test]
fn huge_pages_leave_and_are_made_again() {
    is_right("collapse");
}

#[test]
fn guards_stay_guards() {
    is_right("guard");
}

#[test]
fn freed_memory_is_as_it_was_or_empty() {
    is_right("free");
}

#[test]
fn a_heap_that_shrinks_and_grows_is_empty_there() {
    is_right("brk");
}

#[test]
fn other_memory_is_mapped_over_pages_that_are_away() {
    is_right("fixed");
}

#[test]
fn merged_mappings_move_grow_and_shrink() {
    is_right("move");
}

#[test]
fn a_program_may_close_all_descriptors() {
    is_right("descriptors");
}

#[test]
fn a_program_may_forbid_to_look_into_it() {
    is_right("dumpable");
}

#[test]
fn a_sandbox_of_filters_is_left_alone() {
    if !can_run() {
        return;
    }
    let right = check(BUDGET_MIB, "behaviours", &["filter-before"]);
    let lines = right.told.matches("filters its system calls").count();
    assert_eq!(lines, 1, "{}", right.told);
    assert_eq!(right.left, 0);
}

#[test]
fn a_sandbox_that_comes_later_is_served_on() {
    is_right("filter-after");
}

#[test]
fn files_are_read_directly_into_memory_that_is_away() {
    is_right("direct");
}

#[test]
fn rings_read_into_memory_that_is_away_and_into_pinned_memory() {
    is_right("ring");
}

#[test]
fn one_read_may_be_larger_than_the_budget() {
    if !can_run() {
        return;
    }
    let right = check(16, "behaviours", &["whole"]);
    assert!(right.left > 10_000, "{} pages left", right.left);
}

#[test]
fn shared_memory_is_left_alone() {
    is_right("shared");
}

#[test]
fn memory_to_be_wiped_in_a_child_is_left_alone() {
    is_right("wipe");
}

#[test]
fn a_setuid_program_has_its_own_memory() {
    is_right("setuid");
}

#[test]
fn hundreds_of_children_at_once_have_their_own_bytes() {
    if can_run() {
        // Fewer descriptors than children, unless more are asked for.
        let right = right(&output_in_time(&mut with_descriptors("-Sn 400", "bomb")));
        assert!(right.left > 10_000, "{} pages left", right.left);
    }
}

/// A run of a verb with a limit of descriptors.
fn with_descriptors(limit: &str, verb: &str) -> Command {
    let script = format!("ulimit {limit} && exec \"$@\"");
    let mut limited = Command::new("sh");
    limited.args(["-c", &script, "sh"]).arg(example("budget"));
    limited.args(["run", "64", "--", &program(), verb]);
    limited
}

/// A front that is out of descriptors has none of the last child's.
#[test]
fn a_killed_server_ends_a_program_that_has_forked_often() {
    if !can_run() {
        return;
    }
    let holding = Holding::begin(&mut with_descriptors("-n 1024", "forks"), "forks");
    kill(Pid::from_raw(holding.server()), Signal::SIGKILL).unwrap();
    let (status, told) = holding.end();
    assert_eq!(status, Some(125), "{told}");
    assert!(told.contains("the server was killed"), "{told}");
}
