use super::*;
use proptest::prelude::*;

const OUT: Stream = Stream { launch: 1, rank: 0, stderr: false };

fn index() -> Index {
    Index {
        version: VERSION,
        allocation: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
        epoch: Epoch(3),
        node: "n1".parse().unwrap(),
        nodes: vec!["n1".parse().unwrap()],
        tenant: "t".into(),
        project: "p".into(),
        owner_uid: 1,
        owner: "daemon".into(),
        complete: false,
        streams: Vec::new(),
    }
}

fn seen(bytes: u64, data_start: u64, written_ms: u64) -> Seen {
    Seen { stream: OUT, bytes, data_start, written_ns: written_ms * 1_000_000, print: None, rewritten: false }
}

fn at(segment: u32, offset: u64) -> Position {
    Position { segment, offset }
}

fn chunk(start: u64, end: u64, open: bool) -> Chunk {
    Chunk { start, end, open }
}

#[test]
fn a_slow_streams_chunk_is_put_longer_and_longer_under_its_name_until_it_is_worth_closing() {
    let mut i = index();
    let mut put = Vec::new();
    for bytes in [10, 10, 100_000, 300_000, 300_001] {
        let seen = seen(bytes, 0, 0);
        i.see(&seen, 0);
        assert_eq!(i.cut(&seen, false), None, "nothing is due by size");
        if let Some(cut) = i.cut(&seen, true) {
            i.put(&cut);
            put.push(cut.chunk);
        }
    }
    assert_eq!(put, [chunk(0, 10, true), chunk(0, 100_000, true), chunk(0, 300_000, false), chunk(300_000, 300_001, true)]);
    assert_eq!(i.stream(OUT).unwrap().segments[0].chunks, put[2..]);
    assert_eq!(i.flushed(OUT), Some(at(0, 300_000)), "what is open may be needed again");
}

#[test]
fn a_fast_stream_is_cut_by_size() {
    let mut i = index();
    let seen = seen(2 * CHUNK_BYTES_MAX + 5, 0, 0);
    i.see(&seen, 0);
    for start in [0, CHUNK_BYTES_MAX] {
        let cut = i.cut(&seen, false).unwrap();
        assert_eq!(cut.chunk, chunk(start, start + CHUNK_BYTES_MAX, false));
        i.put(&cut);
    }
    assert_eq!(i.cut(&seen, false), None);
}

#[test]
fn output_removed_before_its_upload_is_a_gap() {
    let mut i = index();
    let early = seen(1000, 0, 0);
    i.see(&early, 0);
    i.put(&i.cut(&early, true).unwrap());
    let late = seen(20_000, 8192, 0);
    i.see(&late, 0);
    let cut = i.cut(&late, true).unwrap();
    assert_eq!(cut.chunk, chunk(8192, 20_000, true));
    i.put(&cut);
    assert_eq!(i.stream(OUT).unwrap().segments[0].chunks, [chunk(0, 1000, false), chunk(8192, 20_000, true)]);
    let all_gone = seen(20_000, 20_000, 0);
    assert_eq!(i.cut(&all_gone, true), None);
}

#[test]
fn a_file_that_shrank_begins_a_new_segment_once() {
    let mut i = index();
    assert_eq!(i.see(&seen(100, 0, 1), 1), (0, false));
    i.put(&i.cut(&seen(100, 0, 1), true).unwrap());
    assert_eq!(i.see(&seen(7, 0, 2), 2), (1, true));
    assert_eq!(i.see(&seen(7, 0, 2), 3), (1, false));
    assert_eq!(i.cut(&seen(7, 0, 2), true).unwrap(), Cut { stream: OUT, segment: 1, chunk: chunk(0, 7, true) });
    assert_eq!(i.see(&Seen { rewritten: true, ..seen(9, 0, 4) }, 4), (2, true), "also one that has grown again");
    let stream = i.stream(OUT).unwrap();
    assert_eq!((stream.segments[0].bytes, stream.first()), (100, at(0, 0)));
    let mut nothing_kept = index();
    nothing_kept.see(&seen(100, 0, 1), 1);
    nothing_kept.see(&seen(7, 0, 2), 2);
    assert_eq!(nothing_kept.stream(OUT).unwrap().first(), at(1, 0));
}

#[test]
fn chunks_in_the_store_beyond_the_recorded_index_are_found() {
    let (mut stored, mut written) = (index(), index());
    for (i, bytes) in [(&mut stored, 300_000), (&mut written, 1000)] {
        let seen = seen(bytes, 0, 1);
        i.see(&seen, 1);
        let cut = i.cut(&seen, true).unwrap();
        i.put(&cut);
    }
    let ahead = stored.clone();
    stored.learn(&written);
    assert_eq!(stored, ahead, "what is behind teaches nothing");
    written.learn(&stored);
    assert_eq!(written, ahead);
    let mut nothing = index();
    nothing.learn(&stored);
    assert_eq!(nothing.streams, ahead.streams);
    let punched = seen(400_000, 290_816, 2);
    nothing.see(&punched, 2);
    assert_eq!(nothing.cut(&punched, true).unwrap().chunk, chunk(300_000, 400_000, true), "and there is no gap");
}

