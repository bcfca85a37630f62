//! The demo without the kernel: the emitted programs in Weir's own interpreter.

use anyhow::{Context as _, Result, anyhow};
use weir_artifact::layout::buckets::Tuple;
use weir_artifact::packet;
use weir_codegen::packet_engines::{ClusterEngine, VmEngine};
use weir_machine::{LoadedPrograms, arrived, interface};
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::k8s::FlowProtocol;

use super::shop::{Attempt, Shop, ShopPrograms};
use super::{DemoNetwork, OpenConnection};

const TCP: u8 = 6;
/// The offset of the flags behind Ethernet, IPv4 and the beginning of the TCP header.
const TCP_FLAGS: usize = 14 + 20 + 13;
const ACK: u8 = 0x10;

/// The machine. It has no state of its own: each question loads the programs of the shop.
pub(super) struct UserspaceNetwork;

impl DemoNetwork for UserspaceNetwork {
    fn description(&self) -> Vec<String> {
        let text = "Without the kernel: the demo runs the programs in Weir's own interpreter, on packets that it makes. \
                    There are no interfaces and no sockets, and \"passes\" means that the \
                    programs at both ends let the first packet pass. As root, the demo sends real packets.";
        vec![text.to_owned()]
    }

    fn enforce(&mut self, _: &Shop, _: &ShopPrograms) -> Result<String> {
        Ok("loaded into the interpreter".to_owned())
    }

    fn connect(&mut self, shop: &Shop, attempts: &[Attempt]) -> Result<Vec<Verdict>> {
        let mut engine = ClusterEngine::new(&shop.cluster, VmEngine::make()).context("the engine failed")?;
        let judge = |attempt: &Attempt| Ok(engine.judge(&attempt.flow()).map_err(|error| anyhow!(error))?.verdict());
        attempts.iter().map(judge).collect()
    }

    fn open(&mut self, _: &Attempt) -> Result<()> {
        Ok(())
    }

    /// Puts the flow into the table of the loaded programs, as the kernel's table would hold it, and runs a further
    /// packet of it.
    fn continues(&mut self, programs: &ShopPrograms, connection: OpenConnection<'_>) -> Result<bool> {
        let OpenConnection { attempt, generations } = connection;
        let compiled = &programs.compiled;
        let endpoints: Vec<&[u8]> = compiled.endpoints.iter().map(|it| it.value.as_slice()).collect();
        let mut loaded = LoadedPrograms::new(compiled.programs.each_ref(), &compiled.maps, &endpoints)?;
        let (local, remote) = (attempt.to.address, attempt.from.address);
        let place = programs.place(attempt.to.pod).context("no such pod")?;
        let flow = Tuple {
            ifindex: interface(place),
            protocol: TCP,
            remote,
            local,
            remote_port: packet::CLIENT_PORT,
            local_port: attempt.port,
        };
        loaded.begin_flow(flow, Direction::Ingress, generations)?;
        let protocol = FlowProtocol::Transport(attempt.protocol);
        let mut bytes = packet::build(remote, local, protocol, attempt.port).context("two families")?;
        if let Some(flags) = bytes.get_mut(TCP_FLAGS) {
            *flags = ACK;
        }
        let mut arriving = arrived(Direction::Ingress, place, bytes, false);
        Ok(loaded.run_now(Direction::Ingress, &mut arriving)? == Verdict::Allow)
    }
}

#[cfg(test)]
mod tests {
    use weir_ebpf::target::Target;

    use super::super::shop::{OPEN, ShopPolicies};
    use super::*;

    /// Whether a packet of the open connection passes, if the flow was judged `generations` ago.
    fn passes(policies: ShopPolicies, generations: u32) -> bool {
        let shop = Shop::new(policies).expect("the shop");
        let programs = ShopPrograms::new(&shop, Target::BASE).expect("programs");
        let connection = OpenConnection { attempt: &OPEN, generations };
        UserspaceNetwork.continues(&programs, connection).expect("an answer")
    }

    #[test]
    fn an_open_connection_ends_because_its_flow_is_judged_again() {
        assert!(passes(ShopPolicies::Written, 1), "the policies allow it");
        assert!(!passes(ShopPolicies::Changed, 1), "the changed policies deny it");
        assert!(passes(ShopPolicies::Changed, 0), "a flow of this generation is not judged again");
    }
}
