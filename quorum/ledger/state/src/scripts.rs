//! Scripts: equal texts are stored once, in memory and in a snapshot, however many allocations use
//! them. After a snapshot was read, the lanes of a task group share their specification again, and so
//! do the replicas of a scaled service.
//!
//! ```text
//!   in a snapshot: [ [text, …], { id: [index of its text or nil, allocation without text], … } ]
//! ```

use imbl::OrdMap;
use lattice_model::{Allocation, AllocationId, AllocationSpec, Entrypoint};
use serde::de::Error as _;
use serde::ser::{SerializeMap, SerializeTuple};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The texts in use, by SHA-256. Not part of the replicated state: a missing entry only means that
/// a text is stored twice.
#[derive(Debug, Default)]
pub struct Scripts {
    known: BTreeMap<[u8; 32], Weak<str>>,
    /// Total size in bytes, including unused texts: the memory of a text is freed only when it is
    /// dropped here as well.
    bytes: usize,
    /// When the number of texts or bytes reaches this, unused texts are dropped.
    sweep_at: usize,
    sweep_at_bytes: usize,
}

/// Unused texts are kept up to this size in bytes, plus the size of the texts in use.
const UNUSED_BYTES_MAX: usize = 8 * 1024 * 1024;

impl Scripts {
    /// Replaces the text of this entry point by a shared one.
    pub fn share(&mut self, entrypoint: &mut Entrypoint) {
        let Entrypoint::Script { text, .. } = entrypoint else { return };
        if self.known.len() > self.sweep_at || self.bytes > self.sweep_at_bytes {
            self.known.retain(|_, text| text.strong_count() > 0);
            self.sweep_at = 1024 + 2 * self.known.len();
            self.bytes = self.known.values().filter_map(Weak::upgrade).map(|text| text.len()).sum();
            self.sweep_at_bytes = UNUSED_BYTES_MAX + 2 * self.bytes;
        }
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        match self.known.get(&hash).and_then(Weak::upgrade) {
            Some(known) => *text = known,
            None => {
                self.bytes += text.len();
                self.known.insert(hash, Arc::downgrade(text));
            }
        }
    }
}

/// A copy starts empty.
impl Clone for Scripts {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The known texts do not matter when two ledgers are compared.
impl PartialEq for Scripts {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Scripts {}

type Allocations = OrdMap<AllocationId, Arc<Allocation>>;

/// Serialises allocations, with each text once.
pub fn serialize<S: Serializer>(allocations: &Allocations, serializer: S) -> Result<S::Ok, S::Error> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut texts: Vec<&str> = Vec::new();
    for text in allocations.values().filter_map(|a| text_of(a)) {
        numbers.entry(text).or_insert_with(|| {
            texts.push(text);
            u32::try_from(texts.len() - 1).unwrap_or(u32::MAX)
        });
    }
    let mut both = serializer.serialize_tuple(2)?;
    both.serialize_element(&texts)?;
    both.serialize_element(&Stored { allocations, numbers })?;
    both.end()
}

fn text_of(allocation: &Allocation) -> Option<&str> {
    match &allocation.spec.entrypoint {
        Entrypoint::Script { text, .. } => Some(text),
        Entrypoint::Command { .. } => None,
    }
}

struct Stored<'a> {
    allocations: &'a Allocations,
    numbers: BTreeMap<&'a str, u32>,
}

impl Serialize for Stored<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.allocations.len()))?;
        for (id, allocation) in self.allocations {
            match text_of(allocation).and_then(|text| self.numbers.get(text)) {
                None => map.serialize_entry(id, &(None::<u32>, allocation))?,
                Some(number) => {
                    // One at a time, so that no second copy of all allocations is in memory.
                    let mut bare = Allocation::clone(allocation);
                    if let Entrypoint::Script { text, .. } = &mut Arc::make_mut(&mut bare.spec).entrypoint {
                        *text = "".into();
                    }
                    map.serialize_entry(id, &(Some(number), &bare))?;
                }
            }
        }
        map.end()
    }
}

/// Deserialises what [`serialize`] wrote.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Allocations, D::Error> {
    let (texts, bare) = <(Vec<Arc<str>>, Bare)>::deserialize(deserializer)?;
    let mut specs_of_parts: BTreeMap<AllocationId, Arc<AllocationSpec>> = BTreeMap::new();
    let whole = bare.0.into_iter().map(|(id, (number, mut allocation))| {
        if let (Some(number), Entrypoint::Script { text, .. }) = (number, &mut Arc::make_mut(&mut allocation.spec).entrypoint) {
            let known = texts.get(number as usize).ok_or_else(|| D::Error::custom(format!("there is no script {number}")))?;
            *text = Arc::clone(known);
        }
        let whole = allocation.lane.map(|lane| lane.group).or(allocation.replica.as_deref().map(|replica| replica.service));
        if let Some(whole) = whole {
            match specs_of_parts.get(&whole).filter(|known| **known == allocation.spec) {
                Some(known) => allocation.spec = Arc::clone(known),
                None => drop(specs_of_parts.insert(whole, Arc::clone(&allocation.spec))),
            }
        }
        Ok((id, Arc::new(allocation)))
    });
    whole.collect()
}

