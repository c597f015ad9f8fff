//! Chapter 5: slots that stay empty in a text's last page, against the page size.

use anyhow::Result;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use serde::Serialize;

use crate::chart::{Chart, Dashes, Series};
use crate::fragment::Drawing;
use crate::svg::{Kind, grouped};

const PAGE_SIZES: [usize; 9] = [1, 8, 16, 32, 48, 64, 80, 96, 128];
/// One text of each length up to this.
const LONGEST: usize = 1024;

#[derive(Serialize)]
pub struct Trace {
    /// Texts: one of each length from 1 to this.
    longest: usize,
    frames: Vec<Frame>,
}

/// All texts with one page size.
#[derive(Serialize)]
struct Frame {
    page_size: usize,
    /// Empty slots of the text that has most.
    most: usize,
    /// Empty slots of all texts.
    empty: usize,
    /// Slots of all texts.
    slots: usize,
}

pub fn record() -> Result<Trace> {
    let mut frames = Vec::new();
    for page_size in PAGE_SIZES {
        let mut frame = Frame { page_size, most: 0, empty: 0, slots: 0 };
        for len in 1..=LONGEST {
            let mut pool = PagePool::new(LONGEST)?;
            let mut table = PageTable::new(page_size)?;
            table.grow(len, &mut pool)?;
            let empty = table.slots() - table.len();
            frame.most = frame.most.max(empty);
            frame.empty += empty;
            frame.slots += table.slots();
        }
        frames.push(frame);
    }
    Ok(Trace { longest: LONGEST, frames })
}

impl Trace {
    fn mean(&self, frame: &Frame) -> f64 {
        frame.empty as f64 / self.longest as f64
    }
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let last = &frames[frames.len() - 1];
    let chart = Chart {
        title: "empty slots",
        across: "page size",
        ticks_across: &[0, 16, 32, 64, 96, 128],
        ticks_up: &[0, 32, 64, 96, 128],
        below: 0.0,
        series: vec![
            Series {
                points: frames.iter().map(|frame| (frame.page_size, frame.most as u64)).collect(),
                kind: Kind::Wasted,
                dashes: Dashes::None,
                labels: vec!["at most".into()],
                label_at: (96, 104, 0.0),
            },
            Series {
                points: frames.iter().map(|frame| (frame.page_size, trace.mean(frame).round() as u64)).collect(),
                kind: Kind::New,
                dashes: Dashes::Long,
                labels: vec!["on average".into()],
                label_at: (128, 40, 0.0),
            },
        ],
    };
    Drawing {
        svg: chart.svg(),
        label: format!(
            "Chart of empty slots in a text against the page size: two straight lines. At most it is one slot less than \
             the page has, {} for pages of {}; on average it is half of that, {:.1}.",
            last.most,
            last.page_size,
            trace.mean(last)
        ),
        caption: format!(
            "Slots that stay empty in the last page of a text, counted over one text of each length from 1 to {} by \
             <code>PageTable</code>.",
            grouped(trace.longest as u64)
        ),
        steps: (frames.iter())
            .map(|frame| {
                let share = 100.0 * frame.empty as f64 / frame.slots as f64;
                let mean = trace.mean(frame);
                format!(
                    "Page size {}: {mean:.1} slots empty on average, {} at most; {share:.1} % of all slots.",
                    frame.page_size, frame.most
                )
            })
            .collect(),
    }
}
