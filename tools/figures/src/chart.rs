//! Line charts: axes from 0, lines with a name each, and a point for each value.

use crate::figures::prelude::*;

/// The first line is drawn through, the others in dashes of their own.
const LOOKS: [&str; 3] = ["plot", "plot dash", "plot dot"];
const HEIGHT: f64 = 220.0;
const LINE: f64 = 18.0;
/// How long the piece of a line beside its name is.
const SAMPLE: f64 = 30.0;

/// A chart from 0 to the last ticks, or a little beyond.
#[derive(Default)]
pub struct Chart<'a> {
    /// Over the upward axis and under the other one.
    pub title: &'a str,
    pub across: &'a str,
    pub ticks_across: &'a [u64],
    pub ticks_up: &'a [f64],
    /// For the ticks of the upward axis: `%`.
    pub unit: &'a str,
    pub lines: Vec<(&'a str, Vec<(f64, f64)>)>,
    pub note: Option<((f64, f64), String)>,
}

impl Chart<'_> {
    /// A figure of this chart alone.
    pub fn figure(&self, headline: &str, setup: String) -> Figure {
        let figure = Figure { label: self.label(), headline: headline.into(), setup, ..Figure::default() };
        figure.still(|picture| self.draw(picture))
    }

    fn label(&self) -> String {
        let ends = self.lines.iter().map(|(name, points)| {
            let [(first, low), (last, high)] =
                [points[0], points[points.len() - 1]].map(|(x, y)| (number(x), number(y)));
            let unit = self.unit;
            format!(" {name}, from {first} to {last}: {low}{unit} to {high}{unit}.")
        });
        format!("Chart of {} against {}.{}", self.title, self.across, ends.collect::<String>())
    }

    /// Lines have their names at their right end, or above the chart where that is narrow.
    fn draw(&self, picture: &mut Picture) {
        picture.bold(picture.left, picture.y + 13.0, Anchor::Start, self.title);
        picture.y += LINE + 4.0;
        let is_wide = picture.width > 500.0;
        let names = self.lines.iter().map(|(name, _)| text_width(name)).fold(0.0, f64::max);
        let is_named = self.lines.len() > 1;
        if is_named && !is_wide {
            for index in 0..self.lines.len() {
                self.name(picture, index, (picture.left, picture.y + 13.0));
                picture.y += LINE;
            }
        }
        let tick = |tick: &f64| format!("{}{}", number(*tick), self.unit);
        let widest = self.ticks_up.iter().map(|up| text_width(&tick(up))).fold(0.0, f64::max);
        let values = self.lines.iter().flat_map(|(_, points)| points);
        let ends = self.ticks_across.last().zip(self.ticks_up.last());
        let most = ends.map_or((1.0, 1.0), |(across, up)| (*across as f64, *up));
        let most = values.fold(most, |most, at| (most.0.max(at.0), most.1.max(at.1)));
        let left = picture.left + widest + 10.0;
        let right = picture.right() - if is_named && is_wide { names + SAMPLE + 34.0 } else { 12.0 };
        let (top, bottom) = (picture.y + 8.0, picture.y + 8.0 + HEIGHT);
        // Where a point of the chart lies in the picture.
        let at = |(x, y): (f64, f64)| (left + x / most.0 * (right - left), bottom - y / most.1 * (bottom - top));
        picture.path("line", format!("M{left:.1} {top:.1}V{bottom:.1}H{right:.1}"));
        for up in self.ticks_up {
            let (_, y) = at((0.0, *up));
            picture.path("tick", format!("M{:.1} {y:.1}H{right:.1}", left - 4.0));
            picture.text(left - 8.0, y + 4.5, Anchor::End, tick(up));
        }
        for across in self.ticks_across {
            let (x, y) = at((*across as f64, 0.0));
            picture.path("line", format!("M{x:.1} {y:.1}v4"));
            picture.text(x, y + 18.0, Anchor::Middle, grouped(*across));
        }
        picture.text((left + right) / 2.0, bottom + 37.0, Anchor::Middle, self.across);
        let mut ends = Vec::new();
        for (index, (_, points)) in self.lines.iter().enumerate() {
            let places: Vec<(f64, f64)> = points.iter().map(|point| at(*point)).collect();
            self.line(picture, index, &places, &places);
            let (x, y) = places[places.len() - 1];
            ends.push((y + 4.5, x, index));
        }
        if is_named && is_wide {
            self.name_ends(picture, ends);
        }
        if let Some((point, text)) = &self.note {
            let (x, y) = at(*point);
            picture.text(x + 4.0, y - 12.0, Anchor::Start, text);
        }
        picture.y = bottom + 42.0;
    }

    /// A line through these places, with these points, in its look.
    fn line(&self, picture: &mut Picture, index: usize, places: &[(f64, f64)], points: &[(f64, f64)]) {
        let line: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        picture.path(format!("{} o{index}", LOOKS[index]), format!("M{}", line.join("L")));
        picture.path(format!("dots o{index}"), points.iter().map(|(x, y)| circle(*x, *y, 3.0)).collect());
    }

    /// A piece of a line, and its name.
    fn name(&self, picture: &mut Picture, index: usize, (x, y): (f64, f64)) {
        let up = y - 4.5;
        self.line(picture, index, &[(x, up), (x + SAMPLE, up)], &[(x + SAMPLE / 2.0, up)]);
        picture.text(x + SAMPLE + 8.0, y, Anchor::Start, self.lines[index].0);
    }

    /// Names beside the ends of their lines, each with its height, the end and the index: from the highest to the lowest,
    /// no nearer to each other than lines of text are.
    fn name_ends(&self, picture: &mut Picture, mut names: Vec<(f64, f64, usize)>) {
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        for n in (0..names.len().saturating_sub(1)).rev() {
            names[n].0 = names[n].0.min(names[n + 1].0 - 17.0);
        }
        for (y, x, index) in names {
            self.name(picture, index, (x + 24.0, y));
        }
    }
}

/// The data of a path around a point.
pub fn circle(x: f64, y: f64, r: f64) -> String {
    format!("M{:.1} {y:.1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", x - r, d = 2.0 * r)
}

/// A whole number with its thousands apart, any other with the decimals that it has.
fn number(value: f64) -> String {
    if value.fract() == 0.0 { grouped(value as u64) } else { value.to_string() }
}
