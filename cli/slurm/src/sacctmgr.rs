//! What `sacctmgr show` shows, and its fields.

use crate::listing::{ListField, field};
use crate::units::listed;
use lattice_model::spec::PREEMPTION_CLASS_DEFAULT;
use thiserror::Error;

/// The kind of record that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// Accounts: tenants.
    Account,
    /// Which user may submit for which account.
    Association,
    /// The cluster.
    Cluster,
    /// QOS: preemption classes.
    Qos,
    /// Users.
    User,
}

/// The names of what is shown, each with the fewest letters that are enough.
const ENTITIES: [(&str, usize, Entity); 5] = [
    ("accounts", 3, Entity::Account),
    ("associations", 2, Entity::Association),
    ("clusters", 2, Entity::Cluster),
    ("qos", 1, Entity::Qos),
    ("users", 1, Entity::User),
];

impl Entity {
    /// The entity that a word names, which may be shortened.
    fn named(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        let found = ENTITIES.iter().find(|(name, least, _)| word.len() >= *least && name.starts_with(&word));
        found.map(|(_, _, entity)| *entity)
    }

    /// Its fields if none are asked for. `with_associations`: also those of associations.
    pub fn default_fields(self, with_associations: bool) -> &'static str {
        match (self, with_associations) {
            (Self::Account, false) => "Account,Description,Organization",
            (Self::Account, true) => "Account,Description,Organization,Cluster,User,Share,QOS,DefaultQOS",
            (Self::Association, _) => "Cluster,Account,User,Partition,Share,GrpTRES,GrpJobs,QOS,DefaultQOS",
            (Self::Cluster, _) => "Cluster,Share,QOS,DefaultQOS",
            (Self::Qos, _) => "Name,Priority",
            (Self::User, false) => "User,DefaultAccount,AdminLevel",
            (Self::User, true) => "User,DefaultAccount,AdminLevel,Cluster,Account,Partition,Share,QOS,DefaultQOS",
        }
    }
}

/// A parsed `show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What is shown.
    pub entity: Entity,
    /// Only records with these names; empty: all.
    pub names: Vec<String>,
    /// Only these users; empty: all.
    pub users: Vec<String>,
    /// Only these accounts; empty: all.
    pub accounts: Vec<String>,
    /// Only of these clusters; empty: all.
    pub clusters: Vec<String>,
    /// The fields; empty: the default ones.
    pub format: String,
    /// Whether to show the associations of users and accounts as well.
    pub with_associations: bool,
}

/// The words cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// The words name no entity.
    #[error("No valid entity in list command")]
    NoEntity,
    /// There is no entity with this name.
    #[error("\"{0}\" is not shown: user, account, association, qos and cluster are")]
    Entity(String),
    /// A condition that has no meaning here.
    #[error("Unknown condition: {0}")]
    Condition(String),
}

impl Query {
    /// Reads the words after `show`, such as `user ada format=account%20`.
    ///
    /// # Errors
    /// The words name no entity, or a condition that does not exist.
    pub fn parse(words: &[String], with_associations: bool) -> Result<Self, QueryError> {
        let (entity, rest) = words.split_first().ok_or(QueryError::NoEntity)?;
        let entity = Entity::named(entity).ok_or_else(|| QueryError::Entity(entity.clone()))?;
        let mut query = Self {
            entity,
            names: Vec::new(),
            users: Vec::new(),
            accounts: Vec::new(),
            clusters: Vec::new(),
            format: String::new(),
            with_associations,
        };
        for word in rest {
            let Some((key, value)) = word.split_once('=') else {
                match word.to_ascii_lowercase().as_str() {
                    "where" | "tree" | "wolimits" | "wopinfo" | "wopi" => {}
                    "withassoc" | "withassociations" => query.with_associations = true,
                    _ => query.names.extend(listed(std::slice::from_ref(word))),
                }
                continue;
            };
            let values = listed(&[value.to_owned()]);
            match key.to_ascii_lowercase().as_str() {
                "format" | "fields" => query.format = value.to_owned(),
                "name" | "names" => query.names.extend(values),
                "user" | "users" => query.users.extend(values),
                "account" | "accounts" | "acct" | "accts" => query.accounts.extend(values),
                "cluster" | "clusters" => query.clusters.extend(values),
                _ => return Err(QueryError::Condition(word.clone())),
            }
        }
        let of_entity = match entity {
            Entity::Account => &mut query.accounts,
            Entity::Cluster => &mut query.clusters,
            Entity::User => &mut query.users,
            Entity::Association | Entity::Qos => return Ok(query),
        };
        of_entity.append(&mut query.names);
        Ok(query)
    }
}

