//! How much ended work the quorum keeps.

use lattice_api::v1;
use lattice_model::duration::{clock_text, units_text};
use lattice_model::resources::bytes_text;
use std::time::Duration;

/// How long ended work is kept, for people.
pub fn ended_kept(ended: &v1::EndedWork) -> String {
    units_text(Duration::from_millis(ended.kept_ms))
}

/// How much is kept, and whether full memory shortens the time.
pub fn ended_work(ended: &v1::EndedWork) -> String {
    let mut text = format!("{} kept, {} of {}", ended.count, bytes_text(ended.bytes), bytes_text(ended.memory_bytes));
    if ended.oldest_ended_at_ms > 0 {
        let ago = Duration::from_millis(ended.at_ms.saturating_sub(ended.oldest_ended_at_ms));
        text += &format!("; the oldest ended {} ago", clock_text(ago));
    }
    if ended.cut_short {
        text += &format!(
            "; some is forgotten before the limit of {}, because the memory is full (more: `lattice admin limits --ended-memory SIZE`)",
            ended_kept(ended)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::json::EndedWorkJson;

    #[test]
    fn ended_work_is_shown_with_the_age_of_the_oldest_and_whether_memory_is_full() {
        let none = v1::EndedWork { kept_ms: 3_600_000, memory_bytes: 256 << 20, at_ms: 10_000_000, ..Default::default() };
        assert_eq!((ended_kept(&none), ended_work(&none)), ("1 hour".to_owned(), "0 kept, 0 KiB of 256 MiB".to_owned()));
        let some = v1::EndedWork { count: 12, bytes: 20 << 10, oldest_ended_at_ms: 6_277_000, ..none };
        assert_eq!(ended_work(&some), "12 kept, 20 KiB of 256 MiB; the oldest ended 01:02:03 ago");
        let full = v1::EndedWork { forgotten_until_ms: 6_276_000, cut_short: true, ..some };
        let more = "; some is forgotten before the limit of 1 hour, because the memory is full \
                    (more: `lattice admin limits --ended-memory SIZE`)";
        assert_eq!(ended_work(&full), ended_work(&some) + more);
        let want = serde_json::json!({
            "kept_seconds": 3600, "memory_bytes": 268_435_456, "count": 12, "bytes": 20_480,
            "oldest_ended_at": "1970-01-01T01:44:37.000Z", "forgotten_until": "1970-01-01T01:44:36.000Z", "cut_short": true,
        });
        assert_eq!(serde_json::json!(EndedWorkJson::from(&full)), want);
        assert!(serde_json::json!(EndedWorkJson::from(&none))["oldest_ended_at"].is_null());
    }
}
