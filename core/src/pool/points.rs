//! The free points of multi blocks (`docs/placement.md` §5). Under the slow lock, as the blocks.

use super::block::block;
use crate::order::{At, Points};
use std::ops::Index;

/// The points of each multi block, ascending by stream. In place of a sequence number the block's record says where they are.
#[derive(Default)]
pub(crate) struct PointSets {
    /// With the block whose they are.
    sets: Vec<(u32, Points)>,
    /// Sets that are nobody's.
    free: Vec<u32>,
}

/// Nobody's.
const NO_BLOCK: u32 = u32::MAX;

impl PointSets {
    /// A block gets points. Its record's sequence number is not to be changed before they are taken away.
    pub(crate) fn insert(&mut self, index: u32, points: &[At]) {
        let place = self.place(index).or_else(|| self.free.pop().map(|place| place as usize)).unwrap_or_else(|| {
            self.sets.push((NO_BLOCK, Points::default()));
            self.sets.len() - 1
        });
        let (owner, set) = &mut self.sets[place];
        *owner = index;
        set.assign(points);
        block(index).set_seq(place as u64);
    }

    fn place(&self, index: u32) -> Option<usize> {
        let place = usize::try_from(block(index).seq()).ok()?;
        self.sets.get(place).is_some_and(|(owner, _)| *owner == index).then_some(place)
    }

    /// A block's points, if it has some here.
    #[inline]
    pub(crate) fn get(&self, index: &u32) -> Option<&Points> {
        self.place(*index).map(|place| &self.sets[place].1)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: &u32) -> Option<&mut Points> {
        self.place(*index).map(|place| &mut self.sets[place].1)
    }

    /// Takes a block's points away, if it has some here.
    pub(crate) fn remove(&mut self, index: &u32) -> Option<Points> {
        let place = self.discard(index)?;
        Some(self.sets[place].1.clone())
    }

    /// The same, when they are not asked for.
    pub(crate) fn discard(&mut self, index: &u32) -> Option<usize> {
        let place = self.place(*index)?;
        self.sets[place].0 = NO_BLOCK;
        self.free.push(place as u32);
        Some(place)
    }
}

impl Index<&u32> for PointSets {
    type Output = Points;
    fn index(&self, index: &u32) -> &Points {
        self.get(index).expect("a multi block has points")
    }
}
