//! The needs of an ELF file, read from its program headers; and its named sections.

const EM_X86_64: u64 = 62;
const EM_AARCH64: u64 = 183;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;

/// The files that must be present for it to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// It names a program interpreter (the dynamic loader).
    pub interpreter: bool,
    /// The number of shared libraries that it names.
    pub libraries: usize,
}

/// Reads the needs of a 64-bit little-endian ELF file.
///
/// # Errors
/// One line, if `file` is another kind of file or its headers point outside of it.
pub fn needs(file: &[u8]) -> Result<Needs, String> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file".into());
    }
    let table = number(file, 32, 8)?;
    let entry_bytes = number(file, 54, 2)?;
    let mut needs = Needs::default();
    for index in 0..number(file, 56, 2)? {
        let header = table.saturating_add(index * entry_bytes);
        match number(file, header, 4)? as u32 {
            PT_INTERP => needs.interpreter = true,
            PT_DYNAMIC => {
                let offset = number(file, header.saturating_add(8), 8)?;
                let length = number(file, header.saturating_add(32), 8)?;
                needs.libraries += library_names(file, offset, length)?.len();
            }
            _ => {}
        }
    }
    Ok(needs)
}

/// The processor that an ELF file is for, by Rust's name of it.
///
/// # Errors
/// One line, if `file` is another kind of file or for another processor than ours.
pub fn machine(file: &[u8]) -> Result<&'static str, String> {
    needs(file)?;
    match number(file, 18, 2)? {
        EM_X86_64 => Ok("x86_64"),
        EM_AARCH64 => Ok("aarch64"),
        other => Err(format!("for the processor {other} of ELF")),
    }
}

/// The numbers of the shared libraries' names in the dynamic table at `offset`.
fn library_names(file: &[u8], offset: u64, length: u64) -> Result<Vec<u64>, String> {
    let mut names = Vec::new();
    for at in (offset..offset.saturating_add(length)).step_by(16) {
        match number(file, at, 8)? {
            DT_NULL => break,
            DT_NEEDED => names.push(number(file, at.saturating_add(8), 8)?),
            _ => {}
        }
    }
    Ok(names)
}

/// The files that a 64-bit little-endian ELF file loads: its libraries, and the name of its interpreter without
/// the folder.
///
/// # Errors
/// One line, if `file` is another kind of file or its headers point outside of it.
pub fn libraries(file: &[u8]) -> Result<Vec<String>, String> {
    let needs = needs(file)?;
    let mut libraries = Vec::new();
    if needs.interpreter {
        let path = text(section(file, ".interp")?);
        libraries.extend(path.rsplit('/').next().map(str::to_string));
    }
    if needs.libraries > 0 {
        let dynamic = section(file, ".dynamic")?;
        let names = section(file, ".dynstr")?;
        for name in library_names(dynamic, 0, dynamic.len() as u64)? {
            libraries.push(text(names.get(name as usize..).unwrap_or_default()));
        }
    }
    Ok(libraries)
}

/// The text up to a NUL.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The content of the section called `name`, of a 64-bit little-endian ELF file.
///
/// # Errors
/// One line, if `file` is another kind of file, has no such section, or its headers point outside.
pub fn section<'a>(file: &'a [u8], name: &str) -> Result<&'a [u8], String> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file".into());
    }
    let table = number(file, 40, 8)?;
    let entry_bytes = number(file, 58, 2)?;
    let header = |index: u64| table.saturating_add(index * entry_bytes);
    let names = content(file, header(number(file, 62, 2)?))?;
    for index in 0..number(file, 60, 2)? {
        let start = number(file, header(index), 4)? as usize;
        let called = names.get(start..).unwrap_or_default();
        if called.split(|byte| *byte == 0).next() == Some(name.as_bytes()) {
            return content(file, header(index));
        }
    }
    Err(format!("no section {name}"))
}

