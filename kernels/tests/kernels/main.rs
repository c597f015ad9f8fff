//! The kernels against their definitions, bit for bit: plain loops, one number at a time, with the sums in the order that the
//! crate promises. Since every processor must give these bits, the tests run once for each kind of registers that this one has.

mod attention;
mod definition;
mod products;
mod small;

use std::process::{Command, Output};

const REGISTERS: &str = "PAGE_BY_PAGE_REGISTERS";

/// All other tests of this binary, with these registers.
fn tests_with(registers: &str) -> Output {
    let tests = std::env::current_exe().expect("the path of this binary");
    Command::new(tests).env(REGISTERS, registers).output().expect("the tests start")
}

#[test]
fn all_registers_give_these_bits() {
    if cfg!(miri) || cfg!(target_family = "wasm") || std::env::var_os(REGISTERS).is_some() {
        return;
    }
    let refused = tests_with("abacus");
    let refused = String::from_utf8_lossy(&refused.stdout);
    let refusal = "PAGE_BY_PAGE_REGISTERS=abacus: this processor has no such registers, but ";
    let (_, names) = refused.split_once(refusal).expect("a refusal that names the registers");
    let names: Vec<&str> = names.lines().next().expect("names").split(", ").collect();
    assert!(names.contains(&"plain"), "{names:?}");
    for name in names {
        let run = tests_with(name);
        assert!(run.status.success(), "with {name} registers:\n{}", String::from_utf8_lossy(&run.stdout));
    }
}
