//! Chapter 2: the bill of `chapters::ch01_recompute` once more, with the cache of `chapters::ch02_flat`.

use super::ch01_bill::bill;
use super::prelude::*;

pub const COMPUTED: char = 'a';
pub const COPIED: char = 'b';

pub fn figure() -> Result<Figure> {
    let mut figure = bill(held(COPIED, ""), true, |[_, computed, copied]| {
        format!(
            "The same shape: only {} tokens are computed now, and {} are copied where the loop computed them.",
            grouped(computed),
            grouped(copied)
        )
    })?;
    figure.legend.push((held(COPIED, ""), "copied"));
    Ok(figure)
}
