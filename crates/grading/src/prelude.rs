//! What nearly every grader uses.

pub use crate::calls::{assert_panics, enter_call, expect_ok, expect_panic, in_call};
pub use crate::limits::{allocated, assert_allocates, assert_constant_cost, assert_one_pass, same_each};
pub use crate::oracle::{Oracle, STEPS, TestRng, fresh, seeded, seeds};
pub use crate::story::{SAMPLING, Storyteller};
pub use crate::transcript::{Transcript, assert_transcript, in_short, outcome, page_list};
pub use crate::words::{argument, plural, same_list, shown};
pub use crate::{same, tests_on};
