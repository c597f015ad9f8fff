//! Home: the lists of two stories, and the page that went to both.

use page_by_page::experiments::mistakes::{self, Effect, Scenario, ScenarioRunner};

use super::prelude::*;
use crate::slab::pages_of_words;

const PAGE: usize = 1;

/// The tokens of a page of this text, each as a word, and what they are together.
fn words(text: &str, page_size: usize) -> Result<(Vec<String>, String)> {
    let tokenizer = tokenizer()?;
    let tokens = tokenizer.encode(text)?;
    let page = &tokens[PAGE * page_size..][..page_size];
    let words = page.iter().map(|token| Ok(tokenizer.token(*token)?.trim().into()));
    Ok((words.collect::<Result<_>>()?, tokenizer.decode(page)?))
}

fn draw(picture: &mut Picture, title: &str, lists: [(char, [Cell; 2]); 2], page: &[Cell], stories: [&str; 2]) {
    picture.heading(title, "");
    picture.labelled("A\u{2019}s list");
    for (name, cells) in lists {
        picture.row(&format!("{name}\u{2019}s list"), "", 2, cells);
    }
    picture.labelled("");
    let slots = |half: usize| format!("notes in page {PAGE}, slots {} to {}", 4 * half, 4 * half + 3);
    pages_of_words(picture, slots, 4, page.to_vec());
    for (name, story) in ["A", "B"].iter().zip(stories) {
        picture.text(
            picture.left,
            picture.y + 13.0,
            Anchor::Start,
            format!("{name}\u{2019}s story: a{story} \u{2026}"),
        );
        picture.y += 18.0;
    }
}

pub fn figure() -> Result<Figure> {
    let mistake = mistakes::all().into_iter().find(|mistake| mistake.name == "one-page-twice").context("a mistake")?;
    let Effect::Story(scenario, fault) = mistake.effect else { anyhow::bail!("no story shows it") };
    let Scenario { page_size, .. } = scenario;
    let runner = ScenarioRunner::open()?;
    let [right, broken] = [None, Some(fault)].map(|mistake| runner.run(&scenario, mistake));
    let (right, broken) = (right?, broken?);
    let [wolf, princess, told] =
        [&right.texts[0], &right.texts[1], &broken.texts[0]].map(|text| words(text, page_size));
    let ((wolf, right_a), (princess, b), (told, broken_a)) = (wolf?, princess?, told?);
    ensure!(told[1..] == princess[1..], "the wolf goes on as the princess does");
    let begins = |page: usize, word: &str| format!("{page}: {word} \u{2026}");
    let lists = |a: Cell, b: Cell| {
        [('A', [held('a', begins(0, "Once upon")), a]), ('B', [held('b', begins(2, "Once upon")), b])]
    };
    let one_page = shared(&['a', 'b'], PAGE);
    let own: Vec<Cell> = wolf.iter().map(|word| held('a', word)).collect();
    // On both lists, A's notes lie there first, and then B's.
    let [before, after] = [('a', &told), ('b', &princess)]
        .map(|(name, words)| words.iter().map(|word| held(name, word)).collect::<Vec<_>>());
    let mut figure = Figure {
        label: format!(
            "On the left, A\u{2019}s list has pages 0 and {PAGE}, and B\u{2019}s list pages 2 and 3. Page {PAGE} holds {}. On the \
             right, both lists end with page {PAGE}. It held {}, which has been overwritten, slot by slot, by {}.",
            wolf.join(" "),
            told.join(" "),
            princess.join(" ")
        ),
        headline: "One page on two lists, and A\u{2019}s wolf \u{201c}who had only one son\u{201d} is one \u{201c}who had no one to marry\u{201d}.".into(),
        setup: "A tells of the wolf and B of the princess. A slot is marked with the word whose numbers lie in it."
            .into(),
        legend: vec![(shared(&['a', 'b'], ""), "one page on two lists")],
        outline: Some("B has written over A\u{2019}s note"),
        ..Figure::default()
    };
    let both = |picture: &mut Picture, page: &[Cell]| {
        picture.beside(2, |picture, side| match side {
            0 => draw(
                picture,
                "as it should be",
                lists(held('a', begins(PAGE, &wolf[0])), held('b', begins(3, &princess[0]))),
                &own,
                [&right_a, &b],
            ),
            _ => draw(
                picture,
                "page 1 on both lists: B overwrites A",
                lists(one_page.clone(), one_page.clone()),
                page,
                [&broken_a, &b],
            ),
        });
    };
    figure.starts_from(|picture| both(picture, &before));
    Ok(figure.still(|picture| both(picture, &after)))
}
