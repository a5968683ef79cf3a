//! Step 7 for a Mapped entry: what is moved, what the device is asked for, and what is mapped then (`docs/placement.md` §7.1,
//! steps 1, 3 and 5 to 9).

use super::home::drop_ghosts;
use super::plan::add_gap;
use super::{
    Coming, FreePoints, Left, MOST_CHUNKS, NOTHING, Origin, PAUSES, Plan, Range, Source, between, budget, free_points,
    holder_of, leave, take_out, unmap,
};
use crate::device_source::{Chunk, PageSource};
use crate::error::Result;
use crate::handle;
use crate::pool::Reason;
use crate::pool::alloc::{Found, Lack, Request, out_of_records, wait_a_little};
use crate::pool::block::{FREE, HOST, OBSERVED, UNUSED, VACANT, block};
use crate::pool::config::MAX_PAGE;
use crate::pool::fresh::enter_page;
use crate::pool::merge::cut;
use crate::pool::observer::{AllocDone, Event};
use crate::pool::page;
use crate::pool::release;
use crate::pool::slow::Slow;
use crate::pool::span::Bound;
use crate::pool::state::{Kind, PoolShared, Sole};
use crate::rules;
use crate::runtime::native;
use crate::slab::SlotMap;
use std::sync::atomic::Ordering::Relaxed;

