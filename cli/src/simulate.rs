//! `simulate`: the scheduler in a world that a seed makes up.

use std::panic;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, builder::TypedValueParser};
use page_by_page::chapters::{Source, chapter};
use page_by_page::simulation::examples::{self, Outcome};
use page_by_page::simulation::planted::{Bug, Planted};
use page_by_page::simulation::{self, Event, Found, Make, Passed, Rule, chapter_12, is_inside, pulse, story};
use serde::Serialize;

use crate::output::{Progress, Table, count, print, print_pretty_json, say, thousands};
use crate::require;

/// The pool, its tables and slab, forks, the prefix cache, the scheduler; and what looks at them.
const CHAPTERS: [usize; 7] = [4, 5, 6, 10, 11, 12, 15];
/// More seeds or steps than this are better two runs.
const MOST: u64 = 1_000_000;
/// How long a scheduler can take for one event.
const LONGEST_EVENT: u32 = 20;

/// Try to break the scheduler: seeds make up worlds, and rules are checked after every event
///
/// In a world requests arrive, are cancelled and finish, and strangers take pages and give them back, all of it drawn by a seed.
/// After each event the rules of chapter 15 are checked. If one is broken, the events are shrunk to the few that matter and
/// printed as a story, and the command fails. The same seed gives the same story.
///
/// The scheduler is that of chapter 12, on chapters 4 to 11: your code where you have started, the reference elsewhere. Ten
/// planted ones can be tried in its place. Each has a bug that an engine had; then the command fails if no rule is broken.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page simulate
  page-by-page simulate --seed 7 --steps 500
  page-by-page simulate --planted cancel-leaks
  page-by-page simulate --planted all")]
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
    /// Try a planted scheduler, or all of them
    #[arg(long, value_name = "NAME", value_parser = which())]
    planted: Option<Which>,
    /// Check no rule: nine examples, then an ordinary day of M steps, and what comes out
    #[arg(long, conflicts_with_all = ["seeds", "seed"])]
    blind: bool,
    /// List the planted schedulers
    #[arg(long, conflicts_with_all = ["seeds", "steps", "seed", "planted", "blind"])]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One planted scheduler, or all.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    One(Bug),
    All,
}

fn which() -> impl TypedValueParser<Value = Which> {
    let names = Bug::ALL.iter().map(|bug| bug.name()).chain(["all"]);
    PossibleValuesParser::new(names.collect::<Vec<_>>()).map(|name| {
        let bug = Bug::ALL.into_iter().find(|bug| bug.name() == name);
        bug.map_or(Which::All, Which::One)
    })
}

/// The outcome for a scheduler.
#[derive(Serialize)]
struct Report {
    scheduler: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reported: Option<&'static str>,
    seeds: u64,
    steps: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Broken>,
}

/// A rule that was broken, and how.
#[derive(Serialize)]
struct Broken {
    seed: u64,
    rule: Rule,
    seen: String,
    step: u64,
    events: usize,
    shrunk_to: usize,
    runs: u64,
    shrunk: Vec<Event>,
    story: String,
}

/// An ordinary day, without rules.
#[derive(Serialize)]
struct Day {
    scheduler: String,
    examples: usize,
    examples_right: usize,
    days: Vec<Sight>,
}

/// What there is after a number of steps.
#[derive(Serialize)]
struct Sight {
    steps: u64,
    ended: u64,
    wrong: u64,
    pages_lost: usize,
}

