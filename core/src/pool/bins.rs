//! Free blocks of one owner in one entry, found by size: classes by bitmap, a search tree inside a class.
//!
//! Most classes ([`super::classes`]) hold one block or few. Inside a class a treap ordered by (size, address), whose nodes also know the smallest sequence number below them, so that "the
//! best fit among those freed no later than n" is a descent, not a scan. Nodes are the block records themselves; nothing
//! is allocated.

use super::block::{BLOCKS, Block, NIL, block};
use super::classes::{CLASSES, Occupied, class_of};
use std::cmp::min;

pub(crate) struct Bins {
    occupied: Occupied,
    roots: [u32; CLASSES],
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// A block that was taken out: its index and its record.
pub(crate) type Taken = (u32, &'static Block);

/// What a search accepts besides the size.
#[derive(Clone, Copy)]
pub(crate) enum Upto {
    Any,
    /// Only blocks freed at this sequence number or before.
    Seq(u64),
}

#[inline(always)]
fn priority(index: u32) -> u32 {
    // A fixed scramble keeps the trees balanced on average and the code deterministic.
    let mut x = index.wrapping_mul(0x9e37_79b9);
    x ^= x >> 15;
    x.wrapping_mul(0x85eb_ca6b)
}

#[inline(always)]
fn key(index: u32) -> (u64, u64) {
    key_of(block(index))
}

#[inline(always)]
fn key_of(b: &Block) -> (u64, u64) {
    (b.size(), b.addr())
}

fn subtree_min(index: u32) -> u64 {
    if index == NIL { u64::MAX } else { block(index).min_seq() }
}

fn refresh(index: u32) {
    let b = block(index);
    let (left, right) = b.children();
    b.set_min_seq(min(b.seq(), min(subtree_min(left), subtree_min(right))));
}

/// Splits a tree into keys below and above `at`.
fn split(root: u32, at: (u64, u64)) -> (u32, u32) {
    if root == NIL {
        return (NIL, NIL);
    }
    let b = block(root);
    let (left, right) = b.children();
    if key(root) < at {
        let (low, high) = split(right, at);
        b.set_children(left, low);
        refresh(root);
        (root, high)
    } else {
        let (low, high) = split(left, at);
        b.set_children(high, right);
        refresh(root);
        (low, root)
    }
}

fn join(left: u32, right: u32) -> u32 {
    if left == NIL {
        return right;
    }
    if right == NIL {
        return left;
    }
    if priority(left) > priority(right) {
        let (l, r) = block(left).children();
        block(left).set_children(l, join(r, right));
        refresh(left);
        left
    } else {
        let (l, r) = block(right).children();
        block(right).set_children(join(left, l), r);
        refresh(right);
        right
    }
}

/// Puts `node` under `root`. On the way down only minima that the newcomer lowers are written.
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
        if below.is_leaf() {
            // Most that have to give way are.
            match key_of(below) < at_key {
                true => n.set_children(at, NIL),
                false => n.set_children(NIL, at),
            }
            n.set_min_seq(min(seq, below.seq()));
        } else {
            let (left, right) = split(at, at_key);
            n.set_children(left, right);
            refresh(node);
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

#[inline(always)]
fn set_child(parent: &Block, left: bool, child: u32) {
    let (l, r) = parent.children();
    if left {
        parent.set_children(child, r);
    } else {
        parent.set_children(l, child);
    }
}

/// How deep a removal remembers its path; for the few treaps that are deeper it recurses.
const DEPTH: usize = 32;

/// Takes `node` from under `root`. Minima on the path are worked out again only where the leaver was the minimum.
#[inline(never)]
fn remove(root: u32, node: u32, n: &Block) -> u32 {
    let at_key = key_of(n);
    let mut path = [NIL; DEPTH];
    let mut depth = 0;
    let mut at = root;
    let mut to_left = false;
    while at != node {
        if at == NIL || depth == DEPTH {
            debug_assert!(at != NIL, "a free block is in its tree");
            return if at == NIL { root } else { remove_deep(root, node) };
        }
        path[depth] = at;
        depth += 1;
        let b = block(at);
        let (left, right) = b.children();
        to_left = at_key < key_of(b);
        at = if to_left { left } else { right };
    }
    unlink(root, n, &path[..depth], to_left)
}

/// Takes `n` out, the child of the last of `path` on the side that `to_left` says: the new root.
#[inline(always)]
fn unlink(root: u32, n: &Block, path: &[u32], to_left: bool) -> u32 {
    let (left, right) = n.children();
    let rest = join(left, right);
    let Some(&parent) = path.last() else { return rest };
    set_child(block(parent), to_left, rest);
    let seq = n.seq();
    if seq != 0 {
        for &at in path.iter().rev() {
            if block(at).min_seq() != seq {
                break;
            }
            refresh(at);
        }
    }
    root
}

/// Takes the smallest block of at least `size`, among equals the lowest, from under `root`, which has more than one.
#[inline(never)]
fn take_from(root: &mut u32, size: u64) -> Option<u32> {
    let mut path = [NIL; DEPTH];
    let (mut at, mut depth) = (*root, 0);
    // The best so far: its node, how deep it lies, and on which side of its parent.
    let (mut found, mut found_depth, mut found_left) = (NIL, 0, false);
    let mut to_left = false;
    while at != NIL {
        if depth == DEPTH {
            let node = lower_bound(*root, (size, 0));
            *root = if node == NIL { *root } else { remove_deep(*root, node) };
            return (node != NIL).then_some(node);
        }
        let b = block(at);
        let (left, right) = b.children();
        path[depth] = at;
        let fits = b.size() >= size;
        if fits {
            (found, found_depth, found_left) = (at, depth, to_left);
        }
        depth += 1;
        to_left = fits;
        at = if fits { left } else { right };
    }
    if found == NIL {
        return None;
    }
    *root = unlink(*root, block(found), &path[..found_depth], found_left);
    Some(found)
}

fn remove_deep(root: u32, node: u32) -> u32 {
    let (left, right) = block(root).children();
    if root == node {
        return join(left, right);
    }
    if key(node) < key(root) {
        block(root).set_children(remove_deep(left, node), right);
    } else {
        block(root).set_children(left, remove_deep(right, node));
    }
    refresh(root);
    root
}

/// The smallest key >= `from`.
fn lower_bound(root: u32, from: (u64, u64)) -> u32 {
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
fn first_from(root: u32, from: (u64, u64), upto: Upto) -> u32 {
    if root == NIL {
        return NIL;
    }
    if let Upto::Any = upto {
        return lower_bound(root, from);
    }
    if let Upto::Seq(seq) = upto
        && subtree_min(root) > seq
    {
        return NIL;
    }
    let b = block(root);
    let (left, right) = b.children();
    if key(root) >= from {
        let found = first_from(left, from, upto);
        if found != NIL {
            return found;
        }
        if match upto {
            Upto::Any => true,
            Upto::Seq(seq) => b.seq() <= seq,
        } {
            return root;
        }
    }
    first_from(right, from, upto)
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
    let mut at = root;
    while at != NIL && subtree_min(at) <= seq {
        let b = block(at);
        if b.seq() <= seq {
            return at;
        }
        let (left, right) = b.children();
        at = if subtree_min(left) <= seq { left } else { right };
    }
    NIL
}

impl Bins {
    pub(crate) fn new() -> Bins {
        Bins { occupied: Occupied::NONE, roots: [NIL; CLASSES], count: 0, bytes: 0 }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, node: u32) {
        self.insert_record(node, block(node));
    }

    /// The same, for a caller that has the record at hand.
    #[inline(always)]
    pub(crate) fn insert_record(&mut self, node: u32, b: &Block) {
        let size = b.size();
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
        let size = b.size();
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

    /// The smallest acceptable block of at least `size`, among equals the lowest address.
    #[inline(always)]
    pub(crate) fn best(&self, size: u64, upto: Upto) -> u32 {
        let mut c = class_of(size);
        while let Some(found) = self.occupied.next(c) {
            let root = self.roots[found];
            c = found + 1;
            if matches!(upto, Upto::Any) && block(root).is_leaf() {
                if block(root).size() >= size {
                    return root;
                }
                continue;
            }
            let node = first_from(root, (size, 0), upto);
            if node != NIL {
                return node;
            }
        }
        NIL
    }

    /// Takes out the lowest block of exactly `size`.
    #[inline(always)]
    pub(crate) fn take_exact(&mut self, size: u64) -> Option<Taken> {
        let root = &mut self.roots[class_of(size)];
        // What is no block has no record.
        let (node, b) = (*root, BLOCKS.get(*root)?);
        if !b.is_leaf() {
            return self.take_exact_of_several(size);
        }
        if b.size() != size {
            return None;
        }
        *root = NIL;
        self.occupied.clear(class_of(size));
        self.count -= 1;
        self.bytes -= size;
        Some((node, b))
    }

    #[inline(never)]
    fn take_exact_of_several(&mut self, size: u64) -> Option<Taken> {
        let root = &mut self.roots[class_of(size)];
        let node = lower_bound(*root, (size, 0));
        let b = BLOCKS.get(node)?;
        if b.size() != size {
            return None;
        }
        *root = remove(*root, node, b);
        self.count -= 1;
        self.bytes -= size;
        Some((node, b))
    }

    /// Takes out [`Bins::best`] of all.
    #[inline(always)]
    pub(crate) fn take_best(&mut self, size: u64) -> Option<Taken> {
        let mut c = class_of(size);
        loop {
            c = self.occupied.next(c)?;
            let root = &mut self.roots[c];
            let b = block(*root);
            if b.is_leaf() {
                let bytes = b.size();
                if bytes >= size {
                    let node = std::mem::replace(root, NIL);
                    self.occupied.clear(c);
                    self.count -= 1;
                    self.bytes -= bytes;
                    return Some((node, b));
                }
            } else if let Some(node) = take_from(root, size) {
                let b = block(node);
                self.count -= 1;
                self.bytes -= b.size();
                return Some((node, b));
            }
            c += 1;
        }
    }

    /// The lowest acceptable block of exactly `size`.
    #[inline(always)]
    pub(crate) fn exact(&self, size: u64, upto: Upto) -> u32 {
        let node = first_from(self.roots[class_of(size)], (size, 0), upto);
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

    /// Takes out some block freed at `seq` or before.
    pub(crate) fn take_upto(&mut self, seq: u64) -> Option<u32> {
        let mut c = 0;
        while let Some(found) = self.occupied.next(c) {
            let node = any_upto(self.roots[found], seq);
            if node != NIL {
                self.remove(node);
                return Some(node);
            }
            c = found + 1;
        }
        None
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
        let mut c = 0;
        while let Some(found) = self.occupied.next(c) {
            each(self.roots[found], &mut visit);
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
            let mut last = (0, 0);
            let mut wrong = None;
            each(root, &mut |node| {
                let b = block(node);
                let (left, right) = b.children();
                if key(node) <= last || class_of(b.size()) != c {
                    wrong = Some(format!("class {c}: block {node} out of order"));
                }
                if b.min_seq() != min(b.seq(), min(subtree_min(left), subtree_min(right))) {
                    wrong = Some(format!("class {c}: block {node} has a wrong subtree minimum"));
                }
                last = key(node);
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