impl Request<'_> {
    /// Whether a Mapped entry asks for chunks before a stream takes what others have freed and the host has not observed: while
    /// it holds so little that nothing would be moved for this request (`docs/placement.md` §6, step 4).
    pub(in crate::pool) fn grows_first(&self, shared: &PoolShared, e: usize) -> bool {
        let (pool, entry, size) = (self.pool, &self.pool.entries[e], self.pool.entries[e].page_size);
        let mapped = &shared.entries[e].mapped;
        if entry.kind != Kind::Mapped || mapped.refused {
            return false;
        }
        let used = pool.entry_tally[e].used_high.load(Relaxed);
        // As many chunks as the block may touch.
        let more = self.need.div_ceil(size) + 1;
        let kept = pool.threshold.load(Relaxed).saturating_sub(pool.tally.reserved.load(Relaxed)) / size;
        mapped.mapped + more <= budget(used, size, shared.entries[e].sole.is_several(), mapped.tight).min(entry.cap)
            && more <= kept
    }

    /// Step 7 for a Mapped entry: chunks are mapped where they are missing.
    pub(in crate::pool) fn map(&mut self, e: usize) -> Result<Option<AllocDone>> {
        let pool = self.pool;
        let device = &*pool.device;
        let entry = &pool.entries[e];
        let size = entry.page_size;
        let tally = &pool.entry_tally[e];
        let cap = if rules::off(rules::CAPS) { u64::MAX } else { entry.cap };
        if pool.entries.iter().any(|entry| entry.period.is_some()) {
            native::poll_all(device);
        }
        let mut polled = false;
        let mut swept = false;
        let mut least = false;
        let mut refused_at = u64::MAX;
        let mut waited = 0;
        let internal = self.stream.is_some() && pool.internal.load(Relaxed);
        let mut may_wait = internal && !rules::off(rules::POLICY3) && !rules::off(rules::GROWTH_WAITS);
        loop {
            let mut slow = Slow::lock(device);
            let clock = self.now(&mut slow)?;
            if !swept {
                swept = true;
                release::sweep_periods(&mut slow, pool);
                if slow.has_leaving() {
                    // The device is asked to take them back as the locks go.
                    continue;
                }
            }
            if self.need.div_ceil(size) > MOST_CHUNKS {
                self.note_lack(Lack::Chunks);
                return Ok(None);
            }
            let mut shared = pool.shared.lock();
            let holders = slow.holders(pool, e);
            let bound = self.bound(&mut slow, &shared, e, &holders, &clock);
            let candidates = self.candidates(&mut slow, &mut shared, e, &bound, &holders);
            let idle = self.idle_chunks(&shared, e, &candidates);
            let Some(plan) = self.plan(&shared, e, &bound, &idle) else {
                drop(shared);
                drop(slow);
                if self.need.div_ceil(size) > cap {
                    return Ok(None);
                }
                if !self.reserve(e)? {
                    return Ok(None);
                }
                continue;
            };
            // How much to move and how much to ask for.
            let missing = plan.missing;
            let held = shared.entries[e].mapped.mapped;
            // What other threads are asking for is reserved already, and may not come into the cap's way twice.
            let asked = (tally.reserved.load(Relaxed) / size).saturating_sub(shared.entries[e].mapped.chunks());
            let cap = cap.saturating_sub(asked);
            let used = slow.used(&mut shared, pool, e).saturating_add(self.need).max(tally.used_high.load(Relaxed));
            let several = shared.entries[e].sole.is_several();
            // What others have not finished with takes memory as well.
            let busy = if several { held - self.idle(&shared, e, &candidates) } else { 0 };
            let tight = shared.entries[e].mapped.tight;
            let twice = budget(used, size, several, tight) + used / size;
            let used = if several { used.max((busy * size).saturating_add(self.need)) } else { used };
            let budget = budget(used, size, several, tight);
            // What was enough until the last pause is enough again: what is done again comes to the same places sooner.
            let before = shared.entries[e].mapped.paused;
            let alone = self.stream.is_some_and(|stream| shared.entries[e].sole == Sole::One(stream));
            let as_before = alone && (before.used, before.tight) == (used, tight);
            let budget = if as_before { budget.min(before.chunks) } else { budget };
            let over = (held + missing).saturating_sub(budget.min(cap));
            let wanted = if least { missing } else { over.min(missing) };
            let wanted = if rules::off(rules::CHUNK_MOVES) { 0 } else { wanted };
            let sources = self.sources(&shared, e, &candidates, &plan, wanted);
            let moves: u64 = sources.iter().map(|source| source.count).sum();
            if !polled
                && device.cuda().is_some()
                && sources.iter().any(|source| self.has_many_ghosts(&shared, e, source))
            {
                // Some are dropped, if what used them has run: the driver is asked with no lock held.
                polled = true;
                drop(shared);
                drop(slow);
                native::poll_all(device);
                continue;
            }
            let grow = missing - moves;
            if held + grow > cap {
                if asked == 0 {
                    return Ok(None);
                }
                // They may leave something free of what they get, or get nothing.
                drop(shared);
                drop(slow);
                wait_a_little(&mut waited);
                match self.reuse(e)? {
                    Some(done) => return Ok(Some(done)),
                    None => continue,
                }
            }
            let extra = if grow == 0 || least || !plan.tail {
                0
            } else {
                let beyond = unmapped_after(&shared, e, &plan, size);
                // (Where little can be moved, more will be asked for soon.)
                let step = if moves < wanted { 96 } else { 256 };
                let room = budget.saturating_sub(held + grow).max((used / step / size).saturating_sub(grow));
                let spare = shared.entries[e].mapped.spare.len() as u64;
                let others = pool.tally.reserved.load(Relaxed).saturating_sub(spare * size);
                let kept = pool.threshold.load(Relaxed).saturating_sub(others) / size;
                // (Nothing waits for what is only asked for ahead.)
                let most = if several { twice.saturating_sub(held + grow) } else { u64::MAX };
                room.min(kept.saturating_sub(grow)).min(cap - (held + grow)).min(beyond).min(most)
            };
            // What is freed and not finished with would let memory grow as long as the host is ahead.
            if may_wait && several && grow > 0 && !least && held + grow > twice {
                drop(shared);
                drop(slow);
                may_wait = false;
                // (If the driver does not let it wait, the entry can grow all the same.)
                match self.internal(e) {
                    Ok(Some(done)) => return Ok(Some(done)),
                    Ok(None) | Err(_) => continue,
                }
            }
            let lacking = (grow + extra).saturating_sub(shared.entries[e].mapped.spare.len() as u64);
            if lacking == 0 {
                let came = moves + plan.back;
                let Some(found) = self.act(&mut slow, &mut shared, e, &bound, plan, &sources, extra)? else {
                    shared.entries[e].mapped.refused = true;
                    self.refused = true;
                    return Ok(None);
                };
                if !several && came > 0 && came <= used.div_ceil(64 * size) {
                    shared.entries[e].mapped.note_lacking(pool.allocations());
                }
                let done = self.commit(&mut slow, &mut shared, found)?;
                if let Sole::One(_) = shared.entries[e].sole {
                    tally.pauses.store(PAUSES, Relaxed);
                }
                return Ok(done);
            }
            if lacking >= refused_at {
                return Ok(None);
            }
            let base = shared.entries[e].mapped.ranges[plan.range].base;
            let beyond = plan.first + plan.count;
            let gaps = plan.gaps.iter().flat_map(|&(first, count)| first..first + count);
            let places = gaps.skip(moves as usize).chain(beyond..beyond + extra);
            let addresses: Vec<u64> = places.map(|place| base + place * size).collect();
            pool.tally.ask_chunks(lacking, size);
            tally.ask_chunks(lacking, size);
            drop(shared);
            drop(slow);
            // No lock is held while the device is asked.
            let answer = device.source.create_chunks(lacking, size);
            let slow = Slow::lock(device);
            match answer {
                Ok(chunks) if pool.destroyed.load(Relaxed) => {
                    // Destroyed meanwhile, and perhaps gone already: the chunks must not come into it.
                    for chunk in chunks {
                        let _ = device.source.release_chunk(chunk, size);
                    }
                    return Err(handle::gone(handle::Kind::Pool, pool.id.0));
                }
                Ok(chunks) => {
                    pool.tally.granted_chunks(lacking);
                    tally.granted_chunks(lacking);
                    device.page_allocs.fetch_add(lacking, Relaxed);
                    device.reserved.fetch_add(lacking * size, Relaxed);
                    let mut addresses = addresses.into_iter();
                    for _ in &chunks {
                        let address = addresses.next().unwrap_or(base);
                        device.tell(&Event::PageGranted { pool: pool.id, entry: e as u32, bytes: size, address });
                    }
                    let mut shared = pool.shared.lock();
                    let mapped = &mut shared.entries[e].mapped;
                    mapped.spare.extend(chunks);
                    mapped.refused = false;
                }
                Err(refused) => {
                    self.note_refusal(refused);
                    pool.tally.refused_chunks(lacking, size);
                    tally.refused_chunks(lacking, size);
                    pool.shared.lock().entries[e].mapped.refused = true;
                    device.tell(&Event::PageRefused { pool: pool.id, entry: e as u32, bytes: lacking * size });
                    least = true;
                    refused_at = lacking;
                }
            }
            drop(slow);
        }
    }

    /// Reserves a further range; if need be, one that is just large enough. `false`: the device refused.
    fn reserve(&mut self, e: usize) -> Result<bool> {
        let entry = &self.pool.entries[e];
        let least = self.need.div_ceil(entry.page_size).saturating_mul(entry.page_size);
        let wanted = entry.range_size.max(least);
        let before = (self.refused, self.lack);
        if self.reserve_bytes(e, wanted)? {
            return Ok(true);
        }
        if least < wanted && self.reserve_bytes(e, least)? {
            (self.refused, self.lack) = before;
            return Ok(true);
        }
        Ok(false)
    }

    fn reserve_bytes(&mut self, e: usize, bytes: u64) -> Result<bool> {
        let pool = self.pool;
        let device = &*pool.device;
        if bytes > MAX_PAGE {
            self.note_lack(Lack::Chunks);
            return Ok(false);
        }
        let (taken, index) = {
            let slow = Slow::lock(device);
            let Some(index) = pool.shared.lock().stock.take() else { return Err(out_of_records()) };
            let taken = device.granted.lock().addresses.take(bytes);
            let Some(taken) = taken else {
                pool.shared.lock().stock.give(index);
                self.note_lack(Lack::Addresses);
                return Ok(false);
            };
            drop(slow);
            (taken, index)
        };
        let address = taken.address;
        let answer = device.source.reserve(bytes, address);
        let slow = Slow::lock(device);
        let opened = match answer {
            Ok(grant) if !pool.destroyed.load(Relaxed) => match page::open(address, bytes, device.options.alignment) {
                Some(slot) => Some((slot, grant)),
                None => {
                    device.source.unreserve(grant, bytes);
                    None
                }
            },
            Ok(grant) => {
                device.source.unreserve(grant, bytes);
                device.granted.lock().addresses.put_back(&taken);
                let mut shared = pool.shared.lock();
                shared.stock.give(index);
                shared.stock.give_back();
                return Err(handle::gone(handle::Kind::Pool, pool.id.0));
            }
            Err(refused) => {
                self.note_refusal(refused);
                self.note_lack(Lack::DriverAddresses);
                None
            }
        };
        let Some((slot, grant)) = opened else {
            self.refused = true;
            let mut shared = pool.shared.lock();
            shared.stock.give(index);
            shared.entries[e].mapped.refused = true;
            drop(shared);
            device.granted.lock().addresses.put_back(&taken);
            for tally in [&pool.tally, &pool.entry_tally[e]] {
                tally.page_refusals.fetch_add(1, Relaxed);
            }
            device.tell(&Event::RangeRefused { pool: pool.id, entry: e as u32, bytes });
            return Ok(false);
        };
        for tally in [&pool.tally, &pool.entry_tally[e]] {
            tally.ranges.fetch_add(1, Relaxed);
        }
        let b = block(index);
        b.set_stream(HOST);
        let pointer = grant.pointer;
        let mut shared = pool.shared.lock();
        enter_page(&mut shared, pool, e, slot, index, (bytes, VACANT), address, grant);
        let own = &mut shared.entries[e];
        let vacant = own.mapped.vacant_from(address);
        own.mapped.vacant.insert(vacant, (address, index));
        let range = Range {
            page: slot,
            base: address,
            bytes,
            pointer,
            places: Vec::new(),
            ghosts: Vec::new(),
            away: Vec::new(),
            since: Vec::new(),
        };
        let at = own.mapped.ranges.partition_point(|other| other.base < address);
        own.mapped.ranges.insert(at, range);
        drop(slow);
        Ok(true)
    }
}

