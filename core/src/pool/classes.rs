//! Classes of sizes, and which of them hold something: what [`super::bins`] and [`super::recents`] are sorted by.
//!
//! A class is a 32nd of a doubling: one size as long as sizes are whole units of alignment and below 64 of them.

use std::cmp::min;

/// Sizes from 16, the smallest alignment, to 2^47 bytes.
pub(super) const CLASSES: usize = 43 * 32 + 1;
/// Classes in words of bits.
const WORDS: usize = CLASSES.div_ceil(64);
const _: () = assert!(WORDS <= 32);

/// The class of a size: sizes that are alike have the same, larger ones a higher. (A float's upper bits are the number of
/// binary digits and the digits themselves, the first left out.) What is no block's size, as 0, has the last.
#[inline(always)]
pub(super) fn class_of(size: u64) -> usize {
    const LEAST: u64 = (1023 + 4) << 5;
    min(((size as i64 as f64).to_bits() >> (52 - 5)).wrapping_sub(LEAST) as usize, CLASSES - 1)
}

/// The same, and for 0 the first.
#[inline(always)]
pub(super) fn class_from(size: u64) -> usize {
    if size == 0 { 0 } else { class_of(size) }
}

/// Which classes hold something.
pub(super) struct Occupied {
    /// A bit per word that is not 0.
    summary: u32,
    words: [u64; WORDS],
}

impl Occupied {
    pub(super) const NONE: Occupied = Occupied { summary: 0, words: [0; WORDS] };

    #[inline(always)]
    pub(super) fn has(&self, c: usize) -> bool {
        self.words[c / 64] >> (c % 64) & 1 != 0
    }
    #[inline(always)]
    pub(super) fn set(&mut self, c: usize) {
        self.words[c / 64] |= 1 << (c % 64);
        self.summary |= 1 << (c / 64);
    }
    #[inline(always)]
    pub(super) fn clear(&mut self, c: usize) {
        let word = &mut self.words[c / 64];
        *word &= !(1 << (c % 64));
        if *word == 0 {
            self.summary &= !(1 << (c / 64));
        }
    }
    /// The first from `from` on.
    #[inline(always)]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let bits = self.words.get(word)? & (u64::MAX << (from % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let later = self.summary & (u32::MAX << (word + 1));
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
    pub(super) fn last(&self) -> Option<usize> {
        let word = self.words.iter().rposition(|&bits| bits != 0)?;
        Some(word * 64 + 63 - self.words[word].leading_zeros() as usize)
    }
    pub(super) fn check(&self) -> Result<(), String> {
        for (word, &bits) in self.words.iter().enumerate() {
            if (bits != 0) != (self.summary >> word & 1 == 1) {
                return Err(format!("word {word} of classes: bitmap and its summary disagree"));
            }
        }
        Ok(())
    }
}
