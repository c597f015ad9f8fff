//! Line charts: axes, lines that carry their names, and what is said of each point.

use crate::figures::Figure;
use crate::svg::{Anchor, Kind, Svg, WIDTH};
use crate::words::{count, grouped, listed};

pub struct Line {
    says: &'static str,
    kind: Kind,
    name: &'static [&'static str],
    name_at: (f64, f64, f64),
}

/// A line. `says`: what a value is, after the number: `rows with a cache`. `name`: in the picture, one or two lines that end at
/// `name_at`, across and up in the chart's own units, then down in the picture's.
pub fn line(says: &'static str, kind: Kind, name: &'static [&'static str], name_at: (f64, f64, f64)) -> Line {
    Line { says, kind, name, name_at }
}

/// The first line is drawn through, the second in long dashes, the third in short ones.
const DASHES: [&str; 3] = ["none", "10 5", "2 4"];

/// A chart from 0 to the last tick, or a little beyond.
pub struct Chart {
    /// A value across, and the value of each line there; the last lines may lack one.
    pub points: Vec<Vec<f64>>,
    pub title: &'static str,
    pub across: &'static str,
    /// A value across in the list of steps (HTML): `pages`, or a symbol.
    pub x: &'static str,
    pub ticks_across: &'static [u64],
    pub ticks_up: &'static [u64],
    /// Room below 0 for the name of a line that stays there.
    pub below: f64,
    pub lines: Vec<Line>,
}

const TOP: f64 = 34.0;
const BOTTOM: f64 = 264.0;
const RIGHT: f64 = WIDTH - 12.0;

impl Chart {
    /// The figure, with what is said below it (HTML).
    pub fn figure(self, caption: String) -> Figure {
        let ends: Vec<String> = (0..self.lines.len()).map(|line| self.ends(line)).collect();
        Figure {
            svg: self.svg(),
            label: format!("Chart of {} against {}. {}.", self.title, self.across, ends.join("; ")),
            caption,
            steps: self.points.iter().map(|point| self.step(point)).collect(),
            ..Figure::default()
        }
    }

    /// `without a cache, from 1 to 256: 1 to 32,896`
    fn ends(&self, line: usize) -> String {
        let points = self.points_of(line);
        let [(first, low), (last, high)] =
            [points[0], points[points.len() - 1]].map(|(x, value)| (number(x), number(value)));
        format!("{}, from {first} to {last}: {low} to {high}", self.lines[line].says)
    }

    fn step(&self, point: &[f64]) -> String {
        let values = self.lines.iter().zip(&point[1..]);
        let values: Vec<String> = values.map(|(line, value)| format!("{} {}", number(*value), line.says)).collect();
        let x = match self.x.strip_suffix('s') {
            Some(noun) => count(point[0] as usize, noun),
            None => format!("{} = {}", self.x, number(point[0])),
        };
        format!("{x}: {}.", listed(&values))
    }

    fn points_of(&self, line: usize) -> Vec<(f64, f64)> {
        self.points.iter().filter_map(|point| Some((point[0], *point.get(line + 1)?))).collect()
    }

    fn svg(&self) -> Svg {
        let mut svg = Svg::default();
        svg.y = BOTTOM + 44.0;
        svg.text(0.0, 14.0, Anchor::Start, self.title);
        self.draw_axes(&mut svg);
        for (index, (line, dashes)) in self.lines.iter().zip(DASHES).enumerate() {
            let points = self.points_of(index).into_iter().map(|(x, y)| format!("{},{}", self.x(x), self.y(y)));
            svg.raw(&format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>",
                points.collect::<Vec<_>>().join(" "),
                line.kind.ink(),
            ));
        }
        for point in &self.points {
            svg.step(|svg| {
                for (line, value) in self.lines.iter().zip(&point[1..]) {
                    let (x, y, ink) = (self.x(point[0]), self.y(*value), line.kind.ink());
                    svg.raw(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{ink}\"/>"));
                }
            });
        }
        for Line { name, name_at: (across, up, down), kind, .. } in &self.lines {
            for (above, name) in name.iter().rev().enumerate() {
                svg.name(self.x(*across), self.y(*up) + down - above as f64 * 18.0, *kind, name);
            }
        }
        svg
    }

    fn left(&self) -> f64 {
        let digits = self.ticks_up.iter().map(|tick| grouped(*tick).len()).max().unwrap_or(0);
        8.0 * digits as f64 + 6.0
    }

    fn x(&self, value: f64) -> f64 {
        let last = self.ticks_across[self.ticks_across.len() - 1];
        tenths(self.left() + value / last as f64 * (RIGHT - self.left()))
    }

    fn y(&self, value: f64) -> f64 {
        let values = self.points.iter().flat_map(|point| &point[1..]).copied();
        let highest = values.chain(self.ticks_up.iter().map(|tick| *tick as f64)).fold(1.0, f64::max);
        tenths(BOTTOM - self.below - value / highest * (BOTTOM - self.below - TOP))
    }

    fn draw_axes(&self, svg: &mut Svg) {
        let left = self.left();
        svg.line(&format!("M{left} {TOP}V{BOTTOM}H{RIGHT}"));
        for tick in self.ticks_up {
            let y = self.y(*tick as f64);
            svg.line(&format!("M{left} {y}h-4"));
            svg.text(left - 7.0, y + 5.0, Anchor::End, &grouped(*tick));
        }
        for tick in self.ticks_across {
            let x = self.x(*tick as f64);
            svg.line(&format!("M{x} {BOTTOM}v4"));
            svg.text(x, BOTTOM + 19.0, Anchor::Middle, &grouped(*tick));
        }
        svg.text(RIGHT + 12.0, BOTTOM + 39.0, Anchor::End, self.across);
    }
}

/// A whole number with its thousands apart, any other with one decimal.
fn number(value: f64) -> String {
    if value.fract() == 0.0 { grouped(value as u64) } else { format!("{value:.1}") }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