#[derive(Deserialize)]
struct Bare(BTreeMap<AllocationId, (Option<u32>, Allocation)>);

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{LaneOf, Principal, ReplicaOf, Timestamp};
    use uuid::Uuid;

    fn allocation(id: u128, entrypoint: Entrypoint) -> (AllocationId, Arc<Allocation>) {
        let owner = Principal { name: "u".into(), uid: 1, gid: 1, groups: vec![] };
        let spec = AllocationSpec::new("a", entrypoint, std::path::Path::new("/"));
        let id = AllocationId(Uuid::from_u128(id));
        (id, Arc::new(Allocation::submitted(id, spec, owner, Timestamp(1))))
    }

    #[derive(Serialize, Deserialize)]
    struct Kept(#[serde(with = "super")] Allocations);

    #[test]
    fn a_script_of_many_is_in_a_snapshot_once_and_in_memory_once_afterwards() {
        let text = "#!/bin/sh\n".to_owned() + &"echo a long one\n".repeat(1000);
        let script = |text: &str| Entrypoint::Script { text: text.into(), args: vec!["x".into()] };
        let mut all: Allocations = (0..50).map(|id| allocation(id, script(&text))).collect();
        all.extend([allocation(60, script("#!/bin/sh\n")), allocation(61, Entrypoint::Command { argv: vec!["true".into()] })]);
        let bytes = rmp_serde::to_vec_named(&Kept(all.clone())).unwrap();
        assert!(bytes.len() < 2 * text.len() + 52 * 1024, "{}", bytes.len());
        let Kept(back) = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(back, all);
        let texts: Vec<*const u8> = back.values().filter_map(|a| text_of(a)).filter(|t| t.len() > 100).map(str::as_ptr).collect();
        assert!(texts.len() == 50 && texts.iter().all(|t| *t == texts[0]));
        // An index without a text.
        let no_text: Vec<&str> = Vec::new();
        let numbers = all.values().filter_map(|a| text_of(a)).map(|t| (t, 7)).collect();
        let damaged = rmp_serde::to_vec_named(&(no_text, Stored { allocations: &all, numbers })).unwrap();
        assert!(rmp_serde::from_slice::<Kept>(&damaged).is_err());
    }

    #[test]
    fn lanes_of_a_group_share_their_specification_after_a_snapshot() {
        let group = |id: u128| AllocationId(Uuid::from_u128(id));
        let lane = |(id, number, of): (u128, u32, u128)| {
            let (id, lane) = allocation(id, Entrypoint::Script { text: "#!x".into(), args: vec![] });
            let of = Some(LaneOf { group: group(of), number, queued_at: Timestamp(1), revocations: 0 });
            (id, Arc::new(Allocation { lane: of, ..Allocation::clone(&lane) }))
        };
        let all: Allocations = [(1, 0, 8), (2, 0, 9), (3, 1, 8)].into_iter().map(lane).collect();
        let Kept(back) = rmp_serde::from_slice(&rmp_serde::to_vec_named(&Kept(all.clone())).unwrap()).unwrap();
        assert_eq!(back, all);
        let spec = |id| &back[&group(id)].spec;
        assert!(Arc::ptr_eq(spec(1), spec(3)) && !Arc::ptr_eq(spec(1), spec(2)));
    }

    #[test]
    fn replicas_of_a_service_share_their_specification_after_a_snapshot() {
        let service = |id: u128| AllocationId(Uuid::from_u128(id));
        let replica = |(id, number, of): (u128, u32, u128)| {
            let (id, replica) = allocation(id, Entrypoint::Script { text: "#!x".into(), args: vec![] });
            let of = Some(Box::new(ReplicaOf { service: service(of), number }));
            (id, Arc::new(Allocation { replica: of, ..Allocation::clone(&replica) }))
        };
        let all: Allocations = [(1, 0, 8), (2, 0, 9), (3, 1, 8)].into_iter().map(replica).collect();
        let Kept(back) = rmp_serde::from_slice(&rmp_serde::to_vec_named(&Kept(all.clone())).unwrap()).unwrap();
        assert_eq!(back, all);
        let spec = |id| &back[&service(id)].spec;
        assert!(Arc::ptr_eq(spec(1), spec(3)) && !Arc::ptr_eq(spec(1), spec(2)));
    }

    #[test]
    fn submissions_of_one_script_share_it_until_the_last_is_gone() {
        let mut scripts = Scripts::default();
        let script = |text: &str| Entrypoint::Script { text: text.into(), args: vec![] };
        let (mut one, mut two) = (script("#!a"), script("#!a"));
        scripts.share(&mut one);
        scripts.share(&mut two);
        let (Entrypoint::Script { text: a, .. }, Entrypoint::Script { text: b, .. }) = (&one, &two) else { panic!() };
        assert!(Arc::ptr_eq(a, b));
        for number in 0..5000 {
            scripts.share(&mut script(&format!("#!{number}")));
        }
        assert!(scripts.known.len() < 2100, "what nobody uses is forgotten: {}", scripts.known.len());
        for number in 0..40 {
            scripts.share(&mut script(&format!("#!{number}{}", "x".repeat(900_000))));
        }
        let bytes: usize = scripts.known.len() * 900_000;
        assert!(bytes < 2 * UNUSED_BYTES_MAX, "its memory too: {bytes}");
    }
}
