//! The engine in a page of the book: what a web worker can call.
//!
//! ```text
//!   worker                                   here
//!     begin()                     ──►  once, before all others
//!     alloc_input(n) → address    ──►  n bytes of input are written there
//!     add_file(file)              ──►  the input becomes a file of the model
//!     call() → bytes of an answer ──►  the input is a request in JSON, see [`Request`](session::Request)
//!     answer() → address          ◄──  and so is the answer
//! ```
//!
//! Through the engine it runs `ch01_recompute`, `ch07_rewind`, `chapters::ch12_scheduler` and
//! `chapters::ch13_paged_attention`.
//!
//! There is one thread and one session at a time. A panic ends the module. Its message goes to the imported `panicked`.

pub mod session;
mod shared_pool;
mod side_by_side;
mod speculation;

use std::cell::RefCell;

use serde_json::json;
use session::{Files, Request, Session};

thread_local! {
    static CALLED: RefCell<Called> = RefCell::default();
}

#[derive(Default)]
struct Called {
    input: Vec<u8>,
    answer: Vec<u8>,
    files: Option<Files>,
    session: Option<Session>,
}

/// Makes room for `n` bytes of input. Returns their address.
#[unsafe(no_mangle)]
pub extern "C" fn alloc_input(n: usize) -> *mut u8 {
    CALLED.with_borrow_mut(|called| {
        called.input = vec![0; n];
        called.input.as_mut_ptr()
    })
}

/// Adds the input as file number `file`, in the order of [`Files`].
#[unsafe(no_mangle)]
pub extern "C" fn add_file(file: usize) {
    CALLED.with_borrow_mut(|called| {
        let bytes = std::mem::take(&mut called.input);
        called.files.get_or_insert_default().add(file, bytes);
    });
}

/// Answers the request in the input. Returns the bytes of the answer.
#[unsafe(no_mangle)]
pub extern "C" fn call() -> usize {
    CALLED.with_borrow_mut(|called| {
        let answer = called.respond().unwrap_or_else(|error| json!({ "error": error }));
        called.answer = answer.to_string().into_bytes();
        called.answer.len()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn answer() -> *const u8 {
    CALLED.with_borrow(|called| called.answer.as_ptr())
}

impl Called {
    fn respond(&mut self) -> Result<serde_json::Value, String> {
        let request: Request = serde_json::from_slice(&self.input).map_err(|error| error.to_string())?;
        if let Request::Open(settings) = request {
            // The one before gives its pages back first.
            self.session = None;
            let files = self.files.as_mut().ok_or("no model is open")?;
            self.session = Some(Session::open(files, &settings)?);
            return Ok(json!({}));
        }
        self.session.as_mut().ok_or("no session is open")?.respond(request)
    }
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod browser {
    //! What the module imports, and a stand-in for what a browser's module lacks.

    #[link(wasm_import_module = "page")]
    unsafe extern "C" {
        /// Takes the message of a panic, UTF-8.
        fn panicked(message: *const u8, bytes: usize);
    }

    /// Called once, before anything else.
    #[unsafe(no_mangle)]
    extern "C" fn begin() {
        std::panic::set_hook(Box::new(|panic| {
            let message = panic.to_string();
            // SAFETY: the message lives until the call returns.
            unsafe { panicked(message.as_ptr(), message.len()) }
        }));
    }

    /// Random numbers, which the tokenizer's hash tables ask for to be safe from hostile keys. Here all keys are the
    /// reader's own, so any numbers do.
    ///
    /// # Safety
    /// `numbers` has room for `n` bytes.
    #[unsafe(no_mangle)]
    unsafe extern "Rust" fn __getrandom_v03_custom(numbers: *mut u8, n: usize) -> Result<(), getrandom::Error> {
        // SAFETY: the caller guarantees the room.
        unsafe { std::ptr::write_bytes(numbers, 4, n) };
        Ok(())
    }
}