#[test]
fn times_are_places_also_over_pauses_and_truncations() {
    let mut i = index();
    // Ten bytes a second for five seconds, a pause until 100 s, one more burst, then a truncation
    // at 200 s.
    for s in 1..=5 {
        i.see(&seen(s * 10, 0, s * 1000), s * 1000 + 500);
    }
    for s in 6..100 {
        i.see(&seen(50, 0, 5000), s * 1000 + 500);
    }
    i.see(&seen(90, 0, 100_000), 100_500);
    i.see(&seen(4, 0, 200_000), 200_500);
    let s = i.stream(OUT).unwrap();
    for (ms, since, until) in [
        (0, at(0, 0), Some(at(0, 10))),
        (3000, at(0, 30), Some(at(0, 30))),
        (3100, at(0, 30), Some(at(0, 40))),
        (50_000, at(0, 50), Some(at(0, 50))),
        (100_000, at(0, 90), Some(at(0, 90))),
        (200_000, at(1, 4), Some(at(1, 4))),
        (300_000, at(1, 4), None),
    ] {
        assert_eq!(s.since(ms).max(s.first()), since.max(s.first()), "since {ms}");
        assert_eq!(s.until(ms), until, "until {ms}");
    }
}

proptest! {
    /// However a file grows, is punched, shrinks and is flushed: chunks never overlap, and never
    /// reach beyond what was there.
    #[test]
    fn chunks_are_in_order_and_apart(steps in proptest::collection::vec((0u64..12_000_000, 0u64..6, any::<bool>()), 1..60)) {
        let mut i = index();
        let (mut bytes, mut start, mut now) = (0u64, 0u64, 0u64);
        for (step, kind, by_time) in steps {
            now += 700;
            match kind {
                0 => { bytes = step % 1000; start = 0; }
                1 => start = (start + step).min(bytes) / 4096 * 4096,
                _ => bytes += step,
            }
            let seen = seen(bytes, start, now);
            i.see(&seen, now);
            while let Some(cut) = i.cut(&seen, by_time) {
                prop_assert!(cut.chunk.start >= start && cut.chunk.end <= bytes && cut.chunk.start < cut.chunk.end);
                i.put(&cut);
            }
            for segment in &i.stream(OUT).unwrap().segments {
                prop_assert!(segment.chunks.windows(2).all(|w| w[0].end <= w[1].start && !w[0].open));
                prop_assert!(segment.chunks.last().is_none_or(|c| c.end <= segment.bytes));
                prop_assert!(segment.samples.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1));
                prop_assert!(segment.samples.len() <= SAMPLES_MAX);
            }
            if by_time {
                prop_assert_eq!(i.stream(OUT).unwrap().segments.last().unwrap().chunks.last().map_or(start, |c| c.end).max(start), bytes.max(start));
            }
        }
    }
}

#[test]
fn a_short_stream_is_stored_as_a_few_numbers_and_every_other_one_as_it_is() {
    let mut i = index();
    let of = |launch: u32, bytes: u64| Seen { stream: Stream { launch, ..OUT }, print: Some(7), ..seen(bytes, 0, 1_772_704_812_034) };
    for launch in 1..=1000 {
        let seen = of(launch, 20);
        i.see(&seen, 1_772_704_812_100);
        let cut = i.cut(&seen, true).unwrap();
        i.put(&cut);
    }
    let size = |index: &Index| serde_json::to_vec(&index.streams).unwrap().len();
    assert!(size(&i) < 70 * 1000, "{} bytes for 1000 tasks", size(&i));
    // These have bytes that are not stored, a second chunk, a second segment.
    i.see(&of(1, 30), 1_772_704_812_200);
    i.see(&of(1001, 40), 1_772_704_812_100);
    let long = of(1002, 300_000);
    i.see(&long, 1_772_704_812_100);
    i.put(&i.cut(&long, true).unwrap());
    let longer = of(1002, 300_001);
    i.see(&longer, 1_772_704_812_200);
    i.put(&i.cut(&longer, true).unwrap());
    i.see(&of(2, 5), 1_772_704_812_200);
    let stored = serde_json::to_string(&i).unwrap();
    assert_eq!(stored.matches("\"segments\"").count(), 4, "{}", &stored[..400]);
    let mut read: Index = serde_json::from_str(&stored).unwrap();
    // When a stream was last looked at is not stored.
    let forgot = |index: &mut Index| index.streams.iter_mut().flat_map(|s| &mut s.segments).for_each(|s| s.looked_ms = 0);
    forgot(&mut read);
    forgot(&mut i);
    assert_eq!(read, i);
}
