//! Formatting of numbers.

use lattice_model::resources::bytes_text;

pub fn value_text(value: f64, unit: &str) -> String {
    let bytes = |value: f64| bytes_text(value.max(0.0) as u64);
    match unit {
        "bytes" => bytes(value),
        "bytes/s" => format!("{}/s", bytes(value)),
        "cores" => format!("{value:.2} cores"),
        "ratio" => format!("{:.1} %", value * 100.0),
        "1/s" => format!("{value:.0}/s"),
        "count" => format!("{value:.0}"),
        "W" => format!("{value:.0} W"),
        "°C" => format!("{value:.0} °C"),
        "Hz" => format!("{:.0} MHz", value / 1e6),
        "J" if value >= 1e6 => format!("{:.2} MJ", value / 1e6),
        "J" if value >= 1e4 => format!("{:.1} kJ", value / 1e3),
        "J" => format!("{value:.1} J"),
        "seconds" if value < 1e-3 => format!("{:.1} µs", value * 1e6),
        "seconds" if value < 1.0 => format!("{:.1} ms", value * 1e3),
        "seconds" => format!("{value:.1} s"),
        other => format!("{value} {other}"),
    }
}

pub fn age_text(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}
