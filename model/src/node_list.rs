//! The nodes of a claim in rank order.

use crate::hostlist::{self, HostlistError};
use crate::ids::NodeId;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

/// From this number of nodes on, equal lists that are decoded share their memory.
const SHARED_NODES_MIN: usize = 64;
/// Largest number of decoded lists that are remembered for that.
const SHARED_LISTS_MAX: usize = 1024;

/// Decoded lists that are still in use, by hostlist.
static SHARED: LazyLock<Mutex<HashMap<Arc<str>, Weak<Listed>>>> = LazyLock::new(Mutex::default);

/// Nodes in rank order; the first is the head. It never changes, and copies share it. In messages
/// and files it is a hostlist in that order: a few bytes for thousands of nodes whose names have a
/// number. The names are expanded only when they are needed, and once for all equal decoded lists:
/// an agent gets the list of wide work again with each change of its share.
#[derive(Clone, Default)]
pub struct NodeList(Option<Arc<Listed>>);

/// The nodes of a list. An empty list has none, and no block of memory.
struct Listed {
    len: usize,
    /// One of the two is set from the beginning, the other when it is needed, for all copies.
    nodes: OnceLock<Box<[NodeId]>>,
    folded: OnceLock<Arc<str>>,
}

impl Listed {
    fn nodes(&self) -> &[NodeId] {
        // This cannot fail: the hostlist was read when it was counted.
        let expanded = || self.folded.get().and_then(|folded| hostlist::in_order(folded).ok()).unwrap_or_default().into();
        self.nodes.get_or_init(expanded)
    }
}

impl NodeList {
    /// The hostlist.
    pub fn folded(&self) -> &str {
        self.0.as_deref().map_or("", |listed| listed.folded.get_or_init(|| hostlist::fold_in_order(listed.nodes()).into()))
    }

    /// The first node; the others are not expanded for it.
    pub fn head(&self) -> Option<NodeId> {
        let listed = self.0.as_deref()?;
        match (listed.nodes.get(), listed.folded.get()) {
            (None, Some(folded)) => hostlist::first(folded),
            _ => listed.nodes().first().cloned(),
        }
    }

    /// The number of nodes; they are not expanded for it.
    pub fn len(&self) -> usize {
        self.0.as_deref().map_or(0, |listed| listed.len)
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Deref for NodeList {
    type Target = [NodeId];

    fn deref(&self) -> &[NodeId] {
        self.0.as_deref().map_or(&[], Listed::nodes)
    }
}

impl From<Vec<NodeId>> for NodeList {
    fn from(nodes: Vec<NodeId>) -> Self {
        if nodes.is_empty() {
            return Self::default();
        }
        Self(Some(Arc::new(Listed { len: nodes.len(), nodes: OnceLock::from(nodes.into_boxed_slice()), folded: OnceLock::new() })))
    }
}

impl FromIterator<NodeId> for NodeList {
    fn from_iter<T: IntoIterator<Item = NodeId>>(nodes: T) -> Self {
        nodes.into_iter().collect::<Vec<_>>().into()
    }
}

impl TryFrom<String> for NodeList {
    type Error = HostlistError;

    fn try_from(folded: String) -> Result<Self, HostlistError> {
        if folded.is_empty() {
            return Ok(Self::default());
        }
        let len = hostlist::count(&folded)?;
        let folded: Arc<str> = folded.into();
        let listed = || Arc::new(Listed { len, nodes: OnceLock::new(), folded: OnceLock::from(Arc::clone(&folded)) });
        Ok(Self(Some(if len < SHARED_NODES_MIN { listed() } else { shared(&folded, listed) })))
    }
}

/// The list of this hostlist that is still in use, or a new one.
fn shared(folded: &Arc<str>, new: impl FnOnce() -> Arc<Listed>) -> Arc<Listed> {
    let mut lists = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(listed) = lists.get(folded).and_then(Weak::upgrade) {
        return listed;
    }
    lists.retain(|_, listed| listed.strong_count() > 0);
    let listed = new();
    if lists.len() < SHARED_LISTS_MAX {
        lists.insert(Arc::clone(folded), Arc::downgrade(&listed));
    }
    listed
}

impl PartialEq for NodeList {
    fn eq(&self, other: &Self) -> bool {
        let is_same = self.0.as_ref().zip(other.0.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other));
        is_same || self[..] == other[..]
    }
}

impl Eq for NodeList {}

impl fmt::Debug for NodeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeList").field(&self.folded()).finish()
    }
}

impl Serialize for NodeList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.folded())
    }
}

impl<'de> Deserialize<'de> for NodeList {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_encoded_as_a_hostlist_in_rank_order() {
        let list: NodeList = ["n3", "n1", "n2", "login"].map(|name| name.parse().unwrap()).into_iter().collect();
        let encoded = serde_json::to_string(&list).unwrap();
        assert_eq!(encoded, r#""n[3,1-2],login""#);
        assert_eq!(serde_json::from_str::<NodeList>(&encoded).unwrap(), list);
        let empty = serde_json::to_string(&NodeList::default()).unwrap();
        assert!(serde_json::from_str::<NodeList>(&empty).unwrap().is_empty());
        let wide = serde_json::from_str::<NodeList>(r#""n[1-90000]""#).unwrap();
        assert_eq!(wide.head().unwrap().as_str(), "n1");
        assert_eq!((wide.len(), wide.0.as_ref().unwrap().nodes.get().is_none()), (90_000, true), "not expanded for the count and the head");
        assert_eq!(wide.last().unwrap().as_str(), "n90000");
        assert!(serde_json::from_str::<NodeList>(r#""n[3-1]""#).is_err());
    }

    #[test]
    fn equal_wide_lists_that_are_decoded_share_their_memory() {
        let decode = |folded: &str| NodeList::try_from(folded.to_owned()).unwrap();
        let memory = |list: &NodeList| Arc::as_ptr(list.0.as_ref().unwrap());
        let (one, other) = (decode("shared[1-64]"), decode("shared[1-64]"));
        assert_eq!(memory(&one), memory(&other));
        assert_ne!(memory(&one), memory(&decode("shared[1-65]")));
        assert_ne!(memory(&decode("shared[1-63]")), memory(&decode("shared[1-63]")), "short lists are not remembered");
        drop((one, other));
        let kept: Vec<NodeList> = (0..2 * SHARED_LISTS_MAX).map(|i| decode(&format!("many[{i}-{}]", i + SHARED_NODES_MIN))).collect();
        assert_eq!(kept[SHARED_LISTS_MAX + 1].len(), SHARED_NODES_MIN + 1);
        assert!(SHARED.lock().unwrap().len() <= SHARED_LISTS_MAX);
        drop(kept);
        assert_eq!(memory(&decode("shared[1-64]")), memory(&decode("shared[1-64]")));
    }
}
