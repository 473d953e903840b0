//! Numbers that must not mix.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The store's counter of commits: strictly increasing in commit order, never reused within an incarnation.
    /// As an expectation, 0 means "does not exist".
    Revision,
    i64
);
number!(
    /// Counts changes of a resource's spec, from 1.
    Generation,
    i64
);
number!(
    /// Counts changes of a claim's owner, from 1; 0 is a claim that nobody ever had.
    Epoch,
    u64
);

impl Revision {
    /// Nothing was committed yet; as an expectation, absence.
    pub const ZERO: Self = Self(0);
}
