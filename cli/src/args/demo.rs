//! Arguments of `weir demo`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
As root on Linux, the demo builds a small shop in network namespaces, puts its policies in force with eBPF, sends packets, \
and changes a policy while a connection is open. It needs `ip` (iproute2), no cluster and no network, takes a few \
seconds, and removes everything at the end, also on Ctrl-C. The next demo removes the leftovers of a killed one. \
All names begin with `weir-demo-`; nothing else on the machine is touched.

Without root, the demo runs the programs in Weir's own interpreter, without the kernel.

Exit codes: 0 every packet was treated as the policies say, 2 the command failed.")]
pub(crate) struct DemoArgs {
    /// Run the programs in Weir's own interpreter, without the kernel (the default without root)
    #[arg(long)]
    pub(crate) vm: bool,
    /// Leave namespaces and programs in place, and print how to look at them and how to remove them
    #[arg(long, conflicts_with_all = ["vm", "remove"])]
    pub(crate) keep: bool,
    /// Remove a demo that was kept, or all of them, and the leftovers of killed demos
    #[arg(long, value_name = "ID", num_args = 0..=1, conflicts_with = "vm")]
    pub(crate) remove: Option<Option<String>>,
}
