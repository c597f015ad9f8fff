//! Page by Page on the command line.
fn main() {}
