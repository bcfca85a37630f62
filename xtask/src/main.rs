//! Developer tasks. `cargo xtask` lists them.

mod bench;
mod ci;
mod cluster;
mod delivery;
mod kernels;
mod load;
mod packages;
mod report;

use std::process::ExitCode;

use xtask::process;

const USAGE: &str = "\
cargo xtask TASK

  ci              runs all checks that must pass: format, lints, tests, examples
  bless           regenerates the descriptive snapshots under tests/ (never the verdicts); read the diff
  life            runs the agent through random sequences of events until you stop it: `SEED` (1); prints the seed of a
                  sequence that fails
  faults          the long form of fault injection: a fault at every operation of a switch; needs root
  fuzz            tests random texts, clusters and packets: `--secs N` (10), `--seed S` (1); writes a failing case to
                  target/fuzz
  bench           runs all benchmarks below and writes docs/performance.md; `bench commands` measures the command line,
                  `bench WORD` only the commands whose names contain the word
  kernels         tests the datapath on Linux 6.1 and 6.12 under qemu; WEIR_KERNEL_IMAGES names the kernel images
  apiserver       `build` builds kube-apiserver and etcd from their Go modules, `run [DIR]` runs them on loopback
  cluster         runs a real cluster of one or two nodes in network namespaces: `up`, `test`, `suite`,
                  `conformance`, `starts N`, `chart`, `down`, `kubectl …`, `enter NODE …`; needs root. Options of `up` and
                  `test`: `--cni bridge|ptp`, `--proxy iptables|nftables`, `--nodes 1|2`, `--profile release|ci|dev`,
                  `--weir-cni`
  load            measures memory, CPU, latencies and API bytes of an agent at 10,000 pods and 1,000 policies, in a network
                  namespace; needs root. `--pods N`, `--local N`, `--policies N`, `--services N`, `--secs N`,
                  `--settle SECONDS`, `--only NAME` (a kind of changes, or `none`), `--pod-changes N` (a second),
                  `--ingress-only`, `--cpu-budget SHARE`; `--feeds` simulates the bytes that agents of a large cluster
                  get from the API
  image [FILE]    builds the agent as one static binary, in an OCI layout tar that `ctr images import` reads
  book            builds the documentation as a website in target/book, and checks its links; installs mdBook below
                  target/tools if it is missing
  check-delivery  checks workflows, the action, hooks, the chart, the packed crates, and the files of a release with the
                  checkers of their kinds, which it installs below target; needs Go, Python and Debian
  check-report    checks the accessibility of the HTML report with axe-core, which it gets with npm, and makes the pictures
                  in docs/images again; needs chromium, chromedriver and pngquant
  dist            builds the files of a release in target/release-files: static binaries, packages, image, checksums.
                  `--again` builds everything twice and compares; `--target TRIPLE`; `--tag TAG` refuses a tag that does
                  not fit
  deploy          renders deploy/weir.yaml and deploy/uninstall.yaml from the chart in deploy/chart, with Helm (needs Go)
  check-chart     lints and renders the chart with Helm, for many values; kube-apiserver validates the objects if it is
                  built (`apiserver build`)
  bench tables    measures look-ups of addresses in the kernel, by structure and size
  bench packets   measures real packets between two pods, with Weir and with iptables and nftables; needs root.
                  `--rounds N`, `--slice MILLISECONDS`, `--cpu N`, `--rules N`, `--only NAME`
  bench attach    measures compile, attach, switch and adopt by endpoints and policies, and the memory of the maps;
                  needs root
  bench events    measures the agent's work when pods and policies change; `bench agent` measures its memory and CPU
  bench programs  measures whole programs in the kernel and writes its section of docs/performance.md
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let result = match arguments.next().as_deref() {
        Some("ci") => ci::run_ci(),
        Some("bless") => ci::bless(),
        Some("deploy") => xtask::deploy::write(),
        Some("check-chart") => xtask::chart::check(),
        Some("apiserver") => xtask::apiserver::task(arguments),
        Some("book") => xtask::book::task(arguments),
        Some("check-report") => report::check(),
        Some("check-delivery") => delivery::check(),
        Some("dist") => xtask::dist::task(arguments),
        Some("image") => xtask::image::task(arguments),
        Some("cluster") => cluster::task(arguments),
        Some("load") => load::run_load(arguments),
        Some("kernels") => kernels::run_kernels(),
        Some("fuzz") => ci::fuzz(arguments),
        Some("faults") => ci::faults(),
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
