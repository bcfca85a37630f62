//! Big sets.
#[path = "../tests/enforce/net.rs"]
#[expect(dead_code, reason = "shared with tests, which need more of it")]
mod net;
#[path = "sets/stages.rs"]
mod stages;

fn main() {
    stages::main();
}
