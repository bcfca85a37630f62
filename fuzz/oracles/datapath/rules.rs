//! The rules of the datapath, each with its sentence. The model notes each rule that a packet meets.

macro_rules! rules {
    ($($name:ident = $sentence:literal,)*) => {
        /// A rule that the model applied to a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = $sentence] $name),*
        }

        impl Rule {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// In plain English.
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence),* }
            }
        }
    };
}

rules! {
    // Headers.
    UnjudgedIsDropped = "A packet that cannot be judged is dropped where the endpoint filters this direction.",
    UnjudgedPasses = "A packet that cannot be judged passes as `unfiltered` where the endpoint does not filter this direction.",
    UnjudgedStray = "A packet that cannot be judged needs a destination that is the endpoint's, where nothing filters it.",
    UnjudgedSource = "A packet that cannot be judged needs the endpoint's own source, where nothing filters it.",
    LaterFragment = "A fragment that is not the first takes its ports from the first fragment that passed.",
    LostFragment = "A fragment whose first one did not pass cannot be judged.",
    TinyFragment = "An IPv4 TCP fragment at an offset of eight bytes overlaps the flags; it cannot be judged.",
    FirstFragmentIsKept = "The ports of a first fragment that passes are kept for the fragments after it.",
    // Flows: look-up.
    Expired = "A flow that was silent for longer than its state's time-out does not exist.",
    OtherLocalAddress = "A packet with another local address than the flow's is not of this flow.",
    // Flows: a beginning.
    BeginsOnCut = "A beginning on a cut flow is judged as a new flow.",
    BeginsOnClosing = "A beginning on a closing flow is judged as a new flow.",
    BeginsAgainst = "A beginning against the direction of the flow is judged as a new flow.",
    BeginsOnMidStream = "A beginning on a mid-stream flow is judged as a new flow.",
    BeginningDenied = "A beginning that is denied leaves the old flow as it is.",
    BeginsAgain = "A repeated beginning in the direction of an unfinished flow belongs to this flow.",
    // Flows: cut.
    CutConnection = "A TCP or SCTP packet of a cut flow is dropped.",
    CutAnswer = "A packet of another protocol against the direction of a cut flow is dropped, and the flow's time is touched.",
    CutJudgedAnew = "A packet of another protocol in the direction of a cut flow is judged as a new flow.",
    CutStays = "If the judgement of such a packet denies, the cut flow stays.",
    // Flows: origin.
    HostArrival = "A flow that the host began goes on only with packets that came in through no interface.",
    HostStamp = "A flow that the host began goes on only with packets without a stamp.",
    HostFragment = "A flow that the host began goes on only with packets without an IPv6 fragment header.",
    ItselfArrival = "A flow that the pod began with itself goes on only with packets that came in through its own interface.",
    // Flows: epoch.
    Kept = "With established=keep, a flow of an older generation goes on unasked.",
    JudgedAgain = "A flow of an older generation is judged again in the direction in which it began.",
    MidStreamJudgedAgain = "A mid-stream flow of an older generation must be allowed in both directions.",
    Adopted = "A flow that the generation in force allows too goes on.",
    Cut = "A flow that the generation in force denies becomes cut; the packet is dropped.",
    CutByAnswer = "If a packet of neither TCP nor SCTP against the flow's direction makes it cut, the time is touched.",
    // Flows: going on.
    Established = "A packet of a flow passes, and touches the flow's time.",
    Answers = "A packet against the flow's direction is an answer.",
    Opens = "A packet in the flow's direction after an answer opens a fresh flow.",
    OneFin = "A FIN of one side alone does not close a flow.",
    BothFins = "A flow is closing when both sides have sent FIN.",
    ResetFromPod = "A RST from the pod makes the flow closing at once.",
    ResetToPod = "A RST to the pod changes nothing.",
    ClosingGoesOn = "A closing flow goes on with packets that do not begin a connection.",
    // No flow.
    NoEndpoint = "A packet at an unknown endpoint is dropped.",
    TagFromPod = "A frame of a pod with a VLAN tag is dropped: its addresses are not checked.",
    WrongSource = "A packet from the pod needs the endpoint's own source address, also where nothing is filtered.",
    Stray = "A packet to the pod needs the endpoint's address, a group or a link-local address as its destination.",
    ToGroup = "A packet to a group or a link-local address may come to the pod.",
    NoSocket = "A packet that came in through no interface but has no socket is not the host's.",
    Stamped = "A packet with a stamp is not the host's.",
    FragmentHeader = "A packet with an IPv6 fragment header is not the host's.",
    FromItself = "A packet that came in through the pod's own interface is from the pod itself.",
    ToItself = "A packet to the endpoint's own address is to itself.",
    OwnNode = "The host may send from an address of the endpoint's node.",
    MidStream = "TCP without a beginning and SCTP without INIT pass only if both directions are allowed.",
    MidStreamDenied = "Mid-stream packets that either direction denies are dropped.",
    MidStreamReset = "A mid-stream RST passes and is not remembered.",
    MidStreamOfItself = "A mid-stream packet of the pod to itself is remembered as that.",
    MidStreamOfHost = "A mid-stream packet of the own node is remembered as a flow that the host began.",
    NewAllowed = "Everything else is judged in the packet's direction; allowed, it is remembered as fresh.",
    NewDenied = "A new flow that policy denies is dropped.",
    UnfilteredIsRemembered = "An endpoint that nothing filters has flows like any other.",
    AsksNothing = "ICMP that asks nothing is not remembered.",
    GroupNotRemembered = "Packets to groups and to all are not remembered.",
    TakesSlot = "An allowed new flow takes the slot of the flow with its key.",
    // ICMP errors.
    Related = "An error about a live flow of the generation in force passes.",
    ErrorAboutNoFlow = "An error about no flow is judged.",
    ErrorAboutCut = "An error about a cut flow is judged.",
    ErrorAboutOlder = "An error about a flow of an older generation is judged.",
    ErrorToOther = "An error from the pod that does not go to the source of what it quotes is judged.",
    ErrorTooLong = "An error that is longer than errors may be is judged.",
    ErrorOtherLocal = "An error about a flow of another local address is judged.",
    // Neighbours.
    ArpFromPod = "The pod may speak ARP in its own name.",
    ArpProbe = "The pod may ask by ARP before it has an address.",
    ArpSpoofed = "ARP in another's name is dropped.",
    ArpToPod = "ARP about the endpoint's address comes to the pod.",
    ArpGratuitous = "ARP that announces its sender comes to the pod.",
    ArpNoAddress = "ARP comes to an endpoint without an IPv4 address.",
    ArpStray = "ARP about another address does not come to the pod.",
    NeighbourFromPod = "The pod may send neighbour discovery in its own name.",
    NeighbourSolicited = "The pod may answer a global unicast address that has solicited it in the last 30 seconds.",
    NeighbourSpoofed = "Neighbour discovery with a wrong source, target or link-layer address is dropped.",
    NeighbourShape = "Neighbour discovery with another option or more than one is judged as any ICMP.",
    NeighbourElsewhere = "Neighbour discovery with a wrong destination is judged as any ICMP.",
    RouterFromPod = "Router advertisements and redirects from the pod are dropped.",
    ListenerFromPod = "The pod may report to which groups it listens.",
    ListenerJudged = "Other listener reports of the pod are judged as any ICMP.",
    NeighbourToPod = "Neighbour discovery comes to the pod.",
    SolicitsOther = "A solicitation of another address does not come to the pod.",
    ForRouters = "Reports and router solicitations to a group do not come to the pod.",
    ListenerQuery = "A query of a link-local address for listeners comes to the pod.",
}
