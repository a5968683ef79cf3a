//! How free blocks merge with their neighbours, and how one is cut: the links between the blocks of a page, and the marks on
//! them, change here.

use super::bins::Bins;
use super::block::{BLOCKS, Block, FREE, GATHERED, LIVE, NIL, RECENT, Stock, UNUSED, WHOLE, block};
use super::page::{self, Page, page};
use crate::order::{At, StreamRef};
use std::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

/// A block beside another: its index and its record.
type Neighbour = (u32, &'static Block);

/// The neighbours of a free block that it merges with: right, left.
#[inline(always)]
fn mergeable(b: &Block, domain: StreamRef) -> (Option<Neighbour>, Option<Neighbour>) {
    debug_assert!(b.stream() == domain && b.merges());
    // The link to the right is the domain's own. The one to the left belongs to the left block's domain and may be old.
    let (mut right, mut left) = (None, None);
    let next = b.next();
    if next != NIL {
        let n = block(next);
        if n.stream() == domain && n.merges() {
            debug_assert!(n.addr() == b.end() && n.page() == b.page());
            right = Some((next, n));
        }
    }
    let prev = b.prev();
    if prev != NIL {
        let p = block(prev);
        // (Its size first: what it names may have been given out anew, and says then whose it is.)
        let bytes = p.size_acquire();
        if p.stream() == domain && p.merges() && p.addr() + bytes == b.addr() && p.page() == b.page() {
            left = Some((prev, p));
        }
    }
    (right, left)
}

/// A recent block that is out of its chain, and whose size and flags are `own`, settles: it merges with what lies to both sides, as
/// far as that is the domain's own and either settled or recent and of at least `least` bytes, for then it settles as well, and goes
/// into `bins`. (How often it merged: as many blocks as there are fewer.)
///
/// All of such a run becomes one block at once, that at its low end. If this is a recent one, it goes into the bins only when it is
/// met in its chain; who is met there and has become part of another has no size, and only then is its record free.
#[inline(always)]
pub(crate) fn settle_one(
    index: u32,
    b: &'static Block,
    own: u64,
    me: StreamRef,
    least: u64,
    bins: &mut Bins,
    stock: &mut Stock,
) {
    debug_assert!(own & UNUSED == 0, "what a stream has freed was in use");
    if own & (RECENT | WHOLE | GATHERED) != RECENT {
        if own == 0 {
            return stock.give_sizeless(index, b);
        }
        let size = Block::size_in(own);
        b.set_size_flags(size, FREE | own & WHOLE);
        bins.insert_sized(index, b, size);
        return bins.note_beside(index, b);
    }
    // Links and neighbours: see `mergeable`. The link past a block first, and only then does it lose its size: a look-up goes from
    // link to link.
    let mut bytes = Block::size_in(own);
    let start = b.addr();
    // Where the last of the run starts, and what comes after it.
    let (mut last, mut next) = (start, b.next());
    while let Some(n) = BLOCKS.get(next) {
        let other = n.size_flags();
        if unlike(other, n.stream(), me, least) != 0 {
            break;
        }
        last = start + bytes;
        debug_assert!(n.addr() == last && n.page() == b.page());
        let after = n.next();
        b.set_next(after);
        b.set_seq(b.seq().max(n.seq()));
        bytes += Block::size_in(other);
        take_in(next, n, other, bins, stock);
        next = after;
    }
    let (mut low, mut l, mut kept) = (index, b, own);
    loop {
        let prev = l.prev();
        let Some(p) = BLOCKS.get(prev) else { break };
        // (First, for what is to be read then: see `mergeable`.)
        let other = p.size_flags_acquire();
        let apart = p.addr().wrapping_add(Block::size_in(other)) ^ l.addr() | u64::from(p.page() ^ l.page());
        if unlike(other, p.stream(), me, least) | apart != 0 {
            break;
        }
        p.set_next(next);
        p.set_seq(p.seq().max(l.seq()));
        bytes += Block::size_in(other);
        take_in(low, l, kept, bins, stock);
        (low, l, kept) = (prev, p, other);
    }
    if let Some(n) = BLOCKS.get(next).filter(|_| bytes != Block::size_in(own)) {
        n.set_prev(low);
        note_first(l.page(), l.addr(), last, l.addr() + bytes, next);
    }
    if low == index {
        b.set_size_flags(bytes, FREE);
        bins.insert_sized(index, b, bytes);
    } else {
        stock.give_sizeless(index, b);
        if kept & RECENT != 0 {
            l.set_size_flags(bytes, FREE | RECENT | GATHERED);
            return;
        }
        let had = Block::size_in(kept);
        let hole = bins.lift(low, l, had);
        l.set_size_flags(bytes, FREE);
        bins.bytes += bytes - had;
        bins.put(hole, low, l, bytes);
    }
    bins.note_beside(low, l);
}

/// A block has become part of its neighbour: if it is a recent one, its record is free when it is met in its chain.
#[inline(always)]
fn take_in(index: u32, b: &Block, own: u64, bins: &mut Bins, stock: &mut Stock) {
    if own & RECENT == 0 {
        bins.remove_sized(index, b, Block::size_in(own));
        stock.give_record(index, b);
    } else {
        b.set_size_flags(0, 0);
    }
}

/// 0 if a block of `stream`, with that size and those flags, settles together with a neighbour of `me`, which does.
/// (One word of all conditions: which way a branch for each would go, nothing foretells.)
#[inline(always)]
fn unlike(own: u64, stream: StreamRef, me: StreamRef, least: u64) -> u64 {
    // (A recent block has no flag above its size but WHOLE.)
    let smaller = (own.wrapping_sub(least) as i64 >> 63) as u64;
    own & (FREE | WHOLE) ^ FREE | stream.0 ^ me.0 | own & RECENT & smaller
}

/// Free blocks that are in no structure are of the domain in `at`, free at its number, and go into its bins: how many merges that
/// makes. (As recent ones that give way: all are the domain's first, so that those that touch become one before it is put among the
/// others.)
#[inline(always)]
pub(crate) fn settle_all(blocks: &[u32], at: At, bins: &mut Bins, stock: &mut Stock) -> u64 {
    for &index in blocks {
        let b = block(index);
        b.set_flags(FREE | RECENT);
        b.set_seq(at.seq);
        b.set_stream(at.stream);
    }
    let before = bins.count + blocks.len() as u64;
    for &index in blocks {
        let b = block(index);
        settle_one(index, b, b.size_flags(), at.stream, 0, bins, stock);
    }
    // Where two merge there is one fewer.
    before - bins.count
}

/// In the page `home`, one free block goes from `start` to `end` now. Of what became part of it the last started at `last`, and `next`
/// comes after it. (Where nothing starts any more, the index may name what started there.)
#[inline(always)]
fn note_first(home: u32, start: u64, last: u64, end: u64, next: u32) {
    if page::apart(start, last) & !page::apart(last, end) {
        page(home).set_first(last, next);
    }
}

/// Puts a free block of `domain` into `bins`, merged with its neighbours of the same domain. `unused` are the bins of a
/// Cuda entry's never-used blocks (only with the observed domain). The block's flags say FREE and whether it is UNUSED.
/// Recent neighbours stay as they are. All under the domain's lock. Returns how often it merged.
#[inline(always)]
pub(crate) fn insert_merged(
    mut index: u32,
    mut b: &'static Block,
    domain: StreamRef,
    bins: &mut Bins,
    mut unused: Option<&mut Bins>,
    stock: &mut Stock,
) -> u64 {
    let (right, left) = mergeable(b, domain);
    let mut merges = 0;
    if let Some((next, n)) = right {
        take_out(next, n, bins, unused.as_deref_mut());
        absorb(index, b, next, n, stock);
        merges += 1;
    }
    if let Some((prev, p)) = left {
        take_out(prev, p, bins, unused.as_deref_mut());
        absorb(prev, p, index, b, stock);
        (index, b) = (prev, p);
        merges += 1;
    }
    match unused {
        Some(unused) if b.has(UNUSED) => unused.insert_record(index, b),
        _ => bins.insert_record(index, b),
    }
    bins.note_beside(index, b);
    merges
}

/// Whether a live block of the same page and domain, whose lock is held, is seen beside this one.
#[inline(always)]
pub(crate) fn beside_own_live(b: &Block, me: StreamRef) -> bool {
    // The link to the left may be old; a live block of the same page says as much, wherever it lies.
    let prev = b.prev();
    if prev != NIL {
        let p = block(prev);
        if p.stream() == me && p.has(LIVE) && p.page() == b.page() {
            return true;
        }
    }
    let next = b.next();
    if next == NIL {
        return false;
    }
    let n = block(next);
    n.stream() == me && n.has(LIVE)
}

#[inline(always)]
fn take_out(index: u32, b: &Block, bins: &mut Bins, unused: Option<&mut Bins>) {
    match unused {
        Some(unused) if b.has(UNUSED) => unused.remove_record(index, b),
        _ => bins.remove_record(index, b),
    }
}

/// `right` becomes part of `left`; neither is in a structure, but that the left one may be in a chain of recent blocks.
#[inline(always)]
pub(crate) fn absorb(left: u32, l: &Block, right: u32, r: &Block, stock: &mut Stock) {
    let (own, other, next) = (l.size_flags(), r.size_flags(), r.next());
    let bytes = Block::size_in(own) + Block::size_in(other);
    if next != NIL {
        note_first(l.page(), l.addr(), r.addr(), l.addr() + bytes, next);
    }
    l.set_seq(l.seq().max(r.seq()));
    // To follow: the link past the right one, and only then does it lose its size, for a look-up goes from link to link.
    l.set_size_flags(bytes, FREE | own & other & UNUSED | own & RECENT);
    l.set_next(next);
    if next != NIL {
        block(next).set_prev(left);
    }
    stock.give_record(right, r);
}

/// Cuts `need` bytes off the low end of a free block that is in no structure; returns the remainder, if any, in the
/// same domain with the same point and flags. `None` in the error case: no record left.
#[inline(always)]
pub(crate) fn cut(
    index: u32,
    b: &Block,
    need: u64,
    stock: &mut Stock,
) -> std::result::Result<Option<(u32, &'static Block)>, ()> {
    cut_sized(index, b, b.size_flags(), need, stock)
}

/// The same, for a caller that has its size and flags, `own`, at hand.
#[inline(always)]
pub(super) fn cut_sized(
    index: u32,
    b: &Block,
    own: u64,
    need: u64,
    stock: &mut Stock,
) -> std::result::Result<Option<(u32, &'static Block)>, ()> {
    let size = Block::size_in(own);
    let flags = own - size;
    if size == need {
        return Ok(None);
    }
    let rest = stock.take().ok_or(())?;
    let r = block(rest);
    let next = b.next();
    let start = b.addr() + need;
    r.set_addr(start);
    r.set_stream(b.stream());
    r.set_seq(b.seq());
    r.set_page(b.page());
    r.set_prev(index);
    r.set_next(next);
    r.set_size_flags_last(size - need, flags);
    if next != NIL {
        block(next).set_prev(rest);
    }
    b.set_next(rest);
    b.set_size_flags(need, flags);
    if page::apart(b.addr(), start) {
        page(b.page()).set_first(start, rest);
    }
    Ok(Some((rest, r)))
}

/// How far around a freed block a live one is looked for.
const LOOK: usize = 16;

/// Whether all blocks of a page may be free, seen from one that just became so: `false` only if a live one was seen.
/// What cannot be told is answered with `true`, for whoever gives pages back checks again.
#[inline(never)]
pub(crate) fn may_be_empty(b: &'static Block, home: &Page) -> bool {
    if b.size() == home.bytes.load(Relaxed) {
        return true;
    }
    // Of threads that free the last blocks of a page at the same time, the last to come here sees what the others did.
    fence(SeqCst);
    let slot = b.page();
    for step in [Block::next as fn(&Block) -> u32, Block::prev] {
        let mut from = b;
        for _ in 0..LOOK {
            let at = step(from);
            if at == NIL {
                break;
            }
            from = block(at);
            if from.page() != slot {
                break;
            }
            if from.has(LIVE) {
                return false;
            }
        }
    }
    true
}
