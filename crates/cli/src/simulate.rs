//! `simulate`: the scheduler in a world that a seed makes up.

use std::panic;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use page_by_page::chapters::Source;
use page_by_page::simulation::buggy_scheduler::{Bug, with_bug};
use page_by_page::simulation::examples;
use page_by_page::simulation::{
    self, Counterexample, Passed, SchedulerFactory, event_log, heartbeat, in_scheduler_call, new_scheduler,
};

use crate::options::ensure_in_range;
use crate::output::{Progress, Table, plural, print, say, thousands};
use crate::requirements::{self, SCHEDULER, SIMULATION};

/// More seeds or steps than this are better two runs.
const MAX: u64 = 1_000_000;
/// How long a scheduler can take for one event, in seconds.
const MAX_SECONDS: u32 = 20;

/// Try to break the scheduler: seeds make up worlds, and rules are checked after every event
///
/// In a world requests arrive, are cancelled and finish, and strangers take pages and give them back, all of it drawn
/// by a seed. After each event the rules of chapter 15 are checked. If one is broken, the events are shrunk to the few
/// that matter and printed as a story, and the command fails. The same seed gives the same story.
///
/// The scheduler is that of chapter 12, on chapters 4 to 11: your code where you have started, the reference elsewhere.
/// With `--bug`, one with a bug that an engine had takes its place; then the command fails if no rule is broken.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page simulate
  cargo page simulate --seed 7 --steps 500
  cargo page simulate --bug cancel-leaks
  cargo page simulate --bug all")]
pub struct Simulate {
    /// Worlds to try, seeds 0 to N - 1, at most 1,000,000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// Steps in each, at most 1,000,000
    #[arg(long, value_name = "M", default_value_t = 100)]
    steps: u64,
    /// Try this seed only
    #[arg(long, value_name = "S", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Try a scheduler with this bug, or all of them
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Bug::all().map(Bug::name).into_iter().chain(["all"])))]
    bug: Option<String>,
    /// Check no rule: nine examples, then an ordinary day of M steps, and what comes out
    #[arg(long, conflicts_with_all = ["seeds", "seed"])]
    blind: bool,
}

type SearchResult = Result<Passed, Box<Counterexample>>;

impl Simulate {
    pub fn run(self) -> Result<()> {
        requirements::ensure_started(if self.blind { &SCHEDULER } else { &SIMULATION })?;
        for (option, number) in [("--seeds", self.seeds), ("--steps", self.steps)] {
            ensure_in_range(number, MAX, option, "it")?;
        }
        be_quiet_in_scheduler_calls();
        end_if_nothing_happens();
        let bugs: Vec<Option<Bug>> = match self.bug.as_deref() {
            None => vec![None],
            Some(name) => Bug::all().into_iter().filter(|bug| [bug.name(), "all"].contains(&name)).map(Some).collect(),
        };
        match bugs[..] {
            [bug] if self.blind => self.blind(bug),
            _ if self.blind => {
                bail!("--blind shows one scheduler: name one of those that `simulate --bug all` lists")
            }
            _ => self.search(&bugs),
        }
    }

    /// Tries seeds with each of these. An error if chapter 12's scheduler breaks a rule, or one with a bug breaks none.
    fn search(&self, bugs: &[Option<Bug>]) -> Result<()> {
        let progress = Progress::new("simulating", if self.seed.is_some() { 1 } else { self.seeds });
        let seeds = || self.seed.map_or(0..=self.seeds - 1, |seed| seed..=seed);
        let search =
            |bug: &Option<Bug>| simulation::search(&*factory(*bug), seeds(), self.steps, || progress.advance(1));
        let outcomes: Vec<SearchResult> = bugs.iter().map(search).collect();
        drop(progress);
        match &outcomes[..] {
            [outcome] => self.show(bugs[0], outcome)?,
            all => show_all(all)?,
        }
        let alive = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        match self.bug {
            None if alive == 0 => bail!("a rule is broken: the story above says how"),
            Some(_) if alive > 0 => {
                bail!("no rule is broken by {alive} of {}; try more seeds, or more steps", outcomes.len())
            }
            _ => Ok(()),
        }
    }

