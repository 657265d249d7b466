//! An input with several parts: the number of its decoder, or several messages.

/// Reads such an input. After its end it returns zeros and empty pieces.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.piece_of(1).first().copied().unwrap_or(0)
    }

    /// A piece that [`piece`] wrote.
    pub fn piece(&mut self) -> &'a [u8] {
        let length = u16::from_le_bytes([self.byte(), self.byte()]);
        self.piece_of(length.into())
    }

    fn piece_of(&mut self, length: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        piece
    }
}

/// `bytes` with their length in front.
///
/// # Panics
/// They are longer than 65535.
pub fn piece(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a piece is short");
    [&length.to_le_bytes(), bytes].concat()
}

/// Valid messages, each preceded by a byte with the index of its decoder in the list.
pub fn numbered(seeds: impl IntoIterator<Item = Vec<Vec<u8>>>) -> Vec<Vec<u8>> {
    let lists = (0u8..).zip(seeds);
    lists.flat_map(|(which, seeds)| seeds.into_iter().map(move |seed| [&[which], seed.as_slice()].concat())).collect()
}