impl Request<'_> {
    /// Carries a plan out. `None`: the device refused to map; nothing has changed then.
    #[allow(clippy::too_many_arguments)]
    fn act(
        &mut self,
        slow: &mut Slow<'_>,
        shared: &mut PoolShared,
        e: usize,
        bound: &Bound,
        plan: Plan,
        sources: &[Source],
        extra: u64,
    ) -> Result<Option<Found>> {
        let pool = self.pool;
        let device = &*pool.device;
        let size = pool.entries[e].page_size;
        let (returning, mut coming) = self.returning(shared, e, &plan);
        if !shared.stock.ensure(2 * (sources.len() + returning.len()) + 8) {
            return Err(out_of_records());
        }
        // What goes where.
        let mapping = &shared.entries[e].mapped;
        let (base, pointer) = (mapping.ranges[plan.range].base, mapping.ranges[plan.range].pointer);
        let mut origins: Vec<Origin> = Vec::with_capacity(sources.len() + returning.len() + 1);
        for source in returning.iter().chain(sources) {
            let end = mapping.ranges[source.range].base + (source.first + source.count) * size;
            origins.push(origin_of(shared, bound, source.block, end));
        }
        let new_origin = origins.len();
        origins.push(Origin { points: FreePoints::default(), reason: Reason::Fresh });
        // The gaps get the moved chunks, then new ones.
        let mut moves = 0;
        let mut chunks: Vec<Chunk> = Vec::with_capacity((plan.missing + extra) as usize);
        let mut places = Gaps { gaps: &plan.gaps, done: 0 };
        for (i, source) in sources.iter().enumerate() {
            let range = &mapping.ranges[source.range];
            let numbers = range.numbers(source.first, source.first + source.count);
            chunks.extend(numbers.iter().map(|&number| mapping.chunks[number as usize].chunk));
            moves += source.count;
            let mut from = source.first;
            while from < source.first + source.count {
                let (place, count) = places.take(source.first + source.count - from).expect("a gap for each");
                coming.push(Coming { place, count, from: Some((source.range, from)), origin: returning.len() + i });
                from += count;
            }
        }
        while let Some((place, count)) = places.take(u64::MAX) {
            coming.push(Coming { place, count, from: None, origin: new_origin });
        }
        coming.sort_unstable_by_key(|coming| coming.place);
        let new = (plan.missing - moves + extra) as usize;
        let mapping = &mut shared.entries[e].mapped;
        chunks.extend(mapping.spare.drain(..new));
        let beyond = plan.first + plan.count;
        let mut gaps = plan.gaps.clone();
        if extra > 0 {
            add_gap(&mut gaps, beyond, extra);
        }
        let mut unmapped = &chunks[..];
        for (i, &(first, count)) in gaps.iter().enumerate() {
            let (these, others) = unmapped.split_at(count as usize);
            unmapped = others;
            if let Err(refused) = device.source.map(pointer, first * size, these, size) {
                self.note_refusal(refused);
                for place in gaps[..i].iter().flat_map(|&(first, count)| first..first + count) {
                    let address = base + place * size;
                    if !unmap(mapping, pool, e, address) {
                        mapping.strand(address, size);
                    }
                }
                mapping.spare.extend_from_slice(&chunks[moves as usize..]);
                return Ok(None);
            }
        }
        // The block, and what its first and last chunk have beyond it.
        let (low, high) = (plan.address, plan.address + self.need);
        let last = plan.first + plan.count - 1;
        let head = coming.first().filter(|coming| coming.place == plan.first).map(|coming| coming.origin);
        let tail = coming.last().filter(|coming| coming.place + coming.count - 1 == last).map(|coming| coming.origin);
        let from = head.map_or(low, |_| base + plan.first * size);
        let to = tail.map_or(high, |_| base + (last + 1) * size);
        let (mut all_fresh, mut weakest) = (true, Reason::SameStream);
        let mut note_reason = |reason: Reason| {
            all_fresh &= reason == Reason::Fresh;
            weakest = weakest.max(if reason == Reason::Fresh { Reason::Observed } else { reason });
        };
        coming.iter().for_each(|coming| note_reason(origins[coming.origin].reason));
        for &index in plan.hole.iter().filter(|&&index| block(index).addr() < to && block(index).end() > from) {
            if let Some(reason) = bound.usable(shared, index) {
                note_reason(if block(index).has(UNUSED) { Reason::Fresh } else { reason });
            }
        }
        let more = (extra > 0).then(|| {
            let low = base + beyond * size;
            take_out(slow, shared, pool, e, &plan.hole, low, low + extra * size)
        });
        let mut index = take_out(slow, shared, pool, e, &plan.hole, from, to);
        // The chunks leave where they were.
        for source in sources.iter().rev().chain(returning.iter().rev()) {
            let low = shared.entries[e].mapped.ranges[source.range].base + source.first * size;
            leave(slow, shared, pool, e, source.block, source.range, (low, low + source.count * size));
        }
        for tally in [&pool.tally, &pool.entry_tally[e]] {
            tally.chunk_moves.fetch_add(moves, Relaxed);
        }
        let mut pieces: Vec<(u32, &Origin)> = Vec::new();
        if let Some(origin) = head
            && from < low
        {
            pieces.push((index, &origins[origin]));
            let rest = cut(index, block(index), low - from, &mut shared.stock).expect("records were made ready");
            index = rest.expect("the block goes on").0;
        }
        if let Some(origin) = tail
            && high < to
        {
            let rest = cut(index, block(index), self.need, &mut shared.stock).expect("records were made ready");
            pieces.push((rest.expect("the block goes on").0, &origins[origin]));
        }
        let mut answers = SlotMap::default();
        for coming in coming.iter().filter(|coming| coming.origin >= returning.len()) {
            let Some((range, first)) = coming.from else { continue };
            for place in first..first + coming.count {
                let number = shared.entries[e].mapped.ranges[range].number(place);
                drop_ghosts(shared, pool, e, number, &mut answers);
            }
        }
        let mapping = &mut shared.entries[e].mapped;
        let mut new_chunks = chunks[moves as usize..].iter();
        for coming in &coming {
            let points = &origins[coming.origin].points;
            if let Some(from) = coming.from {
                mapping.serve_at(from, (plan.range, coming.place), coming.count, &Left::at(points), size);
                continue;
            }
            for place in coming.place..coming.place + coming.count {
                mapping.settle_in(*new_chunks.next().expect("one for each"), base + place * size, size);
            }
        }
        for (place, &chunk) in (beyond..).zip(new_chunks) {
            mapping.settle_in(chunk, base + place * size, size);
        }
        if pool.entries[e].slow_free {
            let now = pool.allocations();
            for place in beyond..beyond + extra {
                mapping.ranges[plan.range].set_since(place, now);
            }
            mapping.due = mapping.due.min(now.saturating_add(pool.entries[e].period.unwrap_or(0)));
        }
        for (piece, origin) in pieces {
            let unused = if origin.reason == Reason::Fresh { UNUSED } else { 0 };
            block(piece).set_size_flags(block(piece).size(), FREE | unused);
            let points = if rules::off(rules::CHUNK_POINTS) { FreePoints::default() } else { origin.points.clone() };
            crate::pool::free::place(slow, shared, pool, e, piece, &points);
        }
        if let Some(more) = more {
            block(more).set_size_flags(block(more).size(), FREE | UNUSED);
            crate::pool::free::place(slow, shared, pool, e, more, &[]);
        }
        let reason = if all_fresh { Reason::Fresh } else { weakest };
        let b = block(index);
        b.set_stream(OBSERVED);
        b.set_size_flags(b.size(), FREE);
        Ok(Some(Found { index, entry: e, reason }))
    }
}

