//! How far a role reaches, and the relation of a caller to an object.

/// The relation of a caller to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// It owns the object.
    Own,
    /// It is an admin of the object's tenant.
    OwnTenant,
    /// Neither.
    Foreign,
}

impl Relation {
    /// All relations.
    pub const ALL: [Self; 3] = [Self::Own, Self::OwnTenant, Self::Foreign];
}

/// To which objects a role may apply a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// To none.
    Nothing,
    /// To its own.
    Own,
    /// To its own, and to those of the tenants of which it is an admin.
    OwnTenant,
    /// To all; also the reach of a method that concerns nobody's object.
    Everything,
}

impl Reach {
    /// Whether an object of this relation is within this reach.
    pub fn covers(self, relation: Relation) -> bool {
        match relation {
            Relation::Own => self >= Self::Own,
            Relation::OwnTenant => self >= Self::OwnTenant,
            Relation::Foreign => self == Self::Everything,
        }
    }

    /// The word that users read: `no`, `own`, `tenant` or `all`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no",
            Self::Own => "own",
            Self::OwnTenant => "tenant",
            Self::Everything => "all",
        }
    }
}
