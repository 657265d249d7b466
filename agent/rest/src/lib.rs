//! Contract; see the design.
