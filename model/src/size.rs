//! Amounts of bytes as people write them: `500GB`, `1.5TiB`, `64K`.

use thiserror::Error;

/// The text is not an amount of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not an amount of bytes: write 500GB (powers of 1000), 500GiB or 500G (powers of 1024), or plain bytes")]
pub struct SizeError(pub String);

const UNITS: [&str; 5] = ["k", "m", "g", "t", "p"];

/// Parses an amount. `kB MB GB TB PB` are powers of 1000; `KiB …` and single letters are powers of
/// 1024; a bare number is bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    bytes(text.trim()).ok_or_else(|| SizeError(text.chars().take(40).collect()))
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let (whole, fraction) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = scale(&unit.to_ascii_lowercase())?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    u64::try_from(digits.checked_mul(scale)? / divisor).ok()
}

/// The number of bytes in a unit.
fn scale(unit: &str) -> Option<u128> {
    if matches!(unit, "" | "b") {
        return Some(1);
    }
    let power = UNITS.iter().position(|u| unit.starts_with(u))?;
    let base: u128 = match &unit[1..] {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    Some(base.pow(u32::try_from(power + 1).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_nonsense_is_not() {
        let good = [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("500GB", 500_000_000_000),
            ("500 GiB", 500 << 30),
            ("64K", 64 << 10),
            ("1.5TiB", 3 << 39),
            ("2kb", 2000),
            ("1P", 1 << 50),
        ];
        for (text, bytes) in good {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "-1", "1e3", "1..2G", "5GBs", "5X", "5iB", "99999999999P", "1.0000000001G", "+1", "١"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
