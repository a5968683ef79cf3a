//! Classes of sizes, and which of them hold something: what [`super::bins`] and [`super::recents`] are sorted by.
//!
//! A class is a 32nd of a doubling: one size as long as sizes are whole units of alignment and below 64 of them.

/// A power of two, so that the lower bits of a number are a class. (Sizes from 16 bytes, the smallest alignment, to 2^47 take
/// two thirds of them.)
pub(super) const CLASSES: usize = 2048;
/// Classes in words of bits.
const WORDS: usize = CLASSES / 64;

/// The class of a size: sizes that are alike have the same, larger ones a higher; 0 has the first. (A float's upper bits are
/// the number of binary digits and the digits themselves, the first left out.)
#[inline(always)]
pub(super) fn class_of(size: u64) -> usize {
    ((size as i64 as f64).to_bits() >> (52 - 5)) as usize % CLASSES
}

/// The smallest size that is alike with `size`; 0 for 0.
#[inline(always)]
pub(super) fn least_alike(size: u64) -> u64 {
    let low = (63 - (size | 1).leading_zeros()).saturating_sub(5);
    size >> low << low
}

/// The first class of a word of bits, of which one is set.
#[inline(always)]
fn class_in(word: usize, bits: u64) -> usize {
    // (So that it is seen to be one.)
    (word * 64 + bits.trailing_zeros() as usize) % CLASSES
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
        // (Not a branch: which way it would go, nothing foretells.)
        self.summary &= !(u32::from(*word == 0) << (c / 64));
    }
    /// Whether there is one near `from` or later; `false` is sure.
    #[inline(always)]
    pub(super) fn may_have_from(&self, from: usize) -> bool {
        self.summary >> (from / 64) != 0
    }
    /// The first from `from` on.
    #[inline(always)]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let (word, kept) = (from / 64, u64::MAX << (from % 64));
        let first = self.words.get(word)? & kept;
        let later = self.summary & (u32::MAX - 1) << word | u32::from(first != 0) << word;
        if later == 0 {
            return None;
        }
        let found = later.trailing_zeros() as usize % WORDS;
        // (All bits of a later word. Not a branch: see `clear`.)
        Some(class_in(found, self.words[found] & (kept | u64::from(found == word).wrapping_sub(1))))
    }
    /// Takes out all from `from` on, to be gone through by [`Occupied::pop`], with nothing set meanwhile.
    #[inline(always)]
    pub(super) fn take_from(&mut self, from: usize) -> Taken {
        let (word, kept) = (from / 64 % WORDS, u64::MAX << (from % 64));
        let first = &mut self.words[word];
        let bits = *first & kept;
        *first ^= bits;
        let words = self.summary & (u32::MAX - 1) << word;
        self.summary &= !(words | u32::from(*first == 0) << word);
        Taken { word, bits, words }
    }
    /// The next of those that were taken out.
    #[inline(always)]
    pub(super) fn pop(&mut self, taken: &mut Taken) -> Option<usize> {
        if taken.bits == 0 {
            if taken.words == 0 {
                return None;
            }
            taken.word = taken.words.trailing_zeros() as usize % WORDS;
            taken.words &= taken.words - 1;
            taken.bits = std::mem::take(&mut self.words[taken.word]);
        }
        let c = class_in(taken.word, taken.bits);
        taken.bits &= taken.bits.wrapping_sub(1);
        Some(c)
    }
    /// Those that were taken out and not popped are set again.
    #[inline(always)]
    pub(super) fn put_back(&mut self, taken: Taken) {
        self.words[taken.word] |= taken.bits;
        self.summary |= taken.words | u32::from(taken.bits != 0) << taken.word;
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

/// Classes that were taken out, lowest first: those left of one word, and the words that are left.
pub(super) struct Taken {
    word: usize,
    bits: u64,
    words: u32,
}

#[cfg(test)]
mod tests {
    use super::{CLASSES, Occupied, class_of, least_alike};

    #[test]
    fn what_holds_something_is_found_and_taken_out_from_each_class_on() {
        let held = [0, 1, 63, 64, 700, 702, 703, CLASSES - 1];
        let mut occupied = Occupied::NONE;
        held.into_iter().for_each(|c| occupied.set(c));
        for from in 0..CLASSES {
            assert_eq!(occupied.next(from), held.into_iter().find(|&c| c >= from));
        }
        assert_eq!(occupied.next(CLASSES), None);
        for from in [703, 1] {
            let mut taken = occupied.take_from(from);
            let taken: Vec<usize> = std::iter::from_fn(|| occupied.pop(&mut taken)).collect();
            occupied.check().unwrap();
            assert_eq!(taken, if from == 1 { &held[1..6] } else { &held[6..] });
        }
        assert_eq!((occupied.next(0), occupied.next(1)), (Some(0), None));
        held.into_iter().for_each(|c| occupied.set(c));
        for popped in 0..held.len() {
            let mut taken = occupied.take_from(0);
            for c in &held[..popped] {
                assert_eq!(occupied.pop(&mut taken), Some(*c));
            }
            occupied.put_back(taken);
            occupied.check().unwrap();
            held[..popped].iter().for_each(|&c| occupied.set(c));
            assert!(held.into_iter().all(|c| occupied.has(c)));
        }
    }

    #[test]
    fn classes_ascend_and_begin_where_sizes_stop_being_alike() {
        for step in 0..1 << 16 {
            let size = (1u64 << (4 + step % 43)) + (step / 43) * 16;
            let least = least_alike(size);
            assert!(least <= size && class_of(least) == class_of(size));
            assert!(class_of(least - 1) < class_of(size));
        }
        assert_eq!(class_of(1 << 47) - class_of(16), 43 * 32);
        assert_eq!((least_alike(0), class_of(0)), (0, 0));
    }
}