impl Simulate {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if self.list {
            return self.list();
        }
        require::chapters(&CHAPTERS[..if self.blind { 6 } else { 7 }])?;
        for (option, number) in [("--seeds", self.seeds), ("--steps", self.steps)] {
            require::in_range(number, MOST, option, "it")?;
        }
        be_quiet_inside();
        end_if_nothing_happens();
        match (self.blind, self.planted) {
            (true, Some(Which::All)) => {
                bail!("--blind shows one scheduler: name one of those that `simulate --list` lists")
            }
            (true, Some(Which::One(bug))) => self.blind(&named(bug), &make(bug)),
            (true, None) => self.blind(&whose(), &chapter_12),
            (false, Some(Which::All)) => self.all(),
            (false, Some(Which::One(bug))) => self.one(bug),
            (false, None) => self.chapter_12(),
        }
    }

    fn list(&self) -> Result<()> {
        if self.json {
            #[derive(Serialize)]
            struct Listed {
                name: &'static str,
                reported: &'static str,
                about: &'static str,
            }
            let list = Bug::ALL.map(|bug| Listed { name: bug.name(), reported: bug.reported(), about: bug.about() });
            return print_pretty_json(&list);
        }
        let mut table = Table::new(3, &["name", "reported in", "what it does"]);
        for bug in Bug::ALL {
            table.line([bug.name(), bug.reported(), bug.about()]);
        }
        print(&table.render())
    }

    /// Tries seeds.
    fn search(&self, make: &Make<'_>, progress: &Progress) -> Result<Passed, Box<Found>> {
        let seeds = match self.seed {
            Some(seed) => seed..=seed,
            None => 0..=self.seeds - 1,
        };
        simulation::search(make, seeds, self.steps, || progress.advance(1))
    }

    fn progress(&self) -> Progress {
        Progress::new("simulating", if self.seed.is_some() { 1 } else { self.seeds })
    }

    fn report(
        &self,
        scheduler: String,
        bug: Option<Bug>,
        make: &Make<'_>,
        outcome: &Result<Passed, Box<Found>>,
    ) -> Report {
        let passed = outcome.as_ref().map_or_else(|found| found.passed, |passed| *passed);
        let found = outcome.as_ref().err().map(|found| Broken {
            seed: found.seed,
            rule: found.failure.violation.rule,
            seen: found.failure.violation.words.clone(),
            step: found.failure.step,
            events: found.events,
            shrunk_to: found.case.events.len(),
            runs: found.runs,
            shrunk: found.case.events.clone(),
            story: story(make, &found.case, &found.shrunk),
        });
        let reported = bug.map(Bug::reported);
        Report { scheduler, reported, seeds: passed.seeds, steps: passed.steps, found }
    }

    fn chapter_12(&self) -> Result<()> {
        let outcome = self.search(&chapter_12, &self.progress());
        let report = self.report(whose(), None, &chapter_12, &outcome);
        self.show(&report)?;
        match &report.found {
            Some(broken) => bail!("a rule is broken ({}): the story above says how", broken.rule),
            None => Ok(()),
        }
    }

    fn one(&self, bug: Bug) -> Result<()> {
        let make = make(bug);
        let outcome = self.search(&make, &self.progress());
        let report = self.report(named(bug), Some(bug), &make, &outcome);
        self.show(&report)?;
        match &report.found {
            Some(_) => Ok(()),
            None => bail!("{} is wrong, and no rule is broken; try more seeds, or more steps", bug.name()),
        }
    }

    fn all(&self) -> Result<()> {
        let progress = self.progress();
        let reports = Bug::ALL.map(|bug| {
            let make = make(bug);
            let outcome = self.search(&make, &progress);
            self.report(named(bug), Some(bug), &make, &outcome)
        });
        drop(progress);
        if self.json {
            print_pretty_json(&reports)?;
        } else {
            let mut table = Table::new(
                3,
                &["planted", "reported in", "rule broken", "seed", "step", "events", "shrunk to", "runs"],
            );
            for (bug, report) in Bug::ALL.into_iter().zip(&reports) {
                let (name, reported) = (bug.name().to_string(), bug.reported().to_string());
                match &report.found {
                    Some(broken) => table.line([
                        name,
                        reported,
                        broken.rule.to_string(),
                        thousands(broken.seed),
                        thousands(broken.step),
                        thousands(broken.events as u64),
                        thousands(broken.shrunk_to as u64),
                        thousands(broken.runs),
                    ]),
                    None => table.line([name, reported, "none".into()]),
                }
            }
            print(&table.render())?;
        }
        let alive = reports.iter().filter(|report| report.found.is_none()).count();
        if alive > 0 {
            bail!("no rule is broken by {alive} of {}; try more seeds, or more steps", Bug::ALL.len());
        }
        Ok(())
    }

    fn show(&self, report: &Report) -> Result<()> {
        if self.json {
            return print_pretty_json(report);
        }
        let (seeds, steps) = (count(report.seeds as usize, "seed"), count(report.steps as usize, "step"));
        let Some(broken) = &report.found else {
            return print(&format!("{}\n{seeds}, {steps}: no rule is broken\n", report.scheduler));
        };
        let planted = self.planted.map_or(String::new(), |which| match which {
            Which::One(bug) => format!(" --planted {}", bug.name()),
            Which::All => String::new(),
        });
        print(&format!(
            "{}\nseed {}, step {}: {} (rule: {})\n{}, shrunk to {} in {}\n\n{}\nagain: cargo run --release --features solution -- simulate{planted} --seed {} --steps {}\n",
            report.scheduler,
            broken.seed,
            thousands(broken.step),
            broken.seen,
            broken.rule,
            count(broken.events, "event"),
            thousands(broken.shrunk_to as u64),
            count(broken.runs as usize, "run"),
            broken.story,
            broken.seed,
            self.steps,
        ))
    }

    /// What a user sees, and an operator.
    fn blind(&self, scheduler: &str, make: &Make<'_>) -> Result<()> {
        let examples = examples::all().len();
        let (right, first_wrong) = match examples::pass(make) {
            Ok(right) => (right, None),
            Err(wrong) => (0, Some(wrong)),
        };
        let every = self.steps.div_ceil(6).max(1);
        let day = examples::day(self.steps);
        let n_pages = day.setup.n_pages;
        let mut days = Vec::new();
        let watched = examples::watch(make, &day, |outcome: &Outcome| {
            if outcome.steps.is_multiple_of(every) || outcome.steps == self.steps {
                let Outcome { steps, ended, wrong, lost, .. } = *outcome;
                days.push(Sight { steps, ended, wrong, pages_lost: lost });
            }
        });
        if self.json {
            let scheduler = scheduler.to_string();
            let day = Day { scheduler, examples, examples_right: right, days };
            print_pretty_json(&day)?;
        } else {
            let about = match first_wrong {
                None => format!("examples right: {right} of {examples}"),
                Some(wrong) => format!("an example is wrong: {wrong}"),
            };
            let mut table = Table::new(0, &["steps", "finished", "wrong", &format!("pages lost, of {n_pages}")]);
            for Sight { steps, ended, wrong, pages_lost } in &days {
                table.line([*steps, *ended, *wrong, *pages_lost as u64].map(thousands));
            }
            print(&format!("{scheduler}\n{about}\n\n{}", table.render()))?;
        }
        watched.map(drop).map_err(anyhow::Error::from)
    }
}

