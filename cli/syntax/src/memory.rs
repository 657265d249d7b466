//! Amounts of memory as people write them.

use thiserror::Error;

/// The text is not an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MemoryError {
    #[error("{0} has no unit: write {0}M (MiB) or {0}G (GiB)")]
    NoUnit(String),
    #[error("{0:?} is not an amount of memory, such as 512M or 16G")]
    Form(String),
    #[error("more than 0 is needed")]
    Zero,
}

/// Parses `512M`, `16G` or `1.5T`, optionally followed by `iB` or `B`, in powers of 1024.
///
/// # Errors
/// The text is not an amount, or has no unit: Slurm reads a bare number as MiB, and people as GiB.
pub fn parse(text: &str) -> Result<u64, MemoryError> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(MemoryError::NoUnit(text.to_owned()));
    }
    let wrong = || MemoryError::Form(text.to_owned());
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit) {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| if part.is_empty() { Ok(0) } else { part.parse::<u64>().map_err(|_| wrong()) };
    let (whole_part, fraction_part) = (digits(whole)?, digits(fraction)?);
    if number.is_empty() || number == "." || fraction.len() > 6 {
        return Err(wrong());
    }
    let of_fraction = (u128::from(fraction_part) << shift) / 10u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let bytes = u64::try_from((u128::from(whole_part) << shift) + of_fraction).map_err(|_| wrong())?;
    if bytes == 0 { Err(MemoryError::Zero) } else { Ok(bytes) }
}

/// The same, or `0` for all memory of a node.
///
/// # Errors
/// As [`parse`].
pub fn parse_or_all(text: &str) -> Result<u64, MemoryError> {
    if text == "0" { Ok(0) } else { parse(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_parsed() {
        for (text, bytes) in
            [("512M", 512 << 20), ("16G", 16 << 30), ("16GiB", 16 << 30), ("1.5g", 3 << 29), ("2TB", 2 << 40), ("64k", 64 << 10)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!((parse_or_all("0"), parse_or_all("1K")), (Ok(0), Ok(1024)));
        assert_eq!(parse("16").unwrap_err().to_string(), "16 has no unit: write 16M (MiB) or 16G (GiB)");
        for bad in ["", "1.5", "G", "-1G", "1X", "1..2G", "0", "0.0000001G", "99999999999999999999T", "20000000T", "B", "5B", "."] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
