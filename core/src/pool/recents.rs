//! A stream's *recent* blocks in one entry (`docs/placement.md` §5): freed last, its own, not merged, found by their exact
//! size.
//!
//! Each size class is a chain through the records, the block freed last first. All under the stream's lock; nothing is
//! allocated but the heads.

use super::block::{BLOCKS, Block, FREE, GENERATION_LIMIT, NIL, RECENT, RESTING, block};
use super::classes::{CLASSES, Occupied, Taken, class_of};
use crate::order::StreamRef;

/// How many recent blocks a stream has in an entry at most.
pub(crate) const MOST: u32 = 4096;

/// How many blocks of a class are looked at for one of an exact size.
const LOOK: usize = 64;

#[repr(C)]
pub(crate) struct Recents {
    pub(crate) count: u32,
    /// The classes that hold something, and perhaps others: what a block leaves empty is cleared only when it is met.
    occupied: Occupied,
    heads: [u32; CLASSES],
}

impl Recents {
    pub(crate) fn new() -> Recents {
        Recents { count: 0, occupied: Occupied::NONE, heads: [NIL; CLASSES] }
    }

    /// A block that was freed just now, and says that it is recent.
    #[inline(always)]
    pub(crate) fn push(&mut self, index: u32, b: &Block, size: u64) {
        debug_assert!(b.has(FREE) && b.has(RECENT) && b.size() == size && self.count < MOST);
        let c = class_of(size);
        let head = &mut self.heads[c];
        let next = std::mem::replace(head, index);
        b.set_link(next);
        self.count += 1;
        self.occupied.set(c);
    }

    /// Takes out the block that was freed last of its class, if it is of exactly `size` bytes and its record can have two more
    /// handles: (index, record, generation). It says still that it is recent.
    #[inline(always)]
    pub(crate) fn take_first(&mut self, size: u64) -> Option<(u32, &'static Block, u32)> {
        let head = &mut self.heads[class_of(size)];
        // What is no block has no record.
        let (index, b) = (*head, BLOCKS.get(*head)?);
        if b.size_flags() != size | RESTING {
            return None;
        }
        let generation = b.generation();
        if generation + 1 >= GENERATION_LIMIT {
            return None;
        }
        *head = b.link();
        self.count -= 1;
        Some((index, b, generation))
    }

    /// Takes out the block of exactly `size` bytes that was freed last, of the [`LOOK`] of its class `c` that were, if `permit`
    /// lets it. `Err`: it does not. The block says still that it is recent.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        c: usize,
        size: u64,
        permit: impl FnOnce(&'static Block) -> bool,
    ) -> Result<Option<(u32, &'static Block)>, ()> {
        match self.heads[c] {
            NIL => Ok(None),
            head => self.take_of_class(c, head, size, permit),
        }
    }

