//! Tests of decoders with invalid bytes from a network or a backup: no decoder panics, trusts a
//! length that exceeds the input, or keeps anything of a refused input. `PROPTEST_CASES` makes the
//! tests longer.

mod decoders;

pub(crate) use decoders::{Decoder, decoders};

use lattice_api::pack::{from_bytes, to_bytes};
use lattice_ledger::Ledger;
use lattice_store::test_builders::{harm, harmed};
use proptest::prelude::*;

#[test]
fn every_decoder_reads_what_is_written() {
    for decoder in decoders() {
        for sample in &decoder.samples {
            assert!((decoder.decode)(sample), "{}", decoder.name);
        }
    }
}

#[test]
fn depth_is_bounded() {
    // Nested arrays, in an ignored field and in one that is read.
    for head in [&[][..], &[0x81, 0xa1, b'x'][..], &[0x81, 0xa6, b'S', b't', b'a', b't', b'u', b's'][..]] {
        let mut bytes = head.to_vec();
        bytes.resize(head.len() + 1_000_000, 0x91);
        for decoder in decoders() {
            assert!(!(decoder.decode)(&bytes), "{}", decoder.name);
        }
    }
}

proptest! {
    #[test]
    fn messages(bytes in prop::collection::vec(any::<u8>(), 0..256), which in any::<prop::sample::Index>(), harms in prop::collection::vec(harm(), 1..4)) {
        for decoder in decoders() {
            let _read = (decoder.decode)(&bytes);
            let sample = &decoder.samples[which.index(decoder.samples.len())];
            let _read = (decoder.decode)(&harmed(sample, &harms));
        }
    }
}

#[test]
fn no_memory_is_reserved_for_four_billion_entries_that_a_ledger_promises() {
    let bytes = to_bytes(&Ledger::default()).unwrap();
    for at in 0..bytes.len() {
        for head in [0xdb, 0xc6, 0xdd, 0xdf] {
            let mut boasts = bytes.clone();
            boasts.splice(at..=at, [head, 0xff, 0xff, 0xff, 0xff]);
            // The result does not matter: a decoder that trusts the length runs out of memory here.
            let _read = from_bytes::<Ledger>(&boasts);
        }
    }
}
