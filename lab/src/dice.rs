//! Random numbers that depend only on a seed, on every machine and with every version of a library.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same sequence for the same seed and purpose, and a different one for each purpose.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mixed = purpose.bytes().fold(seed, |state, byte| state.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(byte));
        let mut dice = Self(mixed);
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// A number from 0 to 1, without both.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    /// One of these; the list must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let last = u64::try_from(from.len() - 1).unwrap_or(0);
        &from[usize::try_from(self.between(0, last)).unwrap_or(0)]
    }

    /// One of these, with a probability in proportion to its weight; the sum of all weights must not be 0.
    pub fn weighted<T: Copy>(&mut self, from: &[(u64, T)]) -> T {
        let mut left = self.between(1, from.iter().map(|(weight, _)| weight).sum());
        let chosen = from.iter().find(|(weight, _)| {
            let is = left <= *weight;
            left = left.saturating_sub(*weight);
            is
        });
        chosen.unwrap_or(&from[0]).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_for_each_purpose() {
        let draw = |seed, purpose| {
            let mut dice = Dice::new(seed, purpose);
            (0..8).map(|_| dice.between(0, 1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, "jobs"), draw(7, "jobs"));
        assert_ne!(draw(7, "jobs"), draw(8, "jobs"));
        assert_ne!(draw(7, "jobs"), draw(7, "faults"));
    }

    #[test]
    fn weights_are_kept_and_weight_zero_never_comes() {
        let mut dice = Dice::new(1, "weights");
        let drawn: Vec<u8> = (0..4000).map(|_| dice.weighted(&[(3, 0), (0, 1), (1, 2)])).collect();
        let count = |what| drawn.iter().filter(|d| **d == what).count();
        assert_eq!(count(1), 0);
        assert!((2800..3200).contains(&count(0)), "{}", count(0));
    }
}
