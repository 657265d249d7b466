//! Which supplies serve which demands, so that as much as possible is served: an assignment by augmenting paths.

use std::collections::VecDeque;

/// A number of equal things, and the demands that each of them can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// A bit for each demand.
    pub serves: u32,
    /// How many there are.
    pub count: usize,
}

impl Supply {
    fn can_serve(&self, demand: usize) -> bool {
        u32::try_from(demand).ok().and_then(|demand| 1_u32.checked_shl(demand)).is_some_and(|bit| self.serves & bit != 0)
    }
}

/// How many of each supply serve a demand when as much as possible is served. `demands`: the wanted number of each, at
/// most 32 demands. Supplies that can serve few demands are used first.
pub fn assign(demands: &[usize], supplies: &[Supply]) -> Vec<usize> {
    let mut spare: Vec<usize> = supplies.iter().map(|supply| supply.count).collect();
    // For each supply, how many of it serve each demand.
    let mut serving = vec![vec![0_usize; demands.len()]; supplies.len()];
    let mut order: Vec<usize> = (0..supplies.len()).collect();
    order.sort_by_key(|supply| supplies[*supply].serves.count_ones());
    for (demand, wanted) in demands.iter().enumerate() {
        let mut missing = *wanted;
        while missing > 0
            && let Some(path) = find_path(demand, supplies, &order, &spare, &serving)
        {
            let movable = path.moves.iter().map(|(supply, from, _)| serving[*supply][*from]).min().unwrap_or(usize::MAX);
            let amount = missing.min(spare[path.supply]).min(movable);
            spare[path.supply] -= amount;
            serving[path.supply][path.demand] += amount;
            for (supply, from, to) in path.moves {
                serving[supply][from] -= amount;
                serving[supply][to] += amount;
            }
            missing -= amount;
        }
    }
    supplies.iter().zip(spare).map(|(supply, spare)| supply.count - spare).collect()
}

/// How a demand can be served: a spare supply serves one demand, and supplies move from it to the next demands.
struct Path {
    supply: usize,
    /// The demand that the spare supply serves.
    demand: usize,
    /// The supply, from which demand it moves, and to which.
    moves: Vec<(usize, usize, usize)>,
}

fn find_path(wanted: usize, supplies: &[Supply], order: &[usize], spare: &[usize], serving: &[Vec<usize>]) -> Option<Path> {
    // For each demand that was reached: the supply that would move from it, and to which demand.
    let mut reached: Vec<Option<(usize, usize)>> = vec![None; serving.first().map_or(0, Vec::len)];
    let mut queue = VecDeque::from([wanted]);
    while let Some(demand) = queue.pop_front() {
        let able = || order.iter().copied().filter(|supply| supplies[*supply].can_serve(demand));
        if let Some(supply) = able().find(|supply| spare[*supply] > 0) {
            let (mut moves, mut at) = (Vec::new(), demand);
            while at != wanted {
                let (moving, to) = reached[at]?;
                moves.push((moving, at, to));
                at = to;
            }
            return Some(Path { supply, demand, moves });
        }
        for supply in able() {
            for (other, count) in serving[supply].iter().enumerate() {
                if *count > 0 && other != wanted && other != demand && reached[other].is_none() {
                    reached[other] = Some((supply, demand));
                    queue.push_back(other);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn supplies_serve_the_demands_for_which_they_are_needed() {
        let supply = |serves, count| Supply { serves, count };
        assert_eq!(assign(&[2, 2], &[supply(0b11, 2), supply(0b01, 2)]), [2, 2]);
        assert_eq!(assign(&[1, 1, 1], &[supply(0b011, 1), supply(0b110, 1), supply(0b001, 1)]), [1, 1, 1]);
        assert_eq!(assign(&[3, 1], &[supply(0b11, 2), supply(0b10, 5)]), [2, 1]);
        assert!(assign(&[1], &[]).is_empty());
        assert_eq!(assign(&[], &[supply(1, 1)]), [0]);
    }

    /// Whether all demands can be served: by Hall's theorem, each set of demands has enough supplies.
    fn is_possible(demands: &[usize], supplies: &[Supply]) -> bool {
        (0_u32..1 << demands.len()).all(|set| {
            let wanted: usize = demands.iter().enumerate().filter(|(at, _)| (set >> at) & 1 == 1).map(|(_, count)| count).sum();
            wanted <= supplies.iter().filter(|supply| supply.serves & set != 0).map(|supply| supply.count).sum::<usize>()
        })
    }

    proptest! {
        #[test]
        fn all_is_served_if_that_is_possible(
            demands in prop::collection::vec(0_usize..5, 1..5),
            supplies in prop::collection::vec((0_u32..16, 0_usize..5), 0..8),
        ) {
            let supplies: Vec<Supply> = supplies.into_iter().map(|(serves, count)| Supply { serves, count }).collect();
            let used = assign(&demands, &supplies);
            prop_assert!(used.iter().zip(&supplies).all(|(used, supply)| *used <= supply.count));
            let wanted: usize = demands.iter().sum();
            prop_assert_eq!(used.iter().sum::<usize>() == wanted, is_possible(&demands, &supplies));
        }
    }
}
