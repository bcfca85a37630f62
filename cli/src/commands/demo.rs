//! `weir demo`: a small shop, its policies in force, and the verdicts on its connections.
//!
//! Problem: a first look at enforcement needs a cluster, and a page of text proves nothing. Strategy: one script, run on
//! one of two networks ([`DemoNetwork`]): network namespaces of this machine with real packets, or the machine in
//! userspace. Invariants: each verdict that is printed was observed on the network, and the command fails if it is not
//! the reference's; the reasons are the reference's. A demo touches nothing that it has not made (`kernel/sandbox.rs`).

#[cfg(feature = "enforce")]
mod kernel;
mod reason;
mod shop;
mod userspace;

use anyhow::{Result, bail, ensure};
use weir_ebpf::target::Target;
use weir_model::eval::{Flow, Oracle, Verdict};

use super::CommandOutcome;
use crate::args::{DemoArgs, GlobalArgs};
use crate::page::{OutputPage, Style};
use shop::{ATTEMPTS, Attempt, CHANGE, FILES, OPEN, Shop, ShopPolicies, ShopPrograms};
use userspace::UserspaceNetwork;
use weir_policy::rule_mismatch::protocol_name;

/// Wider lines are harder to read than folded ones.
const WIDEST: usize = 80;

pub(crate) fn run(global: &GlobalArgs, arguments: &DemoArgs) -> Result<CommandOutcome> {
    #[cfg(feature = "enforce")]
    if let Some(which) = &arguments.remove {
        return kernel::remove(which.as_deref());
    }
    #[cfg(feature = "enforce")]
    if !arguments.vm && kernel::is_root() {
        return kernel::run(global, arguments);
    }
    ensure!(!arguments.keep, "without root there is nothing to keep: run `weir demo --keep` as root");
    ensure!(arguments.remove.is_none(), "this weir was built without enforcement: its demo leaves nothing behind");
    DemoScript { network: &mut UserspaceNetwork, global, target: Target::BASE, step: 0 }.run()?;
    let mut page = page(global);
    next_commands(&mut page);
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// The network that carries the demo's packets.
trait DemoNetwork {
    /// A description of the network, in paragraphs.
    fn description(&self) -> Vec<String>;

    /// Puts programs in force, and says where.
    fn enforce(&mut self, shop: &Shop, programs: &ShopPrograms) -> Result<String>;

    /// Tries new connections, all at once.
    fn connect(&mut self, shop: &Shop, attempts: &[Attempt]) -> Result<Vec<Verdict>>;

    /// Opens a connection that stays open.
    fn open(&mut self, attempt: &Attempt) -> Result<()>;

    /// Whether the open connection still carries data.
    fn continues(&mut self, programs: &ShopPrograms, connection: OpenConnection<'_>) -> Result<bool>;
}

/// A connection that was opened before.
#[derive(Clone, Copy)]
struct OpenConnection<'a> {
    attempt: &'a Attempt,
    /// The number of generations since its last packet.
    generations: u32,
}

/// A page of the demo.
fn page(global: &GlobalArgs) -> OutputPage {
    OutputPage::for_stdout(global.color).at_most(WIDEST)
}

/// The script on one network.
struct DemoScript<'n> {
    network: &'n mut dyn DemoNetwork,
    global: &'n GlobalArgs,
    target: Target,
    step: u32,
}

