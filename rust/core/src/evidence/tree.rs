//! The Merkle tree of RFC 6962 (and 9162): its root over the first `size` leaves, proofs that a leaf is in
//! it, and proofs that a later tree begins with an earlier one.
//!
//! A tree is asked for hashes of complete subtrees; who keeps them decides which of them to keep. Proofs
//! come from anybody: checking one takes only hashes and numbers, and never fails but by saying no.

use sha2::{Digest as _, Sha256};

use crate::canonical::{hex, unhex};
use crate::mutants::{Mutant, mutant};

/// A hash in the tree.
pub type Hash = [u8; 32];

/// A hash in hex.
pub fn spell_hash(hash: &Hash) -> String {
    hex(hash)
}

/// A hash from hex.
pub fn read_hash(text: &str) -> Option<Hash> {
    unhex(text)
}

/// Every so many levels the roots of complete subtrees are worth keeping: then each is made of at most 256.
pub const TILE: u32 = 8;

/// The root of a tree without leaves.
pub fn empty_root() -> Hash {
    Sha256::digest(b"").into()
}

/// The hash of a leaf.
pub fn leaf_hash(data: &[u8]) -> Hash {
    Sha256::new_with_prefix([0]).chain_update(data).finalize().into()
}

/// The hash of two subtrees.
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Sha256::new_with_prefix([1]).chain_update(left).chain_update(right).finalize().into()
}

/// Whoever keeps a tree: the hash of the complete subtree over leaves `n << level .. (n + 1) << level`.
pub trait Nodes<E> {
    fn subtree(&self, level: u32, n: u64) -> Result<Hash, E>;
}

impl<E, F: Fn(u32, u64) -> Result<Hash, E>> Nodes<E> for F {
    fn subtree(&self, level: u32, n: u64) -> Result<Hash, E> {
        self(level, n)
    }
}

/// The complete subtrees that leaves so far make up, largest first: all that is needed to go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Range {
    size: u64,
    roots: Vec<Hash>,
}

impl Range {
    /// A tree that somebody keeps, at a size.
    pub fn of<E>(nodes: &dyn Nodes<E>, size: u64) -> Result<Self, E> {
        let (mut roots, mut at) = (Vec::new(), 0);
        for level in (0..u64::BITS).rev().filter(|level| size >> level & 1 == 1) {
            roots.push(nodes.subtree(level, at >> level)?);
            at += 1 << level;
        }
        Ok(Self { size, roots })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf; `made` hears of every subtree that it completes.
    pub fn push(&mut self, leaf: Hash, mut made: impl FnMut(u32, u64, &Hash)) {
        let (mut hash, mut level) = (leaf, 0);
        made(0, self.size, &hash);
        while self.size >> level & 1 == 1 {
            let Some(left) = self.roots.pop() else { break };
            hash = node_hash(&left, &hash);
            level += 1;
            made(level, self.size >> level, &hash);
        }
        self.roots.push(hash);
        self.size += 1;
    }

    pub fn root(&self) -> Hash {
        let mut roots = self.roots.iter().rev();
        let Some(last) = roots.next() else { return empty_root() };
        roots.fold(*last, |right, left| node_hash(left, &right))
    }
}

/// The largest power of two below a size of at least two, as a level.
fn split_level(size: u64) -> u32 {
    u64::BITS - 1 - (size - 1).leading_zeros()
}

/// The root over leaves `low .. low + size`, where the low end is a multiple of the split.
fn range_root<E>(nodes: &dyn Nodes<E>, low: u64, size: u64) -> Result<Hash, E> {
    if size.is_power_of_two() {
        let level = size.trailing_zeros();
        return nodes.subtree(level, low >> level);
    }
    let split = 1 << split_level(size);
    let left = range_root(nodes, low, split)?;
    Ok(node_hash(&left, &range_root(nodes, low + split, size - split)?))
}

/// The root of a tree that somebody keeps, at a size.
pub fn root_of<E>(nodes: &dyn Nodes<E>, size: u64) -> Result<Hash, E> {
    if size == 0 { Ok(empty_root()) } else { range_root(nodes, 0, size) }
}

/// What proves that leaf `n` is in the tree at a size. `n` is below it.
pub fn inclusion<E>(nodes: &dyn Nodes<E>, n: u64, size: u64) -> Result<Vec<Hash>, E> {
    let (mut path, mut low, mut left) = (Vec::new(), 0, size);
    while left > 1 {
        let split = 1 << split_level(left);
        if n - low < split {
            path.push(range_root(nodes, low + split, left - split)?);
            left = split;
        } else {
            path.push(range_root(nodes, low, split)?);
            (low, left) = (low + split, left - split);
        }
    }
    path.reverse();
    Ok(path)
}

/// What proves that the tree at size `new` begins with the tree at size `old`, which is not larger.
pub fn consistency<E>(nodes: &dyn Nodes<E>, old: u64, new: u64) -> Result<Vec<Hash>, E> {
    if old == 0 || old == new {
        return Ok(Vec::new());
    }
    let (mut path, mut low, mut left, mut whole) = (Vec::new(), 0, new, true);
    while old - low != left {
        let split = 1 << split_level(left);
        if old - low <= split {
            path.push(range_root(nodes, low + split, left - split)?);
            left = split;
        } else {
            path.push(range_root(nodes, low, split)?);
            (low, left, whole) = (low + split, left - split, false);
        }
    }
    if !whole {
        path.push(range_root(nodes, low, left)?);
    }
    path.reverse();
    Ok(path)
}

/// Whether a path proves that a leaf is the `n`-th of the tree with this size and root.
pub fn verify_inclusion(leaf: &Hash, n: u64, size: u64, path: &[Hash], root: &Hash) -> bool {
    if n >= size {
        return false;
    }
    let (mut at, mut last, mut hash) = (n, size - 1, *leaf);
    for step in path {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            hash = node_hash(step, &hash);
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            hash = node_hash(&hash, step);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    last == 0 && hash == *root || mutant(Mutant::LooseInclusion)
}

/// Whether a path proves that the tree with the new size and root begins with the old one.
pub fn verify_consistency(old: (u64, &Hash), new: (u64, &Hash), path: &[Hash]) -> bool {
    let ((old_size, old_root), (new_size, new_root)) = (old, new);
    if old_size == 0 || old_size == new_size {
        return old_size <= new_size && path.is_empty() && (old_size == 0 || old_root == new_root);
    }
    let own;
    let path = if old_size.is_power_of_two() {
        own = [&[*old_root], path].concat();
        &own
    } else {
        path
    };
    let (Some((first, rest)), true) = (path.split_first(), old_size < new_size) else { return false };
    let (mut at, mut last) = (old_size - 1, new_size - 1);
    while at & 1 == 1 {
        (at, last) = (at >> 1, last >> 1);
    }
    let (mut before, mut after) = (*first, *first);
    for step in rest {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            (before, after) = (node_hash(step, &before), node_hash(step, &after));
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            after = node_hash(&after, step);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    last == 0 && before == *old_root && after == *new_root || mutant(Mutant::LooseConsistency)
}
