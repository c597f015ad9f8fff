//! Line charts: axes, and lines that carry their names.

use crate::svg::{Anchor, Kind, Svg, WIDTH, grouped};

/// How a line is broken, so that it can be told without its colour.
#[derive(Clone, Copy)]
pub enum Dashes {
    None,
    Long,
    Short,
}

impl Dashes {
    fn pattern(self) -> &'static str {
        match self {
            Dashes::None => "none",
            Dashes::Long => "10 5",
            Dashes::Short => "2 4",
        }
    }
}

/// A line. The points of the first one are the steps; another may begin later.
pub struct Series {
    pub points: Vec<(usize, u64)>,
    pub kind: Kind,
    pub dashes: Dashes,
    /// Its name, in lines that end at `label_at`.
    pub labels: Vec<String>,
    /// Across and up in the chart's own units, then down in the picture's.
    pub label_at: (usize, u64, f64),
}

/// A chart from 0 to the last tick, or a little beyond.
pub struct Chart<'a> {
    /// Of the axis that goes up.
    pub title: &'a str,
    /// Of the axis that goes across.
    pub across: &'a str,
    pub ticks_across: &'a [usize],
    pub ticks_up: &'a [u64],
    /// Room below 0 for the name of a line that stays there.
    pub below: f64,
    pub series: Vec<Series>,
}

const TOP: f64 = 34.0;
const BOTTOM: f64 = 264.0;
const RIGHT: f64 = WIDTH - 12.0;

impl Chart<'_> {
    pub fn svg(&self) -> Svg {
        let mut svg = Svg::new(BOTTOM + 44.0);
        svg.text(0.0, 14.0, Anchor::Start, self.title);
        self.draw_axes(&mut svg);
        for series in &self.series {
            self.draw_line(&mut svg, series);
        }
        let steps = self.series[0].points.len();
        for step in 0..steps {
            let across = self.series[0].points[step].0;
            svg.step(step, |svg| self.series.iter().for_each(|series| self.draw_point(svg, series, across)));
        }
        for series in &self.series {
            self.draw_labels(&mut svg, series);
        }
        svg
    }

    fn left(&self) -> f64 {
        let digits = self.ticks_up.iter().map(|tick| grouped(*tick).len()).max().unwrap_or(0);
        8.0 * digits as f64 + 6.0
    }

    fn x(&self, value: usize) -> f64 {
        let last = self.ticks_across[self.ticks_across.len() - 1];
        tenths(self.left() + value as f64 / last as f64 * (RIGHT - self.left()))
    }

    fn y(&self, value: u64) -> f64 {
        let points = self.series.iter().flat_map(|series| &series.points).map(|(_, value)| *value);
        let highest = points.chain(self.ticks_up.iter().copied()).max().unwrap_or(1);
        tenths(BOTTOM - self.below - value as f64 / highest as f64 * (BOTTOM - self.below - TOP))
    }

    fn draw_axes(&self, svg: &mut Svg) {
        let left = self.left();
        svg.line(&format!("M{left} {TOP}V{BOTTOM}H{RIGHT}"));
        for tick in self.ticks_up {
            let y = self.y(*tick);
            svg.line(&format!("M{} {y}h-4", left));
            svg.text(left - 7.0, y + 5.0, Anchor::End, &grouped(*tick));
        }
        for tick in self.ticks_across {
            let x = self.x(*tick);
            svg.line(&format!("M{x} {BOTTOM}v4"));
            svg.text(x, BOTTOM + 19.0, Anchor::Middle, &grouped(*tick as u64));
        }
        svg.text(RIGHT + 12.0, BOTTOM + 39.0, Anchor::End, self.across);
    }

    fn draw_line(&self, svg: &mut Svg, series: &Series) {
        let points: Vec<String> =
            series.points.iter().map(|(n, value)| format!("{},{}", self.x(*n), self.y(*value))).collect();
        svg.raw(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\" stroke-dasharray=\"{}\"/>",
            points.join(" "),
            series.kind.ink_colour(),
            series.dashes.pattern()
        ));
    }

    fn draw_point(&self, svg: &mut Svg, series: &Series, across: usize) {
        let Some(&(n, value)) = series.points.iter().find(|(n, _)| *n == across) else {
            return;
        };
        svg.raw(&format!(
            "<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{}\"/>",
            self.x(n),
            self.y(value),
            series.kind.ink_colour()
        ));
    }

    fn draw_labels(&self, svg: &mut Svg, series: &Series) {
        let (n, value, down) = series.label_at;
        let last = series.labels.len() - 1;
        for (line, label) in series.labels.iter().enumerate() {
            let y = self.y(value) + down - (last - line) as f64 * 18.0;
            svg.name(self.x(n), y, series.kind, label);
        }
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