/// A line. Fields that do not concern its entity are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The name of a QOS.
    pub name: String,
    /// The account.
    pub account: String,
    /// The user; empty: the account as a whole.
    pub user: String,
    /// The account of work that names none.
    pub default_account: String,
    /// Whether the user is an operator.
    pub is_operator: bool,
    /// Millionths of the cluster; `None`: no share in particular.
    pub share_ppm: Option<u32>,
    /// The most nodes at the same time.
    pub nodes_max: Option<u32>,
    /// The most allocations at the same time.
    pub allocations_max: Option<u32>,
    /// The preemption class of a QOS.
    pub class: Option<u8>,
}

/// The fields of all entities. Fields that Lattice does not have are empty.
pub const RECORD_FIELDS: &[ListField<Record>] = &[
    field("Account", 10, |record, _| record.account.clone()),
    field("AdminLevel", 10, |record, _| match (record.user.is_empty(), record.is_operator) {
        (true, _) => String::new(),
        (false, true) => "Operator".to_owned(),
        (false, false) => "None".to_owned(),
    }),
    field("Cluster", 10, |_, c| c.compat.cluster().to_owned()),
    field("DefaultAccount", 14, |record, _| record.default_account.clone()),
    field("DefaultQOS", 10, |_, c| c.compat.qos_of(PREEMPTION_CLASS_DEFAULT).to_owned()),
    field("Description", 20, |record, _| record.account.clone()),
    field("Fairshare", 9, |record, _| share(record)),
    field("GrpJobs", 7, |record, _| record.allocations_max.map(|max| max.to_string()).unwrap_or_default()),
    field("GrpTRES", 13, |record, _| record.nodes_max.map(|max| format!("node={max}")).unwrap_or_default()),
    field("MaxWall", 11, |_, _| String::new()),
    field("Name", 10, |record, _| record.name.clone()),
    field("Organization", 20, |record, _| record.account.clone()),
    field("ParentName", 10, |_, _| String::new()),
    field("Partition", 10, |_, _| String::new()),
    field("Priority", 10, |record, _| record.class.map(|class| class.to_string()).unwrap_or_default()),
    field("QOS", 20, |_, c| {
        let names: Vec<&str> = c.compat.qos_mapping.keys().map(String::as_str).collect();
        if names.is_empty() { "normal".to_owned() } else { names.join(",") }
    }),
    field("Share", 9, |record, _| share(record)),
    field("User", 10, |record, _| record.user.clone()),
];

fn share(record: &Record) -> String {
    record.share_ppm.map_or_else(|| "1".to_owned(), |ppm| ppm.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::listing::{Form, Listing};
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    fn query(text: &str) -> Result<Query, QueryError> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Query::parse(&words, false)
    }

    #[test]
    fn what_is_asked_for_is_read_as_slurm_reads_it() {
        let user = query("user ada format=account%256").unwrap();
        assert_eq!((user.entity, user.users, user.format.as_str()), (Entity::User, vec!["ada".to_owned()], "account%256"));
        let assoc = query("assoc where account=phys,bio user=ada withassoc").unwrap();
        assert_eq!((assoc.entity, assoc.accounts.len(), assoc.with_associations), (Entity::Association, 2, true));
        assert_eq!(query("acc").map(|query| query.entity), Ok(Entity::Account));
        assert_eq!(query(""), Err(QueryError::NoEntity));
        assert_eq!(query("event"), Err(QueryError::Entity("event".into())));
        assert_eq!(query("user flags=x"), Err(QueryError::Condition("flags=x".into())));
    }

    #[test]
    fn a_record_has_the_fields_that_are_asked_for() {
        let compat = Compat::parse("qos_mapping: {high: 7, low: 1}\n").unwrap();
        let (clock, nodes) = (Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let record = Record { account: "phys".into(), user: "ada".into(), nodes_max: Some(4), ..Record::default() };
        let form = Form::Separated { delimiter: "|".to_owned(), ends: false };
        let fields = Entity::Association.default_fields(false);
        let line = Listing::new(fields, RECORD_FIELDS, form).unwrap().line(&record, &context);
        assert_eq!(line, "lattice|phys|ada||1|node=4||high,low|normal\n");
        for (_, _, entity) in ENTITIES {
            for with_associations in [false, true] {
                Listing::new(entity.default_fields(with_associations), RECORD_FIELDS, Form::Columns).unwrap();
            }
        }
        assert_eq!(Listing::new("account%256", RECORD_FIELDS, Form::Columns).unwrap().line(&record, &context).trim(), "phys");
    }
}