impl DemoScript<'_> {
    fn run(&mut self) -> Result<()> {
        let mut page = page(self.global);
        page.pieces(&[(Style::Bold, &"weir demo: a shop of three tiers and its network policies")]);
        self.network.description().iter().for_each(|text| page.folded_line(0, text));
        page.print()?;
        self.before()?;
        let written = self.enforced()?;
        self.changed(&written)
    }

    /// Prints the title of the next step.
    fn title(&mut self, text: &str) -> Result<()> {
        self.step += 1;
        let mut page = page(self.global);
        page.blank();
        page.folded(3, &[(Style::Bold, &format_args!("{}. {text}", self.step))]);
        page.print()
    }

    fn before(&mut self) -> Result<()> {
        self.title("Before any policy, every connection passes")?;
        self.try_all(&Shop::new(ShopPolicies::Absent)?, &ATTEMPTS)
    }

    /// The policies of the file; returns their programs.
    fn enforced(&mut self) -> Result<ShopPrograms> {
        let shop = Shop::new(ShopPolicies::Written)?;
        self.title(&format!("The {} policies of {} are in force", shop.cluster.policies.len(), FILES[0]))?;
        let programs = self.enforce(&shop)?;
        self.try_all(&shop, &ATTEMPTS)?;
        Ok(programs)
    }

    /// The change while a connection is open.
    fn changed(&mut self, written: &ShopPrograms) -> Result<()> {
        self.title("A policy changes while a connection is open")?;
        self.network.open(&OPEN)?;
        let is_open = self.network.continues(written, OpenConnection { attempt: &OPEN, generations: 0 })?;
        ensure!(is_open, "the connection from api to db does not carry data, although the policies allow it");
        let shop = Shop::new(ShopPolicies::Changed)?;
        let mut page = page(self.global);
        page.line("   The API is connected to the database. Now only reports may connect to it:");
        let number = shop.changed_line();
        for (style, sign, text) in [(Style::Red, '-', CHANGE[0]), (Style::Green, '+', CHANGE[1])] {
            page.pieces(&[(style, &format_args!("   {sign} {}:{number}: {text}", FILES[0]))]);
        }
        page.print()?;
        let programs = self.enforce(&shop)?;
        let is_open = self.network.continues(&programs, OpenConnection { attempt: &OPEN, generations: 1 })?;
        ensure!(!is_open, "the open connection continues, although the changed policies deny it");
        self.cut()?;
        self.try_all(&shop, &[OPEN])
    }

    fn cut(&self) -> Result<()> {
        let mut page = page(self.global);
        page.pieces(&[
            (Style::Red, &"   dropped"),
            (Style::Plain, &"  the open connection api → db: its next packet was judged again"),
        ]);
        page.print()
    }

    /// Compiles, verifies and enforces.
    fn enforce(&mut self, shop: &Shop) -> Result<ShopPrograms> {
        let programs = ShopPrograms::new(shop, self.target)?;
        let in_force = self.network.enforce(shop, &programs)?;
        let mut page = page(self.global);
        let count = programs.verified;
        page.line(format_args!("   compiled; {count} verdicts verified, all are those of the policies"));
        page.folded_line(3, format_args!("   {in_force}"));
        page.print()?;
        Ok(programs)
    }

    /// Tries connections, compares the results with the reference, and prints them with the reasons.
    fn try_all(&mut self, shop: &Shop, attempts: &[Attempt]) -> Result<()> {
        let observed = self.network.connect(shop, attempts)?;
        let mut oracle = Oracle::new(&shop.cluster);
        let mut page = page(self.global);
        for (attempt, observed) in attempts.iter().zip(observed) {
            let flow = attempt.flow();
            let ends = [oracle.complete(flow.source), oracle.complete(flow.destination)];
            let flow = Flow { source: ends[0], destination: ends[1], ..flow };
            let judgement = oracle.judge(&flow);
            print_attempt(&mut page, attempt, observed);
            for line in reason::lines(shop, &flow, &judgement) {
                page.folded_line(14, format_args!("{:10}{line}", ""));
            }
            if observed != judgement.verdict() {
                page.print()?;
                bail!("the last connection is not treated as the policies say: please report this");
            }
        }
        page.print()
    }
}

/// A connection and its verdict.
fn print_attempt(page: &mut OutputPage, attempt: &Attempt, observed: Verdict) {
    let (style, word) = match observed {
        Verdict::Allow => (Style::Green, "passes "),
        Verdict::Deny => (Style::Red, "dropped"),
    };
    let ends = format!("{} → {}", attempt.from.name, attempt.to.name);
    let port = format!("{} {}", protocol_name(attempt.protocol).to_uppercase(), attempt.port);
    page.pieces(&[
        (Style::Plain, &"   "),
        (style, &word),
        (Style::Plain, &format_args!("  {ends:14} {port:9} ")),
        (Style::Dim, &attempt.purpose),
    ]);
}

/// What to try after the demo.
fn next_commands(page: &mut OutputPage) {
    page.blank();
    page.pieces(&[(Style::Bold, &"Next")]);
    let commands = [
        ("sudo weir demo --keep", "the same, left in place: to send your own packets"),
        ("weir check DIR", "mistakes in your own policies, with file and line"),
        ("weir exposure DIR", "workloads that are open to the outside, or have no policy"),
        ("weir explain DIR --from NS/POD --to NS/POD --port 80", "which line decides"),
        ("weir diff git:main:DIR DIR", "the connections that a change opens and closes"),
        ("weir compile DIR --node NODE -o node.o", "programs for a node, for `weir attach`"),
    ];
    for (command, purpose) in commands {
        page.pieces(&[(Style::Plain, &format_args!("   {command}"))]);
        page.pieces(&[(Style::Dim, &format_args!("      {purpose}"))]);
    }
}
