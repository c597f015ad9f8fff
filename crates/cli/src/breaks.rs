//! `break`: a mistake is switched on, and what it does is shown beside what is right.

use anyhow::{Context, Result};
use clap::Args;
use page_by_page::chapters::{Source, chapter as compiled};
use page_by_page::english::wrapped;
use page_by_page::experiments::mistakes::{self, Effect, Mistake, Scenario, ScenarioOutput, ScenarioRunner};
use page_by_page::experiments::shrunk_events;

use crate::output::{Table, print};
use crate::requirements;

/// Columns of each side, unless a line on the left is longer.
const COLUMNS: usize = 38;

/// Switch a mistake on, and see what it does to a story or to a bill
///
/// Without a name it lists the mistakes. Each breaks one thing that must hold. All stories, whatever their chapter, are told
/// with your code of chapters 4 to 7 wherever you have written it, and what it returns is checked: the first row that
/// attention should not have read is named. The last line says whose code ran.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page break
  cargo page break one-page-twice
  cargo page break oldest-victim")]
pub struct Break {
    /// The mistake
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

impl Break {
    pub fn run(self) -> Result<()> {
        let Some(name) = self.name else { return print(&list()) };
        let mistake = mistakes::all().into_iter().find(|mistake| mistake.name == name);
        let mistake =
            mistake.with_context(|| format!("no mistake is called {name:?}; `cargo page break` lists them"))?;
        let Mistake { chapter, about, invariant, chapters: run, .. } = mistake;
        requirements::ensure_written(run)?;
        let shown = match mistake.effect {
            Effect::Events(bug) => shrunk_events(bug) + "\n",
            Effect::Cost(cost) => {
                let [right, broken] = cost()?;
                let is_yours = compiled(chapter).source == Source::Yours;
                beside(if is_yours { "your code" } else { "right" }, &right, &broken) + "\n"
            }
            Effect::Forgetful(scenario) => told(&mistake, &scenario, |runner| runner.run_forgetful(&scenario))?,
            Effect::Story(scenario, fault) => told(&mistake, &scenario, |runner| runner.run(&scenario, Some(fault)))?,
        };
        let whose = requirements::describe(run);
        print(&format!("chapter {chapter}: {about}\nbreaks: {invariant}\n\n{shown}chapters          {whose}\n"))
    }
}

fn list() -> String {
    let mut table = Table::new(3, &["chapter", "mistake", "what it does"]);
    for Mistake { chapter, name, about, .. } in mistakes::all() {
        table.line([chapter.to_string().as_str(), name, about]);
    }
    table.render() + "\n`cargo page break one-page-twice` switches one on.\n"
}

/// The stories of all sequences side by side, and what was read wrongly first. `tell`: with the mistake.
fn told(
    mistake: &Mistake,
    scenario: &Scenario,
    tell: impl FnOnce(&ScenarioRunner) -> Result<ScenarioOutput>,
) -> Result<String> {
    let runner = ScenarioRunner::open()?;
    let (right, broken) = (runner.run(scenario, None)?, tell(&runner)?);
    let mut shown = String::new();
    for ((name, right), broken) in right.names.iter().zip(&right.texts).zip(&broken.texts) {
        let same =
            right.split_whitespace().zip(broken.split_whitespace()).take_while(|(right, broken)| right == broken);
        shown += &beside(name, &wrapped(right, COLUMNS), &wrapped(broken, COLUMNS));
        shown += &match right == broken {
            true => format!("{name}: the same\n\n"),
            false => format!("{name}: another story from word {} on\n\n", same.count() + 1),
        };
    }
    shown += &match (&broken.wrong, mistake.effect) {
        (Some((first, n)), _) => format!("first wrong read  {first}\nin all            {n}\n"),
        (None, Effect::Forgetful(_)) => "no row was read: there was no cache\n".into(),
        (None, _) => "each row was the one that it should be, with other numbers in it\n".into(),
    };
    if let Some((first, n)) = &right.wrong {
        shown += &format!("without the mistake, your code already reads wrongly {n} times: {first}\n");
    }
    Ok(shown)
}

fn beside(name: &str, right: &[String], broken: &[String]) -> String {
    let columns = right.iter().map(|line| line.chars().count()).fold(COLUMNS, usize::max);
    let line = |left: &str, right: &str| format!("{left:<columns$}  │ {right}").trim_end().to_string() + "\n";
    let lines = (0..right.len().max(broken.len())).map(|index| {
        let [right, broken] = [right, broken].map(|lines| lines.get(index).map_or("", String::as_str));
        line(right, broken)
    });
    line(&format!("[{name}]"), "[with the mistake]") + &lines.collect::<String>()
}
