//! Which model addresses pages and ranges get (`docs/placement.md` §7). Under the slow lock.

use std::collections::BTreeMap;

/// First model address. No x86-64 (48- or 57-bit) or arm64 (top-byte-ignore) user space can map it.
pub(crate) const FIRST_ADDRESS: u64 = 0x53F0_0000_0000_0000;
/// One past the last model address.
pub(crate) const END_ADDRESS: u64 = 0x5400_0000_0000_0000;

/// The addresses of one device.
pub(crate) struct Addresses {
    granularity: u64,
    /// From here on up to the end they have never been given out.
    next: u64,
    end: u64,
    /// What was given out and is free again, by where it begins: where it ends. No two of them touch.
    released: BTreeMap<u64, u64>,
}

/// Addresses for one page or range.
pub(crate) struct Taken {
    pub(crate) address: u64,
    end: u64,
    /// They had never been given out.
    first_time: bool,
}

impl Addresses {
    /// `bytes`: how many there are, a multiple of the `granularity` of pages; at most as many as lie from [`FIRST_ADDRESS`] to
    /// [`END_ADDRESS`].
    pub(crate) fn new(bytes: u64, granularity: u64) -> Addresses {
        let end = FIRST_ADDRESS + bytes.min(END_ADDRESS - FIRST_ADDRESS);
        Addresses { granularity, next: FIRST_ADDRESS, end, released: BTreeMap::new() }
    }

    /// Where what was never given out begins.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The next for `bytes`: such as were never given out, as long as there are. `None`: there are not so many side by side.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Taken> {
        let address = self.next;
        let end = self.end_of(address, bytes)?;
        if end <= self.end {
            self.next = end;
            return Some(Taken { address, end, first_time: true });
        }
        let room = end - address;
        let (&address, &end) = self.released.iter().find(|&(begin, end)| end - begin >= room)?;
        self.released.remove(&address);
        let taken = Taken { address, end: address + room, first_time: false };
        if taken.end < end {
            self.released.insert(taken.end, end);
        }
        Some(taken)
    }

    /// The device refused what these were for: all is as it was before. (Another thread may have taken more meanwhile.)
    pub(crate) fn put_back(&mut self, taken: &Taken) {
        if taken.first_time && taken.end == self.next {
            self.next = taken.address;
        } else {
            self.insert(taken.address, taken.end);
        }
    }

    /// A page or range of `bytes` at `address` is gone.
    pub(crate) fn release(&mut self, address: u64, bytes: u64) {
        if let Some(end) = self.end_of(address, bytes) {
            self.insert(address, end);
        }
    }

    /// Where the addresses for `bytes` at `address` end.
    fn end_of(&self, address: u64, bytes: u64) -> Option<u64> {
        address.checked_add(bytes)?.checked_next_multiple_of(self.granularity)
    }

    fn insert(&mut self, mut begin: u64, mut end: u64) {
        if let Some((&left, &left_end)) = self.released.range(..begin).next_back()
            && left_end == begin
        {
            begin = left;
        }
        if let Some(right_end) = self.released.remove(&end) {
            end = right_end;
        }
        self.released.insert(begin, end);
    }
}

#[cfg(test)]
mod tests {
    use super::{Addresses, FIRST_ADDRESS};

    const UNIT: u64 = 4096;

    /// Takes: where from the first address on, in units.
    fn take(addresses: &mut Addresses, units: u64) -> Option<u64> {
        addresses.take(units * UNIT).map(|taken| (taken.address - FIRST_ADDRESS) / UNIT)
    }

    fn release(addresses: &mut Addresses, at: u64, units: u64) {
        addresses.release(FIRST_ADDRESS + at * UNIT, units * UNIT);
    }

    #[test]
    fn released_addresses_are_given_out_when_there_are_no_new_ones_the_lowest_with_room_first() {
        let mut all = Addresses::new(16 * UNIT, UNIT);
        assert_eq!([3, 1, 4, 1, 5].map(|units| take(&mut all, units)), [0, 3, 4, 8, 9].map(Some));
        release(&mut all, 3, 1);
        release(&mut all, 9, 5);
        // Two new ones are left.
        assert_eq!(take(&mut all, 1), Some(14));
        assert_eq!(take(&mut all, 2), Some(9));
        assert_eq!(take(&mut all, 1), Some(15));
        assert_eq!(take(&mut all, 1), Some(3));
        assert_eq!(take(&mut all, 4), None);
        assert_eq!(take(&mut all, 3), Some(11));
        assert_eq!(take(&mut all, 1), None);
    }

    #[test]
    fn what_is_released_beside_released_addresses_makes_one_room_with_them() {
        let mut all = Addresses::new(6 * UNIT, UNIT);
        (0..6).for_each(|at| assert_eq!(take(&mut all, 1), Some(at)));
        for at in [1, 4, 2, 3] {
            assert_eq!(take(&mut all, 4), None);
            release(&mut all, at, 1);
        }
        assert_eq!(take(&mut all, 4), Some(1));
    }

    #[test]
    fn after_a_refusal_the_same_addresses_come_next() {
        let mut all = Addresses::new(4 * UNIT, UNIT);
        let first = all.take(2 * UNIT).unwrap();
        all.put_back(&first);
        assert_eq!(take(&mut all, 3), Some(0));
        assert_eq!(take(&mut all, 1), Some(3));
        release(&mut all, 0, 3);
        let again = all.take(UNIT).unwrap();
        all.put_back(&again);
        assert_eq!(take(&mut all, 3), Some(0));
        // Of two that were asked for at the same time.
        let mut all = Addresses::new(4 * UNIT, UNIT);
        let [one, other] = [(); 2].map(|()| all.take(2 * UNIT).unwrap());
        all.put_back(&one);
        all.put_back(&other);
        assert_eq!(take(&mut all, 2), Some(2));
        assert_eq!(take(&mut all, 2), Some(0));
    }

    #[test]
    fn a_page_that_is_no_multiple_of_the_granularity_takes_addresses_up_to_one() {
        let mut all = Addresses::new(3 * UNIT, UNIT);
        let odd = all.take(UNIT + 1).unwrap().address;
        assert_eq!(take(&mut all, 1), Some(2));
        assert_eq!(take(&mut all, 1), None);
        all.release(odd, UNIT + 1);
        assert_eq!(take(&mut all, 2), Some(0));
        assert_eq!(all.take(u64::MAX).map(|taken| taken.address), None);
    }
}
