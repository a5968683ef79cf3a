//! Lists that are short as a rule: up to `N` values lie in the list itself, and only more of them on the heap.

use std::ops::{Deref, DerefMut};

/// A short list.
#[derive(Clone, Debug)]
pub(crate) struct Few<T, const N: usize> {
    /// How many of `here` count. Not used once there is something in `heap`.
    len: usize,
    here: [T; N],
    /// All of them, once there are more than `N`.
    heap: Vec<T>,
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    #[inline(always)]
    fn default() -> Self {
        Few { len: 0, here: [T::default(); N], heap: Vec::new() }
    }
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        if self.heap.is_empty() && self.len < N {
            self.here[self.len] = value;
            self.len += 1;
        } else {
            self.push_on_heap(value);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_on_heap(&mut self, value: T) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.here[..self.len]);
            self.len = 0;
        }
        self.heap.push(value);
    }

    /// Puts a value before the one at `at`.
    #[inline]
    pub(crate) fn insert(&mut self, at: usize, value: T) {
        self.push(value);
        let after = &mut self[at..];
        after.copy_within(..after.len() - 1, 1);
        after[0] = value;
    }

    /// Becomes these.
    #[inline]
    pub(crate) fn assign(&mut self, values: &[T]) {
        self.heap.clear();
        match self.here.get_mut(..values.len()) {
            Some(here) => {
                here.copy_from_slice(values);
                self.len = values.len();
            }
            None => {
                self.heap.extend_from_slice(values);
                self.len = 0;
            }
        }
    }

    /// Takes out the last.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = *self.last()?;
        self.truncate(self.len() - 1);
        Some(last)
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.heap.clear();
    }

    /// Keeps those that `keep` says, in their order.
    #[inline]
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(T) -> bool) {
        let all = &mut **self;
        let mut kept = 0;
        for at in 0..all.len() {
            let value = all[at];
            if keep(value) {
                all[kept] = value;
                kept += 1;
            }
        }
        self.truncate(kept);
    }

    /// Of neighbours with the same key, the first stays.
    #[inline]
    pub(crate) fn dedup_by_key<K: PartialEq>(&mut self, key: impl Fn(&T) -> K) {
        let mut last = None;
        self.retain(|value| {
            let own = Some(key(&value));
            let new = own != last;
            last = own;
            new
        });
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        if self.heap.is_empty() {
            self.len = len;
        } else {
            // (Empty, it is a short list again.)
            self.heap.truncate(len);
        }
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        if self.heap.is_empty() { &self.here[..self.len] } else { &self.heap }
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        if self.heap.is_empty() { &mut self.here[..self.len] } else { &mut self.heap }
    }
}

impl<T: Copy + Default, const N: usize> Extend<T> for Few<T, N> {
    #[inline]
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

impl<T: Copy + Default, const N: usize> From<&[T]> for Few<T, N> {
    #[inline]
    fn from(values: &[T]) -> Self {
        let mut few = Few::default();
        few.assign(values);
        few
    }
}

impl<T: Copy + Default, const N: usize> FromIterator<T> for Few<T, N> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut few = Few::default();
        few.extend(values);
        few
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn a_few_values_behave_as_many_do() {
        for count in 0..9u32 {
            let mut few: Few<u32, 4> = (0..count).collect();
            assert_eq!(&*few, (0..count).collect::<Vec<_>>());
            few.retain(|value| value % 2 == 0);
            assert_eq!(&*few, (0..count).filter(|value| value % 2 == 0).collect::<Vec<_>>());
            few.extend([7, 7, 8]);
            few.dedup_by_key(|value| *value);
            assert_eq!(few[few.len() - 2..], [7, 8]);
            few.retain(|_| false);
            few.push(3);
            assert_eq!(&*few, [3]);
            few.insert(0, 2);
            few.insert(1, 9);
            assert_eq!(&*few, [2, 9, 3]);
            few.assign(&vec![5; count as usize]);
            assert_eq!(&*few, vec![5; count as usize]);
            few.push(6);
            assert_eq!((few.pop(), few.len()), (Some(6), count as usize));
            few.clear();
            assert_eq!((few.is_empty(), few.pop()), (true, None));
        }
    }
}