/// The content of the section header at `header`.
fn content(file: &[u8], header: u64) -> Result<&[u8], String> {
    let offset = number(file, header.saturating_add(24), 8)?;
    let length = number(file, header.saturating_add(32), 8)?;
    let end = offset
        .checked_add(length)
        .filter(|end| *end <= file.len() as u64);
    end.and_then(|end| file.get(offset as usize..end as usize))
        .ok_or_else(|| {
            format!("a section header points to byte {offset}, past the end of the file")
        })
}

/// The little-endian number of `width` bytes at `offset`.
fn number(file: &[u8], offset: u64, width: usize) -> Result<u64, String> {
    let bytes = usize::try_from(offset)
        .ok()
        .and_then(|start| file.get(start..start.checked_add(width)?))
        .ok_or_else(|| format!("a header points to byte {offset}, past the end of the file"))?;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An ELF file with one section `name` beside that of the names.
    pub fn with_section(name: &str, content: &[u8]) -> Vec<u8> {
        let names = format!("\0{name}\0.names\0");
        let mut file = vec![0; 64 + 3 * 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[40] = 64; // where the section headers start
        file[58] = 64; // the size of one
        file[60] = 3;
        file[62] = 2; // which of them holds the names
        let sections = [(1, content), (name.len() + 2, names.as_bytes())];
        for (index, (called, content)) in sections.into_iter().enumerate() {
            let at = 64 * (index + 2);
            let offset = file.len() as u64;
            file[at..at + 4].copy_from_slice(&(called as u32).to_le_bytes());
            file[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend_from_slice(content);
        }
        file
    }

    #[test]
    fn a_section_is_found_by_its_name() {
        let file = with_section(".modinfo", b"depends=");
        assert_eq!(section(&file, ".modinfo"), Ok(&b"depends="[..]));
        assert_eq!(section(&file, ".mod"), Err("no section .mod".into()));
        assert!(section(&file[..file.len() - 20], ".modinfo").is_err());
        assert!(section(b"#!/bin/sh", ".modinfo").is_err());
    }

    /// An ELF file of the given program headers `(type, offset, length)` with `dynamic` at byte 1024.
    fn file(headers: &[(u32, u64, u64)], dynamic: &[u64]) -> Vec<u8> {
        let mut file = vec![0; 2048];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64; // where the program headers start
        file[54] = 56; // the size of one
        file[56] = headers.len() as u8;
        for (index, (kind, offset, length)) in headers.iter().enumerate() {
            let at = 64 + 56 * index;
            file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&length.to_le_bytes());
        }
        for (index, word) in dynamic.iter().enumerate() {
            let at = 1024 + 8 * index;
            file[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        file
    }

    #[test]
    fn a_static_file_needs_nothing() {
        let file = file(
            &[(1, 0, 2048), (PT_DYNAMIC, 1024, 64)],
            &[30, 0, DT_NULL, 0, DT_NEEDED, 0],
        );
        assert_eq!(needs(&file), Ok(Needs::default()));
    }

    #[test]
    fn an_interpreter_and_each_library_are_seen() {
        let headers = [(PT_INTERP, 512, 28), (PT_DYNAMIC, 1024, 64)];
        let file = file(&headers, &[DT_NEEDED, 1, DT_NEEDED, 9, DT_NULL, 0]);
        let expected = Needs {
            interpreter: true,
            libraries: 2,
        };
        assert_eq!(needs(&file), Ok(expected));
    }

    #[test]
    fn broken_files_are_errors() {
        assert!(needs(b"#!/bin/sh").is_err());
        assert!(needs(b"\x7fELF\x02\x01").is_err());
        assert!(needs(&file(&[(PT_DYNAMIC, u64::MAX - 8, 64)], &[])).is_err());
    }

    #[test]
    fn this_very_test_needs_libc() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = needs(&file).unwrap();
        // Tests are linked dynamically on GNU systems; elsewhere only parsing is checked.
        assert!(cfg!(target_feature = "crt-static") || needs.interpreter && needs.libraries > 0);
        let names = libraries(&file).unwrap();
        assert_eq!(
            names.len(),
            needs.libraries + usize::from(needs.interpreter)
        );
        assert!(
            names
                .iter()
                .all(|name| name.contains(".so") && !name.contains('/')),
            "{names:?}"
        );
    }
}
