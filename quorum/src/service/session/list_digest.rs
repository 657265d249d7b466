//! A digest of the list that an agent was sent, in 32 bytes.

use lattice_api::pack::{PackError, pack};
use lattice_model::DesiredList;
use ring::digest::{SHA256, digest};

/// The SHA-256 of an encoded list without its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListDigest([u8; 32]);

impl ListDigest {
    /// The digest of `list`, which stays unchanged.
    ///
    /// # Errors
    /// The list cannot be encoded.
    pub(super) fn of(list: &mut DesiredList) -> Result<Self, PackError> {
        let revision = std::mem::take(&mut list.revision);
        let packed = pack(&*list);
        list.revision = revision;
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, &packed?.body).as_ref());
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Revision;

    #[test]
    fn only_what_the_node_must_do_counts() {
        let mut list = DesiredList { revision: Revision(7), ..DesiredList::default() };
        let first = ListDigest::of(&mut list).unwrap();
        assert_eq!(list.revision, Revision(7));
        list.revision = Revision(8);
        assert_eq!(ListDigest::of(&mut list).unwrap(), first);
        list.wipe = Some(1);
        assert_ne!(ListDigest::of(&mut list).unwrap(), first);
    }
}