    fn show(&self, bug: Option<Bug>, outcome: &SearchResult) -> Result<()> {
        let found = match outcome {
            Ok(Passed { seeds, steps, .. }) => {
                let (seeds, steps) = (plural(*seeds, "seed"), plural(*steps, "step"));
                return print(&format!("{}\n{seeds}, {steps}: no rule is broken\n", name(bug)));
            }
            Err(found) => found,
        };
        let option = bug.map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
        let Counterexample { seed, failure, case, shrunk, .. } = &**found;
        let (step, violation) = (thousands(failure.step), &failure.violation);
        let (events, runs) = (plural(found.events, "event"), plural(found.runs, "run"));
        print(&format!(
            "{}\nseed {seed}, step {step}: {} (rule: {})\n{events}, shrunk to {} in {runs}\n\n{}\n\
             again: cargo page simulate{option} --seed {seed} --steps {}\n",
            name(bug),
            violation.message,
            violation.rule,
            thousands(case.events.len()),
            event_log(&*factory(bug), case, shrunk),
            self.steps,
        ))
    }

    /// Shows what a client sees of a scheduler, and an operator.
    fn blind(&self, bug: Option<Bug>) -> Result<()> {
        let factory = factory(bug);
        let every = self.steps.div_ceil(6).max(1);
        let day = examples::day(self.steps);
        let lost = format!("pages lost, of {}", day.setup.n_pages);
        let mut table = Table::new(0, &["steps", "finished", "wrong", &lost]);
        let replayed = examples::replay(&*factory, &day, |outcome| {
            if outcome.steps.is_multiple_of(every) || outcome.steps == self.steps {
                let examples::Outcome { steps, ended, wrong, lost, .. } = *outcome;
                table.line([steps, ended, wrong, lost as u64].map(thousands));
            }
        });
        let about = match examples::pass(&*factory) {
            Ok(right) => format!("examples right: {right} of {}", examples::all().len()),
            Err(wrong) => format!("an example is wrong: {wrong}"),
        };
        print(&format!("{}\n{about}\n\n{}", name(bug), table.render()))?;
        replayed.map(drop).map_err(anyhow::Error::from)
    }
}

/// A line for each of the schedulers with a bug.
fn show_all(outcomes: &[SearchResult]) -> Result<()> {
    let heading = ["bug", "reported in", "rule broken", "seed", "step", "events", "shrunk to", "runs"];
    let mut table = Table::new(3, &heading);
    for (bug, outcome) in Bug::all().into_iter().zip(outcomes) {
        let mut line = vec![bug.name().to_string(), bug.reported_in().to_string()];
        match outcome {
            Err(found) => {
                let (failure, shrunk_to) = (&found.failure, found.case.events.len() as u64);
                line.push(failure.violation.rule.to_string());
                line.extend([found.seed, failure.step, found.events as u64, shrunk_to, found.runs].map(thousands));
            }
            Ok(_) => line.push("none".into()),
        }
        table.line(line);
    }
    print(&table.render())
}

/// Makes a scheduler with this bug, or that of chapter 12.
fn factory(bug: Option<Bug>) -> Box<SchedulerFactory<'static>> {
    match bug {
        Some(_) => with_bug(bug),
        None => Box::new(new_scheduler),
    }
}

/// The heading: the bug, or whose code chapter 12 is.
fn name(bug: Option<Bug>) -> String {
    if let Some(bug) = bug {
        return format!("{} ({}): {}", bug.name(), bug.reported_in(), bug.about());
    }
    let run = requirements::with_dependencies(&SIMULATION).into_iter();
    let yours: Vec<String> =
        run.filter(|chapter| chapter.source == Source::Yours).map(|chapter| chapter.number.to_string()).collect();
    if yours.is_empty() {
        return "the scheduler of chapter 12: the reference".into();
    }
    format!("the scheduler of chapter 12; yours: {}", yours.join(", "))
}

/// A panic of a scheduler is reported as a broken rule.
fn be_quiet_in_scheduler_calls() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !in_scheduler_call() {
            usual(panic);
        }
    }));
}

/// Ends the program if a scheduler never returns.
fn end_if_nothing_happens() {
    thread::spawn(|| {
        let (mut last, mut silent) = (heartbeat(), 0);
        while silent <= MAX_SECONDS {
            thread::sleep(Duration::from_secs(1));
            let now = heartbeat();
            silent = if now == last { silent + 1 } else { 0 };
            last = now;
        }
        say(&format!(
            "error: nothing has happened for {MAX_SECONDS} seconds: does a loop of chapter 12 or 15 never end? run \
             their checks"
        ));
        std::process::exit(1);
    });
}
