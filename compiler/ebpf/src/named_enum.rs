//! Enums whose variants have names.

/// Defines an enum with `ALL`, its variants in order, `name` and `named`. Each variant is written once, so the list cannot lack
/// one.
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

            /// The variant of this name.
            $vis fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|it| it.name() == name)
            }
        }
    };
}
