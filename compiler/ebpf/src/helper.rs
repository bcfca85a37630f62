//! The kernel's helper functions, by number.
//!
//! The emitter, the text form and the VM share this list. A helper that is not in it can be encoded, but the VM traps
//! on it.

use std::fmt;

/// A kernel helper by its number, which is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Helper(pub i32);

// One list for the constants and the names. In two lists, a number in one and a name in the other would go unnoticed
// until a trap names the wrong helper.
macro_rules! helpers {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl Helper {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The kernel's name without `bpf_`, if we know it.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

helpers! {
    /// `(map, key) → value or NULL`
    MAP_LOOKUP_ELEM = 1, "map_lookup_elem";
    /// `(map, key, value, flags) → 0 or -errno`
    MAP_UPDATE_ELEM = 2, "map_update_elem";
    /// `(map, key) → 0 or -errno`
    MAP_DELETE_ELEM = 3, "map_delete_elem";
    /// `() → ns` since boot without suspend
    KTIME_GET_NS = 5, "ktime_get_ns";
    /// `() → random`
    GET_PRANDOM_U32 = 7, "get_prandom_u32";
    /// `() → cpu`
    GET_SMP_PROCESSOR_ID = 8, "get_smp_processor_id";
    /// `(ctx, prog array, index)`; does not return if it succeeds
    TAIL_CALL = 12, "tail_call";
    /// `(skb, offset, to, len) → 0 or -errno`, from anywhere in the packet
    SKB_LOAD_BYTES = 26, "skb_load_bytes";
    /// `(skb, len) → 0 or -errno`: makes the first bytes linear; packet pointers become invalid
    SKB_PULL_DATA = 39, "skb_pull_data";
    // The kernel's numbers never change (`enum bpf_func_id`,
    // https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/bpf.h). The gaps are helpers that neither the
    // emitter nor a test needs.
    /// `(skb, offset, to, len, start) → 0 or -errno`, from the linear part
    SKB_LOAD_BYTES_RELATIVE = 68, "skb_load_bytes_relative";
    /// `() → jiffies`
    JIFFIES64 = 118, "jiffies64";
    /// `() → ns` since boot with suspend
    KTIME_GET_BOOT_NS = 125, "ktime_get_boot_ns";
    /// `(ring, data, size, flags) → 0 or -errno`
    RINGBUF_OUTPUT = 130, "ringbuf_output";
    /// `(ring, size, flags) → record or NULL`
    RINGBUF_RESERVE = 131, "ringbuf_reserve";
    /// `(record, flags)`
    RINGBUF_SUBMIT = 132, "ringbuf_submit";
    /// `(record, flags)`
    RINGBUF_DISCARD = 133, "ringbuf_discard";
    /// `(ring, flags) → number`
    RINGBUF_QUERY = 134, "ringbuf_query";
    /// `() → ns`, cheap, precise to a tick (5.11)
    KTIME_GET_COARSE_NS = 160, "ktime_get_coarse_ns";
}

impl fmt::Display for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}#{}", self.0),
            None => write!(f, "helper#{}", self.0),
        }
    }
}
