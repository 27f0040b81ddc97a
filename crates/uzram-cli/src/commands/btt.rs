//! `uzram btt`: makes, checks and repairs Block Translation Tables in files.

use std::path::Path;

use serde_json::json;
use uzram::{BlockDevice, Error, ErrorKind};
use uzram_media::{Btt, BttProblem, BttReport, BttVersion, Persistence, PmemFile};
use uzram_server::size::{human, parse, ram_bytes};

use crate::args::btt::{
    BttArgs, BttCheckArgs, BttCommand, BttCreateArgs, BttLayout, BttRepairArgs,
};
use crate::failure::{Failure, Result};
use crate::output::{Align, bold, columns, print, print_json};

/// Bytes at the start of a file that are looked at before it is overwritten.
const LOOKED_AT_BYTES: u64 = 64 << 10;

/// Runs the command.
pub fn run(args: &BttArgs) -> Result {
    match &args.command {
        BttCommand::Create(args) => create(args),
        BttCommand::Check(args) => check(args),
        BttCommand::Repair(args) => repair(args),
    }
}

fn create(args: &BttCreateArgs) -> Result {
    let ram = ram_bytes();
    let sector =
        parse(&args.sector_size, ram).map_err(|e| Failure::from(e).about("--sector-size"))?;
    let sector = u32::try_from(sector)
        .ok()
        .filter(|sector| [512, 4096].contains(sector));
    let sector = sector.ok_or_else(|| {
        Failure::Usage(format!(
            "--sector-size {}: must be 512 or 4K",
            args.sector_size
        ))
    })?;
    let version = match args.layout {
        BttLayout::V1_1 => BttVersion::V1_1,
        BttLayout::V2_0 => BttVersion::V2_0,
    };
    let (file, is_new) = file_for(args)?;
    let (bytes, persistence) = (file.size_bytes(), file.persistence());
    let btt = Btt::format(file, sector, version).inspect_err(|_| {
        if is_new {
            let _ = std::fs::remove_file(&args.file);
        }
    })?;
    let offered = btt.geometry().size_bytes;
    let note = match persistence {
        Persistence::Cpu => "",
        Persistence::Never => "\nIt is in memory (tmpfs): nothing of it survives the power.\n",
        Persistence::System => {
            "\nIt is on a disk, not on persistent memory: each write waits for the disk three times.\n"
        }
    };
    let path = args.file.display();
    print(&format!(
        "{path}: {} for {} sectors of {sector} bytes, of {}.\n{note}\n{}\n  uzram serve --device btt --path {path}\n",
        human(offered),
        offered / u64::from(sector),
        human(bytes),
        bold("To serve it:"),
    ))
}

/// The file for the table, and whether it was made for that.
fn file_for(args: &BttCreateArgs) -> Result<(PmemFile, bool)> {
    if !args.file.exists() {
        let Some(size) = &args.size else {
            let text = format!(
                "{}: no such file; give --size to make it",
                args.file.display()
            );
            return Err(Failure::Usage(text));
        };
        let size = parse(size, ram_bytes()).map_err(|e| Failure::from(e).about("--size"))?;
        return Ok((PmemFile::create(&args.file, size)?, true));
    }
    let file = PmemFile::open(&args.file)?;
    if args.size.is_some() {
        let text = format!(
            "--size: {} is there and has {} bytes; leave it out",
            args.file.display(),
            file.size_bytes()
        );
        return Err(Failure::Usage(text));
    }
    if !args.force && holds_something(&args.file)? {
        let text = format!(
            "{}: holds something; add --force to lose it",
            args.file.display()
        );
        return Err(Failure::Failed(text));
    }
    Ok((file, false))
}

fn holds_something(path: &Path) -> Result<bool> {
    use std::io::Read;
    let failed = |e| Failure::Failed(format!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut start = Vec::new();
    file.take(LOOKED_AT_BYTES)
        .read_to_end(&mut start)
        .map_err(failed)?;
    Ok(start.iter().any(|byte| *byte != 0))
}

fn check(args: &BttCheckArgs) -> Result {
    let report = Btt::check(&PmemFile::open_read_only(&args.file)?)?;
    if args.json {
        print_json(&json(&report))?;
    } else {
        print(&text(&args.file, &report))?;
    }
    match report.problem_count {
        0 => Ok(()),
        count => Err(Failure::Failed(format!(
            "{}: {count} problem{}; `uzram btt repair {0}` mends {}",
            args.file.display(),
            if count == 1 { "" } else { "s" },
            if count == 1 { "it" } else { "them" },
        ))),
    }
}

fn text(path: &Path, report: &BttReport) -> String {
    let facts = [
        ("layout", version(report.version).to_owned()),
        ("UUID", uuid(&report.uuid)),
        (
            "size",
            format!("{} ({} bytes)", human(report.size_bytes), report.size_bytes),
        ),
        ("sector size", report.sector_bytes.to_string()),
        ("arenas", report.arenas.to_string()),
        ("lanes", report.lanes.to_string()),
        (
            "flog entries",
            if report.is_flog_padded {
                "padded (Linux before 4.15)"
            } else {
                "adjacent"
            }
            .to_owned(),
        ),
        (
            "damaged info blocks",
            pending(report.damaged_copies, "rewritten from the copy"),
        ),
        (
            "unfinished writes",
            pending(report.unfinished_writes, "carried through"),
        ),
        ("problems", report.problem_count.to_string()),
    ];
    let facts = facts.map(|(what, value)| vec![format!("  {what}"), value]);
    let mut text = format!(
        "{}\n{}\n",
        bold(&path.display().to_string()),
        columns(&facts, &[Align::Left, Align::Left]).trim_end()
    );
    for problem in &report.problems {
        text += &format!("{problem}; repair: {}\n", problem.remedy);
    }
    let more = report.problem_count - report.problems.len() as u64;
    if more > 0 {
        text += &format!("… and {more} more\n");
    }
    text
}

fn pending(count: usize, what: &str) -> String {
    match count {
        0 => "0".to_owned(),
        count => format!("{count}, {what} when it is next opened"),
    }
}

fn json(report: &BttReport) -> serde_json::Value {
    let problem = |problem: &BttProblem| {
        json!({
            "arena": problem.arena,
            "offset": problem.offset,
            "field": problem.field,
            "text": problem.text,
            "remedy": problem.remedy,
        })
    };
    json!({
        "layout": version(report.version),
        "uuid": uuid(&report.uuid),
        "size_bytes": report.size_bytes,
        "sector_bytes": report.sector_bytes,
        "arenas": report.arenas,
        "lanes": report.lanes,
        "flog_padded": report.is_flog_padded,
        "damaged_info_blocks": report.damaged_copies,
        "unfinished_writes": report.unfinished_writes,
        "problem_count": report.problem_count,
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

fn version(version: BttVersion) -> &'static str {
    match version {
        BttVersion::V1_1 => "1.1",
        BttVersion::V2_0 => "2.0",
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

fn repair(args: &BttRepairArgs) -> Result {
    let file = PmemFile::open(&args.file)?;
    let done = Btt::repair(&file).map_err(|error| refused(&args.file, error))?;
    let name = args.file.display();
    if done.is_empty() {
        return print(&format!("{name}: sound, nothing to do\n"));
    }
    let lines: String = done.iter().map(|line| format!("  {line}\n")).collect();
    print(&format!("{name}: sound again.\n{lines}"))
}

fn refused(path: &Path, error: Error) -> Failure {
    match error.kind() {
        ErrorKind::ReadOnly => Failure::Failed(format!("{}: {error}", path.display())),
        _ => error.into(),
    }
}
