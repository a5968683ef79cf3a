//! What holds of a Mapped entry at any quiet moment: part of the invariant checker.

use super::{NOTHING, SERVES, STUCK};
use crate::pool::block::{FREE, NIL, VACANT, block};
use crate::pool::page::page;
use crate::pool::state::{Pool, PoolShared};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Compares the entry's places and vacant blocks with the blocks of its ranges.
pub(crate) fn check(shared: &PoolShared, pool: &Arc<Pool>, e: usize) -> std::result::Result<(), String> {
    let mapping = &shared.entries[e].mapped;
    let size = pool.entries[e].page_size;
    let (mut mapped, mut vacant, mut ghosts, mut stuck) = (0, 0, 0, 0);
    for range in &mapping.ranges {
        for (place, &number) in (0..).zip(&range.places) {
            let address = range.base + place * size;
            match number {
                NOTHING => {}
                STUCK => stuck += 1,
                _ => {
                    let Some(serving) = mapping.chunks.get(number as usize) else {
                        return Err(format!("entry {e}: what is mapped at {address:#x} is no chunk"));
                    };
                    let here = serving.at == address;
                    let ghost = range.ghosts[place as usize];
                    let listed = serving.ghosts.iter().filter(|ghost| ghost.at == address).count();
                    let known = match here {
                        true => ghost == SERVES,
                        false => serving.ghosts.get(ghost as usize).is_some_and(|ghost| ghost.at == address),
                    };
                    let is_away = range.away[place as usize / 64] >> (place % 64) & 1 != 0;
                    if serving.at == 0
                        || listed != usize::from(!here)
                        || !known
                        || is_away != (here && serving.at != serving.home)
                    {
                        return Err(format!("entry {e}: the chunk mapped at {address:#x} does not say so"));
                    }
                    (mapped, ghosts) = (mapped + u64::from(here), ghosts + u64::from(!here));
                }
            }
        }
        let serves = |place: u64| match range.number(place) {
            NOTHING | STUCK => false,
            number => mapping.chunks[number as usize].at == range.base + place * size,
        };
        let mut at = page(range.page).first.load(Relaxed);
        let mut last_vacant = false;
        while at != NIL {
            let b = block(at);
            let kinds = [crate::pool::block::LIVE, FREE, VACANT].into_iter().filter(|&flag| b.has(flag)).count();
            if kinds != 1 {
                return Err(format!("entry {e}: block {at} is {kinds} of live, free and vacant"));
            }
            let nothing = b.has(VACANT);
            let (first, last) = ((b.addr() - range.base) / size, (b.end() - 1 - range.base) / size);
            // (Places beyond the list have nothing mapped.)
            let listed = last.min(range.places.len() as u64);
            if (first..=listed).any(|place| serves(place) == nothing) || (!nothing && listed < last) {
                return Err(format!("entry {e}: block {at} and the chunks under it disagree"));
            }
            if nothing && (!(b.addr() - range.base).is_multiple_of(size) || !b.size().is_multiple_of(size)) {
                return Err(format!("entry {e}: block {at} is vacant but not of whole places"));
            }
            if nothing {
                if last_vacant {
                    return Err(format!("entry {e}: vacant block {at} should have merged"));
                }
                if mapping.vacant.get(mapping.vacant_from(b.addr())) != Some(&(b.addr(), at)) {
                    return Err(format!("entry {e}: vacant block {at} is not listed"));
                }
                vacant += 1;
            }
            last_vacant = nothing;
            at = b.next();
        }
    }
    let held = mapping.chunks.iter().filter(|serving| serving.at != 0);
    let away = held.clone().filter(|serving| serving.at != serving.home).count() as u64;
    let listed: usize = held.clone().map(|serving| serving.ghosts.len()).sum();
    if held
        .clone()
        .any(|serving| serving.home != serving.at && !serving.ghosts.iter().any(|ghost| ghost.at == serving.home))
    {
        return Err(format!("entry {e}: a chunk's home is not its own"));
    }
    let have = (mapped, ghosts, listed as u64, away, held.count(), vacant, stuck);
    let want = (
        mapping.mapped,
        mapping.ghosts,
        mapping.ghosts,
        mapping.away,
        mapping.chunks.len() - mapping.free_numbers.len(),
        mapping.vacant.len(),
        mapping.stuck.len(),
    );
    if have != want {
        return Err(format!(
            "entry {e}: (chunks, ghosts, listed ghosts, chunks away, served, vacant blocks, stuck places) are {have:?}, \
             counted {want:?}"
        ));
    }
    Ok(())
}
