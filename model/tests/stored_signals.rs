//! The stored form of checkpoint signals: the original signals keep their form, so that every
//! member and agent that knows checkpoints can read them.

use lattice_model::{CheckpointSignal, SignalTo};

#[test]
fn original_signals_keep_their_stored_form_and_all_are_read_back() {
    let text = |signal: CheckpointSignal| serde_json::to_string(&signal).unwrap();
    let first = [
        CheckpointSignal::USR1,
        CheckpointSignal::USR2,
        CheckpointSignal::HUP,
        CheckpointSignal::INT,
        CheckpointSignal::ALRM,
        CheckpointSignal::TERM,
    ];
    assert_eq!(first.map(text), ["Usr1", "Usr2", "Hup", "Int", "Alrm", "Term"].map(|name| format!("{name:?}")));
    for signal in (0..=u8::MAX).filter_map(CheckpointSignal::of_number) {
        for to in SignalTo::ALL {
            let signal = signal.to(to);
            assert_eq!(serde_json::from_str::<CheckpointSignal>(&text(signal)).unwrap(), signal);
            assert_eq!(text(signal).starts_with('"'), first.contains(&signal), "{signal}");
        }
    }
    for odd in [9, 0, 32, 255] {
        assert!(serde_json::from_str::<CheckpointSignal>(&format!(r#"{{"Other":{{"number":{odd},"to":"All"}}}}"#)).is_err(), "{odd}");
    }
}
