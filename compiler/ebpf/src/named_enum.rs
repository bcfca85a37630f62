//! Enums whose variants have names.

/// Defines an enum with `ALL`, its variants in order, and `name`. A variant stands in one place, so that none can be
/// missing from the list.
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $type { $($(#[$doc])* $variant,)+ }

        impl $type {
            /// All of them, in order.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name in texts and on the command line.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}
