//! The macro that makes the type of all commands from their table.

/// Generates `Action` from a table with a row for each command:
///
/// ```ignore
/// /// A node of this name may register.
/// Admit { node: NodeId, by: String, reason: String }
///     => 1, New, Operator(by, &["NodeService/Admit"]), 256 + reason.len(), ledger.admit(context, node, by, reason);
/// ```
///
/// After the arrow follow its cluster level, its `Urgency`, its `Requester`, its approximate size
/// in the log in bytes, and the call that applies it. Each is an expression that may use the
/// fields.
macro_rules! commands {
    (|$ledger:ident, $context:ident| $(
        $(#[$about:meta])*
        $name:ident $(($content:ident: $content_type:ty))? $({ $($(#[$attribute:meta])* $field:ident: $type:ty),+ $(,)? })?
            => $level:expr, $urgency:expr, $requester:expr, $bytes:expr, $apply:expr;
    )+) => {
        /// The action of a command. Once a version is released, actions are only added, never
        /// changed: newer versions read its log.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Action {
            $($(#[$about])* $name $(($content_type))? $({ $($(#[$attribute])* $field: $type),+ })?,)+
        }

        impl Action {
            /// The names of all actions.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// The action's name.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name),)+ }
            }

            /// The cluster level that it needs. Raising the level needs none: it is proposed when
            /// every member knows the new level.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn level(&self) -> u32 {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $level,)+ }
            }

            /// Its urgency when disk space is low.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn urgency(&self) -> Urgency {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $urgency,)+ }
            }

            /// Who may request it.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn requester(&mut self) -> Requester<'_> {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $requester,)+ }
            }

            /// Its approximate size in the log, in bytes.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn bytes_about(&self) -> usize {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $bytes,)+ }
            }

            pub(super) fn apply(&self, $ledger: &mut Ledger, $context: &mut ApplyContext) -> Result<Outcome, Refusal> {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $apply,)+ }
            }
        }
    };
}

pub(super) use commands;
