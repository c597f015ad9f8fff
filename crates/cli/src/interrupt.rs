//! Ctrl-C, for commands that have something to put in order before they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What a shell says of a program that Ctrl-C has ended.
const ENDED_BY_INTERRUPT: i32 = 130;

pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first Ctrl-C, or signal to end the program, is noted here; the second ends the program at once.
    pub fn listen() -> Result<Self> {
        let pressed = Arc::new(AtomicBool::new(false));
        // In this order: the first one still finds false here, and is noted after that.
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, ENDED_BY_INTERRUPT, pressed.clone())
                .and_then(|_| flag::register(signal, pressed.clone()))
                .context("Ctrl-C cannot be listened for")?;
        }
        Ok(Interrupt(pressed))
    }

    /// The first Ctrl-C was obeyed: the next one is noted again, as the first.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub fn is_pressed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
