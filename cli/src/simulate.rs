//! `simulate`: the scheduler in a world that a seed makes up.

use std::panic;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use page_by_page::chapters::{Source, chapter};
use page_by_page::simulation::examples;
use page_by_page::simulation::planted::{Bug, Planted};
use page_by_page::simulation::{self, Event, Make, Passed, Rule, chapter_12, is_inside, pulse, story};
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
    #[arg(long, value_name = "NAME", value_parser = planted())]
    planted: Option<&'static [Bug]>,
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

/// One planted scheduler by its name, or `all` of them.
fn planted() -> impl TypedValueParser<Value = &'static [Bug]> {
    let names = Bug::ALL.iter().map(|bug| bug.name()).chain(["all"]);
    PossibleValuesParser::new(names.collect::<Vec<_>>()).map(|name| {
        let one = Bug::ALL.iter().position(|bug| bug.name() == name);
        one.map_or(&Bug::ALL[..], |place| &Bug::ALL[place..=place])
    })
}

/// The outcome for a scheduler.
#[derive(Serialize)]
struct Report {
    /// `None`: that of chapter 12.
    #[serde(skip)]
    bug: Option<Bug>,
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
        let bugs = self.planted.map_or(vec![None], |bugs| bugs.iter().copied().map(Some).collect());
        match bugs[..] {
            [bug] if self.blind => self.blind(bug),
            _ if self.blind => bail!("--blind shows one scheduler: name one of those that `simulate --list` lists"),
            _ => self.search(&bugs),
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

    /// Tries seeds with each of these schedulers. An error if a rule is broken by that of chapter 12, or not by a planted one.
    fn search(&self, bugs: &[Option<Bug>]) -> Result<()> {
        let progress = Progress::new("simulating", if self.seed.is_some() { 1 } else { self.seeds });
        let reports: Vec<Report> = bugs.iter().map(|bug| self.report(*bug, &progress)).collect();
        drop(progress);
        match &reports[..] {
            [report] if self.json => print_pretty_json(report)?,
            [report] => self.show(report)?,
            all if self.json => print_pretty_json(&all)?,
            all => show_all(all)?,
        }
        let alive = reports.iter().filter(|report| report.found.is_none()).count();
        match (&reports[..], alive) {
            ([Report { bug: None, found: Some(broken), .. }], _) => {
                bail!("a rule is broken ({}): the story above says how", broken.rule)
            }
            ([Report { bug: None, .. }], _) | (_, 0) => Ok(()),
            ([Report { bug: Some(bug), .. }], _) => {
                bail!("{} is wrong, and no rule is broken; try more seeds, or more steps", bug.name())
            }
            _ => bail!("no rule is broken by {alive} of {}; try more seeds, or more steps", Bug::ALL.len()),
        }
    }

    fn report(&self, bug: Option<Bug>, progress: &Progress) -> Report {
        let make = make(bug);
        let seeds = self.seed.map_or(0..=self.seeds - 1, |seed| seed..=seed);
        let outcome = simulation::search(&*make, seeds, self.steps, || progress.advance(1));
        let Passed { seeds, steps, .. } = outcome.as_ref().map_or_else(|found| found.passed, |passed| *passed);
        let found = outcome.err().map(|found| Broken {
            seed: found.seed,
            rule: found.failure.violation.rule,
            seen: found.failure.violation.words.clone(),
            step: found.failure.step,
            events: found.events,
            shrunk_to: found.case.events.len(),
            runs: found.runs,
            story: story(&*make, &found.case, &found.shrunk),
            shrunk: found.case.events,
        });
        Report { bug, scheduler: name(bug), reported: bug.map(Bug::reported), seeds, steps, found }
    }

    fn show(&self, report: &Report) -> Result<()> {
        let (seeds, steps) = (count(report.seeds, "seed"), count(report.steps, "step"));
        let Some(broken) = &report.found else {
            return print(&format!("{}\n{seeds}, {steps}: no rule is broken\n", report.scheduler));
        };
        let planted = report.bug.map_or(String::new(), |bug| format!(" --planted {}", bug.name()));
        print(&format!(
            "{}\nseed {}, step {}: {} (rule: {})\n{}, shrunk to {} in {}\n\n{}\nagain: cargo run --release --features solution -- simulate{planted} --seed {} --steps {}\n",
            report.scheduler,
            broken.seed,
            thousands(broken.step),
            broken.seen,
            broken.rule,
            count(broken.events, "event"),
            thousands(broken.shrunk_to),
            count(broken.runs, "run"),
            broken.story,
            broken.seed,
            self.steps,
        ))
    }

    /// Shows what a client sees of a scheduler, and an operator.
    fn blind(&self, bug: Option<Bug>) -> Result<()> {
        let (make, scheduler) = (make(bug), name(bug));
        let examples = examples::all().len();
        let (right, first_wrong) = match examples::pass(&*make) {
            Ok(right) => (right, None),
            Err(wrong) => (0, Some(wrong)),
        };
        let every = self.steps.div_ceil(6).max(1);
        let day = examples::day(self.steps);
        let mut days = Vec::new();
        let watched = examples::watch(&*make, &day, |outcome| {
            if outcome.steps.is_multiple_of(every) || outcome.steps == self.steps {
                let examples::Outcome { steps, ended, wrong, lost, .. } = *outcome;
                days.push(Sight { steps, ended, wrong, pages_lost: lost });
            }
        });
        if self.json {
            print_pretty_json(&Day { scheduler, examples, examples_right: right, days })?;
        } else {
            let about = match first_wrong {
                None => format!("examples right: {right} of {examples}"),
                Some(wrong) => format!("an example is wrong: {wrong}"),
            };
            let lost = format!("pages lost, of {}", day.setup.n_pages);
            let mut table = Table::new(0, &["steps", "finished", "wrong", &lost]);
            for Sight { steps, ended, wrong, pages_lost } in &days {
                table.line([*steps, *ended, *wrong, *pages_lost as u64].map(thousands));
            }
            print(&format!("{scheduler}\n{about}\n\n{}", table.render()))?;
        }
        watched.map(drop).map_err(anyhow::Error::from)
    }
}

/// A line for each of the planted schedulers.
fn show_all(reports: &[Report]) -> Result<()> {
    let heading = ["planted", "reported in", "rule broken", "seed", "step", "events", "shrunk to", "runs"];
    let mut table = Table::new(3, &heading);
    for (bug, report) in Bug::ALL.into_iter().zip(reports) {
        let mut line = vec![bug.name().to_string(), bug.reported().to_string()];
        match &report.found {
            Some(Broken { rule, seed, step, events, shrunk_to, runs, .. }) => {
                line.push(rule.to_string());
                line.extend([*seed, *step, *events as u64, *shrunk_to as u64, *runs].map(thousands));
            }
            None => line.push("none".into()),
        }
        table.line(line);
    }
    print(&table.render())
}

/// Makes a planted scheduler, or that of chapter 12.
fn make(bug: Option<Bug>) -> Box<Make<'static>> {
    match bug {
        Some(_) => Box::new(move |slab, prefixes, limits| Planted::subject(bug, slab, prefixes, limits)),
        None => Box::new(chapter_12),
    }
}

/// What it is and what it does, or whose it is.
fn name(bug: Option<Bug>) -> String {
    if let Some(bug) = bug {
        return format!("{} ({}): {}", bug.name(), bug.reported(), bug.about());
    }
    let is_yours = |number: &&usize| chapter(**number).source == Source::Yours;
    let yours: Vec<String> = CHAPTERS.iter().filter(is_yours).map(usize::to_string).collect();
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

/// Ends the program if a scheduler never returns.
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
