//! Mutations of an input.

use crate::compare;
use std::time::SystemTime;

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, good enough to choose bytes.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A different seed at each start.
    pub fn seed_of_now() -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_secs() ^ u64::from(since.subsec_nanos()) << 32 ^ u64::from(std::process::id())
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.number() % (end.max(1) as u64)).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }
}

/// Numbers at which decoders often fail.
const EDGES: [u64; 12] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];
/// MessagePack's headers of texts, bytes, arrays and maps with a 32-bit length.
const LONGEST_HEADERS: [u8; 4] = [0xdb, 0xc6, 0xdd, 0xdf];

/// Changes `input` once. `other` is another input, from which a piece may be copied.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let until = at + random.below((input.len() - at).min(32) + 1);
    match random.below(12) {
        0 => flip_bit(input, random),
        1 => set_byte(input, random.byte(), random),
        2 => set_byte(input, b"\0\x01\x7f\x80\xff\n =:,-./09azAZ\"{}[]"[random.below(24)], random),
        3 => add_to_byte(input, random),
        4 => input.truncate(at),
        5 => drop(input.drain(at..until)),
        6 => {
            let piece = input[at..until].to_vec();
            input.splice(at..at, piece.repeat(1 + random.below(4)));
        }
        7 => {
            let more: Vec<u8> = (0..=random.below(8)).map(|_| random.byte()).collect();
            input.splice(at..at, more);
        }
        8 => write_number(input, at, random),
        9 => {
            let from = random.below(other.len() + 1);
            let to = from + random.below(other.len() - from + 1);
            let replaced = if random.below(2) == 0 { at..until } else { at..at };
            input.splice(replaced, other[from..to].iter().copied());
        }
        10 => drop(input.splice(at..at, [LONGEST_HEADERS[random.below(4)], 0xff, 0xff, 0xff, 0xff])),
        _ => substitute_compared_value(input, random),
    }
}

fn flip_bit(input: &mut [u8], random: &mut Random) {
    let at = random.below(input.len());
    let Some(byte) = input.get_mut(at) else { return };
    *byte ^= 1 << random.below(8);
}

fn set_byte(input: &mut [u8], value: u8, random: &mut Random) {
    let at = random.below(input.len());
    let Some(byte) = input.get_mut(at) else { return };
    *byte = value;
}

fn add_to_byte(input: &mut [u8], random: &mut Random) {
    let at = random.below(input.len());
    let Some(byte) = input.get_mut(at) else { return };
    *byte = byte.wrapping_add([1, 2, 4, 16, 240, 252, 254, 255][random.below(8)]);
}

/// Writes one of [`EDGES`], in two, four or eight bytes in either order, or in decimal digits.
fn write_number(input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let number = EDGES[random.below(EDGES.len())];
    let width = [2, 4, 8][random.below(3)];
    let bytes = match random.below(3) {
        0 => number.to_le_bytes()[..width].to_vec(),
        1 => number.to_be_bytes()[8 - width..].to_vec(),
        _ => number.to_string().into_bytes(),
    };
    let end = if random.below(2) == 0 { at } else { (at + bytes.len()).min(input.len()) };
    input.splice(at..end, bytes);
}

/// Replaces one side of a recorded comparison, where the input contains it, by the other side.
fn substitute_compared_value(input: &mut [u8], random: &mut Random) {
    let Some((mut left, mut right)) = compare::recent(random.below(usize::MAX)) else { return };
    if random.below(2) == 0 {
        std::mem::swap(&mut left, &mut right);
    }
    if random.below(2) == 0 {
        left.reverse();
        right.reverse();
    }
    if let Some(at) = input.windows(left.len()).position(|window| window == left) {
        input[at..at + right.len()].copy_from_slice(&right);
    }
}
