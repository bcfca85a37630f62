//! Bar charts, as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;

/// Groups of horizontal bars. The bars of a group have different colours.
pub(super) struct BarChart<'a> {
    /// Room for the names of groups.
    pub(super) left: f64,
    /// The height of a bar.
    pub(super) bar: f64,
    /// For each bar of a group, its colour and its name.
    pub(super) legend: Vec<(&'static str, &'a str)>,
    /// The distance between two names in the legend.
    pub(super) legend_step: f64,
}

impl BarChart<'_> {
    /// The room for bars, in front of the texts that follow them.
    pub(super) fn room(&self) -> f64 {
        WIDTH - self.left - 70.0
    }

    /// Draws groups: the name of each, and the length and the text of each of its bars.
    pub(super) fn draw(&self, groups: &[(String, Vec<(f64, String)>)]) -> String {
        let Self { left, bar, legend, legend_step } = self;
        let group = bar * legend.len() as f64 + 10.0;
        let height = group * groups.len() as f64 + 44.0;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        for (index, (colour, name)) in legend.iter().enumerate() {
            let x = left + legend_step * index as f64;
            _ = writeln!(text, "<rect x=\"{x}\" y=\"8\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
            _ = writeln!(text, "<text x=\"{}\" y=\"17\">{name}</text>", x + 15.0);
        }
        for (place, (name, bars)) in groups.iter().enumerate() {
            let top = 32.0 + group * place as f64;
            let middle = top + group / 2.0;
            _ = writeln!(text, "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>", left - 8.0);
            for (index, ((length, shown), (colour, _))) in bars.iter().zip(legend).enumerate() {
                let (y, thick) = (top + bar * index as f64, bar - 2.0);
                _ = writeln!(
                    text,
                    "<rect x=\"{left}\" y=\"{y}\" width=\"{length:.1}\" height=\"{thick}\" fill=\"{colour}\"/>"
                );
                let (x, y) = (left + length + 4.0, y + bar - 3.0);
                _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y}\" font-size=\"9\">{shown}</text>");
            }
        }
        text + "</svg>\n"
    }
}