/// Makes a planted scheduler.
fn make(bug: Bug) -> Box<Make<'static>> {
    Box::new(move |slab, prefixes, limits| Planted::subject(Some(bug), slab, prefixes, limits))
}

fn named(bug: Bug) -> String {
    format!("{} ({}): {}", bug.name(), bug.reported(), bug.about())
}

/// Whose scheduler it is.
fn whose() -> String {
    let yours: Vec<String> =
        CHAPTERS.iter().filter(|number| chapter(**number).source == Source::Yours).map(usize::to_string).collect();
    match yours.len() {
        0 => "the scheduler of chapter 12: the reference".into(),
        1 => format!("the scheduler of chapter 12; chapter {} is yours", yours[0]),
        _ => format!("the scheduler of chapter 12; chapters {} are yours", yours.join(", ")),
    }
}

/// A panic of a scheduler is reported as a broken rule.
fn be_quiet_inside() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_inside() {
            usual(panic);
        }
    }));
}

/// Ends the program if a scheduler never comes back.
fn end_if_nothing_happens() {
    thread::spawn(|| {
        let (mut last, mut silent) = (pulse(), 0);
        loop {
            thread::sleep(Duration::from_secs(1));
            let now = pulse();
            silent = if now == last { silent + 1 } else { 0 };
            last = now;
            if silent > LONGEST_EVENT {
                say(&format!(
                    "error: nothing has happened for {LONGEST_EVENT} seconds: does a loop of chapter 12 or 15 never end? run \
                     their checks"
                ));
                std::process::exit(1);
            }
        }
    });
}
