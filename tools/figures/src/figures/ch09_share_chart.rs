//! Chapter 9: draft tokens accepted by the match rule and by the sample rule, and how many the latter should accept.

use anyhow::{Result, ensure};
use page_by_page::decode::drafting::AcceptRule;
use page_by_page::experiments::drafts::Bundled;

use super::Figure;
use super::ch08_k_chart::{LONGEST, made, per_100};
use crate::chart::{Chart, line};
use crate::svg::Kind;
use crate::words::joined;

const TEMPERATURE: f32 = 0.8;

pub fn figure() -> Result<Figure> {
    let mut models = Bundled::open()?;
    let (mut points, mut to_expect) = (Vec::new(), Vec::new());
    for k in 1..=LONGEST {
        let matched = models.stories(TEMPERATURE, k, AcceptRule::Match)?.counters;
        let story = models.stories(TEMPERATURE, k, AcceptRule::Sample)?;
        let sampled = story.counters;
        ensure!(sampled.accepted > matched.accepted, "the sample rule accepts more");
        let [matched, all] = [matched, sampled].map(|counts| per_100(counts.accepted as f64, counts.drafted));
        points.push(vec![k as f64, all, matched]);
        to_expect.push(per_100(story.to_expect, sampled.drafted));
    }
    let third = points[2][1];
    Ok(Chart {
        points,
        title: "accepted of 100 draft tokens",
        across: "draft tokens, k",
        x: "<em>k</em>",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 20, 40, 60],
        below: 46.0,
        lines: vec![
            line("of 100 accepted by the sample rule", Kind::New, &["sample rule,", "drafts are sampled"], (8.0, third, -12.0)),
            line("of 100 by the match rule", Kind::Wasted, &["match rule,", "the likeliest is drafted"], (8.0, 0.0, 38.0)),
        ],
    }
    .figure(format!(
        "<strong>At a temperature above 0, the sample rule accepts more.</strong> {}, temperature {TEMPERATURE}, top-p 0.95. \
         According to <code>share_to_expect</code>, the sample rule should accept {} of 100.",
        made(),
        joined(&to_expect, ", ")
    )))
}
