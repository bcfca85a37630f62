//! Developer tasks. `cargo xtask` lists them.

mod bench;
mod ci;
mod cluster;
mod kernels;
mod load;
mod packages;

use std::process::ExitCode;

use xtask::process;

const USAGE: &str = "\
cargo xtask TASK

  ci              everything that must pass: format, lints, tests, the examples
  bless           re-makes the descriptive snapshots under tests/ (never the verdicts); read the diff
  life            the agent's random life, without end: `SEED` (1); the seed of a life that goes wrong is printed
  fuzz            random texts, clusters and packets: `--secs N` (10), `--seed S` (1); a failing case is left in target/fuzz
  bench           all that follow, and makes docs/performance.md from them; `bench commands` measures the
                  command line, `bench WORD` those of its commands that have the word in their names
  kernels         the datapath's tests on Linux 6.1 and 6.12 under qemu; WEIR_KERNEL_IMAGES names images
  apiserver       `build`s kube-apiserver and etcd from their Go modules, `run [DIR]` runs them on loopback; tests use them
  cluster         a real cluster of one or two nodes in network namespaces: `up`, `test`, `suite`, `starts N`, `down`,
                  `kubectl …`, `enter NODE …`; needs root. Of `up` and `test`:
                  `--cni bridge|ptp`, `--proxy iptables|nftables`, `--nodes 1|2`, `--weir-cni`
  load            an agent at 10,000 pods and 1,000 policies, in a network namespace: memory, idle CPU, latencies; needs root.
                  `--pods N`, `--local N`, `--policies N`, `--services N`, `--secs N`
  image [FILE]    builds the agent as one static binary, in an OCI layout tar that `ctr images import` takes
  deploy          makes deploy/weir.yaml from the chart in deploy/chart
  bench tables    measures look-ups of addresses in the kernel, by structure and size
  bench packets   measures real packets between two pods, beside iptables and nftables; needs root.
                  `--rounds N`, `--slice MILLISECONDS`, `--cpu N`, `--rules N`, `--only NAME`
  bench attach    measures compile, attach, switch and adopt by endpoints and policies, and what maps are charged; needs root
  bench events    measures what the agent does when pods and policies change; `bench agent`, its memory and CPU (as `load`)
  bench programs  measures whole programs in the kernel, and makes docs/performance.md from it
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let result = match arguments.next().as_deref() {
        Some("ci") => ci::run_ci(),
        Some("bless") => ci::bless(),
        Some("deploy") => xtask::deploy::write(),
        Some("apiserver") => xtask::apiserver::task(arguments),
        Some("image") => xtask::image::task(arguments),
        Some("cluster") => cluster::task(arguments),
        Some("load") => load::run_load(arguments),
        Some("kernels") => kernels::run_kernels(),
        Some("fuzz") => ci::fuzz(arguments),
        Some("life") => ci::life(arguments),
        Some("bench") => bench::run_all(&arguments.collect::<Vec<_>>()),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
