//! A bounded list of items, inline while there is only one.
//!
//! The record of a subject that asks once is dropped soon, so it is not worth an allocation.

use std::collections::VecDeque;
use std::mem;

#[derive(Debug, Default)]
pub(super) enum ShortList<T> {
    #[default]
    None,
    One(T),
    More(VecDeque<T>),
}

impl<T> ShortList<T> {
    /// Adds `item`, and forgets the oldest of more than `most`, which is two or more.
    pub(super) fn push(&mut self, item: T, most: usize) {
        *self = match mem::take(self) {
            Self::None => Self::One(item),
            Self::One(first) => Self::More([first, item].into()),
            Self::More(mut items) => {
                if items.len() == most {
                    items.pop_front();
                }
                items.push_back(item);
                Self::More(items)
            }
        };
    }

    /// Returns the items, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, more) = match self {
            Self::None => (None, None),
            Self::One(item) => (Some(item), None),
            Self::More(items) => (None, Some(items)),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    /// Removes the last item that `like` matches.
    pub(super) fn remove_last(&mut self, like: impl Fn(&T) -> bool) {
        match self {
            Self::One(item) if like(item) => *self = Self::None,
            Self::More(items) => {
                let index = items.iter().rposition(like);
                index.map(|index| items.remove(index));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_the_last_that_is_alike_is_taken_out() {
        let mut list = ShortList::default();
        let items = |list: &ShortList<u8>| list.iter().copied().collect::<Vec<_>>();
        assert_eq!(items(&list), [0_u8; 0]);
        list.push(1, 3);
        assert_eq!(items(&list), [1]);
        list.remove_last(|item| *item == 2);
        assert_eq!(items(&list), [1]);
        list.remove_last(|item| *item == 1);
        assert_eq!(items(&list), [0_u8; 0]);
        for item in [1, 2, 1, 3] {
            list.push(item, 3);
        }
        assert_eq!(items(&list), [2, 1, 3]);
        list.push(2, 3);
        list.remove_last(|item| *item < 3);
        assert_eq!(items(&list), [1, 3]);
    }
}