    #[inline(never)]
    fn take_of_class(
        &mut self,
        c: usize,
        head: u32,
        size: u64,
        permit: impl FnOnce(&'static Block) -> bool,
    ) -> Result<Option<(u32, &'static Block)>, ()> {
        let mut before: Option<&Block> = None;
        let mut at = head;
        for _ in 0..LOOK {
            if at == NIL {
                break;
            }
            let b = block(at);
            if b.size() == size {
                if !permit(b) {
                    return Err(());
                }
                self.unchain(c, before, b);
                return Ok(Some((at, b)));
            }
            before = Some(b);
            at = b.link();
        }
        Ok(None)
    }

    /// Whether there is one of the class.
    #[inline(always)]
    pub(crate) fn has(&self, c: usize) -> bool {
        self.heads[c] != NIL
    }

    /// Whether there is one of the class or a larger one.
    #[inline(always)]
    pub(crate) fn has_from(&mut self, c: usize) -> bool {
        self.occupied.may_have_from(c) && self.find_from(c)
    }

    #[inline(always)]
    fn find_from(&mut self, mut c: usize) -> bool {
        while let Some(found) = self.occupied.next(c) {
            if self.heads[found] != NIL {
                return true;
            }
            self.occupied.clear(found);
            c = found + 1;
        }
        false
    }

    /// The classes from `c` on that may have some, of which each is to be taken out with [`Recents::next_of`] and
    /// [`Recents::take_chain`] before anything else is done here.
    #[inline(always)]
    pub(super) fn take_classes(&mut self, c: usize) -> Taken {
        self.occupied.take_from(c)
    }

    /// The next of these.
    #[inline(always)]
    pub(super) fn next_of(&mut self, taken: &mut Taken) -> Option<usize> {
        self.occupied.pop(taken)
    }

    /// Of these are left, perhaps, those that hold none.
    #[inline(always)]
    pub(super) fn put_classes_back(&mut self, taken: Taken) {
        self.occupied.put_back(taken);
    }

    /// Takes out all of a class: the head of its chain, or [`NIL`]. They count until the caller has counted them off, and say still
    /// that they are recent.
    #[inline(always)]
    pub(super) fn take_chain(&mut self, c: usize) -> u32 {
        std::mem::replace(&mut self.heads[c], NIL)
    }

    /// Takes out all that were freed at `seq` or before. They are recent no more.
    pub(crate) fn take_upto(&mut self, seq: u64, mut taken: impl FnMut(u32)) {
        let mut c = 0;
        while self.count > 0
            && let Some(found) = self.occupied.next(c)
        {
            // Later ones come first.
            let mut before: Option<&Block> = None;
            let mut at = self.heads[found];
            if at != NIL && block(at).seq() <= seq {
                self.heads[found] = NIL;
                self.occupied.clear(found);
                while at != NIL {
                    let b = block(at);
                    let next = b.link();
                    b.drop_flag(RECENT);
                    taken(at);
                    self.count -= 1;
                    at = next;
                }
            }
            while at != NIL {
                let b = block(at);
                let next = b.link();
                if b.seq() <= seq {
                    self.unchain(found, before, b);
                    b.drop_flag(RECENT);
                    taken(at);
                } else {
                    before = Some(b);
                }
                at = next;
            }
            c = found + 1;
        }
    }

    /// Takes this one out. It is recent no more.
    pub(crate) fn remove(&mut self, index: u32) {
        let b = block(index);
        let c = class_of(b.size());
        let mut before: Option<&Block> = None;
        let mut at = self.heads[c];
        while at != index && at != NIL {
            before = Some(block(at));
            at = block(at).link();
        }
        debug_assert!(at == index, "a recent block is in its chain");
        if at == index {
            self.unchain(c, before, b);
            b.drop_flag(RECENT);
        }
    }

    #[inline(always)]
    fn unchain(&mut self, c: usize, before: Option<&Block>, b: &Block) {
        match before {
            Some(before) => before.set_link(b.link()),
            None => self.heads[c] = b.link(),
        }
        self.count -= 1;
    }

    /// Visits every one.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Block)) {
        let mut c = 0;
        while let Some(found) = self.occupied.next(c) {
            let mut at = self.heads[found];
            while at != NIL {
                visit(block(at));
                at = block(at).link();
            }
            c = found + 1;
        }
    }

    /// Compares the structure with its rules; all blocks are the `holder`'s, freed after `observed`.
    pub(crate) fn check(&self, holder: StreamRef, observed: u64) -> Result<(), String> {
        let mut count = 0;
        for (c, &head) in self.heads.iter().enumerate() {
            let (mut at, mut last) = (head, u64::MAX);
            if at != NIL && !self.occupied.has(c) {
                return Err(format!("class {c}: its recent blocks are not seen"));
            }
            while at != NIL {
                let b = block(at);
                if !b.has(FREE) || !b.has(RECENT) || b.stream() != holder || class_of(b.size()) != c {
                    return Err(format!("class {c}: block {at} is not a recent one of it"));
                }
                if b.seq() >= last || b.seq() <= observed {
                    return Err(format!("class {c}: recent block {at} is in the wrong place"));
                }
                last = b.seq();
                count += 1;
                at = b.link();
            }
        }
        if count != self.count || count > MOST {
            return Err(format!("{count} recent blocks, counted {}", self.count));
        }
        Ok(())
    }
}
