//! Three traces: lists of requests. No model reads their tokens, so these are numbers that are equal where two requests
//! are to share pages, and different elsewhere.

/// A request, with the output that it will get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// All tokens: the prompt, and those that a model would generate after it.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt: at least one, and not all.
    pub n_prompt: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// Prompts that begin alike, as with a system prompt.
    Shared,
    /// Chats that take turns. Each turn's prompt is all that was said in the chat so far and a new message.
    Chats,
    /// Questions, each after one of a few long documents.
    Documents,
}

/// What a trace has, unless a run says otherwise.
pub struct TraceDefaults {
    /// Its name on the command line.
    pub name: &'static str,
    pub n_requests: usize,
    /// Sequences that run at the same time. A chat's turns and a document's questions come one after the other.
    pub max_running: usize,
    /// Pages of the pool. The documents alone fill 128 pages of 16 tokens: the last two are where it gets tight.
    pub n_pages: usize,
}

/// Tokens below this are what users write and models generate; the others are what many prompts begin with.
const FIRST_COMMON: u32 = 5000;
/// Tokens that the prompts of [`Trace::Shared`] and [`Trace::Chats`] begin with.
const COMMON: u32 = 64;
/// Requests of [`Trace::Shared`], by default.
const REQUESTS: usize = 300;
const CHATS: usize = 20;
const TURNS: usize = 6;
const DOCUMENTS: usize = 4;
const ROUNDS: usize = 20;

impl Trace {
    pub const ALL: [Trace; 3] = [Trace::Shared, Trace::Chats, Trace::Documents];

    pub fn defaults(self) -> TraceDefaults {
        match self {
            Trace::Shared => TraceDefaults { name: "shared", n_requests: REQUESTS, max_running: 16, n_pages: 512 },
            Trace::Chats => TraceDefaults { name: "chats", n_requests: CHATS * TURNS, max_running: 1, n_pages: 300 },
            Trace::Documents => {
                TraceDefaults { name: "documents", n_requests: DOCUMENTS * ROUNDS, max_running: 1, n_pages: 130 }
            }
        }
    }

    /// The first `n` requests, made one by one: the same on every machine.
    ///
    /// Those of `shared` are the crate kv-cache-scheduler's, release 0.1.0, so that counters can be compared.
    pub fn requests(self, n: usize) -> Box<dyn Iterator<Item = TraceRequest>> {
        let mut draws = Draws(42);
        match self {
            Trace::Shared => Box::new((0..n as u32).map(move |i| shared(i, &mut draws))),
            Trace::Chats => {
                let mut chats = vec![common(); CHATS];
                Box::new((0..n).map(move |i| chat(&mut chats[i % CHATS], &mut draws)))
            }
            Trace::Documents => Box::new((0..n as u32).map(document)),
        }
    }
}

/// What many prompts begin with.
fn common() -> Vec<u32> {
    (FIRST_COMMON..FIRST_COMMON + COMMON).collect()
}

fn shared(i: u32, draws: &mut Draws) -> TraceRequest {
    let (user, generated) = (draws.between(8, 48), draws.between(16, 96));
    let mut tokens = common();
    tokens.extend((0..user).map(|_| draws.between(0, FIRST_COMMON - 1)));
    let n_prompt = tokens.len();
    // The output is not drawn: no two requests get the same. A number that does not fit wraps.
    tokens.extend((0..generated).map(|token| i.wrapping_mul(10_000).wrapping_add(token)));
    TraceRequest { tokens, n_prompt }
}

/// The next turn of a chat, of which `said` is all that was said.
fn chat(said: &mut Vec<u32>, draws: &mut Draws) -> TraceRequest {
    let (message, answer) = (draws.between(8, 48), draws.between(8, 40));
    said.extend((0..message).map(|_| draws.between(0, FIRST_COMMON - 1)));
    let n_prompt = said.len();
    said.extend((0..answer).map(|_| draws.between(0, FIRST_COMMON - 1)));
    TraceRequest { tokens: said.clone(), n_prompt }
}

/// Question `i`, after the document that it is about.
fn document(i: u32) -> TraceRequest {
    let document = i % DOCUMENTS as u32;
    let mut tokens: Vec<u32> = (document * 512..(document + 1) * 512).collect();
    tokens.extend((0..10 + 32).map(|token| FIRST_COMMON + 42 * i + token));
    TraceRequest { tokens, n_prompt: 512 + 10 }
}

/// Random numbers, the same on every machine: Knuth's linear congruential generator of MMIX.
struct Draws(u64);

impl Draws {
    fn between(&mut self, low: u32, high: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (self.0 % u64::from(high - low + 1)) as u32
    }
}
