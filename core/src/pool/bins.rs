//! Free blocks of one owner in one entry, found by size: classes by bitmap, a search tree inside a class.
//!
//! Most classes ([`super::classes`]) hold one block or few. Inside a class a treap ordered by (size, address), whose nodes
//! also say which sequence number is the least that may be below them, so that "the best fit among those freed no later
//! than n" is a descent, not a scan. What leaves does not change what is said above it: a search that was led astray
//! does, once. Nodes are the block records themselves; nothing is allocated.

use super::block::{BLOCKS, Block, NIL, WHOLE, block};
use super::classes::{CLASSES, Occupied, class_of};
use super::page::page;
use super::seams::Notes;
use std::cmp::min;
use std::sync::atomic::Ordering::Relaxed;

#[repr(C)]
pub(crate) struct Bins {
    pub(crate) count: u64,
    occupied: Occupied,
    pub(crate) bytes: u64,
    /// What these blocks touch.
    pub(crate) seams: Notes,
    roots: [u32; CLASSES],
}

/// A block that was taken out: its index and its record.
pub(crate) type Taken = (u32, &'static Block);

/// The class that a block was *lifted* out of and left without any, though its root and its bit say otherwise still: what is put
/// into the same class next changes the root alone. [`CLASSES`]: there is none.
#[derive(Clone, Copy)]
pub(crate) struct Hole(usize);

/// A block that was lifted out: with its size and flags, and the hole that it leaves.
pub(crate) type Lifted = (Taken, u64, Hole);

impl Hole {
    pub(crate) const NONE: Hole = Hole(CLASSES);
}

/// Of so many blocks, the best, one that should stay whole gives way to another. (So that a search does not pass over thousands.)
const BEST: usize = 16;

/// What a search accepts besides the size.
#[derive(Clone, Copy)]
pub(crate) enum Upto {
    Any,
    /// Only blocks freed at this sequence number or before.
    Seq(u64),
}

impl Upto {
    #[inline(always)]
    fn admits(self, b: &Block) -> bool {
        match self {
            Upto::Any => true,
            Upto::Seq(seq) => b.seq() <= seq,
        }
    }
}

#[inline(always)]
fn priority(index: u32) -> u32 {
    // A fixed scramble keeps the trees balanced on average and the code deterministic.
    let mut x = index.wrapping_mul(0x9e37_79b9);
    x ^= x >> 15;
    x.wrapping_mul(0x85eb_ca6b)
}

/// What a class is ordered by: size, then address.
type Key = u128;

#[inline(always)]
fn key_of(b: &Block) -> Key {
    lowest_of(b.size()) | Key::from(b.addr())
}

/// No block of `size` comes before it.
#[inline(always)]
fn lowest_of(size: u64) -> Key {
    Key::from(size) << 64
}

fn subtree_min(index: u32) -> u64 {
    if index == NIL { u64::MAX } else { block(index).min_seq() }
}

/// A search found that the subtree promises too much: what its children promise is what it does.
fn refresh(b: &Block) {
    let (left, right) = b.children();
    b.set_min_seq(min(b.seq(), min(subtree_min(left), subtree_min(right))));
}

#[inline(always)]
fn set_child(parent: &Block, left: bool, child: u32) {
    let (l, r) = parent.children();
    if left {
        parent.set_children(child, r);
    } else {
        parent.set_children(l, child);
    }
}

/// Hangs what is below `key` in the tree under `at` to the left of `n`, which is in no tree, and the rest to its right.
fn split(mut at: u32, key: Key, n: &Block) {
    // Where the next piece of either side goes: a record, and whether to its left.
    let (mut low, mut high) = ((n, true), (n, false));
    while at != NIL {
        let b = block(at);
        let (left, right) = b.children();
        if key_of(b) < key {
            set_child(low.0, low.1, at);
            (low, at) = ((b, false), right);
        } else {
            set_child(high.0, high.1, at);
            (high, at) = ((b, true), left);
        }
    }
    set_child(low.0, low.1, NIL);
    set_child(high.0, high.1, NIL);
}

/// One tree of two, of which all of `left` comes before all of `right`.
#[inline(always)]
fn join(left: u32, right: u32) -> u32 {
    match (left, right) {
        (NIL, _) => right,
        (_, NIL) => left,
        _ => join_two(left, right),
    }
}

#[inline(never)]
fn join_two(left: u32, right: u32) -> u32 {
    let (l, r) = (block(left), block(right));
    let seq = min(l.min_seq(), r.min_seq());
    if priority(left) > priority(right) {
        let (own, inner) = l.children();
        l.set_children(own, join(inner, right));
        l.set_min_seq(seq);
        left
    } else {
        let (inner, own) = r.children();
        r.set_children(join(left, inner), own);
        r.set_min_seq(seq);
        right
    }
}

/// Puts `node`, a tree of its own, under `root`.
#[inline(never)]
fn insert(root: u32, node: u32, n: &Block) -> u32 {
    let (at_key, rank, seq) = (key_of(n), priority(node), n.seq());
    let mut parent: Option<&Block> = None;
    let mut at = root;
    let mut to_left = false;
    while at != NIL && priority(at) >= rank {
        let b = block(at);
        if b.min_seq() > seq {
            b.set_min_seq(seq);
        }
        let (left, right) = b.children();
        parent = Some(b);
        to_left = at_key < key_of(b);
        at = if to_left { left } else { right };
    }
    if at != NIL {
        let below = block(at);
        n.set_min_seq(min(seq, below.min_seq()));
        if !below.is_leaf() {
            split(at, at_key, n);
        } else if key_of(below) < at_key {
            n.set_children(at, NIL);
        } else {
            n.set_children(NIL, at);
        }
    }
    match parent {
        None => node,
        Some(parent) => {
            set_child(parent, to_left, node);
            root
        }
    }
}

/// Takes `node` from under `root`: the new root.
#[inline(never)]
fn remove(root: u32, node: u32, n: &Block) -> u32 {
    let at_key = key_of(n);
    let mut parent: Option<&Block> = None;
    let mut at = root;
    let mut to_left = false;
    while at != node {
        debug_assert!(at != NIL, "a free block is in its tree");
        let Some(b) = BLOCKS.get(at) else { return root };
        let (left, right) = b.children();
        parent = Some(b);
        to_left = at_key < key_of(b);
        at = if to_left { left } else { right };
    }
    let (left, right) = n.children();
    let rest = join(left, right);
    match parent {
        None => rest,
        Some(parent) => {
            set_child(parent, to_left, rest);
            root
        }
    }
}

/// Takes the smallest block of at least `size`, among equals the lowest, from under `root`.
#[inline(never)]
fn take_from(root: &mut u32, size: u64) -> Option<Taken> {
    // Mostly that is the first of all.
    let mut parent: Option<&Block> = None;
    let mut at = *root;
    while let Some(b) = BLOCKS.get(at).filter(|b| b.size() >= size) {
        let (left, right) = b.children();
        if left == NIL {
            match parent {
                None => *root = right,
                Some(parent) => set_child(parent, true, right),
            }
            return Some((at, b));
        }
        (parent, at) = (Some(b), left);
    }
    let node = lower_bound(*root, lowest_of(size));
    let b = BLOCKS.get(node)?;
    *root = remove(*root, node, b);
    Some((node, b))
}

/// The smallest key >= `from`.
fn lower_bound(root: u32, from: Key) -> u32 {
    let (mut at, mut found) = (root, NIL);
    while at != NIL {
        let b = block(at);
        let (left, right) = b.children();
        if key_of(b) >= from {
            found = at;
            at = left;
        } else {
            at = right;
        }
    }
    found
}

/// The smallest key >= `from` whose block is acceptable.
#[inline(never)]
fn first_from(root: u32, from: Key, upto: Upto) -> u32 {
    let Upto::Seq(seq) = upto else { return lower_bound(root, from) };
    let Some(b) = BLOCKS.get(root).filter(|b| b.min_seq() <= seq) else { return NIL };
    let (left, right) = b.children();
    if key_of(b) >= from {
        let found = first_from(left, from, upto);
        if found != NIL {
            return found;
        }
        if b.seq() <= seq {
            return root;
        }
    }
    let found = first_from(right, from, upto);
    if found == NIL {
        refresh(b);
    }
    found
}

fn each(root: u32, visit: &mut impl FnMut(u32)) {
    if root != NIL {
        let (left, right) = block(root).children();
        each(left, visit);
        visit(root);
        each(right, visit);
    }
}

/// The node of exactly this size with the smallest sequence number, then the lowest address.
fn oldest_of_size(root: u32, size: u64, best: &mut u32) {
    if root == NIL || (*best != NIL && subtree_min(root) > block(*best).seq()) {
        return;
    }
    let b = block(root);
    let (left, right) = b.children();
    if b.size() >= size {
        oldest_of_size(left, size, best);
    }
    if b.size() == size && (*best == NIL || b.seq() < block(*best).seq()) {
        *best = root;
    }
    if b.size() <= size {
        oldest_of_size(right, size, best);
    }
}

fn any_upto(root: u32, seq: u64) -> u32 {
    let Some(b) = BLOCKS.get(root).filter(|b| b.min_seq() <= seq) else { return NIL };
    if b.seq() <= seq {
        return root;
    }
    let (left, right) = b.children();
    let found = match any_upto(left, seq) {
        NIL => any_upto(right, seq),
        found => found,
    };
    if found == NIL {
        refresh(b);
    }
    found
}

impl Bins {
    pub(crate) fn new() -> Bins {
        Bins { occupied: Occupied::NONE, roots: [NIL; CLASSES], count: 0, bytes: 0, seams: Notes::OFF }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, node: u32) {
        self.insert_record(node, block(node));
    }

    /// The same, for a caller that has the record at hand.
    #[inline(always)]
    pub(crate) fn insert_record(&mut self, node: u32, b: &Block) {
        self.insert_sized(node, b, b.size());
    }

    /// The same, for one that has its size at hand as well.
    #[inline(always)]
    pub(crate) fn insert_sized(&mut self, node: u32, b: &Block, size: u64) {
        self.count += 1;
        self.bytes += size;
        b.be_leaf();
        let root = &mut self.roots[class_of(size)];
        if *root != NIL {
            *root = insert(*root, node, b);
            return;
        }
        *root = node;
        self.occupied.set(class_of(size));
    }

    /// The same, and what the block touches is noted.
    pub(crate) fn insert_noted(&mut self, node: u32) {
        self.insert(node);
        self.note_beside(node, block(node));
    }

    /// A block of these, or of no bins, is settled from now on.
    #[inline(always)]
    pub(crate) fn note_beside(&mut self, node: u32, b: &Block) {
        if self.seams.is_on() {
            self.seams.note_beside(node, b);
        }
    }

    /// The same, not inlined.
    #[inline(never)]
    pub(crate) fn insert_out_of_line(&mut self, node: u32, b: &Block) {
        self.insert_record(node, b);
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, node: u32) {
        self.remove_record(node, block(node));
    }

    /// The same, for a caller that has the record at hand.
    #[inline(always)]
    pub(crate) fn remove_record(&mut self, node: u32, b: &Block) {
        self.remove_sized(node, b, b.size());
    }

    /// The same, for one that has its size at hand as well.
    #[inline(always)]
    pub(crate) fn remove_sized(&mut self, node: u32, b: &Block, size: u64) {
        self.count -= 1;
        self.bytes -= size;
        let root = &mut self.roots[class_of(size)];
        if *root == node && b.is_leaf() {
            *root = NIL;
            self.occupied.clear(class_of(size));
        } else {
            *root = remove(*root, node, b);
        }
    }

    /// Lifts this block of `size` bytes out, which is counted still: the hole that it leaves.
    #[inline(always)]
    pub(crate) fn lift(&mut self, node: u32, b: &Block, size: u64) -> Hole {
        let c = class_of(size);
        let root = &mut self.roots[c];
        if *root == node && b.is_leaf() {
            return Hole(c);
        }
        *root = remove(*root, node, b);
        Hole::NONE
    }

    /// The smallest acceptable block of at least `size`, among equals the lowest address.
    #[inline(always)]
    pub(crate) fn best(&self, size: u64, upto: Upto) -> u32 {
        let mut c = class_of(size);
        while let Some(found) = self.occupied.next(c) {
            let root = self.roots[found];
            c = found + 1;
            let b = block(root);
            if b.is_leaf() {
                if b.size() >= size && upto.admits(b) {
                    return root;
                }
                continue;
            }
            let node = first_from(root, lowest_of(size), upto);
            if node != NIL {
                return node;
            }
        }
        NIL
    }

    /// Takes out the lowest block of exactly `size`, whose class is `c`.
    #[inline(always)]
    pub(crate) fn take_exact(&mut self, c: usize, size: u64) -> Option<Taken> {
        self.lift_exact(c, size).map(|lifted| self.take_lifted(lifted))
    }

    /// The same, only that the hole is left open and the block counted still.
    #[inline(always)]
    pub(crate) fn lift_exact(&mut self, c: usize, size: u64) -> Option<Lifted> {
        let root = self.roots[c];
        // What is no block has no record.
        let b = BLOCKS.get(root)?;
        if !b.is_leaf() {
            let taken = self.lift_exact_of_several(c, size)?;
            return Some((taken, taken.1.size_flags(), Hole::NONE));
        }
        let own = b.size_flags();
        (Block::size_in(own) == size).then_some(((root, b), own, Hole(c)))
    }

    #[inline(never)]
    fn lift_exact_of_several(&mut self, c: usize, size: u64) -> Option<Taken> {
        let root = &mut self.roots[c];
        let node = lower_bound(*root, lowest_of(size));
        let b = BLOCKS.get(node)?;
        if b.size() != size {
            return None;
        }
        *root = remove(*root, node, b);
        Some((node, b))
    }

    /// Takes out [`Bins::best`] of all for `size`, whose class is `c`.
    #[inline(always)]
    pub(crate) fn take_best(&mut self, c: usize, size: u64) -> Option<Taken> {
        self.lift_best(c, size).map(|lifted| self.take_lifted(lifted))
    }

    /// As [`Bins::take_best`], only that the hole is left open and the block counted still.
    #[inline(always)]
    pub(crate) fn lift_best(&mut self, mut c: usize, size: u64) -> Option<Lifted> {
        loop {
            c = self.occupied.next(c)?;
            let root = &mut self.roots[c];
            let (node, b) = (*root, block(*root));
            if b.is_leaf() {
                let own = b.size_flags();
                if Block::size_in(own) >= size {
                    return Some(((node, b), own, Hole(c)));
                }
            } else if let Some(taken) = take_from(root, size) {
                return Some((taken, taken.1.size_flags(), Hole::NONE));
            }
            c += 1;
        }
    }

    /// A block that was just lifted out is where it was.
    #[cold]
    #[inline(never)]
    pub(crate) fn put_down(&mut self, (node, b): Taken) {
        let root = &mut self.roots[class_of(b.size())];
        // (A hole keeps its root.)
        if *root != node {
            b.be_leaf();
            *root = insert(*root, node, b);
        }
    }

    /// What [`Bins::lift_best`] has found for `size`, or the block that comes before it: of the best few, whole blocks that are large
    /// come after all others, unless they are of exactly `size` bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn lift_rather(&mut self, (node, b): Taken, size: u64) -> Lifted {
        self.put_down((node, b));
        let large = u64::from(page(b.page()).large.load(Relaxed));
        let comes_last = |b: &Block| b.has(WHOLE) && b.size() >= large && b.size() != size;
        let node = self.iter_from(size).take(BEST).find(|&node| !comes_last(block(node))).unwrap_or(node);
        let b = block(node);
        let hole = self.lift(node, b, b.size());
        ((node, b), b.size_flags(), hole)
    }

    /// A block that was lifted is taken out for good.
    #[inline(always)]
    pub(crate) fn take_lifted(&mut self, (taken, own, hole): Lifted) -> Taken {
        self.close(hole);
        self.count -= 1;
        self.bytes -= Block::size_in(own);
        taken
    }

    /// What was lifted out of the class is not replaced.
    #[inline(always)]
    pub(crate) fn close(&mut self, hole: Hole) {
        if let Some(root) = self.roots.get_mut(hole.0) {
            *root = NIL;
            self.occupied.clear(hole.0);
        }
    }

    /// Puts a block of `size` bytes in, which is counted already.
    #[inline(always)]
    pub(crate) fn put(&mut self, hole: Hole, node: u32, b: &Block, size: u64) {
        b.be_leaf();
        let c = class_of(size);
        if c == hole.0 {
            self.roots[c] = node;
            return;
        }
        self.close(hole);
        let root = &mut self.roots[c];
        if *root != NIL {
            *root = insert(*root, node, b);
            return;
        }
        *root = node;
        self.occupied.set(c);
    }

    /// Whether there is a block of class `c` or a later one.
    #[inline(always)]
    pub(crate) fn may_have_from(&self, c: usize) -> bool {
        self.occupied.next(c).is_some()
    }

    /// The lowest acceptable block of exactly `size`.
    #[inline(always)]
    pub(crate) fn exact(&self, size: u64, upto: Upto) -> u32 {
        let node = first_from(self.roots[class_of(size)], lowest_of(size), upto);
        if node != NIL && block(node).size() == size { node } else { NIL }
    }

    /// Of the smallest size >= `size` (or exactly `size`): the one freed first, then the lowest address.
    pub(crate) fn oldest(&self, size: u64, exactly: bool) -> u32 {
        let first = if exactly { self.exact(size, Upto::Any) } else { self.best(size, Upto::Any) };
        if first == NIL {
            return NIL;
        }
        let size = block(first).size();
        let mut best = NIL;
        oldest_of_size(self.roots[class_of(size)], size, &mut best);
        best
    }

    /// Takes out every block freed at `seq` or before.
    pub(crate) fn take_upto(&mut self, seq: u64, mut taken: impl FnMut(u32)) {
        let mut c = 0;
        while self.count > 0
            && let Some(found) = self.occupied.next(c)
        {
            c = found + 1;
            // (Mostly there is one.)
            let root = self.roots[found];
            let b = block(root);
            if b.is_leaf() {
                if b.seq() <= seq {
                    self.close(Hole(found));
                    self.count -= 1;
                    self.bytes -= b.size();
                    taken(root);
                }
                continue;
            }
            loop {
                let node = any_upto(self.roots[found], seq);
                if node == NIL {
                    break;
                }
                self.remove(node);
                taken(node);
            }
        }
    }

    /// Size of the largest block, 0 if none.
    pub(crate) fn largest(&self) -> u64 {
        let Some(last) = self.occupied.last() else { return 0 };
        let mut at = self.roots[last];
        loop {
            let (_, right) = block(at).children();
            if right == NIL {
                return block(at).size();
            }
            at = right;
        }
    }

    /// The blocks of at least `size`, smallest first, among equals by address.
    pub(crate) fn iter_from(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        let mut from = lowest_of(size);
        let mut c = class_of(size);
        std::iter::from_fn(move || {
            loop {
                let found = self.occupied.next(c)?;
                let node = lower_bound(self.roots[found], from);
                if node != NIL {
                    from = key_of(block(node)) + 1;
                    c = found;
                    return Some(node);
                }
                c = found + 1;
            }
        })
    }

    /// Visits every block of at least `size`.
    pub(crate) fn each_from(&self, size: u64, visit: &mut impl FnMut(u32)) {
        let mut c = class_of(size);
        while let Some(found) = self.occupied.next(c) {
            each(self.roots[found], &mut |node| {
                if block(node).size() >= size {
                    visit(node);
                }
            });
            c = found + 1;
        }
    }

    /// Visits every block.
    pub(crate) fn each(&self, mut visit: impl FnMut(u32)) {
        if self.count == 0 {
            return;
        }
        let mut c = 0;
        while let Some(found) = self.occupied.next(c) {
            // (Mostly there is one.)
            let root = self.roots[found];
            if block(root).is_leaf() {
                visit(root);
            } else {
                each(root, &mut visit);
            }
            c = found + 1;
        }
    }

    /// Compares the structure with its rules.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.occupied.check()?;
        let (mut count, mut bytes) = (0, 0);
        for (c, &root) in self.roots.iter().enumerate() {
            if (root != NIL) != self.occupied.has(c) {
                return Err(format!("class {c}: bitmap and root disagree"));
            }
            let mut last = 0;
            let mut wrong = None;
            each(root, &mut |node| {
                let b = block(node);
                let (left, right) = b.children();
                if key_of(b) <= last || class_of(b.size()) != c {
                    wrong = Some(format!("class {c}: block {node} out of order"));
                }
                if b.min_seq() > min(b.seq(), min(subtree_min(left), subtree_min(right))) {
                    wrong = Some(format!("class {c}: block {node} hides what is below it"));
                }
                last = key_of(b);
                count += 1;
                bytes += b.size();
            });
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
        }
        if (count, bytes) != (self.count, self.bytes) {
            return Err(format!("bins hold {count} blocks of {bytes} bytes, counted {} of {}", self.count, self.bytes));
        }
        Ok(())
    }
}
