//! The first screen of a report: title, inputs, verdict and cards.

use crate::args::GlobalArgs;
use crate::read::ReadInput;
use crate::render::text::count;
use crate::views::report::markup::Markup;

/// Everything above the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportHead {
    /// The subject of the report, without the product's name.
    pub(crate) title: String,
    /// Names and values: the inputs, the cluster, the time.
    pub(crate) origin: Vec<(&'static str, String)>,
    pub(crate) tone: Tone,
    pub(crate) verdict: String,
    pub(crate) cards: Vec<Card>,
}

/// How important something is to a reviewer. Words say the same as the colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// More is open than before, or than a reader may expect.
    Warning,
    /// Something is different or worth a look.
    Notice,
    #[default]
    Calm,
}

/// One number with its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) title: &'static str,
    pub(crate) number: String,
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Card {
    /// A card that is a warning, or a notice, if its number is not zero.
    pub(crate) fn counting(title: &'static str, number: usize, text: String, tone: Tone) -> Self {
        let tone = if number == 0 { Tone::Calm } else { tone };
        Self { title, number: number.to_string(), text, tone }
    }
}

/// The clusters that objects of the inputs were read from: `cluster:prod` is `prod`.
pub(crate) fn clusters(sides: &[&ReadInput]) -> Option<String> {
    let files = sides.iter().flat_map(|side| side.sources.files());
    let contexts = files.filter_map(|file| file.name.strip_prefix("cluster:"));
    let mut names: Vec<String> =
        contexts.map(|it| if it.is_empty() { "the current context".to_owned() } else { it.to_owned() }).collect();
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| names.join(", "))
}

/// `policies/: 3 files, 12 policies, 1 list, 7 pods, 5 workloads`
pub(crate) fn input(name: &str, read: &ReadInput) -> String {
    let counts = read.counts();
    let mut parts = vec![count(read.sources.files().len(), "file")];
    let policies = counts.policies + counts.cluster_policies;
    for (number, word) in
        [(policies, "policy"), (counts.lists, "list"), (counts.pods, "pod"), (counts.workloads, "workload")]
    {
        if number > 0 {
            parts.push(count(number, word));
        }
    }
    format!("{name}: {}", parts.join(", "))
}

/// The lists of addresses of the command line, which belong to every input.
pub(crate) fn lists(global: &GlobalArgs) -> Option<String> {
    let names: Vec<String> =
        global.deny_list.iter().chain(&global.allow_list).map(|it| it.display().to_string()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

impl ReportHead {
    pub(crate) fn markup(&self) -> Markup {
        let mut out = Markup::new();
        out.element("<h1 id=\"title\"><span class=\"product\">Weir</span> ", &self.title, "</h1>");
        out.raw("<dl class=\"origin\">");
        for (name, value) in &self.origin {
            out.element("<div><dt>", name, "</dt>").element("<dd>", value, "</dd></div>");
        }
        out.raw("</dl><p id=\"verdict\" class=\"verdict ").raw(self.tone.class()).raw("\">");
        out.element("<span class=\"sign\" aria-hidden=\"true\">", self.tone.sign(), "</span> ");
        out.text(&self.verdict).raw("</p><ul class=\"cards\" aria-label=\"Summary\">");
        for card in &self.cards {
            out.raw("<li class=\"card ").raw(card.tone.class()).raw("\">");
            out.element("<h2>", card.title, "</h2>").element("<p class=\"number\">", &card.number, "</p>");
            out.element("<p>", &card.text, "</p></li>");
        }
        out.raw("</ul>");
        out
    }
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Notice => "notice",
            Self::Calm => "calm",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Self::Warning => "⚠",
            Self::Notice => "●",
            Self::Calm => "✓",
        }
    }
}