/// Places with nothing mapped, in their order.
struct Gaps<'a> {
    gaps: &'a [(u64, u64)],
    /// How many of the first gap have been taken.
    done: u64,
}

impl Gaps<'_> {
    /// Up to `most` adjacent ones: the first, how many.
    fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        let (&(first, count), rest) = self.gaps.split_first()?;
        let taken = (first + self.done, (count - self.done).min(most));
        self.done += taken.1;
        if self.done == count {
            (self.gaps, self.done) = (rest, 0);
        }
        Some(taken)
    }
}

/// Of the chunks that lie in the usable free blocks from `first` on up to `end`.
fn origin_of(shared: &PoolShared, bound: &Bound, first: u32, end: u64) -> Origin {
    let mut points = free_points(shared, first);
    let mut unused = block(first).has(UNUSED);
    if block(first).end() < end {
        for &index in &between(first, end)[1..] {
            points.extend(free_points(shared, index).iter().copied());
            unused &= block(index).has(UNUSED);
        }
        points = crate::pool::alloc::largest_per_stream(points.to_vec()).into_iter().collect();
    }
    let reason = if unused { Reason::Fresh } else { bound.reason_after(&points).expect("a source is usable") };
    Origin { points, reason }
}

/// How many places right after the plan's have nothing mapped.
fn unmapped_after(shared: &PoolShared, e: usize, plan: &Plan, size: u64) -> u64 {
    let range = &shared.entries[e].mapped.ranges[plan.range];
    let first = plan.first + plan.count;
    let address = range.base + first * size;
    if address >= range.end() {
        return 0;
    }
    let b = block(holder_of(&plan.hole, address));
    if !b.has(VACANT) {
        return 0;
    }
    let last = (b.end() - range.base) / size;
    let known = (range.places.len() as u64).clamp(first, last);
    (first..known).find(|&place| range.number(place) != NOTHING).unwrap_or(last) - first
}
