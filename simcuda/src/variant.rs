//! Copies of the shared library that lack functions, for programs that look them up by `dlsym`.
//!
//! What an old driver lacks it does not export. The copy's dynamic symbol table says of the functions to hide that they
//! are not defined here, so that the dynamic linker passes them over; nothing else changes.

/// Bytes of an entry of a 64-bit symbol table.
const SYMBOL: usize = 24;

fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(size)?)?;
    Some(part.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)))
}

fn offset(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(number(bytes, at, 8)?).ok()
}

/// Where the dynamic symbol table begins and ends, and where its strings begin.
fn symbols(bytes: &[u8]) -> Option<(usize, usize, usize)> {
    // 64-bit, little-endian.
    if bytes.get(..6)? != b"\x7FELF\x02\x01" {
        return None;
    }
    let headers = offset(bytes, 0x28)?;
    let (size, count) = (number(bytes, 0x3A, 2)? as usize, number(bytes, 0x3C, 2)? as usize);
    let header = |index: usize| headers.checked_add(index.checked_mul(size)?);
    const DYNAMIC_SYMBOLS: u64 = 11;
    let table = (0..count).filter_map(header).find(|&at| number(bytes, at + 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let (start, len) = (offset(bytes, table + 0x18)?, offset(bytes, table + 0x20)?);
    let strings = header(number(bytes, table + 0x28, 4)? as usize)?;
    Some((start, start.checked_add(len)?, offset(bytes, strings + 0x18)?))
}

/// Hides the exported functions that `names` lists.
///
/// # Errors
/// A text that says which name is not exported, or that the file is no shared library of this kind.
pub fn hide(library: &mut [u8], names: &[String]) -> Result<(), String> {
    let (start, end, strings) = symbols(library).ok_or("not a 64-bit shared library")?;
    let mut left: Vec<&String> = names.iter().collect();
    for at in (start..end).step_by(SYMBOL) {
        let name = number(library, at, 4).and_then(|name| library.get(strings + name as usize..));
        let Some(name) = name.and_then(|text| text.split(|&byte| byte == 0).next()) else { continue };
        let Some(found) = left.iter().position(|wanted| wanted.as_bytes() == name) else { continue };
        left.remove(found);
        // Section, value and size: undefined, none, none.
        library.get_mut(at + 6..at + SYMBOL).ok_or("the symbol table is cut off")?.fill(0);
    }
    match left.first() {
        Some(name) => Err(format!("`{name}` is not exported")),
        None => Ok(()),
    }
}
