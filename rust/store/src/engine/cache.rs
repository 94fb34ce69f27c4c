//! Folded streams in memory. A fold is taken out for a batch and put back after COMMIT; a batch that
//! fails drops what it took, and the next command folds it anew.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use holdfast_core::ids::StreamId;
use holdfast_core::limits;
use holdfast_core::state::State;
use lru::LruCache;

/// A stream as a command sees it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) key: i64,
    pub(crate) state: State,
    /// The seq of the newest snapshot.
    pub(crate) kept: u64,
}

#[derive(Debug)]
pub(crate) struct Cache(LruCache<StreamId, Loaded>);

impl Cache {
    pub(crate) fn new() -> Self {
        let most = NonZeroUsize::new(limits::CACHED_STREAMS_MAX).unwrap_or(NonZeroUsize::MIN);
        Self(LruCache::new(most))
    }

    pub(crate) fn take(&mut self, stream: StreamId) -> Option<Loaded> {
        self.0.pop(&stream)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn put_back(&mut self, working: BTreeMap<StreamId, Loaded>) {
        for (stream, loaded) in working {
            self.0.put(stream, loaded);
        }
    }
}
