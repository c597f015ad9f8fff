//! Two sequences with a mistake switched on, beside what they would have told without it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use page_by_page::experiments::mistakes::{self, Effect, Scenario};
use page_by_page::generation::read_checker::{ReadChecker, RowAddress, WrongRead};
use page_by_page::generation::sampler::Sampler;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::view::{FinishedView, PoolView};
use page_by_page::serving::{Engine, GenerationRequest, StepOutput};
use serde_json::{Value, json};

use crate::shared_pool::text_of;

pub struct SideBySide {
    pub scenario: Scenario,
    checker: Rc<ReadChecker>,
    /// The same sequences without the mistake, in a pool of their own.
    pub right: Engine<'static>,
    /// What they have told so far, of each.
    texts: HashMap<u64, String>,
    /// The first wrong read in words, all of them, and those of the newest step.
    first: Option<String>,
    n_wrong: usize,
    newest: Vec<WrongRead>,
    /// Of the page that was read wrongly last, slot by slot: the token that belongs there, and the one whose row is there;
    /// and the text before that page.
    slots: (String, Vec<[String; 2]>),
}

impl SideBySide {
    /// The mistake of this name, if rows that are misplaced show it.
    pub fn find(name: &str) -> Result<(Scenario, ReadChecker), String> {
        let mistake = mistakes::all().into_iter().find(|mistake| mistake.name == name);
        match mistake.map(|mistake| mistake.effect) {
            Some(Effect::Story(scenario, fault)) => Ok((scenario, ReadChecker::new(Some(fault)))),
            _ => Err(format!("no story here shows the mistake {name:?}; see cargo page break")),
        }
    }

    /// `right`: an engine without sequences.
    pub fn new(scenario: Scenario, checker: Rc<ReadChecker>, right: Engine<'static>) -> Self {
        let (texts, first, newest, slots) = Default::default();
        SideBySide { scenario, checker, right, texts, first, n_wrong: 0, newest, slots }
    }

    /// Starts all sequences, or the next one when none is left, in both pools. `started`: sequences so far.
    pub fn start(
        &mut self,
        engine: &mut Engine<'static>,
        tokenizer: &Tokenizer,
        started: usize,
    ) -> Result<usize, String> {
        let Scenario { prompts, n_new, one_by_one, rewind, .. } = self.scenario;
        if started == prompts.len() || (started > 0 && !(one_by_one && engine.is_done())) {
            return Ok(started);
        }
        let end = if one_by_one { started + 1 } else { prompts.len() };
        // Those of the same prompt are forks of the first.
        let requests = prompts[started..end].chunk_by(|(first, _), (second, _)| first == second);
        // What the first takes back is not in its output.
        let taken_back = std::iter::once(rewind.map_or(0, |(_, n)| n)).chain(std::iter::repeat(0));
        for (requests, taken_back) in requests.zip(taken_back) {
            for engine in [&mut *engine, &mut self.right] {
                let tokens = tokenizer.encode(requests[0].0).map_err(text_of)?;
                let samplers = requests.iter().map(|(_, seed)| Sampler::new(mistakes::sampling(*seed))).collect();
                engine.submit_request(GenerationRequest::new(tokens, n_new - taken_back, samplers)).map_err(text_of)?;
            }
        }
        Ok(end)
    }

    /// Follows a step of the pool, which is that of `engine`.
    pub fn step(&mut self, engine: &Engine<'static>, tokenizer: &Tokenizer) -> Result<(), String> {
        let StepOutput { finished, .. } = self.right.step().map_err(text_of)?;
        let running = PoolView::new(&self.right, &[]).sequences;
        self.texts.extend(running.into_iter().map(|sequence| (sequence.id, sequence.text)));
        let ended = finished.iter().map(FinishedView::new);
        self.texts.extend(ended.map(|ended| (ended.id, ended.text)));
        self.newest = self.checker.take_wrong_reads();
        self.n_wrong += self.newest.len();
        let names = self.scenario.names();
        let text = |id: u64, positions: Range<usize>| {
            let (sequence, _) = engine.scheduler().running().find(|(sequence, _)| sequence.id.0 == id)?;
            Some(tokenizer.decode(sequence.tokens.get(positions)?).ok()?.trim().to_string())
        };
        let word = |address: RowAddress| text(address.sequence, address.position..address.position + 1);
        let token = |address: RowAddress| {
            word(address)
                .map_or_else(|| format!("token {}", address.position), |word| format!("\u{201c}{word}\u{201d}"))
        };
        let describe = |wrong: &WrongRead| wrong.in_short(|id| names[id as usize].clone(), token);
        let page = |wrong: &WrongRead| (wrong.reader, wrong.position / self.scenario.page_size);
        if let Some(first) = self.newest.first() {
            let in_page = self.newest.iter().filter(|wrong| page(wrong) == page(first));
            let words = |wrong: &WrongRead| Some([word(wrong.reader.at(wrong.position))?, word(wrong.found?)?]);
            let begin = first.position - first.position % self.scenario.page_size;
            let before = text(first.reader.sequence, 0..begin);
            self.slots = (before.unwrap_or_default(), in_page.filter_map(words).collect());
        }
        self.first = self.first.take().or_else(|| self.newest.first().map(describe));
        Ok(())
    }

    /// What the page shows of it: who shares which page by mistake, what one holds, for how many characters each story is the
    /// right one, and how the first that isn't should have gone on.
    pub fn view(&self, view: &PoolView) -> Value {
        let page = |address: RowAddress| {
            let sequence = view.sequences.iter().find(|sequence| sequence.id == address.sequence)?;
            sequence.pages.get(address.position / view.page_size).copied()
        };
        let mut pages = BTreeMap::<u32, BTreeSet<u64>>::new();
        for wrong in &self.newest {
            let owners = [Some(wrong.reader), wrong.found].into_iter().flatten().map(|address| address.sequence);
            if let Some(page) = wrong.address.and_then(page) {
                pages.entry(page).or_default().extend(owners);
            }
        }
        let texts =
            view.sequences.iter().map(|it| (it.id, &it.text)).chain(view.finished.iter().map(|it| (it.id, &it.text)));
        let (mut agree, mut instead) = (serde_json::Map::new(), Value::Null);
        for (id, text) in texts {
            let right = self.texts.get(&id).map_or("", String::as_str);
            let common: String = text.chars().zip(right.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
            let (same, from) = (common.encode_utf16().count(), common.rfind(' ').unwrap_or(0));
            if common.len() < text.len() && instead.is_null() {
                let words: Vec<_> = right[from..].split_whitespace().take(6).collect();
                instead = json!({ "name": self.scenario.names()[id as usize], "text": words.join(" ") });
            }
            agree.insert(id.to_string(), json!(same));
        }
        json!({ "n": self.n_wrong, "first": self.first, "pages": pages, "before": self.slots.0, "slots": self.slots.1, "agree": agree, "instead": instead })
    }
}
